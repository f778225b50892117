"""However a run with children ends: quickly, in one line or with what was found, leaving none."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from effort import nightly
from faults import subject
from patience import PATIENCE_S, wait_for
from precision_bisect.errors import ExitCode, UsageError

HANGING = 25
"""An evaluation of the search, when plans have passed already."""
COPIED = 4
"""So many evaluations were of copies: one trial of the curve has them."""


@contextmanager
def started(folder: Path, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """Yield the command at work on the prepared folder; it is killed if it is still there."""
    inputs = folder / "inputs"
    inputs.mkdir()
    for number, feed in enumerate(subject.feeds()):
        np.savez(inputs / f"{number}.npz", **feed)  # type: ignore[arg-type]  # no allow_pickle
    flags = {
        "--inputs": inputs,
        "--out": folder / "run",
        "--check": f"{folder / 'script.py'}:error",
        "--tol": subject.TOLERANCE,
        "--backend": "emulated",
        "--isolate": "always",
    }
    asked = [str(part) for flag in flags.items() for part in flag]
    command = [sys.executable, "-m", "precision_bisect", str(folder / "model.onnx"), *asked, *more]
    environment = {**os.environ, "TMPDIR": str(folder / "temp")}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_calls(folder: Path, process: "subprocess.Popen[str]", begun: int) -> None:
    """Wait until so many evaluations have begun."""
    wait_for(process, lambda: sum(what == "begun" for what, *_ in subject.noted(folder)) >= begun)


def result(folder: Path) -> dict[str, Any]:
    """Return what the run has written."""
    found: dict[str, Any] = json.loads((folder / "run" / "result.json").read_text())
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, *nightly(signal.SIGTERM)])
def test_an_interrupt_ends_a_hanging_trial(folder: Path, number: signal.Signals) -> None:
    """The run ends at once with the best plan so far, and the child with it."""
    subject.order(folder, {"do": "hang with company", "call": HANGING})
    with started(folder) as process:
        wait_for_calls(folder, process, HANGING)
        process.send_signal(number)
        assert ExitCode.INTERRUPTED == process.wait(timeout=PATIENCE_S)
    found = result(folder)
    assert ("interrupted", subject.KEPT) == (found["status"], found["kept"])
    assert [] == subject.left_over(folder)
    assert HANGING - 1 - COPIED == len(subject.rows(folder))


def test_two_interrupts_end_two_hanging_trials(folder: Path) -> None:
    """With several workers the first one waits for what is in flight, the second does not."""
    subject.order(folder, {"do": "hang", "since": 6})
    with started(folder, "--workers", "2") as process:
        wait_for_calls(folder, process, 7)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while line := process.stderr.readline():
            if "waiting for" in line:
                break
        process.send_signal(signal.SIGINT)
        assert ExitCode.INTERRUPTED == process.wait(timeout=PATIENCE_S)
    assert "interrupted" == result(folder)["status"]
    assert [] == subject.left_over(folder)


def test_children_end_with_a_driver_that_is_killed(folder: Path) -> None:
    """And so does what they have started; temporary files go, too."""
    subject.order(folder, {"do": "hang with company", "call": 20})
    with started(folder) as process:
        wait_for_calls(folder, process, 20)
        process.kill()
    assert [] == subject.left_over(folder)


def test_gpus_for_the_emulator_are_refused(folder: Path) -> None:
    """It uses none, so that naming some must be a mistake."""
    with pytest.raises(UsageError, match="the emulator uses none"):
        subject.search(folder, workers=2, gpus=("0", "1"))
    assert not (folder / "run").exists()
