"""What costs time and memory is not there before a run needs it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

import cpu_sessions
import precision_bisect.pipeline.prepare as preparing
import tiny
from models import normal, parse, save_external, with_weights
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.ort import ON_CPU, Providers
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.pipeline.run import run_prepared
from precision_bisect.plan import Plan
from precision_bisect.runs.monitoring.events import Event, TrialsEnded, ignore
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.search.budget import Budget


class Engines(EmulatedBackend):
    """The emulator in the place of a backend that builds engines."""

    name = "engines"
    emulated = False


@pytest.mark.parametrize(
    ("tol", "large", "used"),
    [(10.0, False, set()), (1e-2, False, {"emulator", "range"}), (1e-2, True, {"range"})],
)
def test_no_forecast_where_none_is_needed(
    tol: float, large: bool, used: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where nothing is kept, nor where a large model keeps what leaves the range."""
    monkeypatch.setattr(preparing, "LARGE_BYTES", -1 if large else 2**30)
    asked: list[str] = []

    def opened() -> Providers:
        asked.append("emulator")
        return ON_CPU

    def looked(found: Callable[[], Plan | None]) -> Plan | None:
        asked.append("range")
        return found()

    path = tiny.write_model(tmp_path / "tiny.onnx")
    options = Options(model=path, inputs=tiny.samples(), tol=tol, threads=1, backend="emulated")
    prepared = prepare(replace(options, out=tmp_path / "run"), ignore, tmp_path)
    made = partial(EmulatedBackend, prepared.case.model, threads=1)
    engines = Engines(prepared.case.model, threads=1)
    run = replace(
        prepared,
        backend=engines,
        here=engines,
        emulator=made(providers=opened, late=True),
        beyond_range=partial(looked, prepared.beyond_range),
        overflowing=partial(looked, prepared.overflowing),
    )
    searched: list[set[str]] = []

    def observe(event: Event) -> None:
        if isinstance(event, TrialsEnded):
            searched.append({*asked})

    result = run_prepared(run, observe, Budget(), RunFolder(run.case.options.folder))
    # Advice is tried on what forecasts, too, once the search has ended.
    assert [used] == searched
    assert result.status is (Status.FOUND if used else Status.NOTHING_TO_KEEP)
    assert [str(name) for name in result.kept] == (tiny.KEPT if used else [])
    assert [each.layer for each in result.culprits] == list(result.kept)
    named = [each.point for each in result.curve if each.point]
    beyond = ["margin"] if "emulator" in used else []
    assert named == (["all_low", "answer", *beyond] if used else [])


def large_model(folder: Path) -> Path:
    """Write a model of 192 MiB of weights in a file beside it, and `inputs.npz`."""
    side, names = 4096, ("u", "v", "w")
    text = (
        f"(float[1, {side}] x) => (float[1, {side}] y)"
        " { a = MatMul(x, u) b = Tanh(a) c = MatMul(b, v) d = Tanh(c) y = MatMul(d, w) }"
    )
    weights = {name: normal(side, side, seed=i) / 64 for i, name in enumerate(names)}
    np.savez(folder / "inputs.npz", x=normal(1, side))
    return save_external(with_weights(parse(text), weights), folder)


def most_memory(command: list[str], environment: dict[str, str]) -> int:
    """Return the largest proportional set size of a process and all that it starts, in bytes."""
    most = 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as running:
        process = psutil.Process(running.pid)
        while running.poll() is None:
            with suppress(psutil.Error):
                tree = [process, *process.children(recursive=True)]
                most = max(most, sum(each.memory_full_info().pss for each in tree))
            time.sleep(0.02)
    assert 0 == running.returncode
    return most


def test_children_write_large_weights_once_for_all(tmp_path: Path) -> None:
    """What a model has in a data file is rounded into a file that all children of a run read."""
    weights = {"w": normal(64, 64)}
    body = parse("(float[1, 64] x) => (float[1, 64] y) { a = MatMul(x, w) y = Tanh(a) }")
    np.savez(tmp_path / "inputs.npz", x=normal(1, 64))
    site = cpu_sessions.install(tmp_path / "site")
    run = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "precision_bisect",
                save_external(with_weights(body, weights), tmp_path),
            ),
            *("--inputs", tmp_path / "inputs.npz", "--tol", "1e-2", "--out", tmp_path / "run"),
            *("--backend", cpu_sessions.SessionsBackend.name),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((site, os.environ.get("PYTHONPATH", ""))),
        },
        capture_output=True,
        text=True,
    )
    assert 0 == run.returncode, run.stderr
    versions = read_saved(tmp_path / "run").result.fingerprint["versions"]
    assert "0" == versions["written"]


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux counts it")
@pytest.mark.nightly
def test_memory_of_a_run_with_nothing_to_keep(tmp_path: Path) -> None:
    """Trials in a child take less than 2.5 times the weights beside the libraries.

    One session of ONNX Runtime's CPU provider alone takes twice the weights, as it packs them.
    """
    path = large_model(tmp_path)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            (cpu_sessions.install(tmp_path / "site"), os.environ.get("PYTHONPATH", ""))
        ),
    }
    command = [sys.executable, "-m", "precision_bisect"]
    libraries = most_memory([*command, "doctor"], environment)
    command += [str(path), "--inputs", str(tmp_path / "inputs.npz"), "--tol", "1e-2"]
    command += ["--backend", cpu_sessions.SessionsBackend.name, "--out", str(tmp_path / "run")]
    most = most_memory(command, environment)
    result = read_saved(tmp_path / "run").result
    assert (Status.NOTHING_TO_KEEP, 0) == (result.status, result.evaluations)
    weights = (tmp_path / "model.data").stat().st_size
    assert most - 2 * libraries < 2.5 * weights
