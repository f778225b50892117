"""What the kept layers cost, on the screen and in the report's view."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import run_folders
from final_screens import RESULT, words
from precision_bisect.runs.results.layer_costs import Costs, IslandCost, LayerCost
from precision_bisect.runs.runfolder import RESULT as FILE
from precision_bisect_reports.html.source import read_source
from precision_bisect_reports.html.view import view_of

NORM = ("/enc/0/norm/Pow", "/enc/0/norm/ReduceMean")
OTHERS = ("p2o.Mul.1", "p2o.Add.7", "p2o.Sqrt.3")


def island(layers: Sequence[str], saves_ms: float) -> IslandCost:
    """Return an island that saves so much."""
    return IslandCost(layers=layers, ms=saves_ms, casts_ms=0.01, saves_ms=saves_ms)


def costs(*islands: IslandCost, total_ms: float = 4.4) -> Costs:
    """Return the costs of an answer of these islands."""
    layers = [
        LayerCost(layer=name, ms=0.25, low_ms=0.125) for each in islands for name in each.layers
    ]
    return Costs(
        method="onnxruntime_profile",
        total_ms=total_ms,
        low_ms=4.0,
        other_ms=0.0,
        profiled_ms=5.0,
        layers=layers,
        islands=islands,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            costs(island(NORM, 0.25), island(OTHERS, 0.125), island(("x",), 0.125)),
            "3 islands of kept layers cost 0.5 of 4.4 ms, 1 island 0.25 of it: "
            "/enc/0/norm (2 layers)",
        ),
        (
            costs(island(("/" + "long/" * 9 + "Pow",), 0.125), island(OTHERS, 0.125)),
            "2 islands of kept layers cost 0.25 of 4.4 ms, 1 island 0.12 of it: "
            "…ong/long/long/long/long/Pow",
        ),
        (
            costs(island(OTHERS, 0.25), island(NORM, -0.125)),
            "2 islands of kept layers cost 0.25 of 4.4 ms, 1 island 0.25 of it: "
            "p2o.Mul.1 and 2 more",
        ),
        (
            costs(island(NORM, 0.25)),
            "1 island of kept layers costs 0.25 of 4.4 ms: /enc/0/norm (2 layers)",
        ),
        (
            costs(*[island((f"n{i}",), 0.1) for i in range(6)]),
            "6 islands of kept layers cost 0.6 of 4.4 ms, 3 islands 0.3 of it: n0, n1 and 1 more",
        ),
        (costs(island(NORM, 0.25), total_ms=44.0), ""),
        (costs(island(NORM, -0.25)), ""),
        (Costs(left_out="interrupted"), ""),
        (None, ""),
    ],
)
def test_the_dearest_islands_are_on_the_screen(given: Costs | None, expected: str) -> None:
    """The fewest that make up half of the cost are named, where all cost enough to matter."""
    shown = words(replace(RESULT, costs=given))
    assert bool(expected) is ("cost " in shown)
    assert expected in shown


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
