"""Plans with their outcome and their measured speed."""

from dataclasses import dataclass, field, replace

from precision_bisect.plan import Plan
from precision_bisect.plan_costs import Pace
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.search.combinators import mapped
from precision_bisect.trial import Kind, Outcome, Phase, Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A plan that was judged and timed."""

    plan: Plan
    outcome: Outcome
    pace: Pace


@dataclass(slots=True)
class Record:
    """The outcomes of what a search has judged and timed so far, the last one of each plan."""

    outcomes: dict[Plan, Outcome] = field(default_factory=dict)

    def take(self, proposal: Proposal, outcome: Outcome) -> None:
        """Note an outcome if its engine was timed."""
        if proposal.kind is not Kind.PREDICT and outcome.evidence.latency is not None:
            self.outcomes[proposal.plan] = outcome


def timed(search: Search[T], record: Record, *, whole: bool) -> Search[T]:
    """Return the same search; what is timed is noted, with `whole` all that is judged is timed."""

    def ask(proposal: Proposal) -> Proposal:
        judged = whole and proposal.kind is Kind.JUDGE
        return replace(proposal, timed=True) if judged else proposal

    def tell(proposal: Proposal, outcome: Outcome) -> Outcome:
        record.take(ask(proposal), outcome)
        return outcome

    return mapped(search, ask=ask, tell=tell)


def all_high_ms(problem: Problem) -> Search[float | None]:
    """Return the latency with every layer high, in milliseconds; None where there is no figure."""
    everything = Plan.all_high(problem.size)
    outcome = yield from judge_timed(everything, "every layer high")
    latency = outcome.evidence.latency
    return latency.median_ms if latency is not None and latency.median_ms > 0 else None


def judge_timed(plan: Plan, reason: str) -> Search[Outcome]:
    """Return the outcome of a plan that is judged and timed.

    A plan that passed in an earlier trial without being timed is built once more for it.
    """
    proposal = Proposal(plan=plan, phase=Phase.SPEED, timed=True, reason=reason)
    (outcome,) = yield (proposal,)
    if outcome.passed and outcome.evidence.latency is None:
        (outcome,) = yield (replace(proposal, kind=Kind.AGAIN),)
    return outcome


def measure_pace(plan: Plan, high_ms: float, reason: str) -> Search[Measured | Outcome]:
    """Return a plan with its pace, or only its outcome where it could not be timed."""
    outcome = yield from judge_timed(plan, reason)
    pace = Pace.of(outcome.evidence.latency, high_ms)
    return outcome if pace is None else Measured(plan=plan, outcome=outcome, pace=pace)
