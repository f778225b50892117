"""Exchanges: fewer layers in the place of a kept unit of several."""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.trial import Outcome, Proposal
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.spending import refill

UNLIKELY = 0.02
"""An exchange is worth a build when it is expected to save so many layers, besides the drops whose
failing speaks for no layer any more. Chances are underrated: of single layers tried at 0.5% to 10%
8% were worth it."""
PATIENCE = 3
"""After so many exchanges in vain no others are tried."""


class Offer(NamedTuple):
    """A kept unit, and the low positions to keep in its place."""

    unit: int
    instead: tuple[int, ...]


def exchange(state: Demotion) -> Search[None]:
    """Keep fewer layers in the place of a unit of several, where they likely add as much.

    A set of which nothing can be dropped need not be a smallest one: what a unit of many layers
    would add, one layer elsewhere may add, too. A layer tried in vain is measured by that.
    """
    waiting = _largest_first(state)
    tried: set[Offer] = set()
    while len(tried) < PATIENCE and (offers := _offers(state, waiting, tried)):
        tried.update(offers)
        outcomes = yield tuple(_exchanging(state, offer) for offer in offers)
        pairs = list(zip(offers, outcomes, strict=True))
        for offer, outcome in pairs:
            if not outcome.passed:
                _measure(state, offer, outcome)
        passed = [pair for pair in pairs if pair[1].passed]
        if passed:
            _exchange(state, *passed[0])
            tried.clear()
            yield from refill(state)
            waiting = _largest_first(state)
        else:
            waiting = [offer.unit for offer in offers] + waiting


def _largest_first(state: Demotion) -> list[int]:
    return sorted(state.kept, key=lambda i: (-len(state.order[i]), i))


def _offers(state: Demotion, waiting: list[int], tried: Collection[Offer]) -> list[Offer]:
    """Take units from those that wait, up to one for each worker that has a new exchange."""
    offers: list[Offer] = []
    while waiting and len(offers) < state.workers:
        offer = _instead(state, waiting.pop(0), tried)
        if offer is not None:
            offers.append(offer)
    return offers


def _exchange(state: Demotion, offer: Offer, outcome: Outcome) -> None:
    """Go on from the plan in which others are kept than a unit."""
    state.plan, state.error = _exchanged(state, offer), outcome.error
    del state.kept[offer.unit]
    state.kept |= dict.fromkeys(offer.instead)
    gone = {*offer.instead}
    state.lowered = [each for each in state.lowered if gone.isdisjoint(each[0])]


def _measure(state: Demotion, offer: Offer, outcome: Outcome) -> None:
    """Note what a single layer adds that was kept in the place of a unit, and failed."""
    added = state.kept[offer.unit]
    if len(offer.instead) > 1 or added is None or state.error is None or outcome.error is None:
        return
    place = next((each for each in state.lowered if offer.instead[0] in each[0]), None)
    if place is None or not math.isfinite(outcome.error):
        return
    group, total = place
    part = min(max(state.error + added - outcome.error, 0.0), total)
    rest = [i for i in group if i not in offer.instead]
    state.lowered.remove(place)
    state.lowered += [([*offer.instead], part)] + ([(rest, total - part)] if rest else [])


def _exchanging(state: Demotion, offer: Offer) -> Proposal:
    fewer = _layers(state, offer.instead)
    return Proposal(
        plan=_exchanged(state, offer),
        reason=f"keep {fewer} in the place of {len(state.order[offer.unit])}",
        narrowed_to=len(state.plan),
    )


def _exchanged(state: Demotion, offer: Offer) -> Plan:
    return state.with_(offer.instead).without(state.order[offer.unit])


def _instead(state: Demotion, unit: int, tried: Collection[Offer]) -> Offer | None:
    """Return low positions, fewer layers than a kept unit, that likely add what it must not.

    The first single one, or else several, by what each likely adds for its layers; none of the
    `tried` ones. None where builds would not be expected to save enough, where the unit should fit
    without, or where there are no figures: a build tells whether it passes, and then what failed
    speaks for no layer any more that is kept.
    """
    size, added = len(state.order[unit]), state.kept[unit]
    if size == 1 or added is None or not state.room < added:
        return None
    needed = added - state.room
    low = [i for group, _ in state.lowered for i in group if len(state.order[i]) < size]
    expected = dict(zip(low, state.beliefs.expected(low), strict=True))
    expected |= {i: error for i, error in _known(state).items() if i in expected}
    low.sort(key=lambda i: (-expected[i] / len(state.order[i]), i))

    def offered(instead: Sequence[int], chance: float) -> Offer | None:
        offer = Offer(unit, tuple(instead))
        saved = chance * (size - _layers(state, instead))
        worth = saved >= UNLIKELY * (1 + chance * len(state.kept))
        return offer if worth and offer not in tried else None

    enough = {i for group, total in state.lowered if total >= needed for i in group}
    alone = [i for i in low if i in enough]
    for i, chance in zip(alone, state.beliefs.reach(alone, needed), strict=True):
        if offer := offered([i], chance):
            return offer
    for count in range(2, min(size - 1, len(low)) + 1):
        some = low[:count]
        if _layers(state, some) >= size:
            break
        if offer := offered(some, _reaching(state, some, needed)):
            return offer
    return None


def _known(state: Demotion) -> dict[int, float]:
    """Return what low positions add that were measured alone."""
    return {group[0]: total for group, total in state.lowered if len(group) == 1}


def _reaching(state: Demotion, group: Sequence[int], needed: float) -> float:
    """Return the chance that low positions add so much, those measured alone what they did."""
    known = _known(state)
    left = needed - sum(known.get(i, 0.0) for i in group)
    if left <= 0:
        return 1.0
    others = [i for i in group if i not in known]
    return state.beliefs.reaches(others, left) if others else 0.0


def _layers(state: Demotion, group: Sequence[int]) -> int:
    return sum(len(state.order[i]) for i in group)
