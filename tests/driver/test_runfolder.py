"""The run folder writes files whole or not at all, and says in one line where it cannot."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from precision_bisect.errors import RunFolderError
from precision_bisect.runs.belonging import own_files
from precision_bisect.runs.runfolder import LEDGER, RESULT, RunFolder


def test_files_are_written_whole(tmp_path: Path) -> None:
    """A file is complete under its name, readable by others, and nothing else is left."""
    folder = RunFolder(tmp_path / "a" / "run")
    folder.write(RESULT, "first\n")
    folder.write(RESULT, "层\r\n")
    assert (folder.path / RESULT).read_bytes() == "层\r\n".encode()
    assert (folder.path / RESULT).stat().st_mode & 0o777 == 0o644
    assert [path.name for path in folder.path.iterdir()] == [RESULT]
    folder.remove(RESULT)
    folder.remove(RESULT)
    assert list(folder.path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """When the disk is full the former file stays as it was, without debris beside it."""
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from precision_bisect.errors import RunFolderError\n"
        "from precision_bisect.runs.runfolder import RunFolder\n"
        "folder = RunFolder(Path(sys.argv[1]))\n"
        "folder.write('result.json', 'old')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    folder.write('result.json', 'new' * 1000)\n"
        "except RunFolderError as error:\n"
        "    print(error.one_line())\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", script, str(tmp_path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.startswith(f"cannot write {tmp_path / RESULT}")
    assert "--out" in said
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(RESULT, "old")]


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    """A file where the folder should be, or a folder where a file should be, is one line."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunFolderError, match="cannot write"):
            RunFolder(path)


PLANTED = [*own_files(), ".lock", ".owner.json", "logs", "engines", "rung-1-fp16", "point-3"]


@pytest.mark.parametrize("name", PLANTED)
def test_links_in_a_run_folder_are_not_followed(name: str, tmp_path: Path) -> None:
    """A run that finds one says so, whatever it was asked to do; what it leads to stays."""
    outside, run = tmp_path / "outside", tmp_path / "run"
    run.mkdir()
    (outside / "inner").mkdir(parents=True)
    (outside / "file").write_text("precious")
    (run / name).symlink_to(outside / ("file" if "." in name else "inner"))
    model = tiny.write_model(tmp_path / "tiny.onnx")
    for how in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(RunFolderError, match="is a link"):
            tiny.search(model, run, **how)
    assert "precious" == (outside / "file").read_text()
    assert [] == [*(outside / "inner").iterdir()]


def test_a_link_that_leads_nowhere_yet_is_refused(tmp_path: Path) -> None:
    """Nothing is made where it leads, not by the search of a ladder either."""
    (tmp_path / "run" / "rung-1-fp16").mkdir(parents=True)
    (tmp_path / "run" / "rung-1-fp16" / LEDGER).symlink_to(tmp_path / "made")
    with pytest.raises(RunFolderError, match="is a link"):
        tiny.search(
            tiny.write_model(tmp_path / "tiny.onnx"),
            tmp_path / "run",
            ladder=("bf16", "fp16", "fp32"),
        )
    assert not (tmp_path / "made").exists()


def test_a_run_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    """Whoever names the folder names where it leads."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    tiny.search(tiny.write_model(tmp_path / "tiny.onnx"), tmp_path / "run")
    assert (tmp_path / "disk" / RESULT).exists()
