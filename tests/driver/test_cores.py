"""How many threads ONNX Runtime gets where nobody says."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from loky import cpu_count

import tiny
from precision_bisect.machine.threads import (
    MOST_OF_ONE_SESSION,
    fitting,
    samples_at_once,
    usable,
)
from precision_bisect.options import Options
from precision_bisect.pipeline.loading import load_run
from precision_bisect.runs.monitoring.events import ignore

ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from precision_bisect.machine.threads import fitting, samples_at_once, usable
print(usable(), fitting(1e9, 1), samples_at_once(1e9, 1, most=64))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds processes to cores so")
def test_only_the_cores_of_this_process_count() -> None:
    """One core computes on one thread, and one sample at a time, whatever the machine has."""
    said = subprocess.run([sys.executable, "-c", ONE_CORE], capture_output=True, check=True)
    assert said.stdout.split() == [b"1"] * 3


@pytest.mark.parametrize(
    ("seconds", "layers", "threads"),
    [(0.0, 0, 1), (0.005, 300, 1), (1e9, 1, usable()), (20.0, 100, usable())],
)
def test_threads_follow_what_a_layer_computes(seconds: float, layers: int, threads: int) -> None:
    """Small layers get one thread, large ones all that are of use, which are not all cores."""
    assert fitting(seconds, layers) == threads
    assert fitting(seconds, layers, samples=6) == threads
    assert 1 <= usable() <= MOST_OF_ONE_SESSION


def test_samples_side_by_side_come_before_threads_in_layers() -> None:
    """Where other samples wait, layers of a fifth of a millisecond get one thread each."""
    assert fitting(0.05, 250, samples=6) == 1
    assert fitting(0.05, 250) == min(10, usable())


def test_what_is_asked_for_is_a_limit() -> None:
    """Threads that wake for each small layer cost more than they bring, asked for or not."""
    assert (1, 1) == (fitting(0.02, 5000, most=1), samples_at_once(0.02, 1, most=1))
    assert (3, 1) == (fitting(20.0, 100, most=3), samples_at_once(20.0, 3, most=3))
    assert samples_at_once(0.02, 1, most=10**6) == cpu_count()


@pytest.mark.parametrize("asked", [0, 3])
def test_a_run_settles_the_threads_once(asked: int, tmp_path: Path) -> None:
    """A model of small layers gets one thread, however many it may have."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    # The first sample warms up.
    options = Options(model=model, inputs=tiny.samples(4), tol=1e-2, threads=asked)
    loaded = load_run(options, ignore, tmp_path)
    assert loaded.case.options.threads == 1
    assert len(loaded.case.reference) == 4
    assert all(
        np.isfinite(array).all() for each in loaded.case.reference for array in each.values()
    )


@pytest.mark.parametrize(("threads", "workers", "shared"), [(8, 1, 8), (8, 4, 5), (1, 4, 1)])
def test_workers_bring_threads_of_their_own(threads: int, workers: int, shared: int) -> None:
    """Several workers compute in their own threads and share what is left of the others."""
    options = Options(model=Path("model.onnx"), threads=threads, workers=workers)
    assert options.emulator_threads == shared
