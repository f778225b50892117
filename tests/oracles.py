"""The simulated oracles of `precision_bisect.testing`, and searches that they answer."""

from collections.abc import Sequence

from precision_bisect.options import Certify
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, Strategy, T
from precision_bisect.search.certificate.certifying import certify
from precision_bisect.search.certificate.judged_trials import JudgedTrials, noting
from precision_bisect.search.combinators import feed
from precision_bisect.testing.cases import (
    TOLERANCE,
    Oracle,
    additive,
    clustered,
    flaky,
    interacting,
    monotone,
    non_monotone,
    outcome,
    without_figures,
)
from precision_bisect.trial import Kind, Outcome, Proposal, Trial

__all__ = [
    "TOLERANCE",
    "Oracle",
    "Simulation",
    "additive",
    "batched",
    "certified",
    "clustered",
    "flaky",
    "interacting",
    "monotone",
    "non_monotone",
    "outcome",
    "problem",
    "simulate",
    "without_figures",
]


def problem(size: int, tolerance: float | None = TOLERANCE, seed: int = 0) -> Problem:
    """Return a problem of so many layers."""
    return Problem(names=[f"layer{i}" for i in range(size)], tolerance=tolerance, seed=seed)


class Simulation:
    """Answers proposals by an oracle, each trial once; the preflight's two are known and free.

    `emulator` answers what is asked of the emulator, and is the oracle itself by default.
    `scores`, one per layer, make it one whose errors add up instead.
    """

    def __init__(
        self,
        size: int,
        oracle: Oracle,
        scores: Sequence[float] | None = None,
        emulator: Oracle | None = None,
    ) -> None:
        self.oracle = oracle
        self.emulator = emulator or oracle
        self.scores = scores
        self.everything = Plan.all_high(size)
        self.trials: list[Trial] = []
        self._known = {
            Proposal(plan=plan).identity: oracle(plan.kept)
            for plan in (self.everything, Plan.of(()))
        }

    def answer(self, proposal: Proposal) -> Outcome:
        """Return the outcome of one proposal."""
        if proposal.identity not in self._known:
            found = self._evaluate(proposal)
            self._known[proposal.identity] = found
            self.trials.append(Trial(proposal=proposal, outcome=found))
        return self._known[proposal.identity]

    def run(self, search: Search[T]) -> T:
        """Feed a search until it ends, and return its result."""

        def answer(batch: tuple[Proposal, ...]) -> tuple[Outcome, ...]:
            assert batch, "a strategy proposed nothing"
            return tuple(map(self.answer, batch))

        return feed(search, answer)

    def passed(self, plan: Plan) -> bool:
        """Tell whether a plan was tried on the judging samples and passed."""
        known = self._known.get(Proposal(plan=plan).identity)
        return known is not None and known.passed

    def count(self, *, predicted: bool = False) -> int:
        """Return the number of judged trials, or of those that the emulator was asked for."""
        return sum((t.proposal.kind is Kind.PREDICT) is predicted for t in self.trials)

    def _evaluate(self, proposal: Proposal) -> Outcome:
        if self.scores is not None and proposal.kind is Kind.PREDICT:
            low = self.everything.kept - proposal.plan.kept
            return outcome(sum(self.scores[layer] for layer in low))
        judge = self.emulator if proposal.kind is Kind.PREDICT else self.oracle
        return judge(proposal.plan.kept)


def simulate(strategy: Strategy, asked: Problem, oracle: Oracle) -> tuple[Plan, list[Trial]]:
    """Drive a strategy alone; return its plan and its trials, each distinct one once."""
    simulation = Simulation(asked.size, oracle)
    return simulation.run(strategy.search(asked)), simulation.trials


def certified(
    strategy: Strategy,
    asked: Problem,
    oracle: Oracle,
    scores: Sequence[float] | None = None,
    mode: Certify = "full",
) -> tuple[Plan, Simulation]:
    """Drive a strategy and the certificate after it; return the plan and the simulation."""
    simulation = Simulation(asked.size, oracle, scores)
    seen = JudgedTrials(tolerance=asked.tolerance, size=asked.size)
    plan = simulation.run(noting(strategy.search(asked), seen))
    return simulation.run(certify(asked, plan, mode, seen)), simulation


def batched(search: Search[Plan], batches: list[tuple[Proposal, ...]]) -> Search[Plan]:
    """Return the same search; its batches are noted."""
    try:
        batch = next(search)
        while True:
            batches.append(batch)
            batch = search.send((yield batch))
    except StopIteration as end:
        plan: Plan = end.value
        return plan
