"""Waiting for what has to come: as long as it takes, on however busy a machine.

A test whose verdict hung on a second would be one of the machine's speed.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from precision_bisect.execution import slot

PATIENCE_S = 300.0
"""After so long nothing is taken to come any more. What hangs on purpose does so for longer."""
LIMIT_S = 1000.0
"""A limit on a trial that no trial reaches by itself."""


def comes(condition: Callable[[], object]) -> bool:
    """Tell whether something is so in the end."""
    deadline = time.monotonic() + PATIENCE_S
    while not (holds := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until something is so. Raises AssertionError where it never is."""
    assert comes(condition), condition


def gone(pid: int) -> bool:
    """Tell whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(child: "subprocess.Popen[Any]", condition: Callable[[], object]) -> None:
    """Wait until something is so that a process brings about.

    Raises AssertionError where the process ends before, or it never is; the process is killed.
    """
    comes(lambda: condition() or child.poll() is not None)
    if not condition():
        child.kill()
        raise AssertionError(child.communicate(timeout=PATIENCE_S))


@contextmanager
def late_by(hangs: Callable[[], int]) -> Iterator[None]:
    """Have `LIMIT_S` be over for a trial in a child as soon as one more `hangs`, not before."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * LIMIT_S * hangs())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot, "time", clock)
        yield
