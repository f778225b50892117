"""The rows of the comparison as tables in Markdown, one for each network."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from peers.deployed import deployed

HEAD = (
    "| tool | FP32 layers | holds | fresh over | error | evaluations | CPU s | Casts |",
    "|---|---:|---|---:|---:|---:|---:|---:|",
)
ALL_OF_IT = (
    "| network | limit | samples | layers | nothing kept | AutoCast "
    "| smallest of the others that holds | precision-bisect |",
    "|---|---:|---:|---:|---|---|---|---|",
)


def merged(
    rows: Sequence[dict[str, Any]],
    new: Sequence[dict[str, Any]],
    networks: Sequence[str],
    tools: Sequence[str],
) -> list[dict[str, Any]]:
    """Return all rows in the order of networks and tools, new ones in place of older ones."""

    def key(row: dict[str, Any]) -> tuple[str, float, int, str]:
        return row["network"], row["bound"], row["samples"], _tool(row)

    again = {key(row) for row in new}
    both = [*(row for row in rows if key(row) not in again), *new]
    return sorted(
        both,
        key=lambda row: (
            networks.index(row["network"]),
            -row["bound"],
            row["samples"],
            tools.index(_tool(row)),
        ),
    )


def markdown(
    rows: Sequence[dict[str, Any]],
    figures: Mapping[str, Any] | None = None,
    fronts: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the tables; what holds is within the limit on all copies.

    The `figures` are those that `gpu_fronts.py measure` writes, if there are any, `fronts` rows
    of the same of models that ran without TF32.
    """
    tables = [
        list(of)
        for _, of in groupby(rows, key=lambda row: (row["network"], row["bound"], row["samples"]))
    ]
    lines = ["# Tools beside each other", "", *ALL_OF_IT, *map(_summary, tables), ""]
    lines += [] if figures is None else deployed(figures, fronts)
    for here in tables:
        network, limit, bound, samples = (
            here[0][key] for key in ("network", "limit", "bound", "samples")
        )
        heading = f"## {network}, {limit} {bound:g}, {_layers(here)} layers, {samples} samples"
        lines += [heading, "", *HEAD, *map(_line, here), ""]
    return "\n".join(lines)


def _summary(here: Sequence[dict[str, Any]]) -> str:
    """Return a network's line: layers in FP32, and what fails of copies and of fresh samples."""
    ours = [row for row in here if _tool(row) == "precision-bisect"]
    others = [row for row in here if row not in ours and not row["failed"] and holds(row)]
    smallest = min(others, key=lambda row: (row["kept"], row["fresh_failed"]), default=None)
    by_tool = {row["tool"]: row for row in here}
    first = here[0]
    cells = [
        first["network"],
        f"{first['bound']:g}",
        first["samples"],
        _layers(here),
        *(_says(by_tool.get(tool)) for tool in ("nothing", "AutoCast")),
        f"{_says(smallest)} ({smallest['tool']})" if smallest else "none",
        _says(ours[0]),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _says(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not run"
    if row["failed"]:
        return "gave no model"
    beyond = "" if holds(row) else f", {row['copies_failed']} of {row['copies']} copies over"
    return f"{row['kept']}{beyond}, fresh {row['fresh_failed']} of {row['fresh']} over"


def _layers(here: Sequence[dict[str, Any]]) -> int | str:
    return next((row["candidates"] for row in here if "candidates" in row), "?")


def holds(row: dict[str, Any]) -> bool:
    """Whether a row's model is within the limit on the samples and on all copies."""
    return not row["failed"] and not row["copies_failed"] and float(row["error"]) <= row["bound"]


def _tool(row: dict[str, Any]) -> str:
    return str(row["tool"]).partition(":")[0]


def _line(row: dict[str, Any]) -> str:
    cpu = f"{row['cpu_s']:.0f}"
    if row["failed"]:
        return f"| {row['tool']} | | {_plain(row['failed'])} | | | | {cpu} | |"
    says = "yes" if holds(row) else f"no, {row['copies_failed']} of {row['copies']} copies"
    worst = max(float(row["error_max"]), float(row["fresh_max"]))
    cells = [
        row["tool"],
        row["kept"],
        says,
        f"{row['fresh_failed']} of {row['fresh']}",
        f"{worst:.2g}",
        row["evaluations"],
        cpu,
        row["casts"],
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _plain(reason: str) -> str:
    return " ".join(reason.replace("|", "/").split())[:90]
