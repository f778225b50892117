"""The zoo's command: a prepared network searched by the tool, judged, and put into the table."""

import json
from pathlib import Path

import numpy as np
import pytest

import models
from zoo import table
from zoo.__main__ import main
from zoo.judge import Judgement, Sample, load, plain
from zoo.networks import NETWORKS, Network, prepare
from zoo.table import Row, abouts, save


def _chain(path: Path, cache: Path) -> None:
    """Save a model whose square overflows in FP16; the rest of it does not matter."""
    body = models.OVERFLOW.replace("[1]", "[4]").replace(
        "y = Mul(s, k)", "t = Mul(s, k) y = Neg(t)"
    )
    models.save(models.parse(body), path.parent)


def _numbers(rng: np.random.Generator, model: Path, count: int) -> list[Sample]:
    return [{"x": rng.uniform(280, 320, 4).astype(np.float32)} for _ in range(count)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a network that is one overflow."""
    made = Network(make=_chain, draw=_numbers, limits=(2e-2, 1e-2))
    monkeypatch.setitem(NETWORKS, "small", made)
    return "small"


def test_an_answer_is_searched_and_judged(small: str, tmp_path: Path) -> None:
    """Not all layers are kept, all copies and fresh samples pass, row and table say so."""
    out = tmp_path / "zoo.json"
    given = ["--networks", small, "--cache", str(tmp_path), "--out", str(out)]
    assert 0 == main([*given, "--limits", "1e-2", "--arguments=--backend emulated --threads 1"])
    (row,) = json.loads(out.read_text())["rows"]
    assert ("found", 0, "") == (row["status"], row["exit"], row["message"])
    assert 0 < row["kept"] < row["candidates"] == 3
    assert (20, 0, 0) == tuple(
        row["judged"][each] for each in ("copies", "copies_failed", "fresh_failed")
    )
    assert "| 0 of 20 | 0 of 10 |" in out.with_suffix(".md").read_text()


def test_a_run_that_fails_is_a_row(small: str, tmp_path: Path) -> None:
    """What the tool said stands in the row; rows of other labels stay."""
    out = tmp_path / "zoo.json"
    given = ["--networks", small, "--cache", str(tmp_path), "--out", str(out), "--limits", "1e-2"]
    for label, arguments in (("before", "--strategy none-such"), ("after", "--low none-such")):
        assert 0 == main([*given, "--label", label, "--arguments", arguments])
    rows = json.loads(out.read_text())["rows"]
    assert [("after", 2), ("before", 2)] == [(row["label"], row["exit"]) for row in rows]
    assert all("none-such" in row["message"] and row["judged"] is None for row in rows)
    assert "none-such" in out.with_suffix(".md").read_text()


def test_the_example_is_prepared_from_this_checkout(tmp_path: Path) -> None:
    """NAFNet's two worst samples judge, ten others are fresh, and the model runs on them."""
    folder = prepare("nafnet", tmp_path)
    judged, fresh = load(folder / "judged"), load(folder / "fresh")
    assert (2, 10) == (len(judged), len(fresh))
    assert judged[0].keys() == fresh[0].keys()
    assert all(np.isfinite(plain(folder / "model.onnx")(sample)[0]).all() for sample in judged)
    assert folder == prepare("nafnet", tmp_path)


def test_what_cannot_be_fetched_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its package a network is skipped with the reason, and the exit code is 1."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert 1 == main(["--networks", "magika", "--cache", str(tmp_path)])
    assert "magika: skipped, magika==1.0.3 cannot be" in capsys.readouterr().out


def test_infinite_errors_are_written_and_read(tmp_path: Path) -> None:
    """The file is JSON that any reader takes, and the rows come back as they were."""
    inf = float("inf")
    judged = Judgement(
        copied="inputs",
        error=inf,
        copies=20,
        copies_failed=20,
        error_median=inf,
        error_max=inf,
        fresh=1,
        fresh_failed=0,
        fresh_max=0.5,
    )
    row = Row(
        network="nafnet",
        label="today",
        limit="tol",
        bound=1e-2,
        exit=0,
        status="found",
        message="",
        minimal=True,
        candidates=3,
        kept=0,
        error=inf,
        seconds=1.5,
        trials=2,
        forecasts=0,
        judged=judged,
    )
    out = tmp_path / "zoo.json"
    save([row], out, {"today": "a sentence"})
    assert "Infinity" not in out.read_text()
    assert [row] == table.load(out)
    assert {"today": "a sentence"} == abouts(out)
    page = out.with_suffix(".md").read_text()
    assert "| inf | inf | inf | 20 of 20 | 0 of 1 |" in page
    assert "1 answers; 1 fail on more than one of 20 copies, 0 on a fresh sample; a sent" in page
