"""Whole runs on an engine that times its kernels: what they tell of costs, whatever goes wrong."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import kernel_sessions
import tiny
from patience import PATIENCE_S
from precision_bisect import find
from precision_bisect.options import Options
from precision_bisect.pipeline import deploying
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.plan import Plan
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_result
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.search.budget import Budget

Install = Callable[..., None]
KEPT = Plan.of((4, 5, 13, 14))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return what makes a plug-in of `kernel_sessions` known; its process may take its time."""
    monkeypatch.setattr(deploying, "LEAST_PROFILING_S", PATIENCE_S)
    return lambda plugin="CPU_SESSIONS": kernel_sessions.install(
        monkeypatch, tmp_path / "site", plugin
    )


def searched(folder: Path, **more: Any) -> Result:
    """Search the small model."""
    model = tiny.write_model(folder / "tiny.onnx")
    return find(
        model,
        tol=1e-2,
        inputs=tiny.samples(),
        backend=kernel_sessions.NAME,
        out=folder / "run",
        threads=1,
        **more,
    )


def test_a_run_tells_what_its_islands_cost(tmp_path: Path, install: Install) -> None:
    """Islands have the kept layers, each once; the file says all of it, and is read back."""
    install()
    result = searched(tmp_path)
    assert result.kept
    costs = result.costs
    assert costs is not None
    assert ("onnxruntime_profile", "") == (costs.method, costs.left_out)
    assert sorted(result.kept) == sorted(name for each in costs.islands for name in each.layers)
    assert list(result.kept) == [each.layer for each in costs.layers]
    saved = [each.saves_ms for each in costs.islands]
    assert sorted(saved, reverse=True) == saved
    assert costs.total_ms is not None
    assert 0 < sum(each.ms for each in costs.layers) <= costs.total_ms
    again = read_result(tmp_path / "run" / RESULT, "")
    assert again.costs == costs
    assert not [*(tmp_path / "run").rglob("profile*")]


def left_out(
    folder: Path, latencies: Mapping[str, float], budget: Budget, plan: Plan = KEPT
) -> str | None:
    """Return why a plan of the small model has no costs, None where nothing is told of it."""
    options = Options(
        model=tiny.write_model(folder / "tiny.onnx"),
        tol=1e-2,
        inputs=tiny.samples(),
        backend=kernel_sessions.NAME,
        out=folder / "run",
    )
    prepared = prepare(options, ignore, folder)
    with deploying.costing(prepared, plan, latencies, budget) as told:
        costs = told()
    assert costs is None or costs.method is None
    return None if costs is None else costs.left_out


DIED = "its process ended by SIGSEGV (Segmentation fault)"


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        ("REFUSING", "no profile today; verify builds the answer by itself"),
        ("RAISING", "division by zero"),
        ("DYING", f"{DIED} in a call of kernel_sessions.py (kernel_times)"),
        ("SILENT", "cpu-sessions does not time its kernels; profile it by its own tools"),
    ],
)
def test_a_profile_that_fails_costs_only_itself(
    tmp_path: Path, install: Install, plugin: str, reason: str
) -> None:
    """There are no costs, and it is said why."""
    install(plugin)
    assert reason == left_out(tmp_path, {}, Budget())


def test_a_profile_has_a_limit_in_time(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs is ended, and told; the answer stands."""
    monkeypatch.setattr(deploying, "LEAST_PROFILING_S", 3.0)
    monkeypatch.setattr(deploying, "PROFILING_SHARE", 0.0)
    install("HANGING")
    result = searched(tmp_path)
    assert Status.FOUND is result.status
    assert result.costs is not None
    assert "took longer than 3 s, and was killed" == result.costs.left_out


@pytest.mark.parametrize(
    ("latencies", "late", "expected"),
    [
        ({"all_low": 1.0, "kept": 1.04}, False, "every layer low takes 1 ms, the answer 1.04"),
        ({}, True, "the time was spent"),
    ],
)
def test_what_is_not_worth_a_profile(
    tmp_path: Path, install: Install, latencies: dict[str, float], late: bool, expected: str
) -> None:
    """Layers that cost next to nothing are not profiled, nor is any after the time is over."""
    install()
    budget = Budget(max_time_s=0.0 if late else None)
    assert expected == left_out(tmp_path, latencies, budget)
    assert left_out(tmp_path, latencies, budget, Plan.of(())) is None
