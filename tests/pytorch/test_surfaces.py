"""PyTorch's module names wherever layers are named; no PyTorch is needed for that."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import tiny
from effort import nightly
from precision_bisect.commandline.main import main
from precision_bisect.graphs.load import load_model
from precision_bisect.plan import Plan
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.runfolder import LEDGER

HOSTILE = "bl'ocks\n\"}).{"
"""What no attribute of PyTorch is called, and a file may say."""


@pytest.fixture(params=[HOSTILE, *nightly("blocks")])
def root(request: pytest.FixtureRequest) -> str:
    """The name of the module that holds four others."""
    return str(request.param)


@pytest.fixture
def model(tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model of 20 layers that needs four, five layers in a module, with its inputs.

    It lies in the current folder: the last screen leaves out more where paths are long.
    """
    monkeypatch.chdir(tmp_path)
    np.savez("inputs.npz", x=tiny.samples()[0]["x"])
    return tiny.write_in_modules(Path("tiny.onnx"), root)


def test_every_surface_has_pytorchs_names(
    model: Path, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Search, files, explain, --keep and the listing speak of modules by their qualified names."""
    inputs = ["--inputs", str(model.parent / "inputs.npz"), "--threads", "1"]
    table = load_model(model).table
    modules: dict[str, str] = {layer.name: layer.module for layer in table.candidates}
    run = model.parent / "run"
    assert 0 == main([str(model), *inputs, "--out", str(run)])
    assert 0 == main(["show", str(run), "-v"])
    screen = capsys.readouterr().out
    result = json.loads((run / "result.json").read_text())
    whole = result["by_modules"]["names"]
    assert list(dict.fromkeys(modules[name] for name in tiny.KEPT)) == whole
    assert {name: modules[name] for name in tiny.KEPT} == result["modules"]
    assert "  modules " in screen and "\x1b" not in screen
    rows = json.loads((run / "layers.json").read_text())["layers"]
    assert modules == {row["name"]: row["module"] for row in rows if row["name"] in modules}
    script = ast.parse((run / "torch_autocast.py").read_text())
    (kept,) = (
        each.value
        for each in script.body
        if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == "KEPT"
    )
    assert kept is not None and whole == list(ast.literal_eval(kept))
    inside = [name for name in modules if modules[name] == whole[0]]
    assert 0 == main(["explain", str(model), whole[0], *inputs, "--json"])
    explained = json.loads(capsys.readouterr().out)["layers"]
    assert inside == [each["layer"] for each in explained]
    assert 0 == main(["explain", str(run), whole[0], "--json"])
    explained = json.loads(capsys.readouterr().out)["layers"]
    assert {*tiny.KEPT} & {*inside} <= {each["layer"] for each in explained} <= {*inside}
    assert 0 == main(["layers", str(model), "--json"])
    assert (
        modules.items()
        <= {each["name"]: each["module"] for each in json.loads(capsys.readouterr().out)}.items()
    )
    again = model.parent / "again"
    assert 0 == main(["export", str(model), "--plan", str(run), "--out", str(again)])
    assert (again / "torch_autocast.py").read_bytes() == (run / "torch_autocast.py").read_bytes()
    asked = ["--keep", whole[0], "--overwrite", "--out", str(run)]
    assert 0 == main([str(model), *inputs, *asked])
    result = json.loads((run / "result.json").read_text())
    assert inside == [each["layer"] for each in result["asked"]]
    assert {*whole} == {*result["by_modules"]["names"]}


def test_a_search_by_module_is_resumed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes on where it was cut off, to the same answer; a search by layers is another run."""
    inputs = ["--inputs", str(model.parent / "inputs.npz"), "--threads", "1"]
    run = model.parent / "run"
    asked = [str(model), *inputs, "--by", "module", "--out", str(run)]
    assert 3 == main([*asked, "--max-trials", "4"])
    assert 0 == main([*asked, "--resume"])
    found = json.loads((run / "result.json").read_text())
    assert 0 == main([*asked[:-1], str(model.parent / "whole")])
    whole = json.loads((model.parent / "whole" / "result.json").read_text())
    assert (whole["kept"], whole["by_modules"]) == (found["kept"], found["by_modules"])
    assert "minimal by modules" in capsys.readouterr().out
    assert 0 == main(["compare", str(run), str(model.parent / "whole")])
    assert "not proven minimal" not in capsys.readouterr().out
    assert 2 == main([str(model), *inputs, "--out", str(run), "--resume"])
    assert "by" in capsys.readouterr().err


def test_modules_are_judged_as_the_answer_is(tmp_path: Path) -> None:
    """On copies, and on all samples that the search has not seen; the error is the largest."""
    model = tiny.write_in_modules(tmp_path / "tiny.onnx")
    result = tiny.search(model, tmp_path / "run", inputs=tiny.samples(24))
    assert result.by_modules is not None
    inside = [place for place in range(20) if place // 5 < 3]
    assert 15 == result.by_modules.layers == len(inside)
    trials = read_ledger(tmp_path / "run" / LEDGER).own
    told = [each for each in trials if each.proposal.plan == Plan.of(inside)]
    assert {True} == {each.outcome.passed for each in told}
    assert any(each.proposal.draw for each in told)
    assert any(each.proposal.samples.singly for each in told)
    errors = [each.outcome.error or 0.0 for each in told if not each.proposal.draw]
    assert result.by_modules.error == max(errors)


REFUSED = [["--risk", "5%"], ["--culprits-only"], ["--ladder", "bf16,fp32"]]


@pytest.mark.parametrize("flags", REFUSED)
def test_what_goes_by_layers_is_refused(
    model: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Flags that add or count single layers say that they do not fit."""
    assert 2 == main([str(model), "--by", "module", *flags])
    assert "leave one out" in capsys.readouterr().err


def test_without_modules_there_is_no_search_by_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said where names tell no modules, and the listing says so, too."""
    path = tiny.write_model(tmp_path / "tiny.onnx")
    out = ["--out", str(tmp_path / "run")]
    assert 2 == main([str(path), "--by", "module", *out])
    assert "tell no modules" in capsys.readouterr().err
    assert 0 == main(["layers", str(path)])
    assert "their names tell no modules" in capsys.readouterr().out.splitlines()[0]
