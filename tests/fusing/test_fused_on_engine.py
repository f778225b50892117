"""The fused form on an engine with a clock, whose trials run in workers of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from fused_models import ALONE, BESIDE, TOLERANCE, samples, saved
from paced import Clock, Clocked, ClockedEngine
from precision_bisect.backends.emulation.emulator_plugin import forecaster
from precision_bisect.execution.evaluator_spec import EvaluatorSpec, Made
from precision_bisect.execution.executor import Placed, TrialTask
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.pipeline.run import run_prepared
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.protocols import Sample
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import FUSED_MODEL, LEDGER, RunFolder
from precision_bisect.search.budget import Budget
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.workers import Workers, threads
from precision_bisect.settings.targets import FUSED, TF32
from precision_bisect.trial import Kind


class Unlucky(Clocked):
    """An engine whose first build of some plan of the fused form is wrong."""

    engines: "Engines | None" = None

    def build(self, plan: Plan, *, afresh: bool = False) -> ClockedEngine:
        """Build the plan, wrong if it is the one and the first of it."""
        engines = self.engines
        if engines is None or len(plan) != engines.unlucky or plan in engines.built:
            return super().build(plan, afresh=afresh)
        engines.built.append(plan)
        return Wrong(self.backend.build(plan, afresh=afresh), self.clock, plan)


class Wrong(ClockedEngine):
    """One whose outputs are far off."""

    def run(self, feed: Sample) -> Sample:
        """Return what is computed, and nine."""
        return {name: array + np.float32(9) for name, array in super().run(feed).items()}


@dataclass
class Engines:
    """An executor of engines that compute what the emulator does; `base_ms` are a model's."""

    model: Model
    base_ms: tuple[float, float]
    name: str = "tensorrt"
    unlucky: int | None = None
    built: list[Plan] = field(default_factory=list)

    def backend(self, spec: EvaluatorSpec, model: Model) -> Clocked:
        """Return the engine for a model, the file's or another."""
        shapes = {"x": (8, 32)}
        graph = cost_graph(model, shapes)
        values = [replace(value, cast_ms=0.1) for value in graph.values]
        base = self.base_ms[model is not self.model]
        clock = Clock(CostGraph((0.05,) * graph.size, values), base=base)
        backend = Unlucky(forecaster(model, spec.options, spec.scales), clock)
        backend.engines = self if model is not self.model else None
        backend.name = self.name
        return backend

    def place(self, spec: EvaluatorSpec, model: Model, work: Path) -> Placed:
        """Refuse: the run is placed."""
        raise AssertionError(f"{work} is placed")

    @contextmanager
    def workers(self, task: TrialTask, work: Path) -> Iterator[Workers]:
        """Yield threads that evaluate the model of the spec."""
        own = task.spec.digest == self.model.digest
        model = self.model if own else load_model(task.spec.options.model)
        made = Made(model, self.backend(task.spec, model))
        yield threads(task.spec.evaluator(work, made), 1)


def run(
    text: str,
    folder: Path,
    base_ms: tuple[float, float],
    name: str = "tensorrt",
    unlucky: int | None = None,
) -> Result:
    """Search a model on such an engine; those of the file and of the fused form begin so."""
    options = Options(
        model=saved(text, folder),
        inputs=samples(),
        out=folder / "run",
        threads=1,
        tol=TOLERANCE,
        copies=4,
        certify="none",
        backend="emulated",
    )
    made = prepare(options, ignore, folder)
    engines = Engines(made.case.model, base_ms, name, unlucky)
    made = made.with_case(replace(made.case, options=replace(options, backend="auto")))
    backend = engines.backend(made.spec, made.case.model)
    made = replace(made, backend=backend, here=None, executor=engines)
    return run_prepared(made, ignore, Budget(), RunFolder(options.folder))


@pytest.mark.parametrize("text", [ALONE, BESIDE])
def test_its_plan_is_built_timed_and_deployed(text: str, tmp_path: Path) -> None:
    """In TF32, as deployed; its time stands beside that of the file's own FP32."""
    result = run(text, tmp_path, (2.0, 0.5))
    plan, form = result.deploy, result.fused
    assert plan is not None and form is not None and plan.fused
    assert plan.latency is not None and result.tf32 is not None
    assert plan.latency.speedup == pytest.approx(
        (plan.latency.baseline_ms or 0.0) / plan.latency.median_ms
    )
    assert (plan.latency.baseline_ms or 0.0) > 2.0 > plan.latency.median_ms
    assert (plan.latency.baseline_ms, plan.latency.speedup) == pytest.approx(
        (result.tf32.fp32_ms, result.tf32.speedup)
    )
    trials = [t for t in read_ledger(tmp_path / "run" / LEDGER).trials if FUSED in t.proposal.case]
    assert {f"{TF32},{FUSED}"} == {trial.proposal.case for trial in trials}
    own = next(t for t in trials if len(t.proposal.plan) == len(plan.kept) and t.proposal.draw)
    assert Kind.REBUILD is own.proposal.kind and own.outcome.passed
    assert (tmp_path / "run" / FUSED_MODEL).is_file()


@pytest.mark.parametrize("text", [ALONE, BESIDE])
def test_an_engine_without_tf32_judges_it_as_it_is(text: str, tmp_path: Path) -> None:
    """There FP32 is no rival with TF32, and no trial of the form is in it."""
    result = run(text, tmp_path, (2.0, 0.5), "clocked")
    plan, form = result.deploy, result.fused
    assert plan is not None and form is not None and plan.fused and not plan.tf32
    assert (None, False) == (result.tf32, result.tf32_on)
    trials = [t for t in read_ledger(tmp_path / "run" / LEDGER).trials if FUSED in t.proposal.case]
    assert {FUSED} == {trial.proposal.case for trial in trials}
    own = next(t for t in trials if len(t.proposal.plan) == len(plan.kept) and t.proposal.draw)
    assert Kind.REBUILD is own.proposal.kind and own.outcome.passed
    assert plan.latency is not None and (plan.latency.speedup or 0.0) > 1


def test_what_has_failed_is_not_deployed_for_its_luck_in_another_build(tmp_path: Path) -> None:
    """The answer without the pieces fails once; a build that would pass later is none to trust."""
    result = run(BESIDE, tmp_path, (2.0, 0.5), unlucky=2)
    assert result.deploy is not None and result.deploy.fused and len(result.deploy.kept) > 2
    trials = read_ledger(tmp_path / "run" / LEDGER).trials
    (failed,) = [
        trial
        for trial in trials
        if FUSED in trial.proposal.case and trial.proposal.draw and not trial.outcome.passed
    ]
    assert 2 == len(failed.proposal.plan)


def test_a_slower_one_is_not_deployed(tmp_path: Path) -> None:
    """The engine's clock decides, and the record tells that it holds all the same."""
    result = run(ALONE, tmp_path, (0.5, 5.0))
    assert result.fused is not None and [] == result.fused.kept
    assert result.deploy is not None and not result.deploy.fused
    assert not (tmp_path / "run" / FUSED_MODEL).exists()
