"""Ending a build early: Ctrl-C is never lost, and deadlines are kept."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from precision_bisect.backends.tensorrt import watch as watch_module
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.watch import BuildWatch


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGXCPU])
def test_what_else_the_run_handles_is_held_back_too(number: signal.Signals) -> None:
    """Raised inside the build it would be swallowed; it comes at its end, by its own handler."""
    seen: list[int] = []
    before = signal.signal(number, lambda came, _: seen.append(came))
    try:
        with BuildWatch(None) as watch:
            os.kill(os.getpid(), number)
            assert ([], False) == (seen, watch._go_on())
        assert [number] == seen
    finally:
        signal.signal(number, before)


def test_ctrl_c_is_raised_once_the_build_has_returned() -> None:
    """The interrupt is held back inside the block and raised at its end, for good."""
    before = signal.getsignal(signal.SIGINT)
    reached = False
    with pytest.raises(KeyboardInterrupt), BuildWatch(None):
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
    assert (True, before) == (reached, signal.getsignal(signal.SIGINT))


def test_ctrl_c_wins_over_the_failure_that_it_causes() -> None:
    """A build that fails because it was cancelled ends as an interrupt, not as a failure."""
    with pytest.raises(KeyboardInterrupt), BuildWatch(None):
        os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("cancelled")


def test_a_quiet_build_changes_nothing() -> None:
    """Without Ctrl-C the handler is as before and nothing is raised."""
    before = signal.getsignal(signal.SIGINT)
    with BuildWatch(60) as watch:
        assert not watch.expired
    assert before is signal.getsignal(signal.SIGINT)


def test_it_works_in_another_thread() -> None:
    """Only the main thread may handle signals; builds elsewhere go on without."""
    seen: list[bool] = []

    def build() -> None:
        with BuildWatch(None) as watch:
            seen.append(watch.expired)

    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    assert [False] == seen


def test_the_monitor_cancels_at_the_deadline_and_at_ctrl_c(
    rtx: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step the library hears whether to go on."""
    seconds = 1.0
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=lambda: seconds))
    with BuildWatch(5.0) as watch:
        monitor = watch.monitor(rtx.module)
        going = monitor.step_complete("phase", 0)
        seconds = 7.0
        assert (True, False) == (going, monitor.step_complete("phase", 1))
    with pytest.raises(KeyboardInterrupt), BuildWatch(None) as watch:
        monitor = watch.monitor(rtx.module)
        going = monitor.step_complete("phase", 0)
        os.kill(os.getpid(), signal.SIGINT)
        assert (True, False) == (going, monitor.step_complete("phase", 1))
