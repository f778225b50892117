"""Ctrl-C while a module is imported: libraries that are half made may end the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no timers to wait by")

COMES_INSIDE = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
for _ in range(1000):
    pass
"""
COMMANDS = "signal.signal(signal.SIGINT, interrupts.interrupt)"
SEARCHES = """
class Raises(answered_signals.AnswersSignals):
    def interrupt(self, number, frame):
        raise answered_signals.Interrupted
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
BEGINS = """
import os, signal, sys, threading
from precision_bisect.machine import answered_signals, interrupts
"""
IMPORTS = """
try:
    import native
    threading.Event().wait(60)
except KeyboardInterrupt:
"""


def printed(script: str, module: str, folder: Path) -> str:
    """Return what a script prints that imports this module, once it has ended well."""
    (folder / "native.py").write_text(module)
    command = [sys.executable, "-c", f"{BEGINS}{script}"]
    done = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


@pytest.mark.parametrize(
    ("how", "module"),
    [(COMMANDS, COMES_INSIDE), (SEARCHES, COMES_INSIDE), (AT_LOCK, "")],
    ids=["commands", "searches", "locked"],
)
def test_an_import_is_whole_before_it_is_interrupted(
    how: str, module: str, tmp_path: Path
) -> None:
    """Else one that is interrupted half way leaves what no library is made for, or its lock."""
    script = f'{how}{IMPORTS}    print(sys.modules["native"].WHOLE)'
    assert "True\n" == printed(script, f"{module}WHOLE = True", tmp_path)


def test_no_signal_takes_the_place_of_another(tmp_path: Path) -> None:
    """The end of the time may come in the same import as Ctrl-C, which must not be lost."""
    script = f"""
from functools import partial
def late(*_): print("late")
signal.signal(signal.SIGTERM, partial(interrupts.answer_between_imports, late))
{COMMANDS}{IMPORTS}    print(sys.modules["native"].WHOLE)"""
    first = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
    assert "True\n" == printed(script, f"{first}{COMES_INSIDE}WHOLE = True", tmp_path)


def test_a_process_that_ends_meanwhile_is_not_ended_by_its_timer(tmp_path: Path) -> None:
    """What is done is done: the exit code stays that of the command."""
    script = f"""
import atexit
{COMMANDS}
interrupts._AGAIN_S = 3600.0
atexit.register(lambda: print(signal.getitimer(signal.ITIMER_REAL)))
import native
print(signal.getitimer(signal.ITIMER_REAL)[0] > 0)
"""
    assert "True\n(0.0, 0.0)\n" == printed(script, COMES_INSIDE, tmp_path)


def test_the_alarm_of_a_caller_comes_back(tmp_path: Path) -> None:
    """Whoever calls the API may limit it by SIGALRM, which waits for the import's end, too."""
    script = f"""
def late(*_): pass
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 1e6)
{COMMANDS}{IMPORTS}
    print(signal.getsignal(signal.SIGALRM) is late, signal.getitimer(signal.ITIMER_REAL)[0] > 9e5)
"""
    assert "True True\n" == printed(script, COMES_INSIDE, tmp_path)
