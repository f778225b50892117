"""The course of a run, as one generator: preflight, search, certificate, re-check.

It is deterministic given the outcomes, like the strategies that it contains, so a killed run is
resumed by feeding it what the ledger holds. It ends with one of a few distinct endings, or is cut
short by the budget, in which case the best plan so far is in the ledger.
"""

from dataclasses import dataclass, replace

from precision_bisect.certifying import Seen, certify, noting
from precision_bisect.endings import (
    Ending,
    Status,
    noisy,
    not_precision,
    not_reproduced,
    refuted,
)
from precision_bisect.errors import PluginError
from precision_bisect.options import Certify
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, Strategy, T
from precision_bisect.relay import relay
from precision_bisect.speed.settle import Settled, fast_enough, given
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet
from precision_bisect.verdicts import (
    below_noise,
    noise_between,
    passing_within,
    repeated,
    within,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What decides how a run goes: how the answer is certified, and whether samples are held out.

    Samples held out judge nothing but the final re-check. Where they refute the answer they join
    the judging samples, and the search is repeated on all.
    """

    certify: Certify = "full"
    held_out: bool = False


def flow(problem: Problem, strategy: Strategy, course: Course) -> Search[Ending]:
    """Search for a plan with `strategy`; see the module for the steps.

    An engine is built afresh for the re-check: builders may choose other kernels each time. With
    samples held out that one build is judged by all samples.
    """
    if not course.held_out:
        return (yield from _reproduced(problem, strategy, course))
    ending = yield from _settle(problem, strategy, course, Seen(problem.tolerance))
    if ending.plan is None:
        return ending
    recheck = yield from _recheck(problem, ending.plan, held_out=True)
    if recheck.passed:
        return ending
    again = yield from _on(SampleSet.ALL, _reproduced(problem, strategy, course))
    what = refuted(recheck, afresh=problem.predicts)
    before = f"a first answer of {len(ending.plan)} layers {what}, so those held out judge too"
    message = f"{again.message}; {before}" if again.message else before
    return replace(again, samples=SampleSet.ALL, message=message)


def _reproduced(problem: Problem, strategy: Strategy, course: Course) -> Search[Ending]:
    """Search for a plan that passes again where it is built afresh.

    One that fails then is searched for once more, as far below the tolerance as the two builds
    differ.
    """
    seen = Seen(problem.tolerance)
    ending = yield from _settle(problem, strategy, course, seen)
    if ending.plan is None or not problem.predicts:
        return ending
    recheck = yield from noting(_recheck(problem, ending.plan, held_out=False), seen)
    if recheck.passed:
        return ending
    limit = yield from _reproducible(problem, ending.plan, recheck)
    if limit is None:
        return Ending(status=Status.INFEASIBLE, message=not_reproduced(recheck))
    again = yield from _settle(problem, strategy, course, seen, limit)
    if again.plan is None:
        return again
    fresh = yield from _recheck(problem, again.plan, held_out=False)
    if not fresh.passed:
        return Ending(status=Status.INFEASIBLE, message=not_reproduced(fresh))
    message = (
        f"a first answer of {len(ending.plan)} layers failed when it was built afresh, so this "
        f"one stays below {limit:.4g}, by as much as its builds differed"
    )
    return replace(again, message=message)


def _reproducible(problem: Problem, answer: Plan, recheck: Outcome) -> Search[float | None]:
    """Return the tolerance less what two builds of an answer differ by; None if none is left."""
    first = yield from _one(answer, Phase.SEARCH, "the answer that was refuted")
    high = yield from _one(Plan.all_high(problem.size), Phase.PREFLIGHT, "every layer high")
    if None in (problem.tolerance, first.error, recheck.error, high.error):
        return None
    limit = float(problem.tolerance or 0.0) - abs((recheck.error or 0.0) - (first.error or 0.0))
    return limit if limit > (high.error or 0.0) else None


def _recheck(problem: Problem, plan: Plan, *, held_out: bool) -> Search[Outcome]:
    """Judge an answer once more: an engine built afresh, and what was held out."""
    if not problem.predicts:
        return (
            yield from _one(
                plan, Phase.RECHECK, "the samples held out", samples=SampleSet.HELD_OUT
            )
        )
    return (
        yield from _one(
            plan,
            Phase.RECHECK,
            "the answer, built afresh",
            samples=SampleSet.ALL if held_out else SampleSet.JUDGED,
            kind=Kind.REBUILD,
            timed=True,
        )
    )


def _settle(
    problem: Problem,
    strategy: Strategy,
    course: Course,
    seen: Seen,
    limit: float | None = None,
) -> Search[Ending]:
    """Preflight, search and certificate on one set of samples.

    With a `limit` below the tolerance the strategy is told verdicts by that. `seen` takes down
    the trials by the tolerance itself, as the certificate is read off them.
    """
    tolerance = problem.tolerance
    problem = problem if limit is None else replace(problem, tolerance=limit)
    ending = yield from preflight(problem)
    if ending is not None and ending.plan is not None:
        return _ended((yield from fast_enough(problem, given(ending.plan))), ending)
    if ending is not None:
        return ending
    everything = Plan.all_high(problem.size)
    noise = yield from _one(everything, Phase.PREFLIGHT, "the noise floor", kind=Kind.REPEAT)
    high = yield from _one(everything, Phase.PREFLIGHT, "every layer high")
    problem = replace(problem, noise=noise_between(high, noise))
    lower = below_noise(problem, high.error or 0.0) if problem.predicts else problem
    search = fast_enough(lower, _search(lower, strategy, course.certify, seen))
    if problem.predicts and lower is problem:
        search = repeated(search, problem)
    settled = yield from noting(within(search, lower.tolerance), seen)
    found = Ending(
        status=Status.FOUND,
        plan=settled.found,
        limit=None if lower.tolerance == tolerance else lower.tolerance,
    )
    return _ended(settled, found)


def _ended(settled: Settled, otherwise: Ending) -> Ending:
    """Return the ending with what became of the plan's speed; as it is where nothing did."""
    if settled.plan is None:
        return Ending(status=Status.INFEASIBLE, message=settled.message)
    if settled.plan == settled.found:
        return otherwise
    return replace(
        otherwise,
        status=Status.FOUND,
        message=settled.message,
        plan=settled.plan,
        found=settled.found,
    )


def _search(problem: Problem, strategy: Strategy, mode: Certify, seen: Seen) -> Search[Plan]:
    """Search and certify; the trials of the search count for the certificate."""
    plan = yield from strategy.search(problem)
    answer = yield from _one(plan, Phase.SEARCH, f"the answer of {strategy.name}")
    if not answer.passed:
        raise PluginError(
            f"strategy {strategy.name!r} ended with a plan that does not pass",
            "report it to its author, and choose another --strategy",
        )
    return (yield from certify(problem, plan, mode if strategy.minimal else "none", seen))


def _on(samples: SampleSet, search: Search[T]) -> Search[T]:
    """Return the same search with what it would judge by JUDGED judged by `samples`."""

    def ask(proposal: Proposal) -> Proposal:
        judged = proposal.samples is SampleSet.JUDGED
        return replace(proposal, samples=samples) if judged else proposal

    return relay(search, ask=ask)


def preflight(problem: Problem) -> Search[Ending | None]:
    """Check both ends and the noise before any search; return an ending where that settles it.

    All-low must be within the problem's own tolerance, which may be below the comparator's.
    """
    everything = Plan.all_high(problem.size)
    timed = problem.predicts
    high = yield from _one(everything, Phase.PREFLIGHT, "every layer high", timed=timed)
    if high.verdict is None:
        return Ending(status=Status.NOT_PRECISION, message=not_precision(high))
    noise = yield from _one(
        everything,
        Phase.PREFLIGHT,
        "the same plan again, for the noise floor",
        kind=Kind.REPEAT,
    )
    # A check that measures quality, not a difference, says the same of every repeat.
    if not noise.passed and (high.passed or noise.error != high.error):
        return Ending(status=Status.INFEASIBLE, message=noisy(noise))
    if not high.passed:
        return Ending(status=Status.NOT_PRECISION, message=not_precision(high))
    low = yield from _one(Plan.of(()), Phase.PREFLIGHT, "every layer low", timed=timed)
    if passing_within(low, problem.tolerance).passed:
        return Ending(
            status=Status.NOTHING_TO_KEEP,
            plan=Plan.of(()),
            message="every layer can run low within the tolerance",
        )
    return None


def _one(
    plan: Plan,
    phase: Phase,
    reason: str,
    *,
    samples: SampleSet = SampleSet.JUDGED,
    kind: Kind = Kind.JUDGE,
    timed: bool = False,
) -> Search[Outcome]:
    (outcome,) = yield (
        Proposal(
            plan=plan,
            phase=phase,
            samples=samples,
            kind=kind,
            timed=timed,
            reason=reason,
        ),
    )
    return outcome
