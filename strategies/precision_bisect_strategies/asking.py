"""One question at a time: what the sequential strategies share."""

from collections.abc import Generator

from precision_bisect.plan import Plan
from precision_bisect.trial import Outcome, Proposal


def ask(
    plan: Plan, reason: str, *, narrowed_to: int | None = None, about_left: int | None = None
) -> Generator[tuple[Proposal, ...], tuple[Outcome, ...], Outcome]:
    """Propose one plan and return its outcome: `outcome = yield from ask(plan, "why")`."""
    (outcome,) = yield (
        Proposal(plan=plan, reason=reason, narrowed_to=narrowed_to, about_left=about_left),
    )
    return outcome
