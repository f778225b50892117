"""`--export-point`: exports of another plan of the curve than the answer."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import tiny
from effort import nightly
from precision_bisect.commandline.export_command import export
from precision_bisect.errors import ExitCode, RunFolderError, UsageError
from precision_bisect.options import Options
from precision_bisect.runs.results.chosen_point import find_point
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import (
    LAYER_PRECISIONS,
    MIXED_MODEL,
    RESULT,
    RUN_SCRIPT,
    TORCH_AUTOCAST,
    TRTEXEC,
)
from precision_bisect_reports.curve import exported

LOW_LAYERS = "    'low_layers': "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the small model, its samples beside it."""
    return tiny.write_with_samples(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return the result of one run, whose exports hold the answer."""
    return tiny.search(model, tmp_path_factory.mktemp("whole"))


def kept_in(folder: Path) -> list[str]:
    """Return the layers that the typed model and the string for trtexec both keep."""
    told = {each.key: each.value for each in onnx.load(folder / MIXED_MODEL).metadata_props}
    typed = list(json.loads(told["precision_bisect.layers"]))
    path = folder / LAYER_PRECISIONS
    named = [each.rpartition(":")[0] for each in path.read_text().split(",")]
    assert sorted(named) == sorted(typed)
    return named


def point_in(folder: Path) -> str:
    """Return the point of the curve that the typed model says to be."""
    told = onnx.load(folder / MIXED_MODEL).metadata_props
    (point,) = [each.value for each in told if each.key == "precision_bisect.point"]
    return str(point)


def low_layers(folder: Path) -> str:
    """Return what the script that judges takes for the layers in 16 bits."""
    lines = (folder / RUN_SCRIPT).read_text().splitlines()
    (line,) = [each for each in lines if each.startswith(LOW_LAYERS)]
    return line.removeprefix(LOW_LAYERS)


def test_the_answer_is_exported_by_default(whole: Result) -> None:
    """Exports hold the kept layers, and say so with the result."""
    assert whole.out is not None
    assert whole.deploy is not None and whole.deploys_fewest
    assert ("deploy", "deploy") == (whole.export_point, point_in(whole.out))
    assert sorted(whole.kept) == sorted(kept_in(whole.out))
    assert "point" not in (whole.out / TRTEXEC).read_text().splitlines()[1]
    assert "" == exported(whole)


@pytest.mark.parametrize("point", ["culprits", "margin", "2"])
def test_a_run_exports_the_point_that_was_asked_for(
    model: Path, whole: Result, tmp_path: Path, point: str
) -> None:
    """The answer stays the answer; files, string, script and their last check are of the point."""
    assert ExitCode.OK == tiny.command(model, tmp_path, "--export-point", point)
    result = read_saved(tmp_path).result
    wanted = find_point(point, whole.curve, whole.culprits)
    assert ("2" == point) == exported(result).endswith("that is over the limit")
    assert (whole.kept, point) == (result.kept, result.export_point)
    assert sorted(wanted.kept) == sorted(kept_in(tmp_path))
    assert (tmp_path / LAYER_PRECISIONS).read_text() == result.layer_precisions
    assert point == point_in(tmp_path)
    assert f"(point {point} of the curve)" in (tmp_path / TRTEXEC).read_text()
    assert all(repr(name) not in low_layers(tmp_path) for name in wanted.kept)
    assert result.rechecked is not None and "not_judged" == result.rechecked.outcome
    assert '["Exports"' in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "point",
    ["2", *nightly("culprits", "margin")],
)
def test_a_finished_run_exports_any_point_again(
    model: Path, whole: Result, tmp_path: Path, point: str
) -> None:
    """It goes to a folder of its own in the run folder, with the script for that plan."""
    run = tmp_path / "run"
    assert ExitCode.OK == tiny.command(model, run, "--export-point", point)
    again = export(model, whole.out, tmp_path / "again", {}, point)
    assert {TORCH_AUTOCAST} == {*filter(again.reasons.get, again.reasons)}
    for name in (MIXED_MODEL, LAYER_PRECISIONS, RUN_SCRIPT):
        assert (run / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert whole.out is not None
    before = {path.name: path.read_bytes() for path in whole.out.iterdir() if path.is_file()}
    beside = export(model, whole.out, None, {}, point)
    assert whole.out / f"point-{point}" == beside.folder
    assert point == point_in(beside.folder)
    assert before == {
        path.name: path.read_bytes() for path in whole.out.iterdir() if path.is_file()
    }


def test_the_curve_alone_exports_a_point(model: Path, tmp_path: Path) -> None:
    """Without an answer a point of the curve is exported all the same; then by `export`, too."""
    assert ExitCode.OK == tiny.command(
        model, tmp_path, "--export-point", "culprits", first="curve"
    )
    result = read_saved(tmp_path).result
    assert ([], "culprits") == (list(result.kept), result.export_point)
    assert sorted(tiny.KEPT) == sorted(kept_in(tmp_path))
    folder = export(model, tmp_path, None, {}, "4").folder
    assert sorted(tiny.KEPT) == sorted(kept_in(folder))


def test_a_point_that_is_not_there_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run ends with its answer exported, and exit code 2 names the points that there are."""
    assert ExitCode.USAGE == tiny.command(model, tmp_path, "--export-point", "17")
    line = capsys.readouterr().err.splitlines()[-1]
    assert "--export-point 17: the curve has no point of 17 layers; choose fewest, cu" in line
    result = read_saved(tmp_path).result
    assert ("deploy", tiny.KEPT) == (result.export_point, result.kept)
    assert any("--export-point 17" in note for note in result.notes)
    assert sorted(tiny.KEPT) == sorted(kept_in(tmp_path))
    with pytest.raises(UsageError, match="no point of 17 layers"):
        export(model, tmp_path, None, {}, "17")


def test_nothing_to_keep_has_no_other_point(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where all can run low there is no curve, and the one plan is exported."""
    assert ExitCode.USAGE == tiny.command(model, tmp_path, "--export-point", "margin", tol="10")
    assert "the run has no curve; leave it out" in capsys.readouterr().err
    assert (tmp_path / MIXED_MODEL).exists()


@pytest.mark.parametrize("point", ["best", "-1", "1.5", "", "\u0664"])
def test_what_names_no_point_is_wrong_usage(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], point: str
) -> None:
    """It is said before anything runs."""
    assert ExitCode.USAGE == tiny.command(model, tmp_path / "run", f"--export-point={point}")
    assert "is none of deploy, fewest, culprits, margin" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_options_refuse_what_has_no_curve(model: Path) -> None:
    """A ladder has no curve; Python's options take the names that the command takes."""
    with pytest.raises(UsageError, match="no curve"):
        Options(model=model, ladder=("int8", "fp16", "fp32"), export_point="margin")
    with pytest.raises(UsageError, match="no point of the curve"):
        Options(model=model, export_point="best")


def test_a_damaged_curve_is_one_line(model: Path, whole: Result, tmp_path: Path) -> None:
    """Layers that the model does not have, and points that are none, are refused with the file."""
    assert whole.out is not None
    shutil.copytree(whole.out, tmp_path, dirs_exist_ok=True)
    told = json.loads((tmp_path / RESULT).read_text())
    for point in ({**told["curve"][-1], "kept": ["nobody"]}, {"kept_count": "many"}):
        (tmp_path / RESULT).write_text(json.dumps({**told, "curve": [point]}))
        with pytest.raises(RunFolderError, match=r"result.json (names the layer|is damaged)"):
            export(model, tmp_path, None, {}, str(told["curve"][-1]["kept_count"]))


def test_of_several_points_the_named_one_is_taken(whole: Result) -> None:
    """Then the one with the least error; culprits are found where they are the answer."""
    answer = next(each for each in whole.curve if each.point == "answer")
    other = replace(answer, point="", error_median=0.0)
    worse = replace(other, error_median=1.0)
    assert answer == find_point("4", [other, answer], whole.culprits)
    assert other == find_point("4", [worse, other], whole.culprits)
    assert answer == find_point("culprits", whole.curve, whole.culprits)
    with pytest.raises(UsageError, match="no point named culprits"):
        find_point("culprits", whole.curve, [])


@pytest.mark.parametrize("name", ["point-culprits", RUN_SCRIPT])
def test_a_run_folder_with_links_exports_nothing(
    model: Path, whole: Result, tmp_path: Path, name: str
) -> None:
    """What lies behind a planted link is neither read nor written."""
    assert whole.out is not None
    shutil.copytree(whole.out, tmp_path / "run")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    planted = tmp_path / "run" / name
    planted.unlink(missing_ok=True)
    planted.symlink_to(elsewhere if name.startswith("point") else elsewhere / "secret")
    with pytest.raises(RunFolderError, match="is a link"):
        export(model, tmp_path / "run", None, {}, "culprits")
    assert [] == list(elsewhere.iterdir())
