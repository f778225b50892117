"""Signals that no wait notices: those that come just before it, or to another thread.

The main thread alone answers signals, once it runs again. One that another thread receives wakes
it as little as one that comes between its last step and the wait. And signals that were answered:
they end nothing that begins later.
"""

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from patience import PATIENCE_S, wait_until
from precision_bisect.commandline.batch import job_process
from precision_bisect.machine import answered_signals
from precision_bisect.machine.answered_signals import stopped_by_signals
from precision_bisect.machine.stopping import stoppable
from precision_bisect.machine.threads import awaited
from precision_bisect.plan import Plan
from precision_bisect.search.in_flight import InFlight
from precision_bisect.search.workers import still_working
from precision_bisect.trial import Proposal
from simulated import Simulated, driver_of

LONG_S = 2 * PATIENCE_S


def waits_in(function: Callable[..., Any]) -> bool:
    """Tell whether the main thread is in a function, and there in the standard library."""
    assert isinstance(function, FunctionType)
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    innermost = Path(frame.f_code.co_filename).name
    while frame.f_back is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame.f_code is function.__code__ and innermost in ("threading.py", "subprocess.py")


@contextmanager
def interrupted_elsewhere(where: Callable[..., Any]) -> Iterator[None]:
    """Have another thread receive SIGINT once the block waits in a function."""
    over = threading.Event()

    def receive() -> None:
        wait_until(lambda: over.is_set() or waits_in(where))
        if not over.is_set():
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    receiver = threading.Thread(target=receive)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    receiver.start()
    try:
        yield
    finally:
        # One that comes late is no other test's.
        with suppress(KeyboardInterrupt):
            over.set()
            receiver.join()
        signal.signal(signal.SIGINT, former)


def test_a_driver_that_waits_for_trials_answers(tmp_path: Path) -> None:
    """Trials side by side: the interrupt ends the search, as does another one after it."""
    held = threading.Event()

    def rule(plan: Plan, feed: object) -> float:
        held.wait(LONG_S)
        return 0.0

    driver, ledger = driver_of(tmp_path, Simulated(rule), workers=2)
    with ledger, interrupted_elsewhere(InFlight.land), interrupted_elsewhere(InFlight.finish):
        with pytest.raises(KeyboardInterrupt):
            driver.consider_all([Proposal(plan=Plan.of([n])) for n in range(2)])
        assert still_working()
    held.set()


def test_calls_side_by_side_answer() -> None:
    """So do a batch that waits for its jobs, and one that has them read."""
    held = threading.Event()
    with ThreadPoolExecutor(2) as pool, interrupted_elsewhere(awaited):
        with pytest.raises(KeyboardInterrupt):
            [*awaited(pool, held.wait, (LONG_S, LONG_S))]
        held.set()


@pytest.mark.parametrize("left_s", [math.inf, LONG_S])
def test_a_batch_that_waits_for_a_job_answers(left_s: float) -> None:
    """Whether the job has an end to keep or not."""
    sleeps = [sys.executable, "-c", f"import time; time.sleep({LONG_S})"]
    with subprocess.Popen(sleeps) as child:
        with interrupted_elsewhere(job_process.wait), pytest.raises(KeyboardInterrupt):
            job_process.wait(child, lambda: left_s)
        assert child.poll() is None
        child.kill()


def test_a_signal_ends_nothing_that_begins_after_its_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who ends a run in a notebook and starts another one has that go on past the grace."""
    monkeypatch.setattr(answered_signals, "GRACE_S", 0.2)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt), stopped_by_signals():
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(PATIENCE_S)
    finally:
        signal.signal(signal.SIGINT, former)
    stopped = threading.Event()
    with stoppable(stopped.set):
        assert not stopped.wait(1)


def test_what_a_search_leaves_at_work_ends_after_the_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that another thread began inside it is stopped, though the search is left."""
    monkeypatch.setattr(answered_signals, "GRACE_S", 0.2)
    begun, stopped = threading.Event(), threading.Event()

    def call() -> None:
        with stoppable(stopped.set):
            begun.set()
            stopped.wait(PATIENCE_S)

    thread = threading.Thread(target=call)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt), stopped_by_signals():
            thread.start()
            begun.wait(PATIENCE_S)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(PATIENCE_S)
    finally:
        signal.signal(signal.SIGINT, former)
    thread.join()
    assert stopped.is_set()
