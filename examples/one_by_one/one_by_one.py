"""A strategy: `--strategy one-by-one` once `pip install ./examples/one_by_one` is done."""

from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Proposal


class OneByOne:
    """Drops one layer after the other, in network order."""

    name: ClassVar[str] = "one-by-one"
    assumption: ClassVar[str] = "none; as many trials as layers"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Go through the layers once."""
        plan = problem.top
        for layer in plan.indices:
            if plan.kept == {layer}:
                break
            (outcome,) = yield (Proposal(plan=plan.without((layer,))),)
            if outcome.passed:
                plan = plan.without((layer,))
        return plan
