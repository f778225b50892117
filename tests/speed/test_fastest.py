"""Properties of the plan to deploy, on rows of layers whose errors the law tells or not.

On an engine clocks decide that know nothing of estimates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import assume, given
from hypothesis import strategies as st

import oracles
from effort import examples
from precision_bisect.layer_table import LayerName
from precision_bisect.options import Objective
from precision_bisect.pipeline.fastest import (
    FIRST_DRAW,
    JUDGED,
    SAFER,
    Rivals,
    fastest,
)
from precision_bisect.pipeline.fastest_on_engine import (
    LEAST,
    SHARE,
    TRIED,
    Contest,
    fastest_on_engine,
)
from precision_bisect.pipeline.plan_estimates import Estimates
from precision_bisect.pipeline.risk import ROOM, unseen_share
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Fusion, Value
from precision_bisect.protocols import Search, T
from precision_bisect.runs.results.speed_report import AS_FAST
from precision_bisect.runs.results.unseen import as_safe
from precision_bisect.search.budget import BudgetSpent
from precision_bisect.search.combinators import feed
from precision_bisect.search.rounding_law import Law
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import (
    Evidence,
    Identity,
    Kind,
    Latency,
    OneByOne,
    Outcome,
    Proposal,
)


@st.composite
def graphs(draw: st.DrawFn, least: int = 2) -> CostGraph:
    """Return a row of up to ten layers, some of which one kernel computes."""
    size = draw(st.integers(least, 10))
    costs = st.floats(0, 1, allow_subnormal=False)
    high = draw(st.lists(costs, min_size=size, max_size=size))
    cast = draw(st.lists(costs, min_size=size, max_size=size))
    values = [
        Value(producer=i, readers=(i + 1,) if i + 1 < size else (), read_high=False, cast_ms=ms)
        for i, ms in enumerate(cast)
    ]
    first = draw(st.integers(0, size - 2))
    last = draw(st.integers(first + 1, size - 1))
    fusion = Fusion(layers=tuple(range(first, last + 1)), low_ms=draw(costs), high_ms=draw(costs))
    return CostGraph(high, values, draw(st.sampled_from([(), (fusion,)])), 1.0)


@examples(30)
@given(data=st.data(), graph=graphs())
def test_a_gain_is_the_difference_of_two_costs(data: st.DataObject, graph: CostGraph) -> None:
    """What a change of a plan is said to gain is what the search adds up, broken kernels too."""
    plans = st.frozensets(st.integers(0, graph.size - 1))
    kept, instead = data.draw(plans), data.draw(plans)
    difference = graph.cost(kept) - graph.cost(instead)
    assert math.isclose(difference, graph.gain(kept, instead), abs_tol=1e-9)


def alike(graph: CostGraph) -> Estimates:
    """Return estimates that are the same for all batches, with TF32 and without."""
    return Estimates(
        plain=graph,
        full_batch=graph,
        tf32=graph,
        full_batch_tf32=graph,
        instead={"smallest": graph},
    )


@examples(30)
@given(
    data=st.data(),
    graph=graphs(),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    objective=st.sampled_from(["fastest", "smallest"]),
)
def test_it_passes_its_own_trial_and_is_no_slower(
    data: st.DataObject, graph: CostGraph, factor: float, objective: Objective
) -> None:
    """Also where the law is wrong: it was tried on draws of its own, in time, and has room."""
    size, sizes = graph.size, st.sampled_from([0.0, 0.1, 0.4, 0.7, 2.0, math.inf])
    errors = data.draw(st.lists(sizes, min_size=size, max_size=size))

    def oracle(kept: frozenset[int]) -> Outcome:
        low = (error for i, error in enumerate(errors) if i not in kept)
        return oracles.outcome(factor * math.hypot(*low))

    answer = Plan.of(data.draw(st.frozensets(st.integers(0, size - 1), max_size=size - 1)))
    assume(oracle(answer.kept).passed)
    law = Law.of([min(error, 1e30) for error in errors], Plan.of(()))
    estimates = alike(graph)
    rivals = Rivals(
        names=[LayerName(name) for name in oracles.problem(size).names],
        limit=oracles.TOLERANCE,
        law=law,
        answer=answer,
        outcome=oracle(answer.kept),
        estimates=estimates,
    )
    simulation = oracles.Simulation(size, oracle)
    deploy = simulation.run(
        fastest(oracles.problem(size), rivals, copies=True, objective=objective)
    )
    assert deploy is not None and deploy.outcome.passed
    assert deploy.record.kept == [rivals.names[i] for i in deploy.plan.indices]
    trials = {trial.proposal.plan: trial for trial in simulation.trials}
    assert len(trials) <= JUDGED
    if deploy.plan != answer:
        assert trials[deploy.plan].outcome == deploy.outcome
        assert trials[deploy.plan].proposal.draw > FIRST_DRAW
    assert deploy.record.time <= (1 + AS_FAST) * deploy.record.answer_time + 1e-12
    if (deploy.outcome.error or 0.0) > ROOM * oracles.TOLERANCE:
        roomy = [
            plan
            for plan, trial in trials.items()
            if (trial.outcome.error or 0.0) <= ROOM * oracles.TOLERANCE
        ]
        assert all(graph.time(plan.kept) > graph.time(deploy.plan.kept) for plan in roomy)


@examples(20)
@given(data=st.data(), graph=graphs(), spread=st.sampled_from([0.05, 0.3, 0.6]))
def test_it_is_safe_on_unseen_inputs_where_a_plan_is(
    data: st.DataObject, graph: CostGraph, spread: float
) -> None:
    """Errors of samples spread: the fastest that nearly none of the unseen exceed is deployed."""
    size, limit = graph.size, oracles.TOLERANCE
    sizes = st.sampled_from([0.1, 0.4, 0.7, 2.0])
    errors = data.draw(st.lists(sizes, min_size=size, max_size=size))
    samples = [math.exp(spread * place) for place in (-3.0, -2.0, -1.5, -1.0, -0.5, 0.0)]

    def oracle(kept: frozenset[int]) -> Outcome:
        error = math.hypot(*(error for i, error in enumerate(errors) if i not in kept))
        judged = oracles.outcome(error)
        told = OneByOne(numbers=[*range(6)], errors=[error * each for each in samples])
        return replace(judged, evidence=replace(judged.evidence, one_by_one=told))

    answer = Plan.of(data.draw(st.frozensets(st.integers(0, size - 1), max_size=size - 1)))
    assume(oracle(answer.kept).passed)
    rivals = Rivals(
        names=[LayerName(name) for name in oracles.problem(size).names],
        limit=limit,
        law=Law.of(errors, Plan.of(())),
        answer=answer,
        outcome=oracle(answer.kept),
        estimates=alike(graph),
    )
    simulation = oracles.Simulation(size, oracle)
    deploy = simulation.run(fastest(oracles.problem(size), rivals, copies=True))
    assert deploy is not None
    judged = {trial.proposal.plan: trial.outcome for trial in simulation.trials}
    assert len(judged) <= JUDGED + SAFER
    shares = {
        plan: unseen_share(outcome, limit)
        for plan, outcome in {answer: rivals.outcome, **judged}.items()
        if outcome.passed
    }
    safe = [plan for plan, share in shares.items() if as_safe(share, None)]
    assert deploy.record.unseen_share == shares[deploy.plan]
    assert deploy.plan in safe or not safe
    least = min((graph.time(plan.kept) for plan in safe), default=math.inf)
    assert graph.time(deploy.plan.kept) <= (1 + AS_FAST) * least + 1e-12


@dataclass
class Engine:
    """Errors that add up, and a clock that knows nothing of estimates; what was tried is kept."""

    errors: list[float]
    speedups: Callable[[Plan], float]
    seconds: float
    trials: dict[Identity, tuple[Proposal, Outcome]] = field(default_factory=dict)
    most: float = math.inf

    def answer(self, batch: tuple[Proposal, ...]) -> tuple[Outcome, ...]:
        """Return outcomes. Raises BudgetSpent beyond the `most` trials."""
        for proposal in batch:
            if proposal.identity not in self.trials:
                if len(self.trials) >= self.most:
                    raise BudgetSpent("spent")
                self.trials[proposal.identity] = proposal, self.outcome(proposal.plan)
        return tuple(self.trials[proposal.identity][1] for proposal in batch)

    def outcome(self, plan: Plan) -> Outcome:
        """Return what a plan comes to, in turns with every layer high."""
        low = (error for layer, error in enumerate(self.errors) if layer not in plan.kept)
        speedup = self.speedups(plan)
        latency = Latency(
            median_ms=1 / speedup, spread_ms=0.0, runs=9, baseline_ms=1.0, speedup=speedup
        )
        judged = oracles.outcome(math.hypot(*low))
        return replace(judged, evidence=Evidence(latency=latency), wall_s=self.seconds)

    def run(self, search: Search[T]) -> T:
        """Feed a search until it ends."""
        return feed(search, self.answer)


@st.composite
def contests(draw: st.DrawFn) -> tuple[Contest, Engine]:
    """Return a contest whose answer holds, and the engine that it is on."""
    graph = draw(graphs())
    size, figures = graph.size, st.sampled_from([0.0, 0.1, 0.4, 0.7, 2.0, math.inf])
    errors = draw(st.lists(figures, min_size=size, max_size=size))
    worth = draw(st.lists(st.floats(-0.2, 0.3), min_size=size, max_size=size))

    def speedup(plan: Plan) -> float:
        return 1 / max(0.1, 1 + sum(worth[i] for i in range(size) if i not in plan.kept))

    engine = Engine(errors, speedup, seconds=draw(st.sampled_from([0.0, 1.0, 5.0])))
    answer = Plan.of(draw(st.frozensets(st.integers(0, size - 1), max_size=size - 1)))
    outcome = engine.outcome(answer)
    assume(outcome.passed)
    estimates = alike(graph)
    # The law is what forecasts said: wrong for some layers.
    law = Law.of([min(draw(figures), 1e30) for _ in errors], Plan.of(()))
    rivals = Rivals(
        names=[LayerName(name) for name in oracles.problem(size).names],
        limit=oracles.TOLERANCE,
        law=law,
        answer=answer,
        outcome=outcome,
        estimates=estimates,
    )
    contest = Contest(
        rivals=rivals,
        limit=oracles.TOLERANCE,
        trial=Proposal(plan=answer, kind=Kind.REBUILD, draw=7, case=TF32, timed=True),
        multiplying=draw(st.frozensets(st.integers(0, size - 1))),
        spent_s=draw(st.sampled_from([0.0, 20.0, 200.0])),
    )
    return contest, engine


@examples(25)
@given(drawn=contests(), objective=st.sampled_from(["fastest", "smallest"]))
def test_it_is_the_fastest_that_was_tried_and_held(
    drawn: tuple[Contest, Engine], objective: Objective
) -> None:
    """By its own trial, in the time allowed; one with room wins where it costs at most 2%."""
    contest, engine = drawn
    deploy = engine.run(fastest_on_engine(contest, objective))
    assert deploy is not None and deploy.outcome.passed and deploy.case == TF32
    outcomes = {proposal.plan: outcome for proposal, outcome in engine.trials.values()}
    assert {(TF32, 7, Kind.REBUILD)} == {
        (proposal.case, proposal.draw, proposal.kind) for proposal, _ in engine.trials.values()
    }
    assert outcomes[deploy.plan] == deploy.outcome
    assert deploy.record.latency == deploy.outcome.evidence.latency
    further = len(outcomes) - 1
    assert further <= TRIED
    if further > LEAST:
        took = further * engine.seconds
        assert took <= SHARE * (contest.spent_s + took) + 1e-9
    graph = contest.rivals.estimates.instead["smallest"]
    times = {
        plan: graph.time(plan.kept) if objective == "smallest" else 1 / engine.speedups(plan)
        for plan, outcome in outcomes.items()
        if outcome.passed
    }
    fast = [plan for plan, time in times.items() if time <= (1 + AS_FAST) * min(times.values())]
    assert deploy.plan in fast
    if (deploy.outcome.error or 0.0) > ROOM * oracles.TOLERANCE:
        assert all((outcomes[plan].error or 0) > ROOM * oracles.TOLERANCE for plan in fast)


@examples(12)
@given(drawn=contests(), most=st.integers(0, TRIED))
def test_a_resumed_run_decides_alike(drawn: tuple[Contest, Engine], most: int) -> None:
    """A run that was cut off within the contest goes on to the plan of one that was not."""
    contest, engine = drawn
    whole = engine.run(fastest_on_engine(contest))
    cut = replace(engine, trials={}, most=most)
    if most:
        cut.run(fastest_on_engine(contest))
    cut.most = math.inf
    assert whole == cut.run(fastest_on_engine(contest))
    assert engine.trials == cut.trials


def test_an_engine_without_a_clock_has_no_plan_to_deploy() -> None:
    """One build tells that, and nothing else is tried."""
    graph = CostGraph([1.0, 1.0], [])
    estimates = alike(graph)
    answer, outcome = Plan.of([0]), oracles.outcome(0.1)
    law = Law.of([0.1, 0.1], Plan.of(()))
    names = [LayerName(name) for name in oracles.problem(2).names]
    rivals = Rivals(
        names=names,
        limit=oracles.TOLERANCE,
        law=law,
        answer=answer,
        outcome=outcome,
        estimates=estimates,
    )
    trial = Proposal(plan=answer, kind=Kind.REBUILD, timed=True)
    contest = Contest(rivals=rivals, limit=1.0, trial=trial, multiplying=(), spent_s=math.inf)
    simulation = oracles.Simulation(2, lambda kept: outcome)
    assert simulation.run(fastest_on_engine(contest)) is None
    assert [answer] == [trial.proposal.plan for trial in simulation.trials]
