"""The command of the search benchmark, on cells that take a moment."""

from pathlib import Path

import pytest
from search_rows import load

import search

CELL = ["--structures", "B", "--n", "100", "--k", "5", "--rho", "0.8", "--seeds", "1"]


def test_it_writes_rows_and_tables_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run with --resume keeps the first one's rows and adds what is missing."""
    out = tmp_path / "search.json"
    asked = [*CELL, "--jobs", "1", "--out", str(out)]
    assert 0 == search.main([*asked, "--algorithms", "unranked quickxplain"])
    (first,) = load(out)
    assert 0 == search.main([*asked, "--resume", "--algorithms", "ddmin", "unranked quickx"])
    rows = load(out)
    assert first in rows
    assert {"ddmin", "unranked quickxplain"} == {row.algorithm for row in rows}
    assert "B  n=100  k=5  rho=any  ddmin" in capsys.readouterr().out
    table = out.with_suffix(".md").read_text()
    assert "## Structure B" in table
    assert f"{first.figures.calls:.0f} / {first.figures.ratio:.2f}" in table


def test_the_same_seeds_give_the_same_figures(tmp_path: Path) -> None:
    """Two runs differ in nothing but the seconds that they took."""
    figures = []
    for name in ("one.json", "two.json"):
        out = tmp_path / name
        search.main([*CELL, "--jobs", "1", "--algorithms", "probdd", "ranked", "--out", str(out)])
        figures.append([(r.algorithm, r.rho, r.figures.calls, r.figures.ratio) for r in load(out)])
    assert figures[0] == figures[1]


def test_nothing_to_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that begins no algorithm ends with exit code 2 and one line."""
    assert 2 == search.main(["--algorithms", "nonesuch"])
    assert "no such algorithm" in capsys.readouterr().err
