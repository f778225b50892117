"""Spending the tolerance well: kept layers that would fit, heavy ones among the low, exchanges."""

import math

from precision_bisect.protocols import Search
from precision_bisect.trial import Proposal
from precision_bisect_strategies.demotion import FAIR, Demotion

AUDIT = 0.25
"""A build that looks for a heavy layer among low ones is worth it when it saves so many."""
RELATIVE = 0.03
"""The same, as a share of the layers that are kept, where these are few."""


def audit(state: Demotion) -> Search[None]:
    """Look for heavy layers among those that run low, before the last ones are tested.

    The price has changed since their groups were taken. A group whose sum is too small holds
    none; others are halved, as long as a build is worth it.
    """
    while (price := state.price) < math.inf and (found := _heavy(state, price)):
        halves = [group[len(group) // 2 :] for group, _ in found]
        outcomes = yield tuple(
            Proposal(
                plan=state.with_(half),
                reason=f"how much {len(half)} of the low ones add",
                narrowed_to=len(state.plan),
            )
            for half in halves
        )
        base = state.error
        for (group, total), half, outcome in zip(found, halves, outcomes, strict=True):
            state.lowered.remove((group, total))
            if outcome.error is None or base is None or not outcome.passed:
                continue
            part = max(base - outcome.error, 0.0)
            rest = group[: -len(half)]
            if rest:
                state.lowered.append((rest, max(total - part, 0.0)))
            heavy = part >= (1 + FAIR) * price * state.beliefs.cost(half)
            if len(half) == 1 and heavy and state.error == base:
                state.kept[half[0]] = part
                state.plan, state.error = state.with_(half), outcome.error
            else:
                state.lowered.append((half, part))


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


def _heavy(state: Demotion, price: float) -> list[tuple[list[int], float]]:
    """Return the groups that most likely hold a layer above a price, where it is worth it."""
    few = RELATIVE * (len(state.kept) + len(state.pool))
    least = min(AUDIT, few)
    found = []
    for group, total in state.lowered:
        if total > 0:
            odds = state.beliefs.holds(group, total, price * (1 + FAIR))
            odds /= 1 + math.log2(len(group))
            if odds >= least:
                found.append((odds, group, total))
    found.sort(key=lambda each: (-each[0], each[1]))
    return [(group, total) for _, group, total in found[: state.workers]]


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
    measured = [(error, i) for i, error in state.kept.items() if error is not None]
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
