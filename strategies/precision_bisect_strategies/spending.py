"""Spending the tolerance well: what cost too much, kept layers that would fit."""

import math

from precision_bisect.protocols import Search
from precision_bisect.trial import Proposal
from precision_bisect_strategies.demotion import Demotion


def reconsider(state: Demotion) -> Search[None]:
    """Suspect groups again that run low, though what they added is no fair price any more."""
    price = state.price
    unfair = [each for each in state.lowered if not state.fair(*each, price)]
    if not unfair:
        return
    positions = [i for group, _ in unfair for i in group]
    (outcome,) = yield (
        Proposal(
            plan=state.with_(positions),
            reason=f"keep {len(positions)} of the low ones again: the ranking is not as good",
            narrowed_to=len(state.plan),
        ),
    )
    if outcome.passed:
        state.raise_again(unfair, outcome.error)


def refill(state: Demotion, *, fair: bool = False) -> Search[None]:
    """Spend what is left on the kept layers that add least: on all that should fit, or fewer.

    With `fair` on those only that add less than the price.
    """
    chosen = affordable(state, fair=fair)
    while chosen:
        tries = [chosen[: len(chosen) >> times] for times in range(state.workers)]
        tries = [some for some in tries if some]
        outcomes = yield tuple(_cheapest(state, some) for some in tries)
        passed = [pair for pair in zip(tries, outcomes, strict=True) if pair[1].passed]
        if passed:
            some, outcome = passed[0]
            state.plan, state.error = state.without(some), outcome.error
            state.lowered += [([i], state.kept.pop(i) or 0.0) for i in some]
            chosen = affordable(state, fair=fair)
        elif len(tries[-1]) == 1:
            state.kept[chosen[0]] = None
            chosen = affordable(state, fair=fair)
        else:
            chosen = chosen[: len(tries[-1]) // 2]


def affordable(state: Demotion, *, fair: bool = False) -> list[int]:
    """Return the cheapest kept positions that should fit into what is left together.

    With `fair` those only that add less than the price.
    """
    price = state.price if fair else math.inf
    measured = [(error, i) for i, error in state.measured.items()]
    measured.sort(key=lambda pair: (pair[0] / state.beliefs.cost([pair[1]]), pair[1]))
    chosen, left = [], state.room
    for error, position in measured:
        if error <= left < math.inf and error / state.beliefs.cost([position]) < price:
            chosen.append(position)
            left -= error
    return chosen


def _cheapest(state: Demotion, some: list[int]) -> Proposal:
    return Proposal(
        plan=state.without(some),
        reason=f"drop the {len(some)} cheapest of {len(state.plan)}",
        narrowed_to=len(state.plan),
    )
