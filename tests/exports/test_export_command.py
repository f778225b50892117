"""`precision-bisect export` writes the files of a finished run again."""

from pathlib import Path

import pytest

from precision_bisect.engine_settings import EngineSettings
from precision_bisect.errors import PrecisionBisectError, RunFolderError
from precision_bisect.export_command import export
from precision_bisect.locking import LOCK
from precision_bisect.runfolder import (
    DIAGNOSIS,
    EVENTS,
    EXPORTS,
    LAYER_PRECISIONS,
    LAYERS,
    LEDGER,
    MIXED_DATA,
    REPORT,
    RESULT,
    STATUS,
    TRTEXEC,
    RunFolder,
)
from tiny import KEPT, search, write_model

WRITTEN = sorted({*EXPORTS} - {MIXED_DATA})


def test_a_finished_run_is_exported_beside_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without paths it reads the model's default run folder and writes there."""
    monkeypatch.chdir(tmp_path)
    path = write_model(tmp_path / "tiny.onnx")
    run = Path("tiny.onnx.precision-bisect")
    search(path, run)
    for name in EXPORTS:
        (run / name).unlink(missing_ok=True)
    said = export(path, None, None, EngineSettings()).to_text()
    assert said.splitlines()[0] == f"written to {run}"
    assert WRITTEN == sorted(line.strip() for line in said.splitlines()[1:])
    told = {RESULT, LEDGER, EVENTS, STATUS, LOCK, LAYERS, DIAGNOSIS, REPORT}
    assert {*WRITTEN, *told} == {file.name for file in run.iterdir()}
    spec = ",".join(f"{name}:fp32" for name in KEPT)
    assert spec == (run / LAYER_PRECISIONS).read_text()


def test_another_folder_and_settings_can_be_given(tmp_path: Path) -> None:
    """The plan is found by its file, and the exports go where they are asked to."""
    path = write_model(tmp_path / "tiny.onnx")
    search(path, tmp_path / "run")
    out = tmp_path / "a" / "b"
    export(path, tmp_path / "run" / RESULT, out, EngineSettings(tf32=True))
    assert WRITTEN == sorted(file.name for file in out.iterdir())
    assert "--noTF32" not in (out / TRTEXEC).read_text()


def test_what_cannot_be_written_is_told_with_its_reason(tmp_path: Path) -> None:
    """A file that is left out is listed with the reason."""
    path = write_model(tmp_path / "tiny.onnx")
    search(path, tmp_path / "run", tol=1e9)
    lines = export(path, tmp_path / "run", None, EngineSettings()).to_text().splitlines()
    assert f"  {LAYER_PRECISIONS}: no layer is kept" in lines[lines.index("not written") :]
    assert f"  {TRTEXEC}" in lines[: lines.index("not written")]


def test_a_changed_model_is_refused(tmp_path: Path) -> None:
    """The exports of one model are never written from the run of another."""
    path = write_model(tmp_path / "tiny.onnx")
    search(path, tmp_path / "run")
    RunFolder(tmp_path / "out").write(TRTEXEC, "mine")
    write_model(path, scale=2.0)
    with pytest.raises(RunFolderError, match="belongs to another model"):
        export(path, tmp_path / "run", tmp_path / "out", EngineSettings())
    assert "mine" == (tmp_path / "out" / TRTEXEC).read_text()


def test_without_a_run_it_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no finished run the error names the place and the flag."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PrecisionBisectError) as error:
        export(write_model(tmp_path / "tiny.onnx"), None, None, EngineSettings())
    assert "no finished run: tiny.onnx.precision-bisect does not exist" in error.value.one_line()
