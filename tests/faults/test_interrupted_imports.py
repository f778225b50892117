"""Ctrl-C while a module is imported: libraries that are half made may end the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

COMES_INSIDE = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
for _ in range(1000):
    pass
"""
COMMANDS = "signal.signal(signal.SIGINT, interrupts.interrupt)"
SEARCHES = """
class Raises(stopping.AnswersSignals):
    def interrupt(self, number, frame):
        raise stopping.Interrupted
Raises().__enter__()
"""
AT_LOCK = f"""
{COMMANDS}
def look(frame, event, function):
    if (frame.f_code.co_name, event) == ("cb", "c_return") and function.__name__ == "acquire_lock":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
sys.setprofile(look)
"""
"""Python drops what is raised there, where a callback gives a lock back."""
SCRIPT = """
import os, signal, sys, threading
from precision_bisect.machine import interrupts, stopping
{how}
try:
    import native
    threading.Event().wait(60)
except KeyboardInterrupt:
    print(sys.modules["native"].WHOLE)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no timers to wait by")
@pytest.mark.parametrize(
    ("how", "module"),
    [(COMMANDS, COMES_INSIDE), (SEARCHES, COMES_INSIDE), (AT_LOCK, "")],
    ids=["commands", "searches", "locked"],
)
def test_an_import_is_whole_before_it_is_interrupted(
    how: str, module: str, tmp_path: Path
) -> None:
    """Else one that is interrupted half way leaves what no library is made for, or its lock."""
    (tmp_path / "native.py").write_text(f"{module}WHOLE = True")
    words = [sys.executable, "-c", SCRIPT.format(how=how)]
    done = subprocess.run(
        words, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (0, "True\n", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no timers to wait by")
def test_a_process_that_ends_meanwhile_is_not_ended_by_its_timer(tmp_path: Path) -> None:
    """What is done is done: the exit code stays that of the command."""
    (tmp_path / "native.py").write_text(COMES_INSIDE)
    script = f"""
import atexit, signal
from precision_bisect.machine import interrupts
{COMMANDS}
interrupts._AGAIN_S = 3600.0
atexit.register(lambda: print(signal.getitimer(signal.ITIMER_REAL)))
import native
print(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (0, "True\n(0.0, 0.0)\n", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no timers to wait by")
def test_the_alarm_of_a_caller_comes_back(tmp_path: Path) -> None:
    """Whoever calls the API may limit it by SIGALRM, which waits for the import's end, too."""
    (tmp_path / "native.py").write_text(COMES_INSIDE)
    script = f"""
import threading
from precision_bisect.machine import interrupts
import signal
def late(*_): pass
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 1e6)
{COMMANDS}
try:
    import native
    threading.Event().wait(60)
except KeyboardInterrupt:
    print(signal.getsignal(signal.SIGALRM) is late, signal.getitimer(signal.ITIMER_REAL)[0] > 9e5)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (0, "True True\n", "") == (done.returncode, done.stdout, done.stderr)
