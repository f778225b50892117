"""The plan to deploy on an engine whose trials run in workers, one for each of two GPUs.

The engines compute what the emulator does, with TF32 or without, as each worker is told.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from models import parse, save, with_weights
from paced import Clock, Clocked, ClockedEngine
from precision_bisect.backends.emulation.emulator_plugin import forecaster
from precision_bisect.commandline.export_command import export
from precision_bisect.execution.evaluator_spec import EvaluatorSpec, Made
from precision_bisect.execution.executor import Placed, TrialTask
from precision_bisect.graphs.load import Model
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.pipeline.run import run_prepared
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.protocols import Sample
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.speed_report import AS_FAST
from precision_bisect.runs.runfolder import ENGINE, LEDGER, RUN_SCRIPT, TRTEXEC, RunFolder
from precision_bisect.search.budget import Budget
from precision_bisect.search.sample_sets import CHOSEN
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.workers import Workers, threads
from precision_bisect.settings.export_points import DEPLOY, FEWEST
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import Kind, Phase
from precision_bisect_reports.speed import to_deploy, with_tf32

BODY = """(float[8, 32] x) => (float[8, 32] y) <float up = {300}, float down = {1.1111111e-5}> {
  [mm0] a = MatMul(x, w0) [act0] b = Tanh(a)
  [up_a] c = Mul(b, up) [sq_a] d = Mul(c, c) [down_a] e = Mul(d, down)
  [up_b] f = Mul(e, up) [sq_b] g = Mul(f, f) [down_b] h = Mul(g, down)
  [mm1] i = MatMul(h, w1) [act1] y = Tanh(i)
}"""
LAYERS = 10
UP_B = 5
"""The layer between the two overflows."""
Fails = Callable[[Plan, bool], bool]
"""Whether a plan is wrong with TF32, or without: on the sample that chooses nothing, or on all."""


@dataclass
class Gpus:
    """An executor whose workers build as their spec says; what each of them got is kept."""

    model: Model
    name: str
    clock: Clock
    hard: Sample
    fails: Fails
    off: Fails
    specs: list[tuple[str, int]] = field(default_factory=list)

    def place(self, spec: EvaluatorSpec, model: Model, work: Path) -> Placed:
        """Refuse: the run is placed."""
        raise AssertionError(f"{work} is placed")

    @contextmanager
    def workers(self, task: TrialTask, work: Path) -> Iterator[Workers]:
        """Yield threads that evaluate with a backend of the spec's settings."""
        options = task.spec.options
        self.specs.append((options.engine.tf32, len(options.gpus)))
        made = Made(self.model, Gpu(self, task.spec))
        yield threads(task.spec.evaluator(work, made), options.workers)


class Gpu(Clocked):
    """The backend of one worker."""

    def __init__(self, gpus: Gpus, spec: EvaluatorSpec) -> None:
        super().__init__(forecaster(gpus.model, spec.options, spec.scales), gpus.clock)
        self.name = gpus.name
        self.gpus = gpus
        self.tf32 = spec.options.engine.in_tf32

    def build(self, plan: Plan, *, afresh: bool = False) -> "GpuEngine":
        """Build the plan on the emulator."""
        return GpuEngine(self, plan)


class GpuEngine(ClockedEngine):
    """An engine whose file says which plan it holds, and whether TF32 is on."""

    def __init__(self, gpu: Gpu, plan: Plan) -> None:
        super().__init__(gpu.backend.build(plan), gpu.clock, plan)
        self._gpu = gpu

    def run(self, feed: Sample) -> Sample:
        """Return what is computed, far off where the plan is to fail."""
        gpus = self._gpu.gpus
        hard = np.array_equal(feed["x"], gpus.hard["x"])
        how = self._plan, self._gpu.tf32
        off = 9.0 if gpus.off(*how) or (hard and gpus.fails(*how)) else 0.0
        return {name: array + np.float32(off) for name, array in super().run(feed).items()}

    def save(self, folder: Path) -> None:
        """Write the file."""
        (folder / ENGINE).write_text(json.dumps([self._plan.indices, self._gpu.tf32]))


def never(plan: Plan, tf32: bool) -> bool:
    """Let no plan fail."""
    return False


def run(
    folder: Path,
    export_point: str = DEPLOY,
    *,
    name: str = "tensorrt",
    fails: Fails = never,
    off: Fails = never,
    cast_ms: float = 0.1,
    tol: float = 5e-3,
    body: str = BODY,
    most: int | None = None,
) -> tuple[Result, Gpus]:
    """Search on two such GPUs, by one sample more than choose; go on with what the folder has.

    A Cast costs more than a layer, so that what lies between the overflows stays high, too.
    """
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(0, 0.18, (32, 32)).astype(np.float32) for i in range(2)}
    rng = np.random.default_rng(7)
    options = Options(
        model=save(with_weights(parse(body), weights), folder),
        inputs=[{"x": rng.normal(0, 2, (8, 32)).astype(np.float32)} for _ in range(CHOSEN + 1)],
        out=folder / "run",
        threads=1,
        tol=tol,
        copies=4,
        certify="none",
        resume=True,
        backend="emulated",
        export_point=export_point,
    )
    made = prepare(options, ignore, folder)
    case, sets = made.case, made.case.sets
    (other,) = {*sets.judging_numbers} - {*sets.pool}
    graph = cost_graph(case.model, case.shapes)
    values = [replace(value, cast_ms=cast_ms) for value in graph.values]
    clock = Clock(CostGraph((0.05,) * graph.size, values))
    gpus = Gpus(case.model, name, clock, sets.feeds[other], fails, off)
    options = replace(options, backend="auto", workers=2, gpus=("0", "1"))
    made = made.with_case(replace(case, options=options))
    assert made.here is not None
    backend = Clocked(made.here, clock)
    backend.name = name
    made = replace(made, backend=backend, here=None, executor=gpus)
    budget = Budget(max_trials=most)
    return run_prepared(made, ignore, budget, RunFolder(options.folder)), gpus


@pytest.mark.parametrize(("cast_ms", "tol", "alike"), [(0.1, 5e-3, False), (0.01, 8e-3, True)])
def test_the_engine_that_stays_holds_the_plan_of_the_files(
    tmp_path: Path, cast_ms: float, tol: float, alike: bool
) -> None:
    """Of other files that are asked for another one is built, with TF32 where they have it.

    By the wider limit the fewest layers are safe on unseen inputs, so they are deployed.
    """
    result, gpus = run(tmp_path, cast_ms=cast_ms, tol=tol)
    assert [("auto", 2), ("on", 1)] == gpus.specs
    assert result.deploy is not None and result.deploy.tf32
    assert alike is ([*result.deploy.kept] == [*result.kept])
    plan = gpus.model.table.plan_of(result.deploy.kept)
    engine = tmp_path / "run" / ENGINE
    assert [[*plan.indices], True] == json.loads(engine.read_text())
    assert not any(ENGINE in note for note in result.notes)
    fewest, _ = run(tmp_path, FEWEST, cast_ms=cast_ms, tol=tol)
    assert (result.kept, result.deploy) == (fewest.kept, fewest.deploy)
    plan = gpus.model.table.plan_of(fewest.kept)
    assert fewest.tf32_on and [[*plan.indices], True] == json.loads(engine.read_text())
    assert not any(ENGINE in note for note in fewest.notes)


@pytest.mark.parametrize(("cast_ms", "wins"), [(0.1, True), (0.01, False)])
def test_what_needs_nothing_kept_leaves_as_libraries_run_it(
    tmp_path: Path, cast_ms: float, *, wins: bool
) -> None:
    """TF32 is on where its trial holds so; nothing is in FP32, and the engine is that of files.

    FP32 is deployed where the engine has timed it to be as fast: two Casts take what is gained.
    """
    body = """(float[8, 32] x) => (float[8, 32] y) {
      [mm0] a = MatMul(x, w0) [act0] b = Tanh(a) [mm1] i = MatMul(b, w1) [act1] y = Tanh(i) }"""
    result, _ = run(tmp_path, body=body, cast_ms=cast_ms)
    assert result.status is Status.NOTHING_TO_KEEP and result.tf32_on
    plan = result.deploy
    assert plan is not None and not plan.kept and plan.latency is not None
    assert wins is result.fp32_wins is ("FP32: TF32 holds" in to_deploy(result))
    assert [[], True] == json.loads((tmp_path / "run" / ENGINE).read_text())
    assert "--noTF32" not in (tmp_path / "run" / TRTEXEC).read_text()


def test_a_run_that_is_cut_off_holds_its_answer_against_fp32(tmp_path: Path) -> None:
    """Both were timed by then. Another plan, which no trial has judged, is not deployed."""
    whole, _ = run(tmp_path / "whole")
    trials = read_ledger(tmp_path / "whole" / "run" / LEDGER).trials
    speed = [trial.proposal.phase for trial in trials].index(Phase.SPEED)
    before = sum(not trial.proposal.forecast for trial in trials[:speed])
    cut, _ = run(tmp_path / "cut", most=before)
    assert cut.kept == whole.kept and whole.deploy is not None and whole.deploy.tf32
    plan = cut.deploy
    assert plan is not None and [*plan.kept] == [*cut.kept] and plan.latency is not None
    assert cut.fp32_wins is ((plan.latency.speedup or 0.0) <= 1 / (1 - AS_FAST))


def test_the_fewest_that_other_samples_refuse_in_tf32_leave_without(tmp_path: Path) -> None:
    """Samples that chose nothing judge what leaves as it leaves."""
    result, _ = run(tmp_path, FEWEST, fails=lambda plan, tf32: tf32)
    assert result.deploy is not None and not result.tf32_on and result.unseen is not None
    assert (1, 0) == (result.unseen.judged, result.unseen.failed)


def test_an_engine_of_other_files_goes(tmp_path: Path) -> None:
    """The fewest fail with TF32 alone, so their files are without, and the engine is not."""
    few: list[Plan] = []
    result, gpus = run(tmp_path)
    few.append(gpus.model.table.plan_of(result.kept))
    again, _ = run(tmp_path, FEWEST, off=lambda plan, tf32: tf32 and plan in few)
    assert not again.tf32_on and not (tmp_path / "run" / ENGINE).exists()
    assert any(ENGINE in note for note in again.notes)


@pytest.mark.parametrize(("held", "other"), [(DEPLOY, FEWEST), (FEWEST, DEPLOY)])
def test_scripts_run_each_plan_as_it_was_judged(tmp_path: Path, held: str, other: str) -> None:
    """With TF32 where the run has judged it so: the fewest only where it has written them."""
    _, gpus = run(tmp_path, held)
    written = {held: tmp_path / "run"}
    written[other] = export(gpus.model.path, tmp_path / "run", None, {}, other).folder
    for point, folder in written.items():
        script, trtexec = ((folder / name).read_text() for name in (RUN_SCRIPT, TRTEXEC))
        in_tf32 = DEPLOY == point or point == held
        assert f"'use_tf32': '{in_tf32:d}'" in script
        assert ("--noTF32" in trtexec) is not in_tf32


def test_a_plan_has_it_on_where_fp32_fails_so(tmp_path: Path) -> None:
    """`use_tf32=0` slows FP16 down, too. The time is beside FP32 as that holds: without TF32."""
    result, gpus = run(tmp_path, off=lambda plan, tf32: tf32 and len(plan) == LAYERS)
    assert result.tf32 is not None and not result.tf32.fp32_passed and result.tf32.passed
    assert result.deploy is not None and result.deploy.tf32 and result.tf32_on
    plan = gpus.model.table.plan_of(result.deploy.kept)
    assert [[*plan.indices], True] == json.loads((tmp_path / "run" / ENGINE).read_text())
    script, trtexec = ((tmp_path / "run" / name).read_text() for name in (RUN_SCRIPT, TRTEXEC))
    assert "'use_tf32': '1'" in script and "--noTF32" not in trtexec
    latency, own = result.deploy.latency, result.latency_ms
    assert latency is not None and own is not None and latency.baseline_ms == own["all_high"]
    assert "FP32 without TF32" in to_deploy(result)


def test_a_plan_that_fails_so_has_it_off(tmp_path: Path) -> None:
    """The screen says it once, and the files are those of the plan without TF32."""
    result, _ = run(tmp_path, off=lambda plan, tf32: tf32)
    assert result.deploy is not None and not result.deploy.tf32 and not result.tf32_on
    assert result.tf32 is not None and result.tf32.passed is False
    assert "leave TF32 off" in with_tf32(result)
    assert "--noTF32" in (tmp_path / "run" / TRTEXEC).read_text()


def test_tf32_is_judged_on_one_gpu_of_several(tmp_path: Path) -> None:
    """A worker that has it on judges and times FP32 and the plan to deploy, by all samples."""
    result, _ = run(tmp_path)
    assert result.tf32 is not None and result.tf32.fp32_passed and result.tf32.fp32_ms
    assert result.tf32.message == "" and result.promises_of == DEPLOY
    assert result.unseen is not None and (1, 0) == (result.unseen.judged, result.unseen.failed)
    trials = read_ledger(tmp_path / "run" / LEDGER).trials
    high, *_ = [t.outcome.error for t in trials if t.proposal.kind is Kind.JUDGE]
    assert high is not None and result.tf32.fp32_error is not None
    assert result.tf32.fp32_error > 100 * high
    in_tf32 = [trial for trial in trials if trial.proposal.case == TF32]
    assert all(trial.outcome.verdict is not None for trial in in_tf32)
    (again,) = [trial for trial in in_tf32 if trial.proposal.phase is Phase.RECHECK]
    assert again.outcome.passed and again.proposal.samples.singly


def test_a_plan_that_other_samples_refuse_in_tf32_is_not_deployed(tmp_path: Path) -> None:
    """The answer is, and what is promised of it counts no trial in TF32."""
    result, _ = run(tmp_path, fails=lambda plan, tf32: tf32)
    assert result.deploy is not None and not result.deploy.tf32
    assert [*result.kept] == [*result.deploy.kept]
    assert result.unseen is not None and result.unseen.share_at_most < 1
    assert (1, 0, 0) == (result.unseen.judged, result.unseen.failed, result.unseen.passed_later)


@pytest.mark.parametrize(("tol", "all_products"), [(1e-3, False), (6e-4, True)])
def test_a_forecast_fails_an_answer_only_where_it_keeps_all_products(
    tmp_path: Path, tol: float, all_products: bool
) -> None:
    """TF32 rounds none that runs low, so an error of FP32 in TF32 need not be the answer's."""
    result, _ = run(tmp_path, tol=tol)
    assert result.tf32 is not None and not result.tf32.fp32_passed
    assert all_products is ({"mm0", "mm1"} <= {*result.kept}) is result.tf32.forecast


def test_a_finished_run_that_goes_on_deploys_alike(tmp_path: Path) -> None:
    """Also where other samples refused the plan to deploy: no other plan takes its place then."""

    def fails(plan: Plan, tf32: bool) -> bool:
        return UP_B in plan.kept

    result, _ = run(tmp_path, name="clocked", fails=fails)
    trials = read_ledger(tmp_path / "run" / LEDGER).trials
    refused = [t for t in trials if t.proposal.phase is Phase.RECHECK and t.outcome.failed]
    assert [True] == [fails(trial.proposal.plan, False) for trial in refused]
    # The answer stood before, so what was refused is no former one that failed.
    assert result.unseen is not None
    assert (1, 0, 0) == (result.unseen.judged, result.unseen.failed, result.unseen.passed_later)
    again, _ = run(tmp_path, name="clocked", fails=fails)
    assert (result.deploy, result.builds) == (again.deploy, again.builds)
