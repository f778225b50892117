"""A Dask scheduler and workers as processes of their own, and runs of the small model on them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tiny
from patience import PATIENCE_S, wait_until
from precision_bisect.trial import Identity

HELD = 8
NOTED = f"""
import os, pathlib, time

def error(outputs, reference):
    if os.getppid() != {os.getpid()}:
        note(pathlib.Path(__file__).parent)
    return worst(outputs, reference)

def note(folder):
    with (folder / "calls").open("a") as calls:
        calls.write(f"{{os.getppid()}}\\n")
    called = len((folder / "calls").read_text().split())
    while called >= {HELD} and not (folder / "go").exists():
        time.sleep(0.02)

def worst(outputs, reference):
    return max(float(abs(o[k] - r[k]).max()) for o, r in zip(outputs, reference) for k in o)
"""
"""A check that notes which worker judges, and from the HELD-th call on waits to be let go.

What the driver judges, a child of this process, is no trial and not noted.
"""


class Fleet:
    """One scheduler and its workers; logs and local folders are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self._file = folder / "scheduler.json"
        options = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
        self.scheduler = self._start("scheduler", "--scheduler-file", self._file, *options)

    @property
    def address(self) -> str:
        """The scheduler's address."""
        wait_until(self._written_address)
        return self._written_address()

    def _written_address(self) -> str:
        """Return what the scheduler's file says, "" until it is whole."""
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(self._file.read_text())["address"])
        return ""

    def worker(self, name: str, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Start a worker of one thread, without a nanny that would start it again."""
        local = ["--local-directory", self.folder / name, "--no-dashboard"]
        alone = ["--nthreads", "1", "--no-nanny", "--memory-limit", "0"]
        return self._start("worker", self.address, *local, *alone, log=name, env=env)

    def wait_for(self, name: str) -> None:
        """Wait until a worker has joined and has set up what runs brought."""
        log = self.folder / f"{name}.log"
        wait_until(lambda: "Registered to" in log.read_text())

    def plugins(self, name: str) -> list[str]:
        """Return the plugins of runs that a worker was sent, in order."""
        marker = "Starting Worker plugin precision-bisect-"
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        return [line.partition(marker)[2] for line in lines if marker in line]

    def folders(self) -> list[Path]:
        """Return the folders that runs have on the workers."""
        return list(self.folder.glob("*/dask-scratch-space/*/precision-bisect-*"))

    def close(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            process.kill()
            process.wait()

    def _start(
        self,
        command: str,
        *arguments: object,
        log: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        line = [sys.executable, "-m", f"distributed.cli.dask_{command}", *map(str, arguments)]
        own = {"DASK_TEMPORARY_DIRECTORY": str(self.folder)}
        with (self.folder / f"{log or command}.log").open("wb") as output:
            process = subprocess.Popen(
                line,
                stdout=output,
                stderr=output,
                env={**os.environ, **own, **(env or {})},
                # The end of another process may continue what is stopped in an orphaned group.
                start_new_session=True,
            )
        self.processes.append(process)
        return process


@contextmanager
def fleet(folder: Path, workers: Sequence[str] = ()) -> Iterator[Fleet]:
    """Yield a scheduler with these workers; all of them are gone afterwards."""
    folder.mkdir()
    made = Fleet(folder)
    try:
        for name in workers:
            made.worker(name)
        yield made
    finally:
        made.close()


class Search:
    """A search of the small model by the command line, judged by a check of its own."""

    def __init__(self, folder: Path, check: str = NOTED) -> None:
        folder.mkdir()
        self.folder = folder
        self.model = tiny.write_model(folder / "tiny.onnx")
        self.out = folder / "run"
        self._inputs = folder / "inputs.npz"
        self._check = folder / "check.py"
        self._check.write_text(check)
        np.savez(self._inputs, **tiny.samples()[0])  # type: ignore[arg-type]  # named arrays

    @contextmanager
    def running(self, *more: object) -> "Iterator[subprocess.Popen[str]]":
        """Yield the process, which is gone afterwards."""
        asked = ["--backend", "emulated", "--tol", "1e-2", "--threads", "1", "--out", self.out]
        asked += ["--inputs", self._inputs, "--check", f"{self._check}:error"]
        asked += ["--copies", "0"]
        line = [sys.executable, "-m", "precision_bisect", self.model, *asked, *more]
        with subprocess.Popen(
            [str(part) for part in line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *more: object) -> tuple[int, str]:
        """Return how it ends, and what it says on standard error."""
        with self.running(*more) as process:
            return ending(process)

    def let_go(self) -> None:
        """Let the check go on."""
        (self.folder / "go").touch()

    def wait_for_hold(self, driver: "subprocess.Popen[str]") -> None:
        """Wait until the check does. Raises AssertionError where the driver ends before."""
        wait_until(lambda: len(self.calls) >= HELD or driver.poll() is not None)
        assert driver.poll() is None, ending(driver)

    @property
    def calls(self) -> list[int]:
        """The process ids of the workers whose children judged, in order."""
        with contextlib.suppress(FileNotFoundError):
            return [int(pid) for pid in (self.folder / "calls").read_text().split()]
        return []

    def answer(self) -> dict[str, Any]:
        """Return the result without what depends on the clock, and without what was asked."""
        result: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        del result["wall_s"], result["options"]
        return result

    def events(self) -> str:
        """Return the log of events."""
        return (self.out / "events.jsonl").read_text()

    def verdicts(self) -> list[Identity]:
        """Return what identifies each trial that ended and was not known before."""
        return [
            (line["plan"], line["samples"], line["kind"], line["draw"], line["case"])
            for line in map(json.loads, self.events().splitlines())
            if line["event"] == "trial_finished" and not line["recalled"]
        ]


def ending(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Return how a process ends, and what it says on standard error."""
    _, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said
