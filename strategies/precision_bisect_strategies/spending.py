"""Spending the tolerance well: what cost too much, kept layers that would fit, exchanges."""

import math

from precision_bisect.protocols import Search
from precision_bisect.trial import Proposal
from precision_bisect_strategies.demotion import FAIR, Demotion


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


def exchange(state: Demotion) -> Search[None]:
    """Keep fewer layers in the place of a unit of several, where they likely add as much.

    A set of which nothing can be dropped need not be a smallest one: what a unit of many layers
    would add, one layer elsewhere may add, too.
    """
    waiting = sorted(state.kept, key=lambda i: (-len(state.order[i]), i))
    while offers := _offers(state, waiting):
        outcomes = yield tuple(_exchanging(state, *offer) for offer in offers)
        passed = [pair for pair in zip(offers, outcomes, strict=True) if pair[1].passed]
        if passed:
            (unit, instead), outcome = passed[0]
            state.plan = state.with_(instead).without(state.order[unit])
            state.error = outcome.error
            del state.kept[unit]
            state.kept |= dict.fromkeys(instead)
            state.lowered = [each for each in state.lowered if not {*instead} & {*each[0]}]
        waiting = [unit for (unit, _), _ in passed[1:]] + waiting


def _offers(state: Demotion, waiting: list[int]) -> list[tuple[int, list[int]]]:
    """Take units from those that wait, up to one for each worker that has an exchange."""
    offers: list[tuple[int, list[int]]] = []
    while waiting and len(offers) < state.workers:
        unit = waiting.pop(0)
        if instead := _instead(state, unit):
            offers.append((unit, instead))
    return offers


def _exchanging(state: Demotion, unit: int, instead: list[int]) -> Proposal:
    fewer = _layers(state, instead)
    return Proposal(
        plan=state.with_(instead).without(state.order[unit]),
        reason=f"keep {fewer} in the place of {len(state.order[unit])}",
        narrowed_to=len(state.plan),
    )


def _instead(state: Demotion, unit: int) -> list[int]:
    """Return low positions, fewer layers than a kept unit, that likely add what it must not.

    Returns none where builds would not be expected to save enough, or there are no figures: one
    tells whether it passes, and then what failed speaks for no layer any more that is kept.
    """
    size, added = len(state.order[unit]), state.kept[unit]
    if size == 1 or added is None or not state.room < math.inf:
        return []
    needed = added - state.room
    low = [i for group, total in state.lowered if total >= needed for i in group]
    expected = dict(zip(low, state.beliefs.expected(low), strict=True))
    chosen: list[int] = []
    for position in sorted(low, key=lambda i: (-expected[i] / len(state.order[i]), i)):
        chosen.append(position)
        saved = size - _layers(state, chosen)
        if saved <= 0:
            break
        chance = state.beliefs.reaches(chosen, needed)
        if chance * saved >= FAIR * (1 + chance * len(state.kept)):
            return chosen
    return []


def _layers(state: Demotion, group: list[int]) -> int:
    return sum(len(state.order[i]) for i in group)
