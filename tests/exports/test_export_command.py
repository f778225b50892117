"""`precision-bisect export` writes the files of a finished run again."""

from pathlib import Path

import numpy as np
import pytest

import models
import precision_bisect
from precision_bisect.commandline.export_command import export
from precision_bisect.errors import PrecisionBisectError, RunFolderError
from precision_bisect.exports.export import Export
from precision_bisect.exports.write import write_gain
from precision_bisect.graphs.load import load_model
from precision_bisect.precisions import Pair
from precision_bisect.runs.belonging import exported_texts
from precision_bisect.runs.runfolder import (
    DIAGNOSIS,
    EVENTS,
    EXPORTS,
    FP32_DATA,
    FP32_MODEL,
    JUDGING,
    LAYER_PRECISIONS,
    LAYERS,
    LEDGER,
    LOCK,
    MIXED_DATA,
    MIXED_MODEL,
    REPORT,
    RESULT,
    RUN_SCRIPT,
    STATUS,
    TORCH_AUTOCAST,
    TRTEXEC,
    RunFolder,
)
from precision_bisect.settings.engine_settings import EngineSettings
from tiny import KEPT, search, write_model

KEEPS_BOTH = "every layer stays FP32"
EVERY = {*EXPORTS, *exported_texts()}
WRITTEN = sorted(EVERY - {MIXED_DATA, TORCH_AUTOCAST, FP32_MODEL, FP32_DATA})


def test_a_finished_run_is_exported_beside_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without paths it reads the model's default run folder and writes there."""
    monkeypatch.chdir(tmp_path)
    path = write_model(tmp_path / "tiny.onnx")
    run = Path("tiny.onnx.precision-bisect")
    search(path, run)
    for name in EVERY.difference(JUDGING):
        (run / name).unlink(missing_ok=True)
    said = export(path, None, None, {}).to_text()
    assert said.startswith(f"written to {run}: {len(KEPT)} of ")
    written, _, missing = said.partition("\nnot written\n")
    assert WRITTEN == sorted(line.strip() for line in written.splitlines()[1:])
    assert f"  {TORCH_AUTOCAST}: the model has no names of PyTorch's modules\n" == missing
    told = {RESULT, LEDGER, EVENTS, STATUS, LOCK, LAYERS, DIAGNOSIS, REPORT}
    assert {*WRITTEN, *told} == {file.name for file in run.iterdir()}
    spec = ",".join(f"{name}:fp32" for name in KEPT)
    assert spec == (run / LAYER_PRECISIONS).read_text()


def test_another_folder_and_settings_can_be_given(finished: Path, tmp_path: Path) -> None:
    """The plan is found by its file, and the exports go where they are asked to."""
    out = tmp_path / "a" / "b"
    model = finished.with_name("tiny.onnx")
    export(model, finished / RESULT, out, {"tf32": "on"})
    assert WRITTEN == sorted(file.name for file in out.iterdir())
    assert "--noTF32" not in (out / TRTEXEC).read_text()


def test_what_cannot_be_written_is_told_with_its_reason(tmp_path: Path) -> None:
    """A file that is left out is listed with the reason."""
    path = write_model(tmp_path / "tiny.onnx")
    search(path, tmp_path / "run", tol=1e9)
    lines = export(path, tmp_path / "run", None, {}).to_text().splitlines()
    assert f"  {LAYER_PRECISIONS}: no layer is kept" in lines[lines.index("not written") :]
    assert f"  {TRTEXEC}" in lines[: lines.index("not written")]


def test_what_judges_is_the_runs(finished: Path, tmp_path: Path) -> None:
    """The files that judge go along as the run has left them, or are told as missing."""
    model = finished.with_name("tiny.onnx")
    export(model, finished, tmp_path / "out", {})
    export(model, finished, tmp_path / "tf32", {"tf32": "on"})
    for name in JUDGING:
        assert (finished / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    script = (finished / RUN_SCRIPT).read_text()
    assert script.replace("'use_tf32': '0'", "'use_tf32': '1'") == (
        (tmp_path / "tf32" / RUN_SCRIPT).read_text()
    )
    for name in JUDGING:
        (finished / name).unlink()
    said = export(model, finished, None, {}).to_text()
    for name in JUDGING:
        assert f"  {name}: the run has left none; a new run writes it" in said


def test_a_changed_model_is_refused(finished: Path, tmp_path: Path) -> None:
    """The exports of one model are never written from the run of another."""
    RunFolder(tmp_path / "out").write(TRTEXEC, "mine")
    other = write_model(finished.with_name("tiny.onnx"), scale=2.0)
    with pytest.raises(RunFolderError, match="belongs to another model"):
        export(other, finished, tmp_path / "out", {})
    assert "mine" == (tmp_path / "out" / TRTEXEC).read_text()


def test_without_a_run_it_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no finished run the error names the place and the flag."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PrecisionBisectError) as error:
        export(write_model(tmp_path / "tiny.onnx"), None, None, {})
    assert "tiny.onnx" in error.value.message
    assert error.value.hint


def test_nothing_is_written_where_every_layer_stays(tmp_path: Path) -> None:
    """No file pretends to lower a layer, neither of the run nor of `export` with a flag or not."""
    path = models.save(models.parse(models.OVERFLOW), tmp_path)
    run = tmp_path / "run"
    sample = {"x": np.array([300.0], np.float32)}
    result = precision_bisect.find(path, inputs=[sample], threads=1, out=run)
    assert (2, True) == (len(result.kept), result.gains_nothing)
    assert (None, True) == (
        result.layer_precisions,
        KEEPS_BOTH in (result.layer_precisions_reason or ""),
    )
    exported = export(path, run, tmp_path / "again", {})
    assert sorted({*WRITTEN, TORCH_AUTOCAST}) == sorted(exported.reasons)
    assert all(KEEPS_BOTH in (reason or "") for reason in exported.reasons.values())
    for folder in (run, tmp_path / "again"):
        assert not any((folder / name).exists() for name in EVERY)


def test_every_layer_in_sixteen_bits_is_written(tmp_path: Path) -> None:
    """Where the kept type is FP16 the plan that keeps everything lowers the model all the same."""
    path = models.save(models.parse(models.OVERFLOW), tmp_path)
    folder = RunFolder(tmp_path / "run")
    plan = Export(
        model=load_model(path),
        kept=load_model(path).table.names,
        pair=Pair(low="int8", high="fp16"),
        settings=EngineSettings(),
    )
    assert write_gain(folder, plan)[MIXED_MODEL] is None
    assert "2 of 2 layers stay FP16" == plan.summary()
