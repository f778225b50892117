"""How a run can end, and how each ending is put into words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from precision_bisect.errors import ExitCode, shortened
from precision_bisect.plan import Plan
from precision_bisect.trial import CaseName, Latency, Outcome, SampleSet, TrialStatus

if TYPE_CHECKING:
    from precision_bisect.runs.results.module_answer import ModuleAnswer
    from precision_bisect.runs.results.speed_report import PlanToDeploy


class Status(StrEnum):
    """How a run ended; the values are those of `result.json`."""

    FOUND = "found"
    NOTHING_TO_KEEP = "nothing_to_keep"
    NO_BASELINE = "no_baseline"
    NOT_PRECISION = "not_precision"
    INFEASIBLE = "infeasible"
    BUDGET_EXHAUSTED = "budget_exhausted"
    INTERRUPTED = "interrupted"
    ABORTED = "aborted"
    STOPPED = "stopped"

    @property
    def answers(self) -> bool:
        """Whether the plan of the ending is an answer."""
        return self in (Status.FOUND, Status.NOTHING_TO_KEEP)

    @property
    def cut_off(self) -> bool:
        """Whether the run ended before its search was over."""
        return self in (Status.BUDGET_EXHAUSTED, Status.INTERRUPTED, Status.ABORTED)


EXIT_CODES = {
    Status.FOUND: ExitCode.OK,
    Status.NOTHING_TO_KEEP: ExitCode.OK,
    Status.NO_BASELINE: ExitCode.NOT_BUILT,
    Status.NOT_PRECISION: ExitCode.NO_PLAN,
    Status.INFEASIBLE: ExitCode.NO_PLAN,
    Status.BUDGET_EXHAUSTED: ExitCode.BUDGET,
    Status.INTERRUPTED: ExitCode.INTERRUPTED,
    Status.ABORTED: ExitCode.BUDGET,
    Status.STOPPED: ExitCode.BUDGET,
}
"""What a command returns whose search ended so."""
CUT_SHORT = "interrupted after the search; --resume completes it"
"""What is said of an answer that an interrupt met while it was completed."""
UNTRIED = "the time ended before the first trial"
"""What is said of a run without trials, of whose model nothing is known."""
NO_SEARCH = ""
"""What `Ending.spread` says of an answer that the curve gave: its certificate tells the rest."""
WITHOUT_ANSWER = (Status.NO_BASELINE, Status.NOT_PRECISION, Status.INFEASIBLE)
"""How a search ends that has no answer to give, and will have none however long it goes on."""
_NOT_EVEN = {
    TrialStatus.BUILD_FAILED: "does not build",
    TrialStatus.RUN_FAILED: "builds, and does not run",
    TrialStatus.NOT_HONOURED: "is not what the engine computes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployable:
    """The fastest plan that holds, its own trial in a `case`, on copies of the samples, and what
    the `record` tells of it."""

    plan: Plan
    outcome: Outcome
    case: CaseName = ""
    record: "PlanToDeploy"

    def timed(self, latency: Latency | None) -> "Deployable":
        """Return it with an engine's time."""
        estimated = latency is None
        return replace(self, record=replace(self.record, latency=latency, estimated=estimated))

    def without_share(self) -> "Deployable":
        """Return it with no share of unseen inputs told."""
        return replace(self, record=replace(self.record, unseen_share=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the flow ended: the plan it stands by, if any, and what else there is to say.

    `found` is the plan that was searched for and certified, where speed made another of it.
    `limit` is the error that the search stayed below, where that is less than the tolerance.
    `spread` is None where the layers can be certified, `NO_SEARCH` where rounding is spread over
    the network, else it says for people why the answer was widened. `passed_over` are answers in
    whose place plans of the curve stand. `unsteady` tells that two builds gave two verdicts.
    `by_modules` is the answer as whole modules, if they hold, `deploy` the fastest plan that
    holds. Where it is too `slow` no plan that was timed is fast enough.
    """

    status: Status
    message: str = ""
    plan: Plan | None = None
    samples: SampleSet = SampleSet.JUDGED
    found: Plan | None = None
    limit: float | None = None
    spread: str | None = None
    passed_over: Sequence[Plan] = ()
    unsteady: bool = False
    slow: bool = False
    by_modules: "ModuleAnswer | None" = None
    deploy: Deployable | None = None

    def adding(self, what: str) -> "Ending":
        """Return the ending with more to say."""
        return replace(self, message="; ".join(filter(None, (self.message, what))))


def culprits_alone(count: int) -> str:
    """Say that the culprits do not suffice."""
    if not count:
        return "no single layer breaks it alone; a search without --culprits-only goes on"
    return "the culprits alone do not suffice; a search without --culprits-only goes on"


def noisy(noise: Outcome) -> str:
    """Say by how much two runs of the same plan differ."""
    if noise.verdict is None:
        return f"the same plan ran once and then did not: {shortened(noise.message)}"
    figure = "" if noise.error is None else f", by {noise.error:.4g}"
    return (
        f"two runs of the same plan differ by more than the tolerance{figure}; "
        "no verdict within it means anything"
    )


def refuted(recheck: Outcome, samples: str) -> str:
    """Say what samples say of an answer that does not pass on them."""
    if recheck.verdict is None:
        return f"no verdict on {samples} ({shortened(recheck.message)})"
    return f"the answer fails on {samples}"


def not_reproduced(recheck: Outcome, *, builds: bool) -> Ending:
    """Return the ending of an answer that failed when it was judged afresh, on other copies.

    `builds` tells whether that took another build.
    """
    what, verb = recheck.message or "the outputs differ too much", "fails"
    if recheck.verdict is None:
        what, verb = shortened(recheck.message), "has no verdict"
    figure = "" if recheck.error is None else f", error {recheck.error:.4g}"
    return Ending(
        status=Status.INFEASIBLE,
        message=f"judged afresh, the answer {verb}: {what}{figure}",
        unsteady=builds and recheck.failed,
    )


BUILDS_DIFFER = "builds differ by more than what the tolerance leaves"
"""What is to blame for an answer that failed in a fresh build, where nothing else is known."""


def no_baseline(high: Outcome) -> str:
    """Say why there is no verdict with every layer high."""
    what = _NOT_EVEN.get(high.status, f"has no verdict ({high.status.replace('_', ' ')})")
    return f"the model with every layer high {what}: {shortened(high.message)}"


def not_precision(high: Outcome) -> str:
    """Say what is wrong with every layer high already."""
    figure = None if high.error is None else f"error {high.error:.4g}"
    evidence = ", ".join(part for part in (high.message, figure) if part) or "the check says so"
    return (
        "with every layer high the outputs already differ from the FP32 reference: "
        f"{evidence}; no choice of layers can mend that"
    )
