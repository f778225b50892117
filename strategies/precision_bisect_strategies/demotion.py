"""Progressive demotion: from a plan that passes downwards, one question at a time.

Layers are named by their position in the ranking, least sensitive first. Undecided layers are
tried in groups on top of the last plan that passed. A group that passes and adds a fair error runs
low from then on. Any other is cut where its culprit likely is, until that is a single layer, which
stays. A step depends only on the state and on its outcome, so several workers can look ahead.

Key insight: a pass that uses up much of the tolerance is no gain. The error that a group added is
compared with what other layers would add for the same cost, by the marginal rate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.trial import Outcome
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.beliefs import TINY, Array, Beliefs, to_power
from precision_bisect_strategies.modules import Group

CHANCE_SHARE = 0.1
"""Share of the error by which independent errors, to the power 2, differ by chance from what they
add up to. Half and double change no more than chance does in benchmarks/constants.py."""
LEAST_KNOWN_SHARE = 1e-3
"""Share of what is left of the tolerance below which a group's error is only known to be small. A
bound. Half and double change no more than chance does in benchmarks/constants.py."""
WORTH = 0.6
"""Layers that a build must be expected to save. Half and double change no more than chance
does in benchmarks/constants.py."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Positions known to hold a culprit, with the error that they together add, if known."""

    positions: Group
    added: float | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    """Positions that run low, with the error that they added when they were tried."""

    positions: Group
    added: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Demotion:
    """What is known on the way.

    `order` has the layer of each position, least sensitive first. `plan` is the last that passed,
    with `error`. Errors to the power `power` add up. `limit` is the tolerance, None without
    figures. `pool` are the undecided positions, `suspects` are groups of them that hold a culprit.
    Without figures a culprit is a layer at the score `culprit` or higher.

    `kept` positions stay high, with the error that each was measured to add. `lowered` are groups
    that run low; each is `raised` at most once. Groups above `largest` had no verdict. `refused`
    groups did not fit at the end.
    """

    order: tuple[int, ...]
    beliefs: Beliefs
    limit: float | None
    power: float
    plan: Plan
    error: float | None
    pool: Group
    culprit: float
    suspects: tuple[Suspect, ...] = ()
    kept: dict[int, float | None] = field(default_factory=dict)
    lowered: tuple[Lowered, ...] = ()
    raised: frozenset[Lowered] = frozenset()
    largest: int | None = None
    refused: frozenset[Group] = frozenset()

    @property
    def slack(self) -> float:
        """What can still be added, in errors to the power; infinity without figures."""
        if self.limit is None or self.error is None or not self.beliefs.figures:
            return math.inf
        return to_power(self.limit, self.power) - to_power(self.error, self.power)

    @property
    def marginal_rate(self) -> float:
        """The error per cost from which on keeping pays.

        If everything should fit, it is the rate of a layer that would not.
        """
        if not self.beliefs.figures:
            return self.culprit
        # Suspects are undecided as well: at most one of them is known to be dear.
        undecided = [*self.pool, *(i for suspect in self.suspects for i in suspect.positions)]
        measured = {i: error for i, error in self.kept.items() if error is not None}
        rate = self.beliefs.marginal_rate(self.slack, undecided, measured)
        if math.isfinite(rate):
            return rate
        # All should fit: only an average layer that takes all of the slack alone is too dear.
        return float(max(self.slack, TINY) / self.beliefs.costs.mean())

    @property
    def chance(self) -> float:
        """What a group seems to add by chance, because it is measured beside all that runs low."""
        # In step (power 1) errors do not cancel by chance, hence `power` - 1.
        return CHANCE_SHARE * (self.power - 1) * to_power(self.error or 0.0, self.power)

    def without(self, positions: Sequence[int]) -> Plan:
        """Return the plan without the layers at these positions."""
        return self.plan.without(self.order[i] for i in positions)

    def with_(self, positions: Sequence[int]) -> Plan:
        """Return the plan with the layers at these positions kept, too."""
        return self.plan.with_(self.order[i] for i in positions)

    def cost(self, positions: Sequence[int]) -> float:
        """Return the cost of keeping these."""
        return float(sum(self.beliefs.costs[i] for i in positions))

    def added(self, outcome: Outcome) -> float | None:
        """Return what a group added, in errors to the power; None without figures."""
        if outcome.error is None or self.error is None or math.isnan(outcome.error):
            return None
        before, after = max(self.error, 0.0), max(outcome.error, 0.0)
        # Below 0 by chance; a group never takes error away for good.
        return float(max(to_power(after, self.power) - to_power(before, self.power), 0.0))


def begun(state: Demotion, plan: Plan) -> Search[Demotion]:
    """Return the state that begins with a plan; the same state if that fails."""
    low = tuple(i for i in state.pool if state.order[i] not in plan.kept)
    if not low:
        return state
    # The curve's plan passed on its own draw; here it is judged as every plan of the search is.
    believed = "; all but the curve's plan, which passed"
    outcome = yield from _try(state, low, believed)
    if not outcome.passed:
        return state
    rest = tuple(i for i in state.pool if i not in set(low))
    return _judged(replace(state, pool=rest), low, (), outcome, state.marginal_rate)


def ask_next(state: Demotion) -> Search[Demotion]:
    """Ask one question and return the new state; the same state if nothing is left to ask."""
    state = _singles(state)
    if state.suspects:
        # The last suspect first: it was cut from the one before, and its culprit is the nearest.
        return (yield from _cut(state, state.suspects[-1]))
    if unfair := _unfair(state):
        return (yield from _raise(state, unfair))
    if state.pool:
        return (yield from _group(state))
    if affordable := _affordable(state):
        return (yield from _refill(state, affordable))
    return state


def _singles(state: Demotion) -> Demotion:
    """Keep every single layer that is known to be a culprit."""
    alone = [suspect for suspect in state.suspects if len(suspect.positions) == 1]
    kept = {
        suspect.positions[0]: suspect.added
        if suspect.added is not None and math.isfinite(suspect.added)
        else None
        for suspect in alone
    }
    rest = tuple(suspect for suspect in state.suspects if len(suspect.positions) > 1)
    return replace(state, suspects=rest, kept=state.kept | kept) if alone else state


def _group(state: Demotion) -> Search[Demotion]:
    """Try the first ones of the pool: as many as pass with a chance of one half."""
    pool = state.pool
    chances = _chances(state, pool, bad=False)
    most = min(len(pool), state.largest or len(pool))
    # A trial tells most, one bit, where both outcomes are equally likely.
    size = int(abs(chances[:most] - 0.5).argmin()) + 1
    group, rest = pool[:size], pool[size:]
    outcome = yield from _try(state, group, _believed(state, chances[size - 1]))
    # A crash or a refused build says nothing of accuracy: ask about a smaller group.
    if outcome.verdict is None:
        return _around(state, group)
    after = replace(state, pool=rest, largest=None)
    return _judged(after, group, (), outcome, state.marginal_rate)


def _cut(state: Demotion, suspect: Suspect) -> Search[Demotion]:
    """Try the part of a suspect group that likely holds no culprit."""
    line = suspect.positions
    # Not the whole group: it is known to hold a culprit.
    chances = _chances(state, line, bad=True)[:-1]
    size = int(abs(chances - 0.5).argmin()) + 1
    size = min(size, state.largest or size)
    part, rest = line[:size], line[size:]
    believed = _believed(state, chances[size - 1], among=len(line))
    outcome = yield from _try(state, part, believed)
    others = tuple(other for other in state.suspects if other is not suspect)
    if outcome.verdict is None:
        # A single layer without a verdict stays high: nothing can be proven of it.
        if size > 1:
            return replace(state, largest=size // 2)
        state = replace(state, suspects=others, pool=tuple(sorted({*state.pool, *rest})))
        return replace(state, kept=state.kept | {part[0]: None})
    added = state.added(outcome)
    after = replace(state, suspects=others, largest=None)
    after = _judged(after, part, rest, outcome, state.marginal_rate)
    # The part passed, so the rest holds the culprit. Otherwise the part does, and the rest goes
    # back to the pool: it may or may not hold another.
    if after.plan != state.plan:
        remainder = None
        if suspect.added is not None and added is not None:
            remainder = max(suspect.added - added, 0.0)
        return replace(after, suspects=(*after.suspects, Suspect(rest, remainder)))
    return replace(after, pool=tuple(sorted({*after.pool, *rest})))


def _chances(state: Demotion, line: Sequence[int], *, bad: bool) -> Array:
    """Return the chance that the first m of a line can go, for m >= 1: shape (len(line),)."""
    fitting = state.beliefs.fitting(line, state.slack)
    return state.beliefs.passing(line, state.marginal_rate, bad=bad) * fitting


def _judged(state: Demotion, group: Group, rest: Group, outcome: Outcome, rate: float) -> Demotion:
    """Lower a group that passed with a fair error, else suspect it, as `rest` was with it."""
    added = state.added(outcome) if state.beliefs.figures else None
    beliefs = state.beliefs
    fair = outcome.passed and _regret(state, group, added, rate) <= 0.0
    little = max(state.chance, LEAST_KNOWN_SHARE * state.slack)
    measurable = added is not None and little < added < math.inf
    if added is not None and measurable:
        beliefs = beliefs.learn_sum(group, added, rate)
    elif added is not None and added <= little:
        beliefs = beliefs.learn_at_most(group, little)
    # A single layer whose error is known says all by that figure; counting its verdict, too, would
    # count the same evidence twice.
    if not measurable or len(group) > 1:
        beliefs = beliefs.learn(group, rest, rate, clean=fair)
    state = replace(state, beliefs=beliefs)
    if not fair:
        return replace(state, suspects=(*state.suspects, Suspect(group, added)))
    lowered = state.lowered if added is None else (*state.lowered, Lowered(group, added))
    return replace(state, plan=state.without(group), error=outcome.error, lowered=lowered)


def _regret(state: Demotion, group: Group, added: float | None, rate: float) -> float:
    """Return how many more layers could run low if the culprits of a group were kept.

    Chance is taken off, the more of it the larger the group is.
    """
    if not added or math.isinf(rate) or not state.beliefs.figures:
        return 0.0
    usual = 0.0 if len(group) == 1 else state.beliefs.fair(group, rate)
    # In layers: the excess error over what a layer of average cost adds at this rate.
    excess = (added - usual - state.chance) / (rate * state.cost(group) / len(group))
    # One layer, the culprit itself, would be kept. Finding it in the group takes builds; two are
    # worth a layer.
    return excess - 2 - math.log2(len(group)) / 2


def _unfair(state: Demotion) -> list[Lowered]:
    """Return low groups that are worth raising again, each only once.

    Raising makes the proofs of kept layers void: each of them counts as a build to make again.
    """
    rate = state.marginal_rate
    regrets = {
        group: _regret(state, group.positions, group.added, rate)
        for group in state.lowered
        if group not in state.raised
    }
    unfair = [group for group, regret in regrets.items() if regret > 0]
    builds = len(state.kept) + sum(2 + math.log2(len(group.positions)) for group in unfair)
    return unfair if sum(regrets[group] for group in unfair) > WORTH * builds else []


def _raise(state: Demotion, unfair: Sequence[Lowered]) -> Search[Demotion]:
    """Keep groups again that added too much, and search each for its culprit."""
    positions = [i for group in unfair for i in group.positions]
    outcome = yield from ask(
        state.with_(positions),
        f"keep {len(positions)} of the low ones again: the ranking is not as good",
        narrowed_to=len(state.plan),
    )
    raised = state.raised | frozenset(unfair)
    # Keeping more made it fail: not monotone here, so leave them low.
    if not outcome.passed:
        return replace(state, raised=raised)
    return replace(
        state,
        raised=raised,
        plan=state.with_(positions),
        error=outcome.error,
        lowered=tuple(group for group in state.lowered if group not in unfair),
        suspects=tuple(Suspect(group.positions, group.added) for group in unfair),
    )


def _affordable(state: Demotion) -> Group:
    """Return the cheapest kept positions that should fit together into the slack that is left."""
    measured = [
        (error / state.cost((i,)), error, i)
        for i, error in state.kept.items()
        if error is not None
    ]
    chosen: list[int] = []
    slack = state.slack
    for _, error, position in sorted(measured):
        if error <= slack < math.inf:
            chosen.append(position)
            slack -= error
    # Refused once, half of it may fit; the loop ends at a group that was not tried.
    while chosen and tuple(sorted(chosen)) in state.refused:
        chosen = chosen[: len(chosen) // 2]
    return tuple(sorted(chosen))


def _refill(state: Demotion, some: Group) -> Search[Demotion]:
    believed = "; by what each added they fit together"
    outcome = yield from _try(state, some, believed)
    if not outcome.passed:
        return replace(state, refused=state.refused | {some})
    kept = {i: error for i, error in state.kept.items() if i not in some}
    return replace(
        state, plan=state.without(some), error=outcome.error, kept=kept, refused=frozenset()
    )


def _around(state: Demotion, group: Group) -> Demotion:
    """Go around a group without a verdict: try smaller ones; a single layer is kept."""
    if len(group) > 1:
        return replace(state, largest=len(group) // 2)
    pool = tuple(i for i in state.pool if i not in group)
    return replace(state, pool=pool, kept=state.kept | {group[0]: None})


def _believed(state: Demotion, chance: float, among: int = 0) -> str:
    """Say in one line why just these are tried, with what is believed.

    `among` is the size of the group that is known to hold a culprit, 0 if there is none.
    """
    words = f"; {f'a culprit among {among}, ' * (among > 0)}chance to pass {chance:.2f}"
    words += f", correlation {state.beliefs.rho:.2f}"
    rate, slack, limit = (
        state.marginal_rate,
        state.slack,
        to_power(state.limit or 0.0, state.power),
    )
    if not (state.beliefs.figures and math.isfinite(rate) and math.isfinite(slack) and limit):
        return words
    return f"{words}, price {rate ** (1 / state.power):.2g}, room {slack / limit:.0%}"


def _try(state: Demotion, group: Group, believed: str = "") -> Search[Outcome]:
    return (
        yield from ask(
            state.without(group),
            f"drop {len(group)} of {len(state.plan)}{believed}",
            narrowed_to=len(state.plan),
        )
    )
