"""`compare` says what changed between two runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precision_bisect.commandline.main import main
from precision_bisect.runs.comparing.changes import compare, read_side
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Diagnosis, Rung
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import LAYERS, RESULT
from run_folders import names, result_of, write_layers_file, write_run

MODEL = names(40)


def changed(folder: Path, **values: Any) -> Path:
    """Change values of the result in a run folder."""
    result = replace(read_saved(folder).result, **values)
    (folder / RESULT).write_text(result.to_text(), encoding="utf-8")
    return folder


def run(folder: Path, layers: list[str], kept: list[int]) -> Path:
    """Write what comparing reads of a run: the result and the list of layers."""
    folder.mkdir()
    (folder / RESULT).write_text(result_of(layers, kept).to_text(), encoding="utf-8")
    write_layers_file(folder, layers)
    return folder


def test_the_same_kept_set_is_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run against itself changes nothing, for people and for programs."""
    folder = str(run(tmp_path / "run", MODEL, [3, 7]))
    assert 0 == main(["compare", folder, folder])
    assert "The same 2 layers are kept" in capsys.readouterr().out
    assert 0 == main(["compare", folder, folder, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert ([], [], []) == (found["added"], found["removed"], found["depends"])
    assert (True, [MODEL[3], MODEL[7]]) == (found["same"], found["common"])


def test_models_of_other_layers_are_compared_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Layers that one model alone has are counted, and marked where they are kept."""
    before = run(tmp_path / "before", MODEL[:30], [3, 25])
    after = run(tmp_path / "after", [*MODEL[:20], "/new/Softmax"], [3, 20])
    assert 1 == main(["compare", str(before), str(after), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (10, 1) == (found["only_before"], found["only_after"])
    expected = {"layer": "/new/Softmax", "cause": "overflow", "foreign": True}
    assert [expected] == found["added"]
    assert [MODEL[25]] == [each["layer"] for each in found["removed"]]
    main(["compare", str(before), str(after)])
    text = capsys.readouterr().out
    assert 2 == text.count("not in the other model")
    assert "10 in the model before only, 1 in the model after only" in " ".join(text.split())


def test_without_a_list_of_layers_the_rest_is_compared(tmp_path: Path) -> None:
    """A folder of which only result.json was kept still tells what is kept."""
    before, after = run(tmp_path / "a", MODEL, [3]), run(tmp_path / "b", MODEL, [4])
    (before / LAYERS).unlink()
    (after / LAYERS).write_text('{"layers": [7]}')
    found = compare(read_side(before), read_side(after / RESULT))
    assert ([MODEL[4]], [MODEL[3]]) == (found.added, found.removed)
    assert (None, None, None) == (
        found.only_before,
        found.only_after,
        found.is_foreign(MODEL[3]),
    )


def test_causes_that_changed_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kept set is the same, what goes wrong in a layer is not: that is exit code 0."""
    before = run(tmp_path / "before", MODEL, [3, 7])
    other = Diagnosis(layer=MODEL[7], cause=Cause.ROUNDING, evidence="grows")
    after = changed(run(tmp_path / "after", MODEL, [3, 7]), diagnosis=[other])
    assert 0 == main(["compare", str(before), str(after), "--json"])
    expected = [{"layer": MODEL[7], "before": "overflow", "after": "rounding"}]
    assert expected == json.loads(capsys.readouterr().out)["causes"]


def test_a_run_that_is_not_explained_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Causes that an interrupt left out are no news; who compares sees which run lacks them."""
    before = run(tmp_path / "before", MODEL, [3, 7])
    after = changed(run(tmp_path / "after", MODEL, [3, 7]), cut_short=True, diagnosis=[])
    assert 0 == main(["compare", str(before), str(after), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (False, True, []) == (
        told["before"]["cut_short"],
        told["after"]["cut_short"],
        told["causes"],
    )
    main(["compare", str(before), str(after)])
    assert "found, cut short" in capsys.readouterr().out


def test_another_type_is_a_change(tmp_path: Path) -> None:
    """A layer of a ladder that moves to another rung is kept in both runs, and not the same."""
    rungs = [
        Rung(precision="fp32", layers=[MODEL[3]], count=1),
        Rung(precision="fp16", layers=[MODEL[7]], count=1),
        Rung(precision="int8", layers=None, count=38),
    ]
    before = changed(run(tmp_path / "before", MODEL, [3, 7]), rungs=rungs, low="int8")
    swapped = [replace(rungs[0], layers=[MODEL[3], MODEL[7]]), rungs[2]]
    after = changed(run(tmp_path / "after", MODEL, [3, 7]), rungs=swapped, low="int8")
    found = compare(read_side(before), read_side(after))
    assert not found.same
    assert [(MODEL[7], "fp16", "fp32")] == [
        (each.layer, each.before, each.after) for each in found.retyped
    ]


def test_no_answer_is_not_nothing_to_keep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both keep no layer, and only one of them is a plan."""
    none = changed(run(tmp_path / "none", MODEL, []), status=Status.INFEASIBLE)
    every = changed(run(tmp_path / "every", MODEL, []), status=Status.NOTHING_TO_KEEP)
    assert 1 == main(["compare", str(every), str(none)])
    assert "The run after has no answer" in capsys.readouterr().out
    assert 0 == main(["compare", str(none), str(none)])
    assert "Neither run has an answer" in capsys.readouterr().out


def test_tables_fit_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Long names, hashes and paths are folded or cut; markup and control characters are shown."""
    layers = ["/" + "deep/" * 40 + "Op", "/m/[red]x", "/m/\x1b[31m" + "y" * 100]
    prints = {"model": "a" * 64, "versions": {"onnxruntime": "1.24.0 " + "z" * 90}}
    before = changed(run(tmp_path / "before", layers, [0]), fingerprint=prints)
    after = run(tmp_path / ("after" * 20), layers, [1, 2])
    assert 1 == main(["compare", str(before), str(after)])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "[red]x" in text
    assert "\x1b" not in text


def test_thousands_of_changes_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The screen lists the first, `--json` all."""
    many = names(2000)
    before, after = write_run(tmp_path / "a", many, [0]), run(tmp_path / "b", many, [*range(2000)])
    main(["compare", str(before), str(after)])
    text = capsys.readouterr().out
    assert "… and 1939 more, see --json" in text
    assert len(text.splitlines()) < 200


def test_a_missing_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, which no comparison returns."""
    folder = str(run(tmp_path / "run", MODEL, [3]))
    assert 2 == main(["compare", folder, str(tmp_path / "nowhere")])
    assert 1 == len(capsys.readouterr().err.splitlines())
