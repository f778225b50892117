"""`precision-bisect explain`: without a search, and over what a run found."""

import json
from pathlib import Path

import numpy as np
import pytest

import ladder_model
import precision_bisect
import tiny
from models import parse, save
from precision_bisect.commandline.main import main
from precision_bisect.graphs.load import load_model
from precision_bisect.options import Options
from precision_bisect.pipeline.evaluators import reopened
from precision_bisect.pipeline.explanation import squares, worst_layers
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.search.budget import Budget


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The model of 20 layers that needs four, with its inputs beside it."""
    np.savez(tmp_path / "inputs.npz", x=tiny.samples()[0]["x"])
    return tiny.write_model(tmp_path / "tiny.onnx")


def test_the_worst_layers_are_explained(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without names the layers that hurt most alone are told, with causes and advice."""
    asked = ["explain", str(model), "--inputs", str(model.parent / "inputs.npz"), "--threads", "1"]
    assert 0 == main([*asked, "--worst", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert sorted(tiny.KEPT) == sorted(each["layer"] for each in found["layers"])
    assert {"overflow"} == {each["cause"] for each in found["layers"]}
    assert ["n4_Mul", "n13_Mul"] == [birth["layer"] for birth in found["spread"]]
    assert "scale" in [each["id"] for each in found["advice"]]
    assert 0 == main([*asked, "--worst", "4"])
    text = capsys.readouterr().out
    assert "largest magnitude" not in text
    assert 0 == main([*asked, "--worst", "4", "-v"])
    text = capsys.readouterr().out
    assert "largest magnitude" in text
    assert 80 >= max(len(line) for line in text.splitlines())


def test_what_follows_two_dashes_is_no_option(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with every command: names may begin with a dash."""
    assert 2 == main(["explain", str(model), "--", "--json"])
    assert "'--json' is no layer or module to explain" in capsys.readouterr().err
    assert 2 == main(["report", "--", "-run"])
    assert "-run" in capsys.readouterr().err


@pytest.mark.parametrize("before", [2, 1, 0])
def test_named_layers_are_explained_in_that_order(
    model: Path, capsys: pytest.CaptureFixture[str], before: int
) -> None:
    """Names choose the layers, kept or not; they may follow the options."""
    options = ["--inputs", str(model.parent / "inputs.npz"), "--json"]
    named = ["n7_Tanh", "n4_Mul"]
    asked = ["explain", str(model), *named[:before], *options, *named[before:]]
    assert 0 == main(asked)
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert [("n7_Tanh", "rounding"), ("n4_Mul", "overflow")] == [
        (each["layer"], each["cause"]) for each in layers
    ]


def test_the_only_layer_has_an_error_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is one layer its error is measured as any other's."""
    path = save(parse("(float[4] x) => (float[4] y) { y = Exp(x) }"), tmp_path)
    np.savez(tmp_path / "inputs.npz", x=np.ones(4, np.float32))
    assert 0 == main(["explain", str(path), "--inputs", str(tmp_path / "inputs.npz"), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["layers"]
    assert 0.0 < found["figures"]["alone_error"] < 1e-2


def test_int8_is_explained_without_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The layers that have a form in INT8 are told of, with scales found by calibration."""
    np.savez(tmp_path / "inputs.npz", x=ladder_model.samples()[0]["x"])
    path = str(ladder_model.write(tmp_path))
    asked = ["explain", path, "--inputs", str(tmp_path / "inputs.npz"), "--low", "int8"]
    assert 0 == main([*asked, "--worst", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    (worst,) = found["layers"]
    assert ("second", "outliers", "int8") == (worst["layer"], worst["cause"], worst["low"])
    assert "smooth" in [each["id"] for each in found["advice"]]
    assert 2 == main(["explain", path, "square", *asked[2:]])
    assert "is no layer or module to explain" in capsys.readouterr().err


def test_a_run_folder_is_explained(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Given a run folder, what the run wrote is told, or one layer of it."""
    out = model.parent / "run"
    tiny.search(model, out)
    capsys.readouterr()
    assert 0 == main(["explain", str(out), "--json"])
    assert json.loads((out / "diagnosis.json").read_text()) == json.loads(capsys.readouterr().out)
    assert 0 == main(["explain", str(out)])
    assert 0 == main(["explain", str(out), "n5_Sqrt"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["n4_Mull"], "did you mean 'n4_Mul'?"),
        (["_Sqrt"], "did you mean 'n5_Sqrt'?"),
        (["Sqr"], "did you mean 'n5_Sqrt'?"),
        (["zzz"], "'zzz' is no layer or module to explain; `precision-bisect layers` lists them"),
        (["--worst", "0"], "--worst 0 is below 1"),
    ],
)
def test_wrong_names_are_one_line(
    model: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layer that is none ends with the one that was likely meant."""
    inputs = str(model.parent / "inputs.npz")
    assert 2 == main(["explain", str(model), *arguments, "--inputs", inputs])
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_folder_without_a_diagnosis_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is no finished run's, or holds nonsense, is told with what to do."""
    for text in (None, "[]", "{"):
        if text is not None:
            (tmp_path / "diagnosis.json").write_text(text)
        assert 2 == main(["explain", str(tmp_path)])
        assert "no readable diagnosis.json" in capsys.readouterr().err


def test_names_are_printed_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in a name never reach the terminal."""
    proto = parse("(float[2] x) => (float[2] y) { y = Mul(x, x) }")
    proto.graph.node[0].name = "evil\x1b[2J<script>"
    path = save(proto, tmp_path)
    np.savez(tmp_path / "inputs.npz", x=np.full(2, 300, np.float32))
    assert 0 == main(["explain", str(path), "--inputs", str(tmp_path / "inputs.npz")])
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "evil\N{REPLACEMENT CHARACTER}[2J<script>" in text


def test_halving_finds_what_trying_every_layer_finds(model: Path, tmp_path: Path) -> None:
    """The worst layers come first, with the error that each has when it alone runs low."""
    options = Options(model=model, inputs=tiny.samples(), backend="emulated", threads=1)
    prepared = prepare(options, ignore, tmp_path)
    with reopened(prepared, tmp_path / "ledger.sqlite", Budget(), ignore) as driver:
        everything, worst = (driver.run(worst_layers(prepared, count)) for count in (20, 4))
    assert set(prepared.case.model.table.names) == {name for name, _ in everything}
    errors = dict(everything)
    assert worst == everything[:4]
    assert set(tiny.KEPT) == {name for name in errors if errors[name] > 1e-2}


def test_squares_are_looked_at_wherever_they_are(model: Path) -> None:
    """Every square of a computed value is measured, whichever layers are asked for."""
    assert ["v4", "v13"] == squares(load_model(model))


def test_the_terminal_report_tells_what_to_do(model: Path) -> None:
    """A run's result has one diagnosis for each kept layer."""
    result = precision_bisect.find(
        model, inputs=tiny.samples(), out=model.parent / "found", threads=1, tol=1e-2
    )
    assert list(result.kept) == [each.layer for each in result.diagnosis]


@pytest.mark.parametrize("most", [1, 3, 5, 9])
def test_layers_that_nobody_looked_into_are_told(
    model: Path, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that ended early keeps layers, and says that it has not looked into them."""
    result = precision_bisect.find(
        model, inputs=tiny.samples(), out=model.parent / "run", threads=1, max_trials=most
    )
    assert 0 == main(["explain", str(model.parent / "run")])
    told = " ".join(capsys.readouterr().out.split())
    assert "no layer is kept" not in told
    said = (
        f"before it looked into its {len(result.kept)} kept layer" if result.kept else "no answer"
    )
    assert said in told
