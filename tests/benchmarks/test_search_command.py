"""The command of the search benchmark, on cells that take a moment."""

from dataclasses import replace
from pathlib import Path

import pytest
from search_cells import Task, run
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


def test_peers_that_were_not_run_come_from_earlier_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of `--against` join in the same cells, and never in place of what was run."""
    out = tmp_path / "peers.json"
    search.main([*CELL, "--jobs", "1", "--algorithms", "ddmin", "--out", str(out)])
    asked = search.parse([*CELL, "--algorithms", "unranked quickxplain"])
    joined = search.with_peers([], load(out), search.tasks(asked))
    assert ["ddmin"] == [row.algorithm for row in joined]
    assert joined == search.with_peers(joined, load(out), search.tasks(asked))
    other = search.parse([*CELL[:2], "--n", "500", "--algorithms", "unranked quickxplain"])
    assert [] == search.with_peers([], load(out), search.tasks(other))


def test_several_workers_are_tried_on_the_first_networks() -> None:
    """Rounds are means over the networks that were run with every number of workers."""
    task = Task(
        structure="A",
        size=100,
        kept=5,
        rhos=(0.0,),
        seeds=2,
        algorithm="probdd",
        workers=(1, 4),
        parallel=1,
    )
    (both,) = run(task)
    (first,) = run(replace(task, seeds=1))
    assert first.figures.rounds == both.figures.rounds
    assert first.figures.calls != both.figures.calls
    assert first.figures.rounds[4] < first.figures.rounds[1] == first.figures.calls
    (none,) = run(replace(task, parallel=0))
    assert {} == none.figures.rounds


def test_nothing_to_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that begins no algorithm ends with exit code 2 and one line."""
    assert 2 == search.main(["--algorithms", "nonesuch"])
    assert "no such algorithm" in capsys.readouterr().err


def test_the_quick_run_covers_every_structure_and_algorithm() -> None:
    """The quick run takes all structures and algorithms at 100 layers."""
    quick = search.tasks(search.parse(["--quick"]))
    assert {100} == {task.size for task in quick}
    assert 6 == len({task.structure for task in quick})
    full = search.tasks(search.parse([]))
    assert {task.algorithm for task in full} == {task.algorithm for task in quick}
    assert {(1, 100), (60, 5000)} <= {(task.kept, task.size) for task in full}
    assert (60, 100) not in {(task.kept, task.size) for task in full}
