"""What the kept layers cost, in the report's view; the golden screens have the words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import run_folders
from golden_answers import island
from precision_bisect.runs.results.layer_costs import Costs, IslandCost, LayerCost
from precision_bisect.runs.runfolder import RESULT as FILE
from precision_bisect_reports.html.source import read_source
from precision_bisect_reports.html.view import view_of
from precision_bisect_reports.speed import error_beside


def costs(*islands: IslandCost) -> Costs:
    """Return the costs of an answer of these islands."""
    layers = [
        LayerCost(layer=name, ms=0.25, low_ms=0.125) for each in islands for name in each.layers
    ]
    return Costs(
        method="onnxruntime_profile",
        total_ms=4.4,
        low_ms=4.0,
        other_ms=0.0,
        profiled_ms=5.0,
        layers=layers,
        islands=islands,
    )


def view(folder: Path, given: Costs | None) -> dict[str, Any]:
    """Return the view of a run with these costs."""
    names = run_folders.names(10)
    folder = run_folders.write_run(folder, names, [2, 5])
    result = replace(run_folders.result_of(names, [2, 5]), costs=given)
    (folder / FILE).write_text(result.to_text())
    return view_of(read_source(folder), folder)


def test_the_view_has_islands_and_a_time_for_each_layer(tmp_path: Path) -> None:
    """The dearest island comes first; a kept layer has its time, and that when low."""
    names = run_folders.names(10)
    shown = view(tmp_path, costs(island([names[2]], 0.5), island([names[5]], 0.25)))
    assert [(0.25, 0.125)] * 2 == [(row["ms"], row["low_ms"]) for row in shown["kept"]]
    rows = shown["islands"]["rows"]
    assert [(names[2], 0.5), (names[5], 0.25)] == [(row["name"], row["saves_ms"]) for row in rows]
    assert shown["islands"]["words"].startswith("2 islands of kept layers cost 0.75 of 4.4 ms")


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, ""), (Costs(left_out="interrupted"), "What they cost was not profiled: interrupted")],
)
def test_the_view_says_why_there_are_no_costs(
    tmp_path: Path, given: Costs | None, expected: str
) -> None:
    """Where an engine judged; a prediction has none."""
    shown = view(tmp_path, given)
    assert {"words": expected, "rows": []} == shown["islands"]
    assert [None, None] == [row["ms"] for row in shown["kept"]]


def test_an_error_stands_on_its_side_of_the_limit() -> None:
    """What fails by little does not seem to pass: `error 0.001` beside a tolerance of 0.001."""
    assert "0.001004" == error_beside(0.001, 0.001004)
    assert ("0.00099", "0.0012") == (error_beside(0.001, 0.00099), error_beside(0.001, 0.0012))
    assert "0.53" == error_beside(None, 0.53)
