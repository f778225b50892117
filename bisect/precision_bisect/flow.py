"""The course of a run, as one generator: preflight, search, certificate, re-check.

It is deterministic given the outcomes, like the strategies that it contains, so a killed run is
resumed by feeding it what the ledger holds. It ends with one of a few distinct endings, or is cut
short by the budget, in which case the best plan so far is in the ledger.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from enum import StrEnum

from precision_bisect.errors import PluginError
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, Strategy, T
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet


class Status(StrEnum):
    """How a run ended; the values are those of `result.json`."""

    FOUND = "found"
    NOTHING_TO_KEEP = "nothing_to_keep"
    NOT_PRECISION = "not_precision"
    INFEASIBLE = "infeasible"
    BUDGET_EXHAUSTED = "budget_exhausted"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the flow ended: the plan it stands by, if any, and what else there is to say."""

    status: Status
    message: str = ""
    plan: Plan | None = None
    samples: SampleSet = SampleSet.JUDGED


def flow(problem: Problem, strategy: Strategy, *, held_out: bool) -> Search[Ending]:
    """Search for a plan with `strategy`; see the module for the steps.

    `held_out` tells whether there are samples that judge nothing but the final re-check. Where
    they refute the answer they join the judging samples, and the search is repeated on all. An
    engine is built afresh for the re-check: builders may choose other kernels each time.
    """
    ending = yield from _settle(problem, strategy)
    if ending.plan is None or not (held_out or problem.predicts):
        return ending
    recheck = yield from _recheck(problem, ending.plan, held_out=held_out)
    if recheck.passed:
        return ending
    if not held_out:
        return Ending(status=Status.INFEASIBLE, message=_not_reproduced(recheck))
    again = yield from _on(SampleSet.ALL, _settle(problem, strategy))
    if again.plan is not None and problem.predicts:
        fresh = yield from _recheck(problem, again.plan, held_out=True)
        if not fresh.passed:
            return Ending(status=Status.INFEASIBLE, message=_not_reproduced(fresh))
    refuted = (
        f"a first answer of {len(ending.plan)} layers {_refuted(recheck)}, so these judge too"
    )
    message = f"{again.message}; {refuted}" if again.message else refuted
    return replace(again, samples=SampleSet.ALL, message=message)


def _recheck(
    problem: Problem, plan: Plan, *, held_out: bool
) -> Generator[tuple[Proposal, ...], tuple[Outcome, ...], Outcome]:
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


def _settle(problem: Problem, strategy: Strategy) -> Search[Ending]:
    """Preflight, search and certificate on one set of samples."""
    ending = yield from preflight(problem)
    if ending is not None:
        return ending
    plan = yield from strategy.search(problem)
    answer = yield from _one(plan, Phase.SEARCH, f"the answer of {strategy.name}")
    if not answer.passed:
        raise PluginError(
            f"strategy {strategy.name!r} ended with a plan that does not pass",
            "report it to its author, and choose another --strategy",
        )
    if strategy.minimal:
        plan = yield from certify(plan)
    return Ending(status=Status.FOUND, plan=plan)


def _on(samples: SampleSet, search: Search[T]) -> Search[T]:
    """Return the same search with what it would judge by JUDGED judged by `samples`."""
    try:
        batch = next(search)
        while True:
            outcomes = yield tuple(
                replace(p, samples=samples) if p.samples is SampleSet.JUDGED else p for p in batch
            )
            batch = search.send(outcomes)
    except StopIteration as end:
        result: T = end.value
        return result


def preflight(problem: Problem) -> Search[Ending | None]:
    """Check both ends and the noise before any search; return an ending where that settles it."""
    everything = Plan.all_high(problem.size)
    timed = problem.predicts
    high = yield from _one(everything, Phase.PREFLIGHT, "every layer high", timed=timed)
    if high.verdict is None:
        return Ending(status=Status.NOT_PRECISION, message=_not_precision(high))
    noise = yield from _one(
        everything,
        Phase.PREFLIGHT,
        "the same plan again, for the noise floor",
        kind=Kind.REPEAT,
    )
    # A check that measures quality, not a difference, says the same of every repeat.
    if not noise.passed and (high.passed or noise.error != high.error):
        return Ending(status=Status.INFEASIBLE, message=_noisy(noise))
    if not high.passed:
        return Ending(status=Status.NOT_PRECISION, message=_not_precision(high))
    low = yield from _one(Plan.of(()), Phase.PREFLIGHT, "every layer low", timed=timed)
    if low.passed:
        return Ending(
            status=Status.NOTHING_TO_KEEP,
            plan=Plan.of(()),
            message="every layer can run low within the tolerance",
        )
    return None


def certify(plan: Plan) -> Search[Plan]:
    """Drop every kept layer once; where one can go, drop it and try the others again.

    Those whose drop came closest to passing are tried first then. Ends with a plan of which every
    single drop was tried and did not pass.
    """
    waiting = list(plan.indices)
    missed: dict[int, float] = {}
    while waiting:
        layer = waiting.pop(0)
        outcome = yield from _one(
            plan.without((layer,)),
            Phase.CERTIFICATE,
            f"drop {len(plan) - len(waiting)} of {len(plan)}",
            narrowed_to=len(plan),
            about_left=len(waiting) + 1,
        )
        if outcome.passed:
            plan = plan.without((layer,))
            waiting = sorted(
                plan.indices, key=lambda kept: (missed.get(kept, math.inf), kept in missed)
            )
        else:
            missed[layer] = math.inf if outcome.error is None else outcome.error
    return plan


def _one(
    plan: Plan,
    phase: Phase,
    reason: str,
    *,
    samples: SampleSet = SampleSet.JUDGED,
    kind: Kind = Kind.JUDGE,
    timed: bool = False,
    narrowed_to: int | None = None,
    about_left: int | None = None,
) -> Generator[tuple[Proposal, ...], tuple[Outcome, ...], Outcome]:
    (outcome,) = yield (
        Proposal(
            plan=plan,
            phase=phase,
            samples=samples,
            kind=kind,
            timed=timed,
            reason=reason,
            narrowed_to=narrowed_to,
            about_left=about_left,
        ),
    )
    return outcome


def _noisy(noise: Outcome) -> str:
    if noise.verdict is None:
        return f"the same plan ran once and then did not: {noise.message}"
    figure = "" if noise.error is None else f", by {noise.error:.4g}"
    return (
        f"two runs of the same plan differ by more than the tolerance{figure}; "
        "no verdict within it means anything"
    )


def _refuted(recheck: Outcome) -> str:
    """Say what the re-check with the samples held out came to."""
    if recheck.verdict is None:
        return f"had no verdict with the samples held out ({recheck.message})"
    return "failed on the samples held out"


def _not_reproduced(recheck: Outcome) -> str:
    if recheck.verdict is None:
        return f"the answer passed, and had no verdict when it was built afresh: {recheck.message}"
    figure = "" if recheck.error is None else f", error {recheck.error:.4g}"
    what = recheck.message or "the outputs differ too much"
    return (
        f"the answer passed, and did not when it was built afresh: {what}{figure}; "
        "builds differ by more than what the tolerance leaves"
    )


def _not_precision(high: Outcome) -> str:
    if high.verdict is None:
        return f"there is no verdict even with every layer high ({high.status}): {high.message}"
    figure = None if high.error is None else f"error {high.error:.4g}"
    evidence = ", ".join(part for part in (high.message, figure) if part) or "the check says so"
    return (
        "with every layer high the outputs already differ from the FP32 reference: "
        f"{evidence}; no choice of layers can mend that"
    )
