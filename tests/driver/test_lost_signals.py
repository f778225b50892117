"""Signals that no wait notices: those that come just before it, or to another thread.

The main thread alone answers signals, once it runs again. One that another thread receives wakes
it as little as one that comes between its last step and the wait.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from precision_bisect.commandline.batch import job_process
from precision_bisect.plan import Plan
from precision_bisect.trial import Proposal
from simulated import Simulated, driver_of

LONG_S = 20.0


@contextmanager
def interrupted_elsewhere(after_s: float = 0.3) -> Iterator[None]:
    """Have another thread receive SIGINT once the block has waited for a while."""

    def receive() -> None:
        time.sleep(after_s)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        sent.set()
        time.sleep(LONG_S)

    sent = threading.Event()

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=receive, daemon=True).start()
    try:
        yield
    finally:
        # One that comes late is no other test's.
        with suppress(KeyboardInterrupt):
            sent.wait(LONG_S)
        signal.signal(signal.SIGINT, former)


def test_a_driver_that_waits_for_trials_answers(tmp_path: Path) -> None:
    """Trials side by side: the interrupt ends the search, as does another one after it."""
    held = threading.Event()

    def rule(plan: Plan, feed: object) -> float:
        held.wait(LONG_S)
        return 0.0

    driver, ledger = driver_of(tmp_path, Simulated(rule), workers=2)
    begun = time.monotonic()
    with ledger, interrupted_elsewhere(), interrupted_elsewhere(after_s=1.5):
        with pytest.raises(KeyboardInterrupt):
            driver.consider_all([Proposal(plan=Plan.of([n])) for n in range(2)])
        assert time.monotonic() - begun < LONG_S / 2
    held.set()


def test_a_batch_that_waits_for_a_job_answers() -> None:
    """Whether the job has an end to keep or not."""
    for left_s in (None, LONG_S):
        begun = time.monotonic()
        sleeps = [sys.executable, "-c", f"import time; time.sleep({LONG_S})"]
        with subprocess.Popen(sleeps) as child, interrupted_elsewhere():
            with pytest.raises(KeyboardInterrupt):
                job_process.wait(child, left_s)
            assert time.monotonic() - begun < LONG_S / 2
            child.kill()
