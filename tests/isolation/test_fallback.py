"""Forecasts on a GPU move to the CPU for good once one fails there; builds stay where they are."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from effort import nightly
from faults import subject
from patience import PATIENCE_S, wait_until
from precision_bisect.errors import UsageError
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.gpu_forecasts import GpuForecasts
from precision_bisect.execution.process_evaluator import Isolated, Logs
from precision_bisect.execution.slot import Limits, Slot
from precision_bisect.machine.stopping import Stopped, until
from precision_bisect.plan import Plan
from precision_bisect.trial import Kind, Outcome, Proposal, TrialStatus

LAYERS = len(subject.STEPS)
PLANS = [Plan.of(range(start, LAYERS)) for start in range(3)]
NO_GPU = "-1"


class Children(Isolated):
    """Children that know what they were asked."""

    asked: list[Proposal]

    def __call__(self, proposal: Proposal) -> Outcome:
        self.asked.append(proposal)
        return super().__call__(proposal)


def children(slot: Slot, folder: Path) -> Children:
    """Return what evaluates in the one slot, without limits."""
    found = Children(slots=[slot], limits=Limits(), logs=Logs(folder / "logs"))
    found.asked = []
    return found


def forecast(plan: Plan) -> Proposal:
    """Return what asks the emulator about a plan."""
    return Proposal(plan=plan, kind=Kind.PREDICT)


def test_without_a_gpu_forecasts_are_the_cpus(spec: EvaluatorSpec, tmp_path: Path) -> None:
    """One attempt in a child that sees no GPU, then the same outcomes as ever, with the reason."""
    replace(spec, forecasts=True).save(tmp_path / "spec")
    slot = Slot(spec=tmp_path / "spec", folder=tmp_path / "slot", gpu=NO_GPU)
    here = spec.evaluator(tmp_path)
    with closing(children(slot, tmp_path)) as on_gpu:
        evaluate = GpuForecasts(builds=here, on_gpu=on_gpu, on_cpu=here)
        found = [evaluate(forecast(plan)) for plan in PLANS]
        judged = evaluate(Proposal(plan=PLANS[0]))
    assert [forecast(PLANS[0])] == on_gpu.asked
    assert judged == here(Proposal(plan=PLANS[0])) and not judged.evidence.notes
    for plan, outcome in zip(PLANS, found, strict=True):
        (note,) = outcome.evidence.notes
        assert note.startswith("forecasts moved from the GPU to the CPU: ") and len(note) <= 161
        assert here(forecast(plan)) == replace(
            outcome, evidence=replace(outcome.evidence, notes=())
        )


@pytest.mark.parametrize(
    ("fault", "attempts"),
    [
        *(("SIGSEGV", 2), ("raise", 1)),
        *nightly(("no pickle", 2), ("fail to run", 1)),
    ],
)
def test_whatever_a_forecast_dies_of(
    folder: Path, spec: EvaluatorSpec, slot: Slot, tmp_path: Path, fault: str, attempts: int
) -> None:
    """A forecast without a verdict costs none: the CPU is asked instead, then and later."""
    on_gpu, here = children(slot, tmp_path), spec.evaluator(tmp_path)
    forecasts = GpuForecasts(builds=here, on_gpu=on_gpu, on_cpu=here)
    subject.order(folder, *({"do": fault, "call": 2 + i} for i in range(attempts)))
    first, *others = (forecasts(forecast(plan)) for plan in PLANS)
    assert first.verdict and not first.evidence.notes
    assert all(each.verdict and each.evidence.notes for each in others)
    assert [*map(forecast, PLANS[:2])] == on_gpu.asked


def test_the_end_of_the_time_is_no_failure_of_the_gpu(
    folder: Path, spec: EvaluatorSpec, slot: Slot, tmp_path: Path
) -> None:
    """What explains the answer has some time left, and goes on there."""
    on_gpu, here = children(slot, tmp_path), spec.evaluator(tmp_path)
    forecasts = GpuForecasts(builds=here, on_gpu=on_gpu, on_cpu=here)
    subject.order(folder, {"do": "hang", "call": 1})
    with until(lambda: bool(subject.hanging(folder))), pytest.raises(Stopped):
        forecasts(forecast(PLANS[0]))
    assert not forecasts(forecast(PLANS[1])).evidence.notes
    assert [*map(forecast, PLANS[:2])] == on_gpu.asked


def test_nothing_forecasts_while_something_is_timed(
    spec: EvaluatorSpec, slot: Slot, tmp_path: Path
) -> None:
    """A timed trial ends the children that forecast; the next forecast begins anew."""
    on_gpu, here = children(slot, tmp_path), spec.evaluator(tmp_path)
    pids: list[int | None] = []

    def build(proposal: Proposal) -> Outcome:
        pids.append(slot.pid)
        return here(proposal)

    forecasts = GpuForecasts(builds=build, on_gpu=on_gpu, on_cpu=here)
    first = forecasts(forecast(PLANS[0]))
    began = slot.pid
    forecasts(Proposal(plan=PLANS[0]))
    forecasts(Proposal(plan=PLANS[1], timed=True))
    assert [began, None] == pids and began is not None
    assert first == forecasts(forecast(PLANS[0]))
    assert slot.pid not in (None, began)


def test_a_build_that_fails_beside_forecasts_is_tried_without_them(
    spec: EvaluatorSpec, slot: Slot, tmp_path: Path
) -> None:
    """Once: the GPU may have had no room for it. Without forecasts there is nothing to retry."""
    on_gpu, here = children(slot, tmp_path), spec.evaluator(tmp_path)
    pids: list[int | None] = []

    def crowded(proposal: Proposal) -> Outcome:
        pids.append(slot.pid)
        if slot.pid is not None:
            return Outcome(status=TrialStatus.BUILD_FAILED, message="out of memory")
        return here(proposal)

    forecasts = GpuForecasts(builds=crowded, on_gpu=on_gpu, on_cpu=here)
    judge = Proposal(plan=PLANS[0])
    forecasts(forecast(PLANS[0]))
    assert here(judge) == forecasts(judge)
    assert 2 == len(pids) and pids[0] is not None and pids[1] is None
    forecasts(judge)
    assert 3 == len(pids)


def test_what_is_given_up_is_not_asked_of_the_cpu(
    folder: Path, spec: EvaluatorSpec, slot: Slot, tmp_path: Path
) -> None:
    """Once the run lets go of its children, a forecast that ends with them is none."""
    on_gpu = children(slot, tmp_path)
    asked: list[Proposal] = []

    def on_cpu(proposal: Proposal) -> Outcome:
        asked.append(proposal)
        return spec.evaluator(tmp_path)(proposal)

    forecasts = GpuForecasts(builds=on_cpu, on_gpu=on_gpu, on_cpu=on_cpu)
    subject.order(folder, {"do": "hang", "since": 1})
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(forecasts, forecast(PLANS[0]))
        wait_until(lambda: subject.noted(folder))
        forecasts.close()
        assert hanging.result(PATIENCE_S).verdict is None
    assert not asked


def test_what_is_given_up_is_not_begun_again(
    folder: Path, slot: Slot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the pool may notice the death of a child before it is told that it was meant."""
    evaluator = children(slot, tmp_path)
    subject.order(folder, {"do": "hang", "since": 1})
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(evaluator, forecast(PLANS[0]))
        wait_until(lambda: subject.noted(folder))
        pid = slot.pid
        assert pid is not None
        with monkeypatch.context() as patched:
            patched.setattr(Slot, "end", lambda *_, **__: None)
            evaluator.close()
        os.kill(pid, signal.SIGKILL)
        try:
            assert hanging.result(PATIENCE_S).verdict is None
        finally:
            slot.end()
    assert 1 == len(subject.noted(folder))


def test_an_error_of_the_users_script_still_ends_the_run(
    folder: Path, spec: EvaluatorSpec, slot: Slot, tmp_path: Path
) -> None:
    """The CPU's attempt meets it, too."""
    here = spec.evaluator(tmp_path)
    forecasts = GpuForecasts(builds=here, on_gpu=children(slot, tmp_path), on_cpu=here)
    (folder / "orders.json").write_text("no JSON")
    with pytest.raises(UsageError, match="error failed: "):
        forecasts(forecast(PLANS[0]))
