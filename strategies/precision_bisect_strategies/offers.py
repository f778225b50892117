"""What to keep in the place of a kept unit of several layers, to find less that adds as much.

Many low layers are kept there at a time: what they add together tells whether one of them may do,
as errors are not negative. Where they add enough they are divided where half of the chance lies,
as in nested group testing.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from precision_bisect_strategies.demotion import DOUBT, Demotion
from precision_bisect_strategies.parcels import Offer, Place, Told
from precision_bisect_strategies.rankings import TINY, Array
from precision_bisect_strategies.reaching import reach
from precision_bisect_strategies.saving import ASTRAY

UNLIKELY = 0.02
"""An exchange is worth a build when it is expected to save so many layers of usual cost, besides
the drops whose failing speaks for no layer any more."""
BLIND = 0.05
"""The chance that the ranking does not tell which of the low layers adds enough."""
MANY = 3.0
"""No more are kept at first than should add up to so many times what is needed: more do without
one that adds enough."""
PATIENCE = 3
"""After so many rounds in vain none are looked at any more that were not measured."""


class Look(NamedTuple):
    """Low positions that may do, the best first, and the chance of each, shape (positions,).

    `measured` tells whether what they add together was; `rate` is what a build should save.
    """

    place: Place
    positions: list[int]
    chances: Array
    measured: bool
    rate: float


def saved(state: Demotion, offer: Offer) -> float:
    """Return what an offer saves, if it passes, less what the proofs are worth that it voids."""
    least = UNLIKELY * state.usual * (1 + len(state.kept))
    return offer.place.cost - state.cost([*offer.instead]) - least


def offers(state: Demotion, known: Told) -> list[Offer]:
    """Return what to keep next in the place of a unit, up to one for each worker; best first.

    None where builds would not be expected to save enough.
    """
    places = _places(state)
    looks = [look for place in places for look in _looks(state, place, known)]
    looks.sort(key=lambda look: -look.rate)
    sure = (offer for place in places for offer in _sure(state, place, known))
    chosen: list[Offer] = []
    for offer in (*sure, *(offer for look in looks for offer in _parts(state, look, known))):
        if all({*offer.instead}.isdisjoint(other.instead) for other in chosen):
            chosen.append(offer)
        if len(chosen) == state.workers:
            break
    return chosen


def _places(state: Demotion) -> list[Place]:
    """Return of the kept units of each cost the one for which least is needed.

    Not one that should fit without, or may by noise.
    """
    places: dict[float, Place] = {}
    for i, added in state.measured.items():
        place = Place(i, state.cost([i]), added - state.room)
        if len(state.order[i]) > 1 and place.needed > DOUBT * state.noise:
            other = places.get(place.cost, place)
            places[place.cost] = min(other, place, key=lambda each: each.needed)
    return list(places.values())


def _sure(state: Demotion, place: Place, known: Told) -> Iterator[Offer]:
    """Offer the positions that were measured to add most for their cost, if few add enough."""
    alone = [
        (total / state.cost([*each]), total, *each)
        for each, total in known.measured
        if len(each) == 1
    ]
    alone.sort(key=lambda each: (-each[0], each[2]))
    sums = np.cumsum([total for _, total, _ in alone])
    count = int(np.searchsorted(sums, place.needed)) + 1
    offer = Offer(place, tuple(sorted(i for *_, i in alone[:count])))
    new = (place.unit, offer.instead) not in known.tried
    if count <= len(alone) and new and saved(state, offer) > 0:
        yield offer


def _looks(state: Demotion, place: Place, known: Told) -> Iterator[Look]:
    """Look at low positions that cost less, where finding one that does should save enough."""
    if not state.beliefs.finite:
        return
    for positions, total in known.measured:
        if total >= place.needed and (look := _look(state, place, positions, total, positions)):
            yield look
    if known.vain < PATIENCE:
        most = _most(state, known)
        some = [i for i in known.unmeasured if most[i] >= place.needed]
        least = 0.0 if known.vain else ASTRAY
        if some and (look := _look(state, place, known.unmeasured, None, some, least)):
            yield look


def _most(state: Demotion, known: Told) -> dict[int, float]:
    """Return what each low position adds at most that was not measured."""
    most: dict[int, float] = {}
    for group, total in state.lowered:
        inside = frozenset(group)
        measured = sum(added for each, added in known.measured if inside.issuperset(each))
        most |= dict.fromkeys(group, total - measured)
    return most


def _look(
    state: Demotion,
    place: Place,
    positions: Sequence[int],
    total: float | None,
    some: Sequence[int],
    least: float = 0.0,
) -> Look | None:
    """Return a look at some of the positions that add `total`; None if not worth the builds.

    These are one, and as many as dividing them takes if one of them does; if none does, until so
    few are left that they do not add enough together. `least` is the chance that one does,
    whatever is believed.
    """
    at = {i: number for number, i in enumerate(positions)}
    costs = state.beliefs.costs([*some])
    cheap = [i for i, cost in zip(some, costs, strict=True) if cost < place.cost]
    if not cheap:
        return None
    every = reach(state.beliefs, [*positions], place.needed, total=total, blind=BLIND)
    chances = every[[at[i] for i in cheap]]
    halvings, vain = math.log2(len(cheap)), 0.0
    if total is None:
        chances = chances + max(least - float(chances.sum()), 0.0) / len(cheap)
    else:
        vain = min(total / place.needed - 1, halvings)
    summed = float(chances.sum())
    chance = min(summed, 1.0)
    saves = chances * (place.cost - state.beliefs.costs(cheap))
    expected = float(saves.sum()) * chance / max(summed, TINY)
    builds = 1 + vain + chance * halvings
    if expected < UNLIKELY * state.usual * (builds + chance * len(state.kept)):
        return None
    order = np.argsort(-saves, kind="stable")
    best = [cheap[number] for number in order]
    return Look(place, best, chances[order], total is not None, expected / builds)


def _parts(state: Demotion, look: Look, known: Told) -> Iterator[Offer]:
    """Offer the best positions, the best of those that are left, and so on; fewer if tried before.

    Half of the chance where they add enough together, and one of them may do. Else as many as
    make the most of a build, and of those that dividing them takes if one does.
    """
    sums = np.cumsum(state.beliefs.expected(look.positions))
    count, start = len(look.positions), 0
    while start < count:
        chances = np.cumsum(look.chances[start:])
        if look.measured:
            most = int(np.searchsorted(chances, chances[-1] / 2)) + 1
            end = min(start + most, count - 1)
        else:
            halvings = np.log2(np.arange(1, len(chances) + 1))
            most = int(np.argmax(chances / (1 + chances * halvings))) + 1
            limit = MANY * look.place.needed + (sums[start - 1] if start else 0.0)
            end = min(start + most, int(np.searchsorted(sums, limit, side="right")))
        size = max(end - start, 1)
        while (part := _part(look, start, size)) in known.tried and size > 1:
            size //= 2
        if part not in known.tried:
            yield Offer(look.place, part[1])
        start += size


def _part(look: Look, start: int, size: int) -> tuple[int, tuple[int, ...]]:
    return look.place.unit, tuple(sorted(look.positions[start : start + size]))
