"""What is known of the low layers by what was kept of them in the place of a unit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from precision_bisect_strategies.demotion import Demotion


class Place(NamedTuple):
    """A kept unit of several layers, what it costs, and what others must add for it to fit."""

    unit: int
    cost: float
    needed: float


class Parcel(NamedTuple):
    """Low positions, and what they add together."""

    positions: tuple[int, ...]
    total: float


class Offer(NamedTuple):
    """Low positions to keep in the place of a unit."""

    place: Place
    instead: tuple[int, ...]


@dataclass(slots=True)
class Told:
    """What is known of the low positions by what was kept of them, and the rounds in vain."""

    unmeasured: list[int]
    measured: list[Parcel]
    tried: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    vain: int = 0

    def note(self, outcomes: Sequence[tuple[Offer, float | None]]) -> None:
        """Note a round: what was kept in the place of units, and what it adds, if told."""
        fresh = frozenset(self.unmeasured)
        new = [pair for pair in outcomes if not fresh.isdisjoint(pair[0].instead)]
        enough = (added is not None and added >= offer.place.needed for offer, added in new)
        self.vain += bool(new) and not any(enough)
        for offer, added in outcomes:
            self.tried.add((offer.place.unit, offer.instead))
            if added is not None:
                self._measure(offer.instead, added)

    def _measure(self, instead: tuple[int, ...], added: float) -> None:
        if {each[0] for each, _ in self.measured if len(each) == 1}.issuperset(instead):
            return
        parcels = [Parcel(instead, added)]
        for positions, total in self.measured:
            rest = tuple(i for i in positions if i not in instead)
            left = total if len(rest) == len(positions) else max(total - added, 0.0)
            parcels += [Parcel(rest, left)] if rest else []
        self.measured = parcels
        self.unmeasured = [i for i in self.unmeasured if i not in instead]

    def begin_anew(self, state: Demotion) -> None:
        """Go on with a state in which others are kept."""
        low = {i for group, _ in state.lowered for i in group}
        parcels = ((tuple(i for i in some if i in low), total) for some, total in self.measured)
        self.measured = [Parcel(some, total) for some, total in parcels if some]
        self.unmeasured = [i for i in self.unmeasured if i in low]
        known = {*self.unmeasured, *(i for some, _ in self.measured for i in some)}
        self.measured += [each for each in told(state).measured if known.isdisjoint(each[0])]
        self.tried.clear()
        self.vain = 0


def told(state: Demotion) -> Told:
    """Return what is known at first: what those low positions add that were measured alone."""
    alone = [Parcel(tuple(group), total) for group, total in state.lowered if len(group) == 1]
    others = sorted(i for group, _ in state.lowered if len(group) > 1 for i in group)
    return Told(unmeasured=others, measured=alone)
