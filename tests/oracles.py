"""The simulated oracles of `precision_bisect.testing`, the certificate, batches of a search."""

from collections.abc import Sequence

from precision_bisect.options import Certify
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, Strategy
from precision_bisect.search.certificate.certifying import certify
from precision_bisect.search.certificate.judged_trials import JudgedTrials, noting
from precision_bisect.testing.driving import Simulation, simulate
from precision_bisect.testing.oracles import (
    TOLERANCE,
    Oracle,
    additive,
    clustered,
    flaky,
    interacting,
    monotone,
    non_monotone,
    outcome,
    problem,
    without_figures,
)
from precision_bisect.trial import Proposal

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
