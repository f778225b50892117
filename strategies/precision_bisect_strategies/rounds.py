"""Progressive demotion, round by round, from all-high downwards.

Each round tests groups on top of the last plan that passed, or is bet to. With several workers
these are nested ones where one culprit is sought, and disjoint ones elsewhere. Those that pass are
demoted together, and the next round's groups are taken on top of that: that it passes, too, is
tested with them where its error is needed, else only once none of them passes. The loop of
onnxconverter-common's mixed precision (the largest undecided segment, halved on failure), with a
ranking, informed cuts and a price.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.trial import Outcome, Proposal
from precision_bisect_strategies.demotion import Demotion
from precision_bisect_strategies.hunting import Bounds, hunt, proofs
from precision_bisect_strategies.probes import Probe, Taken
from precision_bisect_strategies.spending import affordable, reconsider, refill

POOR = 0.7
"""Below this expected rank correlation a ranking is poor."""
EVEN = 0.5
"""The chance that a group passes: so it is chosen."""
HOPE = 1.4
"""Better ones are given more builds by (1 - POOR) / (1 - rho), to this power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bet:
    """That `groups` pass together which passed one by one, cheapest first.

    `before` is the state in which all of them are undecided.
    """

    groups: Sequence[Taken]
    before: Demotion


def demote(
    state: Demotion,
    guess: int | None,
    patience: int | None = None,
    *,
    refinable: bool = False,
) -> Search[Demotion]:
    """Return the state in which every position is decided on.

    The first group is the first `guess` positions, None to choose it, too. With `patience`, the
    state is returned as it is after so many groups under a poor ranking, after more the better it
    is believed to be. Where the ranking is `refinable`, it is also returned once that proves poor.

    Single layers come last. Before that, low groups are looked through for heavy ones, and kept
    ones are dropped that cost less than the price; earlier where a build of a hunt should let more
    layers go than the next group. A ranking that was given credit from the start and loses it has
    its groups looked at again, once.
    """
    first = guess
    hunted = doubted = False
    bet: Bet | None = None
    tried = 0
    early = Bounds(proofs=0)
    credited = state.beliefs.nearly_right
    while not state.settled() or bet:
        if patience is not None and bet is None and tried >= _chances(state, patience):
            return state
        if refinable and bet is None and state.beliefs.poor:
            return state
        if state.beaten:
            state.settle_for_best()
            return state
        tested = bet if state.beliefs.figures or doubted or state.settled() else None
        probes = state.probes(first, state.workers - bool(tested))
        if first is None and not (bet or state.suspects):
            before = state.plan
            early.proofs = proofs(state)
            yield from hunt(state, early, EVEN * state.cost(probes[0].group))
            if state.plan != before:
                continue
        first = None
        tried += len(probes)
        if not (bet or state.suspects) and len(probes[0].group) == 1:
            if not hunted:
                hunted = not (yield from hunt(state))
                continue
            if state.beliefs.certain and affordable(state, fair=True):
                yield from refill(state, fair=True)
                continue
        outcomes = yield (
            *_testing(tested, state.plan),
            *(_dropping(state, probe) for probe in probes),
        )
        if tested:
            bet = None
            together, outcomes = outcomes[0], outcomes[1:]
            if not together.passed:
                best = state.best
                state, bet = _together(
                    tested.before, tested.groups[: (len(tested.groups) + 1) // 2]
                )
                state.best = best
                doubted = bet is not None
                continue
            state.error = together.error
        elif bet:
            state.error = _least(state.error, outcomes)
        taken = state.digest(probes, outcomes)
        if taken:
            bet = None
        doubted = bet is not None
        if taken:
            state, bet = _merge(state, taken)
        elif credited and not (bet or state.beliefs.nearly_right):
            credited = hunted = False
            yield from reconsider(state)
    return state


def _chances(state: Demotion, patience: int) -> float:
    """Return after how many builds the ranking has had its chance."""
    doubt = max(1.0 - state.beliefs.rho, 1e-3)
    hope: float = max(1.0, ((1.0 - POOR) / doubt) ** HOPE)
    return patience * hope


def _merge(state: Demotion, taken: Sequence[Taken]) -> tuple[Demotion, Bet | None]:
    """Demote the cheapest of several groups, and those that are still a fair price after it."""
    state.put_back(taken)
    before = state.copy()
    best, *others = sorted(taken, key=lambda each: (each.added or 0.0) / len(each.group))
    state.take(best, best.outcome.error)
    groups = [best]
    for each in others:
        added = each.added or 0.0
        if added <= state.room and state.fair(each.group, each.added, state.price):
            state.take(each, None if state.error is None else state.error + added)
            groups.append(each)
    return state, Bet(groups=groups, before=before) if len(groups) > 1 else None


def _together(before: Demotion, groups: Sequence[Taken]) -> tuple[Demotion, Bet | None]:
    """Demote groups that may pass together."""
    state = before.copy()
    first, *others = groups
    state.take(first, first.outcome.error)
    for each in others:
        state.take(each, None if state.error is None else state.error + (each.added or 0.0))
    return state, Bet(groups=groups, before=before) if others else None


def _least(error: float | None, outcomes: Sequence[Outcome]) -> float | None:
    """Return the error of a plan, at most that of plans which run more layers low and passed."""
    told = [outcome.error for outcome in outcomes if outcome.passed and outcome.error is not None]
    return None if error is None else min([error, *told])


def _testing(bet: Bet | None, plan: Plan) -> tuple[Proposal, ...]:
    if bet is None:
        return ()
    return (Proposal(plan=plan, reason=f"{len(bet.groups)} groups that passed, together"),)


def _dropping(state: Demotion, probe: Probe) -> Proposal:
    layers = [layer for i in probe.group for layer in state.order[i]]
    return Proposal(
        plan=state.plan.without(layers),
        reason=f"drop {len(layers)} of {len(state.plan)}",
        narrowed_to=len(state.plan),
        about_left=sum(len(line.positions) for line in state.suspects) + len(state.pool),
    )
