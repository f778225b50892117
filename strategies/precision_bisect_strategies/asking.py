"""Helpers of strategies: ask one question, ask none twice, keep the cheapest plan that passed."""

from collections.abc import Callable, Generator

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search, T
from precision_bisect.search.combinators import Batch, Outcomes, answered, mapped
from precision_bisect.trial import Identity, Kind, Outcome, Proposal


def ask(
    plan: Plan, reason: str, *, narrowed_to: int | None = None, about_left: int | None = None
) -> Generator[tuple[Proposal, ...], tuple[Outcome, ...], Outcome]:
    """Propose one plan and return its outcome: `outcome = yield from ask(plan, "why")`."""
    (outcome,) = yield (
        Proposal(plan=plan, reason=reason, narrowed_to=narrowed_to, about_left=about_left),
    )
    return outcome


def unrepeated(search: Search[T]) -> Search[T]:
    """Return the same search; a plan that it asks again is answered from memory."""
    known_outcomes: dict[Identity, Outcome] = {}

    def answer(batch: Batch) -> Search[Outcomes]:
        fresh = {proposal.identity: proposal for proposal in batch}
        unknown = [key for key in fresh if key not in known_outcomes]
        if unknown:
            outcomes = yield tuple(fresh[key] for key in unknown)
            known_outcomes.update(zip(unknown, outcomes, strict=True))
        return tuple(known_outcomes[proposal.identity] for proposal in batch)

    return answered(search, answer)


def cheapest(search: Search[Plan], cost: Callable[[Plan], float]) -> Search[Plan]:
    """Return the same search; it ends with the cheapest plan that passed, or the smallest such.

    A plan that failed in its first build and passed in a second one does not count.
    """
    passed: list[Plan] = []

    def tell(proposal: Proposal, outcome: Outcome) -> Outcome:
        if outcome.passed and proposal.kind is Kind.JUDGE:
            passed.append(proposal.plan)
        return outcome

    plan = yield from mapped(search, tell=tell)
    # The search's own plan may have passed in a trial that it did not ask for, as a preflight's.
    return min([plan, *passed], key=lambda option: (cost(option), len(option)))
