"""Runs the command line as a process of its own, and watches what it takes.

Memory of the host is the proportional set size of the process and all that it started, that of the
GPU what `nvidia-smi` counts above the level before: both looked at four times a second.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from large import proportional

EVERY_S = 0.25
GRACE_S = 20.0
"""What a run that is interrupted has to write its result."""
LINES = 8
"""How many last lines of stderr are kept of a run that failed."""
ROOTS = ("bisect", "strategies", "reports")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended, and what it took. Memory in megabytes of 10^6 bytes."""

    code: int
    wall_s: float
    begun: float
    """Seconds since 1970."""
    timed_out: bool
    host_mb: float
    gpu_mb: float | None
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What the log of a run's events tells, in seconds since the process began."""

    first_trial_s: float | None = None
    last_trial_s: float | None = None
    builds_s: float = 0.0
    forecasts_s: float = 0.0
    builds: int = 0
    forecasts: int = 0
    phases: Mapping[str, float]
    """Seconds from the beginning of each phase to the next one's, or to the last event."""


class Peak:
    """Looks at a level again and again in a thread, and keeps the largest."""

    def __init__(self, look: Callable[[], float | None]) -> None:
        self._look = look
        self._before = look()
        self._most = self._before
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def above(self) -> float | None:
        """The largest level minus the one before; None where nothing tells."""
        if self._before is None or self._most is None:
            return None
        return self._most - self._before

    def _watch(self) -> None:
        while self._before is not None and not self._over.wait(EVERY_S):
            self._most = max(self._most or 0.0, self._look() or 0.0)


def gpu_query(*fields: str) -> list[str] | None:
    """Return a line of `nvidia-smi` for each GPU; None where it does not tell."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip().splitlines()


def gpu_mb() -> float | None:
    """Return the memory in use on all GPUs together; None where nothing tells."""
    lines = gpu_query("memory.used")
    try:
        return sum(float(line) for line in lines) * 2**20 / 1e6 if lines else None
    except ValueError:
        return None


def host_mb(pid: int) -> float:
    """Return the proportional set size of a process and its descendants."""
    try:
        process = psutil.Process(pid)
        tree = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0.0
    return sum(map(_set_size, tree)) / 1e6


def run(command: Sequence[str], folder: Path, *, tool: Path, limit_s: float) -> Ended:
    """Run a Python command to its end, or for so long; its output goes to files of the folder.

    The roots of the checkout `tool` come first in its path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([*(str(tool / root) for root in ROOTS), *filter(None, [known])])
    environment = os.environ | {"PYTHONPATH": paths, "NO_COLOR": "1"}
    said = folder / "stderr.txt"
    with Peak(gpu_mb) as gpu, (folder / "stdout.txt").open("w") as out, said.open("w") as err:
        begun, started = time.time(), time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=out,
            stderr=err,
            env=environment,
            start_new_session=True,
        )
        timed_out, peak = _watched(process, started + limit_s)
        wall = time.perf_counter() - started
    return Ended(
        code=process.returncode,
        wall_s=round(wall, 1),
        begun=begun,
        timed_out=timed_out,
        host_mb=round(peak, 1),
        gpu_mb=None if gpu.above is None else round(gpu.above, 1),
        said="\n".join(said.read_text(errors="replace").splitlines()[-LINES:]),
    )


def timeline(log: Path, begun: float) -> Timeline:
    """Return what a run's log of events tells, of a process that began at that time."""
    events = _events(log)
    times = [datetime.fromisoformat(event["time"]).timestamp() - begun for event in events]
    kinds = [event["event"] for event in events]
    trials = [event for event in events if event["event"] == "trial_finished"]
    trials = [event for event in trials if not event.get("recalled")]
    forecasts = [event for event in trials if event["kind"] == "predict"]
    builds = [event for event in trials if event["kind"] != "predict"]
    started = [at for at, kind in zip(times, kinds, strict=True) if kind == "trial_started"]
    ended = [at for at, kind in zip(times, kinds, strict=True) if kind == "trial_finished"]
    return Timeline(
        first_trial_s=round(min(started), 1) if started else None,
        last_trial_s=round(max(ended), 1) if ended else None,
        builds_s=round(sum(event["wall_s"] for event in builds), 1),
        forecasts_s=round(sum(event["wall_s"] for event in forecasts), 1),
        builds=len(builds),
        forecasts=len(forecasts),
        phases=_phases(events, times),
    )


def _events(log: Path) -> list[dict[str, Any]]:
    """Return the events of a log; a last line that was being written is left out."""
    events: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        for line in log.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
    return events


def _phases(events: Sequence[Mapping[str, Any]], times: Sequence[float]) -> dict[str, float]:
    begins = [
        (event["phase"], at)
        for event, at in zip(events, times, strict=True)
        if event["event"] == "phase_started"
    ]
    ends = [*(at for _, at in begins), max(times, default=0.0)][1:]
    seconds: dict[str, float] = {}
    for (phase, at), end in zip(begins, ends, strict=True):
        seconds[phase] = round(seconds.get(phase, 0.0) + end - at, 1)
    return seconds


def _watched(process: subprocess.Popen[bytes], deadline: float) -> tuple[bool, float]:
    """Wait for a process; interrupt it at its deadline, and end its group after a grace.

    Returns whether that was needed, and the most memory that it had.
    """
    peak, late = 0.0, False
    while process.poll() is None:
        peak = max(peak, host_mb(process.pid))
        over = time.perf_counter() - deadline
        if over > 0 and not late:
            late = True
            process.send_signal(signal.SIGINT)
        if over > GRACE_S:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        time.sleep(EVERY_S)
    return late, peak


def _set_size(process: psutil.Process) -> int:
    try:
        return proportional(process.pid) or process.memory_info().rss
    except psutil.Error:
        return 0
