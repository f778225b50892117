"""What a search ends with: the cheapest plan that passed when it was built first."""

import oracles
from oracles import Simulation
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.trial import Kind, Outcome, Proposal
from precision_bisect_strategies.asking import cheapest

SIZE = 4


def lucky_again(kept: frozenset[int]) -> Outcome:
    """Fail all but all-high."""
    return oracles.outcome(0.0 if len(kept) == SIZE else 2 * oracles.TOLERANCE)


class Lucky(Simulation):
    """Second builds pass whatever they keep."""

    def _evaluate(self, proposal: Proposal) -> Outcome:
        found = super()._evaluate(proposal)
        return oracles.outcome(0.0) if proposal.kind is Kind.AGAIN else found


def twice(plan: Plan) -> Search[Plan]:
    """Build a plan, and build it again; end with all-high."""
    yield (Proposal(plan=plan),)
    yield (Proposal(plan=plan, kind=Kind.AGAIN),)
    return Plan.all_high(SIZE)


def test_a_pass_in_the_second_build_alone_is_none() -> None:
    """The run judges an answer by its first build."""
    simulation = Lucky(SIZE, lucky_again)
    assert Plan.all_high(SIZE) == simulation.run(cheapest(twice(Plan.of([1])), len))
    assert simulation.count() == 2


def test_the_cheapest_that_passed_is_the_answer() -> None:
    """Though the search ends with another one."""
    simulation = Simulation(SIZE, lambda _: oracles.outcome(0.0))
    assert Plan.of([1]) == simulation.run(cheapest(twice(Plan.of([1])), len))
