"""One driver per run folder: a second one is refused by name and touches nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiny
from patience import PATIENCE_S
from precision_bisect.commandline.export_command import export
from precision_bisect.commandline.main import main
from precision_bisect.errors import RunFolderError, UsageError
from precision_bisect.machine.stopping import limited
from precision_bisect.runs.locking import Owner, RunLock, owner_of
from precision_bisect.runs.runfolder import LEDGER, LOCK, OWNER, RESULT

HOLDER = """
import sys, time
from pathlib import Path
from precision_bisect.runs.locking import RunLock
with RunLock(Path(sys.argv[1])) as lock:
    lock.open(overwrite=False, rungs=False)
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Have another process hold a run folder until its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert "held\n" == child.stdout.readline()
        yield child
        if child.poll() is None:
            child.communicate()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the files of a folder with their contents and times."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
        if path.is_file()
    }


@pytest.mark.parametrize(
    "more", [(), ("--resume",), ("--overwrite",), ("--ladder", "int8,fp16,fp32", "--overwrite")]
)
def test_a_second_driver_is_refused(
    finished: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it was asked to do it ends with code 2, names the owner, and touches nothing."""
    model, inputs = finished.with_name("tiny.onnx"), finished.with_name("inputs.npz")
    with held(finished) as owner:
        before = contents(finished)
        noted = owner_of(finished)
        assert 2 == main([str(model), "--inputs", str(inputs), *more, "--out", str(finished)])
        assert before == contents(finished)
        assert owner.poll() is None
    assert noted is not None and noted.pid == owner.pid
    said = capsys.readouterr().err
    assert "Traceback" not in said


def test_exports_into_a_run_that_goes_on_are_refused(finished: Path) -> None:
    """`export` writes into no folder that a driver is at work in."""
    model = finished.with_name("tiny.onnx")
    with held(finished):
        before = contents(finished)
        with pytest.raises(RunFolderError, match="is in use by process"):
            export(model, finished, None, {})
        assert before == contents(finished)
    assert export(model, finished, None, {}).reasons
    assert owner_of(finished) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_owner_leaves_the_folder_free(tmp_path: Path, number: int) -> None:
    """The system frees the lock of a process that could not; its note does not matter."""
    with held(tmp_path / "run") as owner:
        owner.send_signal(number)
        owner.wait()
        left = owner_of(tmp_path / "run")
        assert left is not None and left.alive is False
        with RunLock(tmp_path / "run") as lock:
            lock.open(overwrite=False, rungs=False)
            mine = owner_of(tmp_path / "run")
            assert mine is not None and (os.getpid(), True) == (mine.pid, mine.alive)
    assert owner_of(tmp_path / "run") is None


def test_one_process_cannot_take_a_folder_twice(tmp_path: Path) -> None:
    """Two runs of one process on one folder are two drivers."""
    with RunLock(tmp_path) as lock:
        lock.open(overwrite=False, rungs=False)
        with pytest.raises(RunFolderError, match=f"process {os.getpid()}"), RunLock(tmp_path):
            pass
        assert owner_of(tmp_path) is not None
    with RunLock(tmp_path):
        pass


def test_a_folder_that_is_new_is_taken_when_it_is_opened(tmp_path: Path) -> None:
    """Until then there is none, so that input that cannot be used leaves nothing behind."""
    out = tmp_path / "a" / "run"
    with RunLock(out) as lock:
        assert not out.exists()
        lock.open(overwrite=False, rungs=False)
        assert {LOCK, OWNER} == {path.name for path in out.iterdir()}
    assert [LOCK] == [path.name for path in out.iterdir()]


def test_a_ledger_that_could_not_be_opened_is_nobodys(tmp_path: Path) -> None:
    """SQLite makes the file, and may lack another one for its log: --resume goes on there."""
    (tmp_path / LOCK).touch()
    (tmp_path / LEDGER).touch()
    with RunLock(tmp_path) as lock:
        assert lock.open(overwrite=False, rungs=False).path == tmp_path


def test_one_of_many_drivers_gets_a_new_folder(tmp_path: Path) -> None:
    """Of drivers that start at the same time one finds the answer, and the others are refused."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    np.savez(tmp_path / "inputs.npz", **tiny.samples()[0])  # type: ignore[arg-type]
    command = [
        sys.executable,
        "-m",
        "precision_bisect",
        model,
        "--inputs",
        tmp_path / "inputs.npz",
    ]
    command += ["--out", tmp_path / "run", "--backend", "emulated", "--workers", "1"]
    command += ["--copies", "0"]
    ran = [
        subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [child.communicate(timeout=PATIENCE_S)[1] for child in ran]
    assert [0, 2] == sorted(child.returncode for child in ran), said
    refused = [text.splitlines()[-1] for text in said if "--out" in text.splitlines()[-1]]
    assert 1 == len(refused), said
    assert "found" == json.loads((tmp_path / "run" / RESULT).read_text())["status"]


def test_debris_of_killed_writers_goes(tmp_path: Path) -> None:
    """Whoever takes the folder removes half files of ours, and nobody else's."""
    (tmp_path / LOCK).touch()
    ours = tmp_path / f".{RESULT}.ab_9xyz1"
    others = [tmp_path / name for name in (f".{RESULT}.swp", ".vimrc", "notes")]
    for path in (ours, *others):
        path.touch()
    with RunLock(tmp_path):
        assert not ours.exists()
        assert all(path.exists() for path in others)


def test_an_owner_is_told_from_one_with_its_number() -> None:
    """The same number with another start is another process; of other hosts nothing is known."""
    here = Owner.here()
    assert here.alive is True
    assert replace(here, process_started=here.process_started - 3600).alive is False
    assert replace(here, host="elsewhere").alive is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": null}'])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    """Then the refusal speaks of another process."""
    with held(tmp_path):
        (tmp_path / OWNER).write_text(text)
        assert owner_of(tmp_path) is None
        with pytest.raises(RunFolderError, match="in use by another process"), RunLock(tmp_path):
            pass


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    """A file in its place is one line that names it."""
    (tmp_path / "file").touch()
    with RunLock(tmp_path / "file") as lock, pytest.raises(RunFolderError, match="cannot write"):
        lock.open(overwrite=False, rungs=False)
    (tmp_path / "run" / LOCK).mkdir(parents=True)
    with pytest.raises(RunFolderError, match="cannot write"), RunLock(tmp_path / "run"):
        pass


def test_one_search_at_a_time_in_a_process(tmp_path: Path) -> None:
    """The time limits of one would hold for the other; the folder is not touched."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    with limited(None, None), pytest.raises(UsageError, match="another search is at work"):
        tiny.search(model, tmp_path / "run")
    assert not (tmp_path / "run").exists()
