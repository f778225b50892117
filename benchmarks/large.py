"""What ranking and search of a model with thousands of layers take in time and memory.

    python benchmarks/large.py
    python benchmarks/large.py --layers 500

Makes a model (see `large_model`), times a plain ONNX Runtime inference of it, then runs the main
job on it with the emulator in a process of its own, as the command line would. Limits: ten minutes
from start to end, and a peak of memory below three times the model's file plus 500 MB. Memory is
the proportional set size where the system has it, looked at four times a second: resident memory
counts a file that two sessions map twice.
Prints a table and adds a row to `--out`, in place of one with as many layers. Exit code 1 tells
that a limit was exceeded. The load averages tell whether the machine had other work; seconds of
CPU depend on that least.
"""

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from resource import struct_rusage
from typing import Any, TypeVar

MOST_SECONDS = 600.0
MODELS_MB, EXTRA_MB = 3.0, 500.0
"""Peak memory: so many times the model, and so many megabytes (10^6 bytes) more."""
PLAIN_RUNS = 50
ATOL = 0.05
PACKAGES = ("numpy", "onnx", "onnxruntime", "polygraphy", "precision-bisect")

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""In bytes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run took. Memory in megabytes of 10^6 bytes, times in seconds or milliseconds.

    `phases` has the number of trials and their seconds by phase of the run and kind of trial;
    `load` the load averages over one minute, before and after.
    """

    candidates: int
    inputs: int
    threads: int
    model_mb: float
    plain_ms: float
    wall_s: float
    cpu_s: float
    peak_mb: float
    resident_mb: float
    kept: int
    error: float | None
    tolerance: float
    minimal: bool
    trials: int
    emulated_trials: int
    phases: dict[str, tuple[int, float]]
    load: tuple[float, float]
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def peak_limit_mb(self) -> float:
        """The most memory that the run may take."""
        return MODELS_MB * self.model_mb + EXTRA_MB

    @property
    def within(self) -> bool:
        """Whether both limits hold."""
        return self.wall_s <= MOST_SECONDS and self.peak_mb <= self.peak_limit_mb


def measure(
    folder: Path, *, layers: int, tokens: int, inputs: int, threads: int, width: int = 128
) -> Figures:
    """Make a model in `folder`, search it, and return what that took.

    Raises RuntimeError, with what the job printed, where it finds no answer.
    """
    from large_model import make

    model, samples = _apart(make, folder, layers, tokens, inputs, width)
    before = os.getloadavg()[0]
    plain = _apart(plain_ms, model, samples, threads)
    arguments = [str(model), "--inputs", str(samples), "--atol", str(ATOL)]
    arguments += ["--backend", "emulated", "--strategy", "guided", "--threads", str(threads)]
    arguments += ["--out", str(folder / "run"), "--overwrite"]
    wall, usage, peak = _apart(job, arguments, folder)
    result = json.loads((folder / "run" / "result.json").read_text())
    return Figures(
        candidates=result["candidates"],
        inputs=inputs,
        threads=threads,
        model_mb=round(sum(each.stat().st_size for each in folder.glob("large.onnx*")) / 1e6, 1),
        plain_ms=round(plain, 2),
        wall_s=round(wall, 1),
        cpu_s=round(usage.ru_utime + usage.ru_stime, 1),
        peak_mb=round(peak / 1e6, 1),
        resident_mb=round(usage.ru_maxrss * _MAXRSS_UNIT / 1e6, 1),
        kept=len(result["kept"]),
        error=result["error"],
        tolerance=ATOL,
        minimal=result["certificate"]["minimal"],
        trials=result["trials"],
        emulated_trials=result["evaluations"],
        phases=phases(folder / "run" / "ledger.sqlite"),
        load=(round(before, 1), round(os.getloadavg()[0], 1)),
        versions={name: version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
    )


def plain_ms(model: Path, samples: Path, threads: int) -> float:
    """Return the median milliseconds of an inference by a session as the emulator's."""
    import numpy as np

    from precision_bisect.graphs.load import load_model
    from precision_bisect.graphs.ort import Session

    loaded = load_model(model)
    session = Session(loaded.proto, loaded.weights, threads)
    feed = dict(np.load(min(samples.glob("*.npz"))))
    times = []
    for _ in range(1 + PLAIN_RUNS):
        started = time.perf_counter()
        session.run(feed)
        times.append(time.perf_counter() - started)
    return float(np.median(times[1:])) * 1e3


def phases(ledger: Path) -> dict[str, tuple[int, float]]:
    """Return the number of trials and their seconds, by phase and kind."""
    connection = sqlite3.connect(ledger)
    try:
        rows = connection.execute(
            "SELECT phase || ' ' || kind, count(*), sum(wall_s) FROM trials GROUP BY 1 ORDER BY 1"
        ).fetchall()
    finally:
        connection.close()
    return {name: (count, round(seconds, 1)) for name, count, seconds in rows}


def job(arguments: Sequence[str], folder: Path) -> tuple[float, struct_rusage, int]:
    """Run the main job; return its seconds, what it used, and its peak of memory in bytes.

    The caller's own peak of memory counts as the job's (see `_apart`).
    """
    log = folder / "job.txt"
    started = time.perf_counter()
    with log.open("w") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "precision_bisect", *arguments], stdout=printed, stderr=printed
        )
        peak = 0
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, proportional(process.pid))
            time.sleep(0.25)
    _, status, usage = ended
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}:\n{log.read_text()}")
    return wall, usage, peak or usage.ru_maxrss * _MAXRSS_UNIT


def proportional(pid: int) -> int:
    """Return the proportional set size of a process in bytes; 0 where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    kib = [line.split()[1] for line in text.splitlines() if line.startswith("Pss:")]
    return int(kib[0]) * 1024 if kib else 0


def table(found: Figures) -> str:
    """Return the figures as lines for people."""
    rows = {
        "candidate layers": f"{found.candidates}",
        "plain inference": f"{found.plain_ms:.1f} ms",
        "inputs, threads": f"{found.inputs}, {found.threads}",
        "time": f"{found.wall_s:.0f} s, limit {MOST_SECONDS:.0f} s ({found.cpu_s:.0f} s of CPU)",
        "peak memory": f"{found.peak_mb:.0f} MB, limit {found.peak_limit_mb:.0f} MB "
        f"(model {found.model_mb:.1f} MB; resident {found.resident_mb:.0f} MB)",
        "kept": f"{found.kept}, error {found.error:.4g}, tolerance {found.tolerance:g}",
        "certificate": "minimal" if found.minimal else "not minimal",
        "trials": f"{found.trials}, emulated with the ranking: {found.emulated_trials}",
        **{
            f"  {name}": f"{count} trials, {seconds:.1f} s"
            for name, (count, seconds) in found.phases.items()
        },
        "load average": "{:.1f} before, {:.1f} after".format(*found.load),
    }
    return "\n".join(f"{name:<18} {value}" for name, value in rows.items())


def add(row: Figures, out: Path) -> None:
    """Write the row to a file of rows, in place of one with as many layers."""
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    rows = [each for each in rows if each["candidates"] != row.candidates]
    rows = sorted([*rows, asdict(row)], key=lambda each: int(each["candidates"]))
    out.write_text(json.dumps(rows, indent=2) + "\n")


def _apart(work: Callable[..., T], *given: object) -> T:
    """Return what a function returns in a process of its own.

    A process begins with the peak memory of the one that started it, so this one stays small.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *given).result()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure once, print, write, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=5000, help="at most so many candidates")
    parser.add_argument("--tokens", type=int, default=32, help="rows of the stream")
    parser.add_argument("--width", type=int, default=128, help="channels; 8192: 3 GB")
    parser.add_argument("--inputs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            Path(folder),
            layers=given.layers,
            tokens=given.tokens,
            inputs=given.inputs,
            threads=given.threads,
            width=given.width,
        )
    print(table(found))
    if given.out:
        add(found, given.out)
    return 0 if found.within else 1


if __name__ == "__main__":
    sys.exit(main())
