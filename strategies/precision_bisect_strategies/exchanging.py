"""Exchanges: fewer layers in the place of a kept unit of several.

A set of which nothing can be dropped need not be a smallest one: what a unit of many layers would
add, one layer elsewhere may add, too.
"""

import math
from typing import TypeAlias

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.trial import Outcome, Proposal
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.offers import offers, saved
from precision_bisect_strategies.parcels import Offer, Told, told
from precision_bisect_strategies.spending import refill

Tried: TypeAlias = tuple[Offer, Outcome]


def exchange(state: Demotion) -> Search[None]:
    """Keep fewer layers in the place of a unit of several, where they likely add as much."""
    known = told(state)
    while found := (yield from _found(state, known)):
        _exchange(state, *found)
        yield from refill(state)
        known.begin_anew(state)


def _found(state: Demotion, known: Told) -> Search[Tried | None]:
    """Return the exchange that saves most of those that passed; None if none saves enough.

    A single position ends it; several are divided as long as that should save more.
    """
    best: Tried | None = None
    most = 0.0
    while not (best and len(best[0].instead) == 1) and (chosen := offers(state, known)):
        outcomes = yield tuple(_exchanging(state, offer) for offer in chosen)
        pairs = list(zip(chosen, outcomes, strict=True))
        known.note([(offer, _added(state, offer, outcome)) for offer, outcome in pairs])
        for offer, outcome in pairs:
            if outcome.passed and saved(state, offer) > most:
                best, most = (offer, outcome), saved(state, offer)
    return best


def _added(state: Demotion, offer: Offer, outcome: Outcome) -> float | None:
    """Return what the positions add that were kept; None where that was not told."""
    unit = state.kept[offer.place.unit]
    if outcome.verdict is None or outcome.error is None or math.isnan(outcome.error):
        return None
    if unit is None or state.error is None:
        return None
    return max(state.error + unit - outcome.error, 0.0)


def _exchange(state: Demotion, offer: Offer, outcome: Outcome) -> None:
    """Go on from the plan in which others are kept than a unit."""
    added = _added(state, offer, outcome)
    state.plan, state.error = _exchanged(state, offer), outcome.error
    gone = {*offer.instead}
    lowered = []
    for group, total in state.lowered:
        rest = [i for i in group if i not in gone]
        left = total - (added or 0.0) if gone.issubset(group) else total
        lowered += [(rest, max(left, 0.0))] if rest else []
    unit = state.kept.pop(offer.place.unit)
    state.lowered = lowered if unit is None else [*lowered, ([offer.place.unit], unit)]
    state.kept |= dict.fromkeys(offer.instead, added if len(offer.instead) == 1 else None)


def _exchanging(state: Demotion, offer: Offer) -> Proposal:
    unit, instead = (
        sum(len(state.order[i]) for i in some) for some in ([offer.place.unit], offer.instead)
    )
    fewer = f"keep {instead} in the place of {unit}"
    return Proposal(
        plan=_exchanged(state, offer),
        reason=fewer if instead < unit else f"how much {instead} low ones add",
        narrowed_to=len(state.plan),
    )


def _exchanged(state: Demotion, offer: Offer) -> Plan:
    return state.with_(offer.instead).without(state.order[offer.place.unit])
