"""What comes before a search, and whether its answer holds, on copies that no decision has seen.

A search takes what passes. So an answer near the tolerance may have passed by luck, and fail as
soon as a sum is ordered otherwise. An accepted plan is judged on a fresh draw of copies (see
`inputs.copies`). One that does not hold is widened along the ranking by the law of rounding (see
`search.rounding_law`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from precision_bisect.errors import counted
from precision_bisect.plan import Plan
from precision_bisect.protocols import BEYOND_RANGE, Problem, Search
from precision_bisect.runs.results.endings import Ending, Status, no_baseline, noisy, not_precision
from precision_bisect.search.limits_and_noise import CLEAR_SPREADS, LEAST_CLEAR, passing_within
from precision_bisect.search.rounding_law import Law, aimed_at, jitter, typical
from precision_bisect.search.sensitivity import rank
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet

FEW = 32
"""Layers that a plan may keep for its drops to be built before anything is ranked. A bound."""


def preflight(problem: Problem) -> Search[Ending | None]:
    """Check both ends and the noise before any search; return an ending where that decides it.

    All-low must be within the problem's own tolerance, which may be tighter than the comparator's.
    The plan to start from and that of all layers beyond the low type's range need no ranking: if
    one passes, the run has an answer from here on.
    """
    everything = Plan.all_high(problem.size)
    timed = problem.timed or (problem.builds and problem.as_deployed)
    high = yield from one(everything, Phase.PREFLIGHT, "every layer high", timed=timed)
    # Nothing was judged: the machine or the model fails, and the repeat would fail alike.
    if high.verdict is None:
        return Ending(status=Status.NO_BASELINE, message=no_baseline(high))
    noise = yield from one(
        everything,
        Phase.PREFLIGHT,
        "the same again, to see the noise",
        kind=Kind.REPEAT,
        # This build is as deployed, so it tells how fast every layer high is there.
        timed=problem.builds and not timed,
    )
    # A comparator of quality, not of difference, gives every repeat the same figure.
    if not noise.passed and (high.passed or noise.error != high.error):
        return Ending(status=Status.INFEASIBLE, message=noisy(noise))
    if not high.passed:
        return Ending(status=Status.NOT_PRECISION, message=not_precision(high))
    low = yield from one(Plan.of(()), Phase.PREFLIGHT, "every layer low", timed=timed)
    if passing_within(low, problem.tolerance).passed:
        return Ending(
            status=Status.NOTHING_TO_KEEP,
            plan=Plan.of(()),
            message="every layer can run low within the tolerance",
        )
    for plan, reason in problem.first_plans:
        yield from one(plan, Phase.PREFLIGHT, reason, timed=timed)
    return None


def settled(problem: Problem) -> Search[Problem]:
    """Take what leaves the range of a large model for the answer, if it is little and passes.

    Building it without each layer takes less time and memory than a ranking of all.
    """
    plan = problem.beyond_range() if problem.builds and problem.speed is None else None
    if plan is None or len(plan) > FEW:
        return problem
    outcome = yield from one(plan, Phase.PREFLIGHT, BEYOND_RANGE)
    return replace(problem, passing=plan, settled=True) if outcome.passed else problem


def one(
    plan: Plan,
    phase: Phase,
    reason: str,
    *,
    kind: Kind = Kind.JUDGE,
    timed: bool = False,
    samples: SampleSet = SampleSet.JUDGED,
    draw: int = 0,
) -> Search[Outcome]:
    """Return what a plan comes to by itself."""
    proposal = Proposal(
        plan=plan, phase=phase, kind=kind, timed=timed, samples=samples, draw=draw, reason=reason
    )
    (outcome,) = yield (proposal,)
    return outcome


DEVIATIONS_BELOW = 1.645
"""Standard deviations of ln(error) between builds that an answer stays below the tolerance: the
95% quantile of the normal distribution."""
NARROWED = 5
"""Halvings of the last step of a widening: 32 layers to one. A bound."""
SPARE = 2.0
"""Factor by which an error must be below what the law aims at for it to have added too many. Half:
builds +6%; double: no more than chance, in benchmarks/constants.py."""


def _as_it_is(plan: Plan) -> Plan:
    return plan


@dataclass(slots=True, kw_only=True)
class StabilityCheck:
    """Judges plans of one problem on draws of copies, each draw once.

    Where plans are built it `rebuilds` each. Without `copies` a fresh build is judged on the
    samples alone. `drawn` is the number of the last draw. `spread` is that of an `Ending`. A plan
    that is widened is made `whole`, as the units of the search ask.
    """

    problem: Problem
    copies: bool = True
    rebuilds: bool = False
    drawn: int = 0
    spread: str | None = None
    whole: Callable[[Plan], Plan] = _as_it_is
    _errors: dict[Plan, list[tuple[float, float]]] = field(init=False, default_factory=dict)
    _steps: list[float] = field(init=False, default_factory=list)
    _passed: dict[Plan, bool] = field(init=False, default_factory=dict)

    def fresh(self) -> int:
        """Return the number of a draw that nothing was judged on yet."""
        self.drawn += 1
        return self.drawn

    def renewed(self) -> "StabilityCheck":
        """Return a check on other samples: of plans nothing is known, of builds all that is."""
        fresh = replace(self, spread=None)
        fresh._steps = self._steps
        return fresh

    def judge(
        self, plan: Plan, reason: str, *, last: bool = False, phase: Phase = Phase.RECHECK
    ) -> Search[Outcome]:
        """Judge a plan on a fresh draw, in a fresh build where plans are built.

        The build that may be the `last` is timed; others only where each build is.
        """
        kind = Kind.REBUILD if self.rebuilds else Kind.JUDGE
        draw = self.fresh() if self.copies else 0
        timed = self.rebuilds and (last or self.problem.timed)
        outcome = yield from one(plan, phase, reason, kind=kind, timed=timed, draw=draw)
        self.note(plan, outcome)
        self._passed[plan] = outcome.passed and self._passed.get(plan, True)
        return outcome

    def refuted(self, plan: Plan) -> bool:
        """Tell whether a plan has failed on some draw."""
        return not self._passed.get(plan, True)

    def note(self, plan: Plan, built: Outcome) -> None:
        """Learn from one more build of a plan, on copies or on the samples alone."""
        error = typical(built)
        if not self.rebuilds or error is None or not 0 < error < math.inf:
            return
        spread = jitter(built)
        figures = self._errors.setdefault(plan, [])
        if figures:
            # A build judged on the samples alone differs by its luck, too, whose variance is taken
            # off.
            luck = max(spread, figures[-1][1]) if 0.0 in (spread, figures[-1][1]) else 0.0
            step = math.log(error / figures[-1][0])
            self._steps.append(max(0.0, step**2 - luck**2))
        figures.append((error, spread))

    @property
    def builds(self) -> float:
        """The standard deviation of ln(error) between two builds of one plan."""
        # The difference of two independent builds has twice the variance of one: hence the 2.
        return math.sqrt(sum(self._steps) / (2 * len(self._steps))) if self._steps else 0.0

    def leaves_room(self, plan: Plan) -> bool:
        """Tell whether a plan that passed would pass in nearly every other build, too."""
        errors = self._errors.get(plan)
        if self.problem.tolerance is None or not errors:
            return True
        typical = math.exp(sum(math.log(error) for error, _ in errors) / len(errors))
        # Few builds tell the deviation badly, so this is about Student's t in place of the normal
        # quantile.
        spreads = DEVIATIONS_BELOW * (1 + 1.5 / max(1, len(self._steps)))
        return typical * math.exp(spreads * self.builds) <= self.problem.tolerance

    def widened(self, plan: Plan, refuted: Outcome) -> Search[Plan | None]:
        """Return the plan with layers added until it passes on a draw; None where none does.

        The most sensitive layers join first. `refuted` is the plan's outcome on a draw. The draw
        that passed has chosen the plan, so it is no proof: judge it once more. A wider plan that
        has passed all its draws before is taken first.
        """
        wider_plans = [
            other for other, passed in self._passed.items() if passed and len(other) > len(plan)
        ]
        if wider_plans:
            return self.whole(min(wider_plans, key=len))
        ranking = yield from rank(self.problem)
        # What is left of the error by the squares of single forecasts, without the layers that are
        # kept.
        law = Law.of(ranking.scores, without=plan)
        if self.spread is None:
            self.spread = _refuted(plan, refuted)
        outcome, added = refuted, 0
        while added < law.steps:
            fails = added, outcome
            added = law.next(added, outcome, self.problem.tolerance, self.builds)
            outcome = yield from self._wider(plan, law, added)
            # A plan just below the limit would fail the next draw.
            if outcome.passed and self.leaves_room(plan.with_(law.order[:added])):
                smallest = yield from self._narrowed(plan, law, fails, (added, outcome))
                return self.whole(smallest)
        return None

    def _wider(self, plan: Plan, law: Law, added: int) -> Search[Outcome]:
        wider = plan.with_(law.order[:added])
        return (yield from self.judge(wider, f"{counted(len(plan), 'layer')} and {added} more"))

    def _narrowed(
        self, plan: Plan, law: Law, fails: tuple[int, Outcome], passes: tuple[int, Outcome]
    ) -> Search[Plan]:
        """Return a plan between two, by halves, where the law had no figure or added too many."""
        (count, failed), (most, passed) = fails, passes
        for _ in range(NARROWED):
            if most - count < 2 or (law.tells(failed) and not self._far(passed, SPARE)):
                break
            middle = (count + most) // 2
            outcome = yield from self._wider(plan, law, middle)
            room = self.leaves_room(plan.with_(law.order[:middle]))
            if outcome.passed and room and self._far(outcome):
                most, passed = middle, outcome
            else:
                count, failed = middle, outcome
        return plan.with_(law.order[:most])

    def _far(self, outcome: Outcome, times: float = 1.0) -> bool:
        """Tell whether an error is so many times below what a widened plan is chosen for."""
        error, tolerance = typical(outcome), self.problem.tolerance
        if error is None or tolerance is None:
            return True
        return times * error <= aimed_at(tolerance, outcome, self.builds)


def clear_limit(tolerance: float | None, outcome: Outcome | None) -> float | None:
    """Return the error from which one failing evaluation needs no copies to be believed.

    That is tolerance x max(`LEAST_CLEAR`, exp(`CLEAR_SPREADS` x sd)), with sd the standard
    deviation of ln(error) over the answer's copies. None where errors are no figures.
    """
    stability = None if outcome is None else outcome.evidence.stability
    if tolerance is None or stability is None or stability.jitter is None:
        return None
    return tolerance * max(LEAST_CLEAR, math.exp(CLEAR_SPREADS * stability.jitter))


def first_found(plan: Plan) -> str:
    """Name the plan that a search found, and that was widened then."""
    if not len(plan):
        return "the plan with all layers low"
    return f"the first plan that was found, of {counted(len(plan), 'layer')},"


def _refuted(plan: Plan, outcome: Outcome) -> str:
    """Say on how many copies a plan failed, or that it leaves too little room for other builds."""
    stability = outcome.evidence.stability
    what = f"the answer was widened, since {first_found(plan)}"
    if outcome.passed:
        return f"{what} leaves less room than builds differ by"
    if stability is None:
        return f"{what} failed when it was built afresh"
    return (
        f"{what} fails in {stability.failed} of {stability.copies} "
        "checks with slight changes of the samples"
    )
