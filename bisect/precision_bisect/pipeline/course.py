"""The course of a run, as one generator: preflight, search, certificate, re-check on fresh copies.

It is deterministic given the outcomes, like the strategies inside it. So a killed run is resumed
by feeding it what the ledger holds. It ends with one of a few distinct endings. If the budget cuts
it short, the best plan so far is in the ledger.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from precision_bisect.errors import PluginError, counted
from precision_bisect.options import Certify, Until
from precision_bisect.pipeline.choosing import (
    first_chosen,
    judged_by_held_out,
    judged_by_others,
    on_samples,
)
from precision_bisect.pipeline.risk import judged_by_pool, safer
from precision_bisect.pipeline.stability import (
    StabilityCheck,
    clear_limit,
    one,
    preflight,
    settled,
)
from precision_bisect.pipeline.whole_modules import Modules, searched_by_module
from precision_bisect.plan import Plan
from precision_bisect.protocols import STARTED, Problem, Search, Strategy
from precision_bisect.runs.results.endings import (
    NO_SEARCH,
    Ending,
    Status,
    culprits_alone,
    not_reproduced,
    refuted,
)
from precision_bisect.search.certificate.certifying import certify
from precision_bisect.search.certificate.judged_trials import JudgedTrials, noting
from precision_bisect.search.certificate.sparing import misled, sparing
from precision_bisect.search.combinators import searched_by
from precision_bisect.search.limits_and_noise import below_noise, noise_between, repeated, within
from precision_bisect.search.luck import grounded
from precision_bisect.search.precision_curve import Curve, find_culprits, sweep
from precision_bisect.search.sensitivity import bounded
from precision_bisect.search.speed.meet_limits import fast_enough, given, still_fast
from precision_bisect.trial import Kind, Outcome, Phase, SampleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What decides how a run goes.

    With `curve` the curve is swept first, and the search begins with a plan that passes. The
    answer is certified as `certify` says. With `copies` it is judged on copies of the samples,
    too, of which `copies_failing` may fail. Of many samples some of the `pool` are chosen to
    search with, and all `others` judge the answer (see `choosing`); without a pool all search.
    The search decides on whole `modules`, where there are some. Samples `held_out` judge the
    answer last, and decide nothing. The answer is widened for a `risk` (see `safer`). A run that
    goes `until` less than the answer needs a curve.
    """

    certify: Certify = "full"
    pool: Sequence[int] = ()
    others: bool = False
    held_out: bool = False
    risk: float | None = None
    copies: bool = False
    copies_failing: int = 0
    curve: bool = False
    modules: Modules | None = None
    until: Until = "answer"


def flow(problem: Problem, strategy: Strategy, course: Course) -> Search[Ending]:
    """Search for a plan with `strategy`; the module's docstring has the steps.

    An engine is built afresh for the re-check, since builders may choose other kernels each time.
    """
    holding = StabilityCheck(problem=problem, copies=course.copies, rebuilds=problem.builds)
    if course.modules is not None:
        holding.whole = course.modules.closed
    steps = _Steps(problem, strategy, course, holding)
    chosen = yield from first_chosen(problem, course.pool)
    search = steps.held() if course.until == "answer" else steps.stopped()
    ending = yield from steps.answered(chosen, search)
    if ending.plan is None or not course.held_out:
        return ending
    outcome = yield from judged_by_held_out(ending.plan, builds=problem.builds)
    # Where each sample has a figure, the result says how many of them fail.
    if outcome.passed or outcome.evidence.one_by_one is not None:
        return ending
    return ending.adding(refuted(outcome, "the samples held out"))


class _Steps(NamedTuple):
    """The steps of one course, for one problem; `holding` knows what was judged on copies."""

    problem: Problem
    strategy: Strategy
    course: Course
    holding: StabilityCheck

    def answered(self, chosen: SampleSet, search: Search[Ending]) -> Search[Ending]:
        """Search on the chosen samples, and judge by all others."""
        ending = replace((yield from on_samples(chosen, search)), samples=chosen)
        if ending.plan is None or ending.status is Status.STOPPED:
            return ending
        # Before the others judge: what is widened for unseen inputs may hold on them as well.
        if self.course.risk is not None:
            plan = yield from on_samples(
                chosen, safer(ending.plan, self.holding, self.course.risk)
            )
            if plan != ending.plan:
                layers = f"the answer was widened from {counted(len(ending.plan), 'layer')}"
                note = f"{layers} for --risk {100 * self.course.risk:.3g}%"
                wider = replace(ending, plan=plan)
                ending = yield from on_samples(chosen, _widest(self.problem, wider, note))
        ending = yield from self._by_others(chosen, ending)
        if self.course.risk is not None and ending.plan is not None:
            yield from judged_by_pool(ending.plan, self.holding)
        return ending

    def _by_others(self, chosen: SampleSet, ending: Ending) -> Search[Ending]:
        """Have all other samples judge an answer, and widen it if they fail."""
        plan = ending.plan
        if plan is None or not self.course.others:
            return ending
        whole = self.course.until == "answer"
        by_others = yield from judged_by_others(plan, self.holding.renewed(), chosen, widen=whole)
        # Culprits are what they are: no layer is added for others.
        if not whole and not by_others.outcome.passed:
            message = culprits_alone(len(plan))
            return replace(ending, status=Status.STOPPED, message=message)
        # Not judged is not refuted, and is said.
        if by_others.outcome.verdict is None:
            ending = ending.adding(refuted(by_others.outcome, "all other samples"))
        if by_others.plan == plan:
            return ending
        wider = replace(ending, plan=by_others.plan, samples=by_others.chosen)
        return (
            yield from on_samples(by_others.chosen, _widest(self.problem, wider, by_others.spread))
        )

    def stopped(self) -> Search[Ending]:
        """End with the curve, or with the plan of its culprits, judged as an answer is."""
        course, holding = self.course, self.holding
        ending = yield from preflight(self.problem)
        if ending is not None and (ending.plan is None or course.until == "curve"):
            return ending
        if ending is None:
            curve = Curve(problem=self.problem, copies=course.copies)
            yield from find_culprits(curve) if course.until == "culprits" else sweep(curve)
            if course.until == "curve" or curve.culprits is None:
                return Ending(status=Status.STOPPED, message="only the curve was asked for")
            ending = Ending(status=Status.FOUND, plan=curve.culprits)
        assert ending.plan is not None
        outcome = yield from holding.judge(ending.plan, "the culprits alone", last=True)
        if outcome.passed:
            return ending
        return Ending(
            status=Status.STOPPED, plan=ending.plan, message=culprits_alone(len(ending.plan))
        )

    def held(self) -> Search[Ending]:
        """Search for a plan that holds on fresh copies, and on an engine in a fresh build.

        A plan that does not hold is widened until it does.
        """
        problem, holding = self.problem, self.holding
        ending = yield from self._search_and_prove()
        if ending.plan is None or not (self.course.copies or problem.builds):
            return ending
        plan = ending.plan
        if problem.builds and holding.spread is None:
            # What the search has built is known, and tells how far builds differ.
            holding.note(plan, (yield from one(plan, Phase.SEARCH, "as the search built it")))
        while True:
            recheck = yield from holding.judge(plan, "the answer, judged afresh", last=True)
            if recheck.passed and holding.leaves_room(plan):
                break
            wider = None
            # Without a verdict (a crash, a timeout) more layers are no cure.
            if recheck.verdict is not None:
                wider = yield from holding.widened(plan, recheck)
            # It passes, and even with every layer it would leave no more room: take it.
            if wider is None and recheck.passed:
                break
            if wider is None:
                return not_reproduced(recheck, builds=problem.builds)
            plan = wider
        # Not certified anew: rounding chose its layers, see `holding.spread`.
        if plan == ending.plan:
            return ending
        return (yield from _widest(problem, replace(ending, plan=plan), holding.spread))

    def _search_and_prove(self) -> Search[Ending]:
        """Preflight, search and certificate on one set of samples.

        Trials are noted by the tolerance itself, since the certificate is read off them, even
        where the search stays below a tighter limit.
        """
        problem, course, holding = self.problem, self.course, self.holding
        tolerance = problem.tolerance
        trials = JudgedTrials(
            tolerance=tolerance, size=problem.size, allowed=course.copies_failing
        )
        ending = yield from preflight(problem)
        if ending is not None and ending.plan is not None:
            fast = yield from fast_enough(problem, given(ending.plan))
            return ending if fast.plan == ending.plan else fast
        if ending is not None:
            return ending
        everything = Plan.all_high(problem.size)
        # These were trials of the preflight: asked again they come from the ledger.
        noise = yield from one(everything, Phase.PREFLIGHT, "the noise floor", kind=Kind.REPEAT)
        high = yield from one(everything, Phase.PREFLIGHT, "every layer high")
        problem = bounded(problem, high)
        holding.problem = bounded(holding.problem, high)
        if problem.large and problem.start is None:
            problem = yield from settled(problem)
        if problem.settled and course.certify != "none":
            course = replace(course, certify="full")
        if problem.start is not None:
            begun = yield from one(problem.start, Phase.PREFLIGHT, STARTED)
            problem = replace(problem, passing=problem.start if begun.passed else None)
        if course.curve and not problem.settled:
            curve = Curve(problem=problem, copies=course.copies)
            yield from sweep(curve)
            problem = replace(problem, passing=curve.passing or problem.passing)
            holding.spread = NO_SEARCH if curve.spread else None
        problem = replace(problem, noise=noise_between(high, noise))
        # Emulated errors repeat exactly, so only builds need room for noise.
        lower = below_noise(problem, high.error or 0.0) if problem.builds else problem
        steps = self._replace(problem=lower, course=course)
        search = fast_enough(lower, steps._search(trials))
        # No room below the tolerance was left: a second build decides near verdicts instead.
        if problem.builds and lower is problem:
            search = repeated(search, problem)
        # `noting` outside `within`: the certificate must see the comparator's own verdicts.
        ending = yield from noting(within(search, lower.tolerance), trials)
        if ending.plan is None:
            return ending
        limit = None if lower.tolerance == tolerance else lower.tolerance
        return replace(ending, limit=limit, spread=holding.spread)

    def _search(self, trials: JudgedTrials) -> Search[Plan]:
        """Search and certify; search again, by builds alone, if forecasts have misled the search.

        Where rounding is spread the curve's plan is the answer.
        """
        problem, holding = self.problem, self.holding
        if holding.spread is not None and problem.passing is not None:
            return (yield from _prefix(problem.passing, holding))
        plan = yield from self._certified(trials)
        if misled(trials) and holding.spread is None:
            trials.spared.clear()
            in_full = replace(self.course, certify="full")
            again = self._replace(problem=replace(problem, passing=plan), course=in_full)
            plan = yield from again._certified(trials)
        return plan

    def _certified(self, trials: JudgedTrials) -> Search[Plan]:
        """Search and certify; the trials of the search count for the certificate.

        With copies an answer must hold before it is certified, and the drops are judged on one
        draw of their own. Failures of the search count where they are clear. An answer that does
        not hold is widened. Luck decides which layers it keeps then, as where it has ended the
        search (see `search.luck`), so nothing is certified.
        """
        problem, strategy, course, holding = self
        mode = course.certify if strategy.minimal and course.modules is None else "none"
        passing = problem.passing if problem.settled else None
        if course.modules is not None:
            search = searched_by_module(problem, strategy, course.modules)
        else:
            search = searched_by(strategy, problem) if passing is None else given(passing)
        # Where speed counts, plans that fail are timed, too.
        spared = mode == "forecasts" and problem.speed is None
        if spared:
            search = sparing(search, trials)
        lucky = False
        if course.copies and not problem.builds:
            plan, lucky = yield from grounded(search, problem.top)
        else:
            plan = yield from search
        # From memory if the strategy is right. A strategy of others may end with any plan.
        answer = yield from one(plan, Phase.SEARCH, f"the answer of {strategy.name}")
        if not answer.passed:
            raise PluginError(
                f"strategy {strategy.name!r} ended with a plan that does not pass",
                "report it to its author, and choose another --strategy",
            )
        if not course.copies:
            return (yield from certify(problem, plan, mode, trials))
        if lucky:
            holding.spread = NO_SEARCH
        outcome = yield from holding.judge(plan, f"the answer of {strategy.name}, on copies")
        if outcome.failed:
            drawn = None if course.modules else problem.passing
            if lucky and drawn is not None and (yield from _drawn_holds(drawn, holding)):
                return drawn
            wider = yield from _widened(plan, outcome, holding)
            # The curve adds layers in another order, and its plan has passed on copies of its own.
            if drawn is None or len(drawn) >= len(wider) or holding.refuted(drawn):
                return wider
            return drawn if (yield from _drawn_holds(drawn, holding)) else wider
        if lucky:
            return plan
        trials.copies, trials.clear = True, clear_limit(problem.tolerance, outcome)
        return (yield from certify(problem, plan, mode, trials, holding.fresh()))


def _widest(problem: Problem, ending: Ending, spread: str | None) -> Search[Ending]:
    """End with a plan that had to be widened, if it is still fast enough."""
    assert ending.plan is not None
    if problem.speed is not None and not (yield from still_fast(problem, ending.plan)):
        why = f" ({spread})" if spread else ""
        message = f"the plan of {counted(len(ending.plan), 'layer')} that holds is too slow{why}"
        return Ending(status=Status.INFEASIBLE, message=message, slow=True)
    return Ending(
        status=Status.FOUND,
        plan=ending.plan,
        samples=ending.samples,
        limit=ending.limit,
        spread=spread,
    )


def _drawn_holds(drawn: Plan, holding: StabilityCheck) -> Search[bool]:
    smaller = yield from holding.judge(drawn, "the plan of the curve, on copies")
    return smaller.passed and holding.leaves_room(drawn)


def _prefix(plan: Plan, holding: StabilityCheck) -> Search[Plan]:
    """Return the curve's plan where rounding is spread, widened if it does not hold."""
    outcome = yield from holding.judge(plan, "the first plan of the curve that passed, on copies")
    return plan if outcome.passed else (yield from _widened(plan, outcome, holding))


def _widened(plan: Plan, refuted: Outcome, holding: StabilityCheck) -> Search[Plan]:
    """Return a wider plan that holds, else all-high: the re-check ends the run with the reason."""
    wider = yield from holding.widened(plan, refuted)
    return Plan.all_high(holding.problem.size) if wider is None else wider
