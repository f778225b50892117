"""Temporary folders are gone after any ending, and nothing of them is in the way."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from patience import PATIENCE_S, wait_until
from precision_bisect.machine import workdir as workdir_module
from precision_bisect.machine.workdir import workdir

SCRIPT = """
import sys, time
from precision_bisect.machine.workdir import workdir
with workdir() as path:
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "er" / "file").write_text("x" * 1000)
    how = sys.argv[1]
    print(path, flush=True)
    if how == "exception":
        raise ValueError("a bug")
    if how != "return":
        time.sleep(600)
"""

WRITER = """
import contextlib, itertools, os, sys
for number in itertools.count():
    # It may go between the two calls.
    with contextlib.suppress(OSError):
        os.makedirs(sys.argv[1], exist_ok=True)
        with open(os.path.join(sys.argv[1], str(number)), "w"):
            pass
"""
"""Writes into a folder for ever, and makes it anew where it has gone."""


def ended(how: str, number: int | None, folder: Path) -> tuple[Path, "subprocess.Popen[str]"]:
    """Return the folder of a process that has ended so, and the process."""
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    assert path.parent == folder
    if number is not None:
        pipe = os.fstat(child.stdout.fileno()).st_ino
        for guardian in psutil.Process(child.pid).children():
            files = Path(f"/proc/{guardian.pid}/fd").iterdir()
            assert f"pipe:[{pipe}]" not in map(os.readlink, files), "it keeps our pipe open"
        child.send_signal(number)
    child.stdout.read()
    child.stdout.close()
    child.wait(timeout=PATIENCE_S)
    return path, child


@pytest.mark.parametrize(
    ("how", "number", "code"),
    [
        ("return", None, 0),
        ("exception", None, 1),
        ("wait", signal.SIGINT, -signal.SIGINT),
        ("wait", signal.SIGTERM, -signal.SIGTERM),
        ("wait", signal.SIGKILL, -signal.SIGKILL),
        ("wait", signal.SIGSEGV, -signal.SIGSEGV),
    ],
)
def test_the_folder_goes_with_the_process(
    tmp_path: Path, how: str, number: int | None, code: int
) -> None:
    """However it ends, the folder is gone afterwards."""
    path, child = ended(how, number, tmp_path)
    assert code == child.returncode
    wait_until(lambda: not path.exists())
    assert [] == list(tmp_path.iterdir())


def test_what_children_write_after_the_end_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guardian looks again: each of its first three pauses has a child write once more."""
    folder, pauses = tmp_path / "folder", []

    def write(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) <= 3:
            (folder / "deep").mkdir(parents=True)
            (folder / "deep" / "new").touch()

    monkeypatch.setattr(time, "sleep", write)
    monkeypatch.setattr(os, "read", lambda *_: b"")
    monkeypatch.setattr(sys, "argv", ["", str(folder), "1e9"])
    exec(workdir_module._GUARDIAN, {})
    assert [] == list(tmp_path.iterdir())
    assert len(pauses) > 3


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
    """A writer that outlives the context does not hold it up."""
    with workdir() as path:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        wait_until(lambda: any(path.iterdir()))
    assert writer.poll() is None
    writer.kill()
    writer.wait()
    shutil.rmtree(path, ignore_errors=True)
