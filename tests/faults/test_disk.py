"""A disk that gets full while a run goes on."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from faults import subject
from faults.harness import Record, Run
from precision_bisect.errors import RunFolderError
from precision_bisect.runs.results.endings import Status

SIZE = "80m"
"""More than a trial needs to be free."""


def mounted(path: Path) -> Iterator[Path]:
    """Mount a small file system at a folder, where that is allowed, for as long as it is used."""
    path.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def small_run_folder(run: Run) -> Iterator[Path]:
    """Yield the run folder, on a small file system."""
    yield from mounted(run.folder / "run")


@pytest.fixture
def small_temp(run: Run) -> Iterator[Path]:
    """Yield the folder for temporary files, on a small file system."""
    yield from mounted(run.folder / "temp")


def test_a_full_run_folder_ends_the_run_and_loses_nothing(
    run: Run, small_run_folder: Path, whole: Mapping[str, Any], record_property: Record
) -> None:
    """The verdict that found no room is the only one that is asked for again."""
    subject.order(run.folder, {"do": "no room for the run", "call": 20})
    for resume in (False, True):
        with pytest.raises(RunFolderError) as error:
            run.search(resume=resume)
        assert "free space" in error.value.one_line()
    assert 20 == sum(what == "begun" for what, *_ in subject.noted(run.folder))
    (small_run_folder / "filler").unlink()
    assert 19 == len(subject.rows(run.folder))
    run.settle(run.search(resume=True), 1, record_property, subject.KEPT)
    assert whole == subject.rows(run.folder)


@pytest.mark.nightly
def test_a_full_folder_for_temporary_files_ends_the_run_and_loses_nothing(
    run: Run, small_temp: Path, whole: Mapping[str, Any], record_property: Record
) -> None:
    """The trial that filled it counts, the next is not begun before there is room."""
    subject.order(run.folder, {"do": "no room for temporary files", "call": 20})
    stopped = run.search()
    assert Status.BUDGET_EXHAUSTED is stopped.status
    assert f"free in {small_temp}" in stopped.message
    assert 20 == len(subject.rows(run.folder))
    (small_temp / "filler").unlink()
    run.settle(run.search(resume=True), 1, record_property, subject.KEPT)
    assert whole == subject.rows(run.folder)


def test_a_run_without_room_for_temporary_files_does_not_begin(run: Run, small_temp: Path) -> None:
    """It says so in one line, and leaves nothing."""
    filler = small_temp / "filler"
    with filler.open("wb", buffering=0) as stream, pytest.raises(OSError):
        while True:
            stream.write(bytes(1 << 20))
    with pytest.raises(RunFolderError) as error:
        run.search()
    assert "point TMPDIR to a writable folder" in error.value.one_line()
    filler.unlink()
    assert [] == subject.left_over(run.folder)
