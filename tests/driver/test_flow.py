"""The course of a run over simulated backends: endings, noise, failures, held-out samples."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from oracles import Oracle
from precision_bisect.budget import Budget, BudgetSpent
from precision_bisect.comparators.polygraphy import PolygraphyComparator
from precision_bisect.comparators.tolerance import Tolerance
from precision_bisect.driver import Driver, Evaluators
from precision_bisect.errors import PluginError
from precision_bisect.events import Event, PhaseStarted, TrialFinished, TrialStarted, ignore
from precision_bisect.evidence import Evidence, Honour, Latency, LayerHonour
from precision_bisect.flow import Ending, Status, flow
from precision_bisect.layer_table import LayerName
from precision_bisect.ledger.store import SqliteLedger, open_ledger
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure, Problem, Sample, Search, Strategy
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet, TrialStatus, Verdict
from precision_bisect_strategies.guided import Guided

SIZE = 12
CRASH = Outcome(status=TrialStatus.CRASHED, message="segmentation fault")
Evaluate = Callable[[Plan, Sample], float]


class Simulated:
    """A backend whose one output is the error itself, against a reference of zero."""

    name: ClassVar[str] = "simulated"
    emulated: ClassVar[bool] = False

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.built: list[Plan] = []
        self.shown: dict[Plan, Evidence] = {}
        self.clockless = False

    def versions(self) -> Mapping[str, str]:
        """Return nothing: there is nothing that results depend on."""
        return {}

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return nothing: every layer can run low."""
        return {}

    def build(self, plan: Plan) -> "SimulatedEngine":
        """Note that the plan was built."""
        self.built.append(plan)
        return SimulatedEngine(self, plan)

    def evaluate(self, plan: Plan, feed: Sample) -> Sample:
        """Return the error that the rule gives."""
        return {"y": np.array([self._evaluate(plan, feed)])}


class SimulatedEngine:
    """One plan of a simulated backend; it leaves a file when it is saved."""

    def __init__(self, backend: Simulated, plan: Plan) -> None:
        self._backend = backend
        self._plan = plan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, feed: Sample) -> Sample:
        """Return the error of the plan."""
        return self._backend.evaluate(self._plan, feed)

    def time(self, feed: Sample) -> Latency | None:
        """Return a latency that grows with the layers kept, where this backend's clock works."""
        del feed
        if self._backend.clockless:
            raise BackendFailure(Outcome(status=TrialStatus.RUN_FAILED, message="no clock"))
        return Latency(median_ms=1.0 + len(self._plan), spread_ms=0.0, runs=1)

    def evidence(self) -> Evidence:
        """Return what the backend says of this plan."""
        return self._backend.shown.get(self._plan, Evidence())

    def save(self, folder: Path) -> None:
        """Write down which plan it was."""
        (folder / "engine").write_text(self._plan.key)


def by(oracle: Oracle) -> Evaluate:
    """Return the rule of an oracle: its error, or its failure."""

    def evaluate(plan: Plan, _: Sample) -> float:
        outcome = oracle(plan.kept)
        if outcome.error is None:
            raise BackendFailure(outcome)
        return outcome.error

    return evaluate


def samples(
    judged: int = 1, held_out: int = 0
) -> dict[SampleSet, tuple[list[Sample], list[Sample]]]:
    """Return sample sets whose feeds are numbered, judging ones first."""
    feeds: list[Sample] = [{"x": np.array([i])} for i in range(judged + held_out)]
    chosen = {
        SampleSet.JUDGED: feeds[:judged],
        SampleSet.RANKING: feeds[:1],
        SampleSet.HELD_OUT: feeds[judged:],
        SampleSet.ALL: feeds,
    }
    return {name: (some, [{"y": np.zeros(1)} for _ in some]) for name, some in chosen.items()}


def driver_of(
    path: Path,
    backend: Simulated,
    *,
    emulator: Simulated | None = None,
    budget: Budget | None = None,
    observer: Callable[[Event], None] = ignore,
    held_out: int = 0,
) -> tuple[Driver, SqliteLedger]:
    """Return a driver over a backend, with a real comparator and a ledger on disk."""
    ledger = open_ledger(path / "ledger.sqlite", {}, resume=True)
    comparator = PolygraphyComparator(
        metric="elementwise",
        atol=Tolerance(default=oracles.TOLERANCE),
        rtol=Tolerance(default=0.0),
        outputs=("y",),
    )
    sets = samples(held_out=held_out)
    evaluators = Evaluators(
        backend=backend,
        emulator=emulator or backend,
        comparator=comparator,
        samples=sets,
        keep=path,
    )
    driver = Driver(evaluators, ledger, budget or Budget(), observer)
    return driver, ledger


def course(
    path: Path, evaluate: Evaluate, strategy: Strategy | None = None, *, held_out: int = 0
) -> tuple[Ending, Driver, Simulated]:
    """Run the whole flow over a rule."""
    backend = Simulated(evaluate)
    driver, ledger = driver_of(path, backend, held_out=held_out)
    with ledger:
        asked = oracles.problem(SIZE)
        ending = driver.run(flow(asked, strategy or Guided(), held_out=held_out > 0))
    return ending, driver, backend


def test_a_plan_is_found_and_every_kept_layer_was_dropped_once(tmp_path: Path) -> None:
    """The answer passed, each single drop from it was tried directly, and each failed."""
    ending, driver, backend = course(tmp_path, by(oracles.monotone([2, 3, 9])))
    assert (ending.status, ending.plan) == (Status.FOUND, Plan.of((2, 3, 9)))
    for layer in (2, 3, 9):
        drop = driver.outcome_of(Plan.of((2, 3, 9)).without((layer,)), SampleSet.JUDGED)
        assert drop is not None
        assert drop.failed
    assert len(backend.built) == len(driver.trials)


def test_all_high_that_fails_is_no_precision_problem(tmp_path: Path) -> None:
    """When even all-high fails, nothing is searched and the error is said."""
    ending, driver, _ = course(tmp_path, lambda plan, feed: 3.5)
    assert ending.status is Status.NOT_PRECISION
    assert "error 3.5" in ending.message
    assert len(driver.trials) == 2


def test_all_high_that_does_not_run_says_so(tmp_path: Path) -> None:
    """When all-high does not run, the backend's own words are in the message."""

    def crash(plan: Plan, feed: Sample) -> float:
        raise BackendFailure(CRASH)

    ending, driver, _ = course(tmp_path, crash)
    assert ending.status is Status.NOT_PRECISION
    assert "segmentation fault" in ending.message
    assert driver.trials[0].outcome.wall_s > 0


def noisy(figures: list[float]) -> Evaluate:
    """Return a rule that gives the figures one after the other; None crashes."""
    left = iter(figures)
    return lambda plan, feed: next(left)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ([0.9, -0.9], "by 1.8"),
        ([0.0, float("nan")], "by inf"),
        ([0.0, float("inf")], "by inf"),
    ],
)
def test_noise_above_the_tolerance_is_infeasible(
    tmp_path: Path, figures: list[float], says: str
) -> None:
    """Two runs of one plan that differ by more than the tolerance end the run."""
    ending, _, _ = course(tmp_path, noisy(figures))
    assert ending.status is Status.INFEASIBLE
    assert says in ending.message


def test_a_second_run_that_fails_is_infeasible(tmp_path: Path) -> None:
    """A plan that runs once and not again is said to, without a figure."""
    runs: list[Plan] = []

    def evaluate(plan: Plan, feed: Sample) -> float:
        runs.append(plan)
        if len(runs) > 1:
            raise BackendFailure(CRASH)
        return 0.0

    ending, _, _ = course(tmp_path, evaluate)
    assert ending.status is Status.INFEASIBLE
    assert "ran once and then did not: segmentation fault" in ending.message


def test_all_low_that_passes_needs_nothing(tmp_path: Path) -> None:
    """When all-low passes there is nothing to keep, and three trials say so."""
    ending, driver, _ = course(tmp_path, lambda plan, feed: 0.5)
    assert (ending.status, ending.plan) == (Status.NOTHING_TO_KEEP, Plan.of(()))
    assert len(driver.trials) == 3


@pytest.mark.parametrize("seed", range(8))
def test_failed_builds_are_gone_round(tmp_path: Path, seed: int) -> None:
    """With a third of all builds failing, the answer still passed and is 1-minimal."""
    oracle = oracles.flaky(oracles.monotone([1, 7]), SIZE, seed, share=0.33)
    ending, driver, _ = course(tmp_path, by(oracle))
    assert ending.status is Status.FOUND
    assert ending.plan is not None
    assert oracle(ending.plan.kept).passed
    assert not any(oracle(ending.plan.kept - {layer}).passed for layer in ending.plan.kept)
    unresolved = [t for t in driver.trials if t.outcome.status is TrialStatus.BUILD_FAILED]
    assert all(t.outcome.verdict is None for t in unresolved)


def held_out_rule(plan: Plan, feed: Sample) -> float:
    """Need layer 2 on the judging sample and layer 5 too on the one held out."""
    needed = {2} if feed["x"][0] == 0 else {2, 5}
    return 0.0 if needed <= plan.kept else 5.0


def test_held_out_samples_that_refute_the_answer_join_the_search(tmp_path: Path) -> None:
    """An answer that fails on samples held out is searched again on all samples."""
    ending, driver, _ = course(tmp_path, held_out_rule, held_out=1)
    assert (ending.status, ending.plan) == (Status.FOUND, Plan.of((2, 5)))
    assert ending.samples is SampleSet.ALL
    assert "failed on the samples held out" in ending.message
    recheck = driver.outcome_of(Plan.of((2,)), SampleSet.HELD_OUT)
    assert recheck is not None
    assert recheck.failed


def test_held_out_samples_that_agree_cost_one_trial(tmp_path: Path) -> None:
    """An answer that holds on samples held out is final, judged by the others."""
    ending, driver, _ = course(tmp_path, by(oracles.monotone([4])), held_out=1)
    assert (ending.plan, ending.samples) == (Plan.of((4,)), SampleSet.JUDGED)
    assert sum(t.proposal.phase is Phase.RECHECK for t in driver.trials) == 1


def test_a_refuted_answer_is_never_the_best_so_far(tmp_path: Path) -> None:
    """When the budget ends the second search, the best is a plan that no sample refutes."""
    _, whole, _ = course(tmp_path, held_out_rule, held_out=1)
    refuted_at = [t.proposal.phase for t in whole.trials].index(Phase.RECHECK)
    counted = [t for t in whole.trials if t.proposal.kind is not Kind.PREDICT]
    for number in range(1, len(counted) + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        budget = Budget(max_trials=number)
        driver, ledger = driver_of(folder, Simulated(held_out_rule), budget=budget, held_out=1)
        with ledger:
            search = flow(oracles.problem(SIZE), Guided(), held_out=True)
            try:
                driver.run(search)
            except BudgetSpent as spent:
                assert str(number) in str(spent)
        best = driver.best()
        assert best is not None
        needed = {2, 5} if len(driver.trials) > refuted_at else {2}
        assert needed <= best.proposal.plan.kept


class Liar:
    """A strategy that ends with a plan that fails."""

    name: ClassVar[str] = "liar"
    assumption: ClassVar[str] = "nobody looks"
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        """Ask nothing and answer wrongly."""
        yield from ()
        return Plan.of((0,))


def test_a_strategys_answer_is_not_believed(tmp_path: Path) -> None:
    """A third-party strategy whose answer does not pass ends the run with its name."""
    with pytest.raises(PluginError, match="'liar' ended with a plan that does not pass"):
        course(tmp_path, by(oracles.monotone([3])), Liar())


def test_a_trial_is_evaluated_once_and_recalled_after(tmp_path: Path) -> None:
    """The same proposal again comes from the ledger, in this process and in the next."""
    seen: list[Event] = []
    backend = Simulated(by(oracles.monotone([1])))
    proposal = Proposal(plan=Plan.of((1, 2)))
    for _ in range(2):
        driver, ledger = driver_of(tmp_path, backend, observer=seen.append)
        with ledger:
            first, second = driver.consider(proposal), driver.consider(proposal)
        assert first == second
        assert first.verdict is Verdict.PASS
    assert backend.built == [proposal.plan]
    once = [PhaseStarted, TrialStarted, TrialFinished, TrialFinished]
    assert [type(event) for event in seen] == [*once, PhaseStarted, TrialFinished, TrialFinished]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_breaks_a_trial_off_is_not_held_against_its_plan(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """Ctrl-C during a trial, as often as it happens, leaves no trace of the trial."""

    def evaluate(plan: Plan, feed: Sample) -> float:
        raise error

    for _ in range(3):
        driver, ledger = driver_of(tmp_path, Simulated(evaluate))
        with ledger, pytest.raises(error):
            driver.consider(Proposal(plan=Plan.of((1,))))
        assert driver.trials == ()


def test_time_counts_against_the_budget() -> None:
    """The time limit counts this session's seconds and those of earlier ones."""
    now = iter((100.0, 101.0, 104.0))
    budget = Budget(max_time_s=10.0, spent_s=6.5, clock=lambda: next(now))
    budget.admit(counted=True)
    with pytest.raises(BudgetSpent, match="--max-time of 10 s"):
        budget.admit(counted=False)


def engine_course(
    path: Path, engine: Evaluate, emulator: Evaluate, *, held_out: int = 0
) -> tuple[Ending, Driver, Simulated]:
    """Run the whole flow on an engine whose behaviour an emulator predicts."""
    backend = Simulated(engine)
    driver, ledger = driver_of(path, backend, emulator=Simulated(emulator), held_out=held_out)
    with ledger:
        asked = replace(oracles.problem(SIZE), predicts=True)
        ending = driver.run(flow(asked, Guided(), held_out=held_out > 0))
    return ending, driver, backend


def test_a_right_prediction_costs_one_build_beside_ends_and_certificate(tmp_path: Path) -> None:
    """Three builds of the preflight, the set predicted, every single drop, the final build."""
    rule = by(oracles.monotone([2, 3, 9]))
    ending, _, backend = engine_course(tmp_path, rule, rule)
    assert (ending.status, ending.plan) == (Status.FOUND, Plan.of((2, 3, 9)))
    assert 3 + 1 + 3 + 1 == len(backend.built)


def test_the_answer_is_built_afresh_timed_and_kept(tmp_path: Path) -> None:
    """The last build is of the answer again; both ends and it are timed; its engine is saved."""
    rule = by(oracles.monotone([2, 3, 9]))
    ending, driver, backend = engine_course(tmp_path, rule, rule)
    assert ending.plan == backend.built[-1]
    assert ending.plan is not None
    assert ending.plan.key == (tmp_path / "engine").read_text()
    timed = [t.proposal.plan for t in driver.trials if t.outcome.evidence.latency]
    assert [Plan.all_high(SIZE), Plan.of(()), ending.plan] == timed


def test_an_engine_that_is_worse_than_predicted_tightens_the_limit(tmp_path: Path) -> None:
    """Errors twice as large on the engine: the second prediction takes that into account."""
    errors = [0.3, 0.05, 0.3, 0.02, 0.3, 0.01, 0.3, 0.3, 0.01, 0.02, 0.3, 0.03]
    emulator = by(oracles.additive(errors))
    engine = by(oracles.additive([2 * error for error in errors]))
    ending, driver, _ = engine_course(tmp_path, engine, emulator)
    assert ending.status is Status.FOUND
    assert ending.plan is not None
    (tmp_path / "own").mkdir()
    smallest = engine_course(tmp_path / "own", engine, engine)[0].plan
    assert smallest is not None
    assert len(smallest) == len(ending.plan)
    searched = [
        t
        for t in driver.trials
        if t.proposal.phase is Phase.SEARCH and t.proposal.kind is Kind.JUDGE
    ]
    assert [False, True] == [t.outcome.passed for t in searched[:2]]


@settings(deadline=None, max_examples=50)
@given(
    culprits=st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=4),
    predicted=st.sets(st.integers(0, SIZE - 1), max_size=4),
)
def test_a_wrong_emulator_costs_builds_never_the_answer(
    culprits: set[int], predicted: set[int]
) -> None:
    """Whatever the emulator claims, the engine decides: exactly the culprits are kept."""
    with TemporaryDirectory() as folder:
        ending, _, _ = engine_course(
            Path(folder), by(oracles.monotone(culprits)), by(oracles.monotone(predicted))
        )
    assert (ending.status, ending.plan) == (Status.FOUND, Plan.of(culprits))


def test_a_build_that_does_not_obey_is_no_verdict(tmp_path: Path) -> None:
    """A demoted layer leaves the trial unresolved, with the layer named, whatever its outputs."""
    backend = Simulated(by(oracles.monotone([1])))
    entry = LayerHonour(layer="layer1", honour=Honour.DEMOTED, evidence="its weights are half")
    backend.shown[Plan.of((1,))] = Evidence(honours=(entry,))
    driver, ledger = driver_of(tmp_path, backend)
    with ledger:
        outcome = driver.consider(Proposal(plan=Plan.of((1,))))
    assert (TrialStatus.NOT_HONOURED, None, 0.0) == (
        outcome.status,
        outcome.verdict,
        outcome.error,
    )
    assert outcome.message == "the engine does not keep 'layer1': its weights are half"


def test_an_answer_that_cannot_be_built_again_is_no_answer(tmp_path: Path) -> None:
    """Where the fresh build fails, the run ends without a plan and says why."""
    rule = by(oracles.monotone([2, 3, 9]))
    backend: Simulated

    def changing(plan: Plan, feed: Sample) -> float:
        again = plan == Plan.of((2, 3, 9)) and backend.built.count(plan) > 1
        return 7.0 if again else rule(plan, feed)

    backend = Simulated(changing)
    driver, ledger = driver_of(tmp_path, backend, emulator=Simulated(rule))
    with ledger:
        asked = replace(oracles.problem(SIZE), predicts=True)
        ending = driver.run(flow(asked, Guided(), held_out=False))
    assert (Status.INFEASIBLE, None) == (ending.status, ending.plan)
    assert "when it was built afresh" in ending.message
    assert not (tmp_path / "engine").exists()


def test_held_out_samples_judge_the_fresh_build_too(tmp_path: Path) -> None:
    """What a held-out sample refutes is searched again on all of them, and built afresh again."""

    def rule(plan: Plan, feed: Sample) -> float:
        needed = {2, 5} if feed["x"][0] > 0 else {2}
        return 0.0 if needed <= plan.kept else float("inf")

    ending, _, backend = engine_course(tmp_path, rule, rule, held_out=1)
    assert (Status.FOUND, Plan.of((2, 5))) == (ending.status, ending.plan)
    assert ending.plan == backend.built[-1]
    assert "failed on the samples held out" in ending.message


@pytest.mark.parametrize("held_out", [0, 1])
def test_a_fresh_build_without_a_verdict_is_not_called_a_difference(
    tmp_path: Path, held_out: int
) -> None:
    """A re-check that ran out of time says so, not that outputs differ or samples refute."""
    rule = by(oracles.monotone([2, 3, 9]))
    late = Outcome(status=TrialStatus.TIMED_OUT, message="not built within 5 s")
    backend: Simulated

    def slow(plan: Plan, feed: Sample) -> float:
        if plan == Plan.of((2, 3, 9)) and backend.built.count(plan) > 1:
            raise BackendFailure(late)
        return rule(plan, feed)

    backend = Simulated(slow)
    driver, ledger = driver_of(tmp_path, backend, emulator=Simulated(rule), held_out=held_out)
    with ledger:
        asked = replace(oracles.problem(SIZE), predicts=True)
        ending = driver.run(flow(asked, Guided(), held_out=bool(held_out)))
    assert "not built within 5 s" in ending.message
    assert "builds differ" not in ending.message
    assert "failed on the samples" not in ending.message


def test_a_latency_that_cannot_be_measured_costs_only_its_figure(tmp_path: Path) -> None:
    """The verdict stands, and a note says why there is no figure."""
    backend = Simulated(by(oracles.monotone([1])))
    backend.clockless = True
    driver, ledger = driver_of(tmp_path, backend)
    with ledger:
        outcome = driver.consider(Proposal(plan=Plan.of((1,)), timed=True))
    assert outcome.passed
    assert outcome.evidence.latency is None
    assert ("the latency could not be measured: no clock",) == outcome.evidence.notes
