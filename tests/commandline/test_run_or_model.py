"""A run is named by its folder, by its result, or by the model that it is of."""

import json
from pathlib import Path

import numpy as np
import pytest

import run_folders
import tiny
from precision_bisect.commandline.main import main
from precision_bisect.errors import RunFolderError, UsageError
from precision_bisect.pipeline.reopening import reopen
from precision_bisect.runs.results.saved import last_run
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.settings.engine_settings import EngineSettings


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run, beside its model."""
    folder = tmp_path_factory.mktemp("searched")
    np.savez(folder / "inputs.npz", x=tiny.samples()[0]["x"])
    tiny.search(tiny.write_model(folder / "m.onnx"), folder / "m.onnx.precision-bisect")
    return folder / "m.onnx.precision-bisect"


COMMANDS = ("show", "status", "report", "explain", "export", "layers")


@pytest.mark.parametrize("command", COMMANDS)
def test_both_say_the_same(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model stands for its last run, and a run for its model."""
    said = []
    for named in (run, run.parent / "m.onnx"):
        assert 0 == main([command, str(named), "--json"])
        said.append(json.loads(capsys.readouterr().out))
    if command == "status":
        said = [{**each, "silent_s": 0} for each in said]
    assert said[0] == said[1]


def test_another_model_of_that_name_is_told_apart(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder goes by the file's name: its run may be of the model of another folder."""
    other = tiny.write_model(tmp_path / "m.onnx", scale=2.0)
    monkeypatch.chdir(run.parent)
    with pytest.raises(RunFolderError, match="holds the run of"):
        last_run(other)
    beside = tmp_path / "m.onnx.precision-bisect"
    beside.mkdir()
    run_folders.write_status(beside, model="m.onnx")
    assert beside == last_run(other)
    assert Path("m.onnx.precision-bisect") == last_run(Path("m.onnx"))


@pytest.mark.parametrize("command", ["explain", "curve"])
def test_a_run_takes_no_flags_of_a_search(
    command: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found does not follow them, and must not look as if it did."""
    assert 2 == main([command, str(run), "--tol", "0.5"])
    assert "leave the other flags out, or name the model" in capsys.readouterr().err


def test_a_forecast_tells_how_to_build(tmp_path: Path) -> None:
    """`verify` builds by the flags of the run, whatever judged; a file it asks for again."""
    model = tiny.write_model(tmp_path / "m.onnx")
    tiny.search(model, tmp_path / "run", engine=EngineSettings(workspace_mib=64, tf32="on"))
    again = reopen(tmp_path / "run" / RESULT, None, {})
    engine = again.options.engine
    assert ("auto", 64, "on") == (again.finished.backend, engine.workspace_mib, engine.tf32)
    script = tmp_path / "flags.py"
    script.write_text("def postprocess_config(builder, network, config): pass\n")
    engine = EngineSettings(config_script=str(script))
    tiny.search(model, tmp_path / "other", engine=engine)
    with pytest.raises(UsageError, match=r"the run built with 'flags\.py'; give it by --trt"):
        reopen(tmp_path / "other", None, {}).check_code()
    reopen(tmp_path / "other", None, {"config_script": str(script)}).check_code()


def test_the_curve_of_a_run_is_on_its_screen(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is searched, and a folder without a run says what to name."""
    said = []
    for command in (["curve", str(run)], ["show", str(run), "-v"]):
        assert 0 == main(command)
        said.append(capsys.readouterr().out)
    assert said[0] in said[1] and "worst error" in said[0]
    assert 2 == main(["curve", str(run.parent)])
    assert "no finished run" in capsys.readouterr().err


def test_two_models_are_compared(run: Path) -> None:
    """Either side may be a model."""
    assert 0 == main(["compare", str(run.parent / "m.onnx"), str(run)])


def test_the_run_in_this_folder_comes_first(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search leaves its folder where it was called; else the one beside the model is taken."""
    monkeypatch.chdir(tmp_path)
    model = run.parent / "m.onnx"
    assert run == last_run(model)
    (tmp_path / run.name).mkdir()
    assert Path(run.name) == last_run(model)
    assert Path("gone") == last_run(Path("gone"))


def test_a_model_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how to make one."""
    model = tmp_path / "other.onnx"
    model.write_bytes(b"")
    assert 2 == main(["show", str(model)])
    error = capsys.readouterr().err
    assert f"there is no run of {model}" in error
    with pytest.raises(RunFolderError):
        last_run(model)


def test_explain_looks_at_the_model_where_flags_ask_for_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without flags the run's own findings are told, and that they are; a flag asks anew."""
    model = str(run.parent / "m.onnx")
    assert 0 == main(["explain", model])
    said = capsys.readouterr()
    assert 0 == main(
        ["explain", model, "--worst", "2", "--inputs", str(run.parent / "inputs.npz")]
    )
    said = capsys.readouterr()
    assert "last run" not in said.err


def test_explain_tells_no_run_of_a_model_that_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Layers and causes of the model before would be believed of the one that is there."""
    model = tiny.write_model(tmp_path / "m.onnx")
    tiny.search(model, tmp_path / "m.onnx.precision-bisect")
    assert 0 == main(["explain", str(model)])
    assert "From the last run" in capsys.readouterr().err
    tiny.write_model(model, scale=2.0)
    assert 0 == main(["explain", str(model)])
    error = capsys.readouterr().err
    assert "or the model has changed since, so the model is looked at" in error
    assert "From the last run" not in error


def test_a_run_that_goes_on_is_not_called_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first result `show` names what tells of the run."""
    run_folders.write_status(tmp_path, state="searching", message="")
    assert 2 == main(["show", str(tmp_path)])
    assert f"has no result yet; see precision-bisect status {tmp_path}" in capsys.readouterr().err
