"""Heavy layers among the low ones: one that is kept instead lets several others go.

A set of which nothing can be dropped need not be a smallest one: what a group of low layers adds
may come from a single one, and the tolerance that this one takes may be worth several that are
kept. What each group adds was measured, and the beliefs say what its heaviest layer likely adds of
it. Groups that promise enough are cut where that layer likely is, as in nested group testing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.trial import Outcome, Proposal
from precision_bisect_strategies.demotion import FAIR, NOISY, Demotion, Lowered
from precision_bisect_strategies.saving import Fits, Gains, gains

WORTH = 0.05
"""A build is worth it when it is expected to save so many layers of usual cost. Each that is saved
also spares the certificate a build."""
PATIENCE = 3.0
"""A hunt ends once its builds promised so many more heavy layers than they found."""
LIKELY = 0.5
"""A layer of which it is known what it adds is kept at once if that likely saves more."""
DEAR = 2.0
"""A part of several layers is kept as a whole where that lets go so many times what it costs."""
ACTING = 0.5
"""A layer that adds less than this share of what it was measured to add acts with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prey:
    """A part of a low group that is to be kept, and what is dropped for it in the same build.

    `chance` is that of a heavy layer in the group, for each build that it takes to find it.
    """

    place: Lowered
    part: list[int]
    instead: list[int]
    chance: float


@dataclass(slots=True)
class Bounds:
    """What ends a hunt, as the beliefs may be wrong, and errors of parts need not add up.

    Layers that were `raised` stay. A group is cut as often as halving takes, until a layer is
    found somewhere: `left` has the builds by position. `owed` is what was promised and not found.
    `proofs` are the failing builds without single kept layers, which are worth nothing to the
    certificate once another layer is kept.
    """

    proofs: int
    raised: set[int] = field(default_factory=set)
    left: dict[int, float] = field(default_factory=dict)
    owed: float = 0.0

    def allow(self, group: Sequence[int]) -> bool:
        """Tell whether to look into a group."""
        return not self.raised.issuperset(group) and all(self.left.get(i, 1) > 0 for i in group)

    def spend(self, prey: Prey) -> None:
        """Note a build."""
        group, _ = prey.place
        self.owed += prey.chance
        self.left |= {i: self.left.get(i, _builds(group)) - 1 for i in group}

    def reward(self, prey: Prey) -> None:
        """Note that a layer was found and raised."""
        self.owed -= 1.0
        self.proofs = 0
        self.left.clear()
        self.raised.update(prey.part)


def proofs(state: Demotion) -> int:
    """Return how many failing builds without single kept layers keeping another one voids."""
    return sum(len(state.order[i]) == 1 for i in state.kept)


def hunt(state: Demotion, bounds: Bounds | None = None, least: float = 0.0) -> Search[bool]:
    """Look for low layers that are worth more than what can be dropped for them, and keep them.

    Not where noise hides what single layers add, nor where a build is expected to save less than
    `least`, a cost. Tell whether the hunt ended as a part of several layers is worth that: it is
    kept as a whole, and waits to be looked into. `bounds` are those of a hunt that goes on.
    """
    bounds = bounds or Bounds(proofs=proofs(state))
    waiting = len(state.waiting)
    while bounds.owed < PATIENCE and (found := _found(state, bounds, least)):
        outcomes = yield tuple(_keeping(state, prey) for prey in found)
        base, plan = state.error, state.plan
        for prey, outcome in zip(found, outcomes, strict=True):
            state.lowered.remove(prey.place)
            part = _part(state, prey, base, outcome)
            caught = part is not None and outcome.passed and _caught(state, prey, part)
            if caught and state.plan != plan:
                # Another was caught first: this one is tried on top of that.
                state.lowered += _apart(prey, part) if len(prey.place[0]) > 1 else [prey.place]
                continue
            bounds.spend(prey)
            apart = _apart(prey, part)
            if part is not None and caught:
                bounds.reward(prey)
                _keep(state, prey, part, outcome)
                apart = apart[1:]
            elif outcome.passed and state.plan == plan and _dear(state, prey, part):
                state.raise_part(*apart[0], outcome)
                apart = apart[1:]
            state.lowered += apart
        if len(state.waiting) > waiting:
            return True
    return False


def _found(state: Demotion, bounds: Bounds, least: float) -> list[Prey]:
    """Return what to look into next: large groups first, up to one for each worker.

    What is known of single layers is not lost while a heavier one may turn up. Nothing where all
    that may be found is not worth the builds, and the proofs.
    """
    if not state.beliefs.figures or state.limit is None or state.noise >= NOISY * state.limit:
        return []
    promising = []
    fits, usual = _fits(state), state.usual
    saved, chances, builds = 0.0, 0.0, 0.0
    for place in state.lowered:
        group, total = place
        if total > 0 and bounds.allow(group):
            told = gains(state.beliefs, group, total, state.room, fits)
            if _promises(group, told, max(least, WORTH * usual)):
                saved += float(told.saved.sum()) / usual
                chances += float(told.chances.sum())
                builds += _builds(group)
                worth = float(told.saved.sum()) / _builds(group)
                promising.append((len(group) == 1, -worth, place, told))
    if saved < WORTH * (builds + bounds.proofs * min(chances, 1.0)):
        return []
    promising.sort(key=lambda each: each[:2])
    found: list[Prey] = []
    for _, _, place, told in promising:
        prey = _prey(state, place, told)
        if not (prey.instead and any(other.instead for other in found)):
            found.append(prey)
        if len(found) == state.workers:
            break
    return found


def _fits(state: Demotion) -> Fits:
    return Fits(state.beliefs, state.undecided, state.measured)


def _promises(group: Sequence[int], told: Gains, worth: float) -> bool:
    """Tell whether a group saves so much for each build that finding its heaviest layer takes."""
    enough = float(told.saved.sum()) >= worth * _builds(group)
    return enough and (len(group) > 1 or float(told.chances.sum()) >= LIKELY)


def _builds(group: Sequence[int]) -> float:
    return 1 + math.log2(len(group))


def _prey(state: Demotion, place: Lowered, told: Gains) -> Prey:
    """Return the part of a group that holds its heaviest layer as likely as not."""
    group, total = place
    chance = float(told.chances.sum())
    order = np.argsort(-told.chances, kind="stable")
    most = int(np.searchsorted(np.cumsum(told.chances[order]), chance / 2)) + 1
    part = sorted(group[at] for at in order[: min(most, max(len(group) - 1, 1))])
    instead = _instead(state, part[0], total) if len(part) == 1 else []
    return Prey(place=place, part=part, instead=instead, chance=chance / _builds(group))


def _instead(state: Demotion, position: int, total: float) -> list[int]:
    """Return the kept positions that fit once one is kept that adds `total`; none if too few.

    Only what costs no more than the price: others are dropped later, if they fit then.
    """
    known, left, price = state.measured, state.room + total, state.price
    chosen = []
    for i in sorted(known, key=lambda i: (known[i] / state.beliefs.cost([i]), i)):
        dear = known[i] >= (1 + FAIR) * price * state.beliefs.cost([i])
        if known[i] <= left and not dear:
            chosen.append(i)
            left -= known[i]
    saved = sum(state.beliefs.cost([i]) for i in chosen)
    return chosen if saved > state.beliefs.cost([position]) else []


def _keeping(state: Demotion, prey: Prey) -> Proposal:
    several = f"{len(prey.part)} of the {len(prey.place[0])} low ones"
    reason = f"keep {several} instead of {len(prey.instead)}" if prey.instead else None
    return Proposal(
        plan=_exchanged(state, prey),
        reason=reason or f"how much {several} add",
        narrowed_to=len(state.plan),
    )


def _part(state: Demotion, prey: Prey, base: float | None, outcome: Outcome) -> float | None:
    """Return what the part adds; None without a figure."""
    if outcome.error is None or base is None or not math.isfinite(outcome.error):
        return None
    dropped = sum(state.kept.get(i) or 0.0 for i in prey.instead)
    return min(max(base + dropped - outcome.error, 0.0), prey.place[1])


def _caught(state: Demotion, prey: Prey, part: float) -> bool:
    """Tell whether a part that adds so much, and passed, is a layer to keep from now on."""
    group, total = prey.place
    if len(prey.part) > 1:
        return False
    if prey.instead:
        return True
    if len(group) == 1:
        return part >= ACTING * total
    told = gains(state.beliefs, prey.part, part, state.room, _fits(state))
    return _promises(prey.part, told, WORTH * state.usual)


def _dear(state: Demotion, prey: Prey, part: float | None) -> bool:
    """Tell whether a part of several that adds so much is worth keeping as a whole."""
    if part is None or len(prey.part) < 2 or not state.raised.isdisjoint(prey.part):
        return False
    fits, cost = _fits(state), state.beliefs.cost(prey.part) * len(prey.part)
    return fits.expected(state.room + part) - fits.expected(state.room) >= DEAR * cost


def _apart(prey: Prey, part: float | None) -> list[Lowered]:
    """Return a group's part and the rest of it, with what each adds.

    What could not be measured, and a single layer that was known to be worth it and is not, count
    as adding nothing: they are not tried again.
    """
    group, total = prey.place
    if part is None or len(group) == 1:
        return [(group, 0.0)]
    inside = frozenset(prey.part)
    rest = [i for i in group if i not in inside]
    return [(prey.part, part), (rest, max(total - part, 0.0))]


def _keep(state: Demotion, prey: Prey, part: float, outcome: Outcome) -> None:
    """Go on from the plan that keeps the part, and not what is dropped for it."""
    state.plan, state.error = _exchanged(state, prey), outcome.error
    state.lowered += [([i], state.kept.pop(i) or 0.0) for i in prey.instead]
    state.kept[prey.part[0]] = part


def _exchanged(state: Demotion, prey: Prey) -> Plan:
    gone = [layer for i in prey.instead for layer in state.order[i]]
    return state.with_(prey.part).without(gone)
