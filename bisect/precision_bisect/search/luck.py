"""A search that luck decides is ended, and goes back to a plan that holds.

Where a network selects (boxes, classes, tokens) its error jumps: which layer can go is chance, and
a search takes one after another that passes by luck. Its answer then fails on copies of the
samples, whatever it took. So a long search has its smallest plan judged on a few copies now and
then. Once that fails, the search is over: the answer is looked for among what it has passed.
"""

from collections.abc import Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.search.combinators import Batch, Outcomes, answered
from precision_bisect.search.precision_curve import CURVE_DRAW
from precision_bisect.trial import Kind, Phase, Proposal

FIRST_CHECK = 32
"""Trials of a search before its plan is judged on copies; then at twice as many, and so on. A few
copies of a plan cost as much as five to nine trials."""


class _LuckError(Exception):
    """The smallest plan of a search does not hold on copies."""


def grounded(search: Search[Plan], start: Plan) -> Search[tuple[Plan, bool]]:
    """Return a search's plan, and whether luck has ended it; it goes down from `start`.

    After luck it is the smallest plan that holds on a few copies, by halves, of those that passed
    since the last check. They are taken to hold up to some plan, and to fail from there on.
    """
    path, trials, due = [start], 0, FIRST_CHECK

    def answer(batch: Batch) -> Search[Outcomes]:
        nonlocal trials, due
        outcomes = yield batch
        for proposal, outcome in zip(batch, outcomes, strict=True):
            if proposal.kind is not Kind.JUDGE or proposal.phase is not Phase.SEARCH:
                continue
            trials += 1
            if outcome.passed and len(proposal.plan) < len(path[-1]):
                path.append(proposal.plan)
        if trials >= due and len(path) > 1:
            # At doubling distances, so that checks stay a small share of the trials.
            due = 2 * trials
            if not (yield from _holds(path[-1])):
                raise _LuckError
            # It holds: what came before need not be looked at again.
            del path[:-1]
        return outcomes

    try:
        return (yield from answered(search, answer)), False
    except _LuckError:
        return (yield from _last_holding(path)), True


def _last_holding(path: Sequence[Plan]) -> Search[Plan]:
    """Return the last plan of a path that holds; its first does, its last does not."""
    holds, fails = 0, len(path) - 1
    while fails - holds > 1:
        middle = (holds + fails) // 2
        if (yield from _holds(path[middle])):
            holds = middle
        else:
            fails = middle
    return path[holds]


def _holds(plan: Plan) -> Search[bool]:
    (outcome,) = yield (
        Proposal(
            plan=plan,
            phase=Phase.SEARCH,
            # The curve's, whose few copies the evaluator still holds.
            draw=CURVE_DRAW,
            reason=f"{len(plan)} kept so far, on a few copies",
        ),
    )
    return outcome.passed
