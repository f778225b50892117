"""Temporary folders are gone after any ending, and nothing of them is in the way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from patience import PATIENCE_S
from precision_bisect.machine.workdir import workdir

SCRIPT = """
import signal, subprocess, sys, time
from precision_bisect.machine.workdir import workdir
with workdir() as path:
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "er" / "file").write_text("x" * 1000)
    how = sys.argv[1]
    if how == "writer":
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen([sys.executable, "-c", sys.argv[2], path / "deep" / "new"], **quiet)
    print(path, flush=True)
    if how == "exception":
        raise ValueError("a bug")
    if how != "return":
        time.sleep(600)
"""

WRITER = """
import os, sys, time
for number in range(12):
    os.makedirs(sys.argv[1], exist_ok=True)
    with open(os.path.join(sys.argv[1], str(number)), "w"):
        pass
    time.sleep(0.05)
"""
"""Writes into a folder for a while, and makes it anew where it has gone."""


def ended(how: str, number: int | None, folder: Path) -> tuple[Path, "subprocess.Popen[str]"]:
    """Return the folder of a process that has ended so, and the process."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how, WRITER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    assert path.parent == folder
    if number is not None:
        child.send_signal(number)
    begun = time.monotonic()
    child.stdout.read()
    child.stdout.close()
    child.wait(timeout=PATIENCE_S)
    assert time.monotonic() - begun < 10, "something kept our pipe open"
    return path, child


def gone(path: Path, seconds: float = 10.0) -> bool:
    """Tell whether a path goes within so many seconds."""
    deadline = time.monotonic() + seconds
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not path.exists()


@pytest.mark.parametrize(
    ("how", "number", "code"),
    [
        ("return", None, 0),
        ("exception", None, 1),
        ("wait", signal.SIGINT, -signal.SIGINT),
        ("wait", signal.SIGTERM, -signal.SIGTERM),
        ("wait", signal.SIGKILL, -signal.SIGKILL),
        ("wait", signal.SIGSEGV, -signal.SIGSEGV),
        ("writer", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_the_folder_goes_with_the_process(
    tmp_path: Path, how: str, number: int | None, code: int
) -> None:
    """However it ends, killed while a child still writes too, the folder is gone soon after."""
    path, child = ended(how, number, tmp_path)
    assert code == child.returncode
    if how == "writer":
        time.sleep(1.0)
    assert gone(path)
    assert [] == list(tmp_path.iterdir())


def test_the_guardian_ends_with_the_command() -> None:
    """Left in the ordinary way the folder is gone at once, and the process beside it, too."""
    before = {child.pid for child in psutil.Process().children()}
    with workdir() as path:
        beside = [each for each in psutil.Process().children() if each.pid not in before]
        assert 1 == len(beside)
        assert path.is_dir()
    assert not path.exists()
    assert not beside[0].is_running()


def test_two_folders_do_not_wait_for_each_other() -> None:
    """The guardian of the first folder does not hold on to the second one's, nor the reverse."""
    with workdir() as outer:
        with workdir() as inner:
            assert outer != inner
        assert not inner.exists()
        assert outer.exists()
    assert not outer.exists()


def test_what_is_still_written_to_keeps_nobody_waiting() -> None:
    """A writer that outlives the context does not hold it up; the folder goes all the same."""
    code = (
        "import itertools, sys, time\n"
        "for number in itertools.count():\n"
        "    open(f'{sys.argv[1]}/{number}', 'w').close()\n"
        "    time.sleep(0.002)"
    )
    with workdir() as path:
        command = [sys.executable, "-c", code, str(path)]
        writer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not any(path.iterdir()):
            time.sleep(0.01)
        begun = time.monotonic()
    assert time.monotonic() - begun < 5
    assert 0 != writer.wait(timeout=PATIENCE_S)
    assert gone(path)
