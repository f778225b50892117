"""Searches made of searches."""

import pytest

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.search.combinators import mapped
from precision_bisect.trial import Proposal


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_what_ends_a_run_arrives_in_the_search(depth: int) -> None:
    """However a search is wrapped, it may end with what it has: else that would be lost."""

    def search() -> Search[str]:
        try:
            yield (Proposal(plan=Plan.of(())),)
        except KeyboardInterrupt:
            return "what it has"
        return "all"

    wrapped = search()
    for _ in range(depth):
        wrapped = mapped(wrapped)
    next(wrapped)
    with pytest.raises(StopIteration) as end:
        wrapped.throw(KeyboardInterrupt())
    assert "what it has" == end.value.value
