"""A check that notes every evaluation, and does to its process what `orders.json` says.

A copy of it lies beside the model and the orders. `orders.json` holds a list of orders, each with
`do`, a key of `FAULTS`, and what it waits for: `call`, the number of one evaluation since `log`
was begun, `since`, the number of the first of many, or `plan`, the key of a plan whose every
evaluation meets it. `log` has one line when an evaluation begins and one when it ends, `hangs` one
byte for each that hangs.
"""

import ctypes
import importlib
import json
import os
import pickle
import shlex
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from precision_bisect.protocols import BackendFailure, Sample
from precision_bisect.search import evaluation
from precision_bisect.trial import Outcome, Proposal, TrialStatus

FOLDER = Path(__file__).parent
LONG_S = 600.0

# What `subject.break_start` writes: children run this script itself as it was at the start.
with suppress(ImportError):
    importlib.import_module("broken_start")


def error(outputs: Sequence[Sample], reference: Sequence[Sample]) -> float:
    """Return the largest difference; meet the fault that is due first, if it is of a trial."""
    proposal = _local("proposal")
    if not isinstance(proposal, Proposal):
        return _worst(outputs, reference)
    identity = "/".join(map(str, proposal.identity))
    call = _note(f"begun {identity} {os.getpid()} {time.monotonic_ns()}")
    for order in json.loads((FOLDER / "orders.json").read_text()):
        due = call == order.get("call") or proposal.plan.key == order.get("plan")
        if due or call >= order.get("since", call + 1):
            FAULTS[order["do"]]()
    worst = _worst(outputs, reference)
    _note(f"ended {identity} {os.getpid()} {time.monotonic_ns()}")
    return worst


def _worst(outputs: Sequence[Sample], reference: Sequence[Sample]) -> float:
    pairs = zip(outputs, reference, strict=True)
    return max(float(np.abs(got[y] - want[y]).max()) for got, want in pairs for y in want)


def _note(line: str) -> int:
    """Add a line to the log; return how many of its kind there are up to it."""
    with (FOLDER / "log").open("a") as log:
        log.write(f"{line}\n")
    lines = (FOLDER / "log").read_text().splitlines()
    kind = line.split()[0]
    return sum(each.startswith(kind) for each in lines[: lines.index(line) + 1])


def _local(name: str) -> Any:
    """Return a variable of the nearest caller that has it: a check is told nothing but arrays."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and name not in frame.f_locals:
        frame = frame.f_back
    return frame and frame.f_locals[name]


def _signal(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _exit(code: int) -> Callable[[], None]:
    return lambda: os._exit(code)


def _hang() -> None:
    _mark()
    time.sleep(LONG_S)


def _mark() -> None:
    """Note that this evaluation hangs."""
    with (FOLDER / "hangs").open("ab") as hangs:
        hangs.write(b"x")


def _mark_soon() -> None:
    """Have another process note so, a little later."""
    subprocess.Popen(["sh", "-c", f"sleep 0.2; printf x >> {shlex.quote(str(FOLDER / 'hangs'))}"])


def _hang_in_native_code() -> None:
    """Sleep with the interpreter's lock held, so that no other thread runs."""
    _mark_soon()
    ctypes.PyDLL(None).sleep(int(LONG_S))


def _hang_with_company() -> None:
    """Start a process that hangs, too."""
    subprocess.Popen(["sleep", str(int(LONG_S))])
    _hang()


def _out_of_memory() -> NoReturn:
    raise MemoryError("no room for 8 GiB")


def _grow() -> None:
    """Take 25 MiB more every time, up to 2.5 GiB, and hold them."""
    held = []
    for _ in range(100):
        held.append(b"\1" * (25 << 20))
        time.sleep(0.02)
    time.sleep(LONG_S)


def _raising(error: Exception) -> Callable[[], None]:
    """Return a fault that has the evaluation itself raise, once."""
    outcome = evaluation._outcome

    def raising(*_: object) -> NoReturn:
        setattr(evaluation, "_outcome", outcome)  # noqa: B010 - mypy forbids the plain form
        raise error

    return lambda: setattr(evaluation, "_outcome", raising)


def _failure(
    status: TrialStatus, message: str = "as ordered", *, retry: bool = False
) -> BackendFailure:
    return BackendFailure(Outcome(status=status, message=message, retry=retry))


def _pipe() -> int:
    """Return the file descriptor on which this process answers."""
    number: int = _local("result_queue")._writer.fileno()
    return number


def _send(data: bytes) -> Callable[[], None]:
    return lambda: _write(data)


def _garbage() -> None:
    """Answer what has no end, and go on."""
    _write(b"no frame, no pickle, no end of it in sight")
    _mark()


def _stop() -> None:
    _mark_soon()
    os.kill(os.getpid(), signal.SIGSTOP)


def _write(data: bytes) -> None:
    os.write(_pipe(), data)


def _framed(data: bytes) -> bytes:
    """Return a message as multiprocessing's connections write it."""
    return struct.pack("!i", len(data)) + data


def _half_and_die() -> None:
    _write(_framed(b"x" * 4096)[:100])
    os.kill(os.getpid(), signal.SIGKILL)


def _half_and_hang() -> None:
    _write(_framed(b"x" * 4096)[:100])
    _hang()


def _close_pipe() -> None:
    os.close(_pipe())


def _chatter_and_die() -> None:
    """Print 4 MiB and die."""
    os.write(1, b"0123456789abcde\n" * (1 << 18))
    os.abort()


def _fill(folder: str) -> Callable[[], None]:
    """Return a fault that leaves no room on the file system of a folder beside this file."""

    def fault() -> None:
        with (FOLDER / folder / "filler").open("wb", buffering=0) as filler:
            for size in (1 << 20, 1 << 10):
                with suppress(OSError):
                    while True:
                        filler.write(bytes(size))

    return fault


FAULTS: dict[str, Callable[[], object]] = {
    "SIGKILL": _signal(signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGABRT": os.abort,
    "SIGBUS": _signal(signal.SIGBUS),
    "SIGSTOP": _stop,
    "exit 0": _exit(0),
    "exit 7": _exit(7),
    "hang": _hang,
    "hang in native code": _hang_in_native_code,
    "hang with company": _hang_with_company,
    "MemoryError": _out_of_memory,
    "grow": _grow,
    "raise": _raising(ZeroDivisionError("an exception that nobody expects")),
    "fail to build": _raising(_failure(TrialStatus.BUILD_FAILED)),
    "fail by CUDA": _raising(
        _failure(TrialStatus.BUILD_FAILED, "CUDA failed: an illegal memory access", retry=True)
    ),
    "fail to run": _raising(_failure(TrialStatus.RUN_FAILED)),
    "garbage": _garbage,
    "no pickle": _send(_framed(b"this is no pickle")),
    "half an answer, dead": _half_and_die,
    "half an answer, hang": _half_and_hang,
    "another type": _send(_framed(pickle.dumps("an answer"))),
    "closed pipe": _close_pipe,
    "chatter and die": _chatter_and_die,
    "no room for the run": _fill("run"),
    "no room for temporary files": _fill("temp"),
}
