"""How processes of ours have ended: one wording, from the code and what they printed."""

import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import precision_bisect
from precision_bisect.machine.process_ends import how_ended, is_fault, of_shell, what_helps

TELL = "from precision_bisect.machine.process_ends import tell_faults; tell_faults()"


@pytest.mark.parametrize(
    ("code", "words", "fault"),
    [
        (-signal.SIGSEGV, "ended by SIGSEGV (Segmentation fault)", True),
        (-signal.SIGABRT, "ended by SIGABRT (Aborted)", True),
        (-signal.SIGKILL, "ended by SIGKILL (Killed), perhaps out of memory", False),
        (-signal.SIGTERM, "ended by SIGTERM (Terminated)", False),
        (-77, "ended by signal 77", True),
        (7, "ended with exit code 7", True),
        (1, "ended with exit code 1", False),
        (0, "ended without an answer", False),
    ],
)
def test_an_end_is_put_into_words(code: int, words: str, *, fault: bool) -> None:
    """A signal by its name; what others may have sent is no fault of the code inside."""
    assert words == how_ended(code)
    assert f"{words}, having said: the end" == how_ended(
        code, b"first\nthe \x1b end\n".replace(b"\x1b ", b"")
    )
    assert fault is is_fault(code)
    assert ("more memory" in what_helps(code, "")) is (code == -signal.SIGKILL)


def test_what_a_process_says_is_no_command_to_a_terminal() -> None:
    """It comes from outside."""
    assert "\x1b" not in how_ended(3, b"\x1b[2J")


def test_a_shell_tells_signals_by_large_codes() -> None:
    """As 139 for SIGSEGV; other codes are the tool's own."""
    assert [0, 1, 127, -11, -9, 255] == [of_shell(code) for code in (0, 1, 127, 139, 137, 255)]


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("site-packages/numpy/core/made_up.py", f"numpy {version('numpy')} (dies)"),
        ("site-packages/of_nobody/made_up.py", "of_nobody (dies)"),
        ("scripts/check.py", "check.py (dies)"),
        ("precision_bisect/graphs/made_up.py", ""),
    ],
)
def test_the_library_of_a_fault_is_named(place: str, call: str, tmp_path: Path) -> None:
    """By the innermost code of Python that is no part of Python; what we call has none."""
    dies = "import os, signal\ndef dies(): os.kill(os.getpid(), signal.SIGSEGV)"
    program = f"{TELL}\nexec(compile({dies!r}, {str(tmp_path / place)!r}, 'exec'))\ndies()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    said = how_ended(ran.returncode, b"last words\n" + ran.stderr)
    where = f" in a call of {call}" if call else ""
    assert f"ended by SIGSEGV (Segmentation fault){where}, having said: last words" == said


def test_whoever_looks_at_an_exit_code_words_it_alike() -> None:
    """No module has words of its own for signals, or shows the bare number of one."""
    package = Path(precision_bisect.__file__).parent
    looking = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\.returncode\b|strsignal|signal\.Signals|exit code \{", path.read_text())
        and "process_ends import" not in path.read_text()
    }
    # It has the words.
    assert {"machine/process_ends.py"} == looking
