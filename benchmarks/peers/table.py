"""The rows of the comparison as tables in Markdown, one for each network."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

HEAD = (
    "| tool | FP32 layers | holds | fresh over | error | evaluations | CPU s | Casts |",
    "|---|---:|---|---:|---:|---:|---:|---:|",
)
_SHORT = {"tol": "tol", "atol": "atol"}


def merged(
    rows: Sequence[dict[str, Any]],
    new: Sequence[dict[str, Any]],
    networks: Sequence[str],
    tools: Sequence[str],
) -> list[dict[str, Any]]:
    """Return all rows in the order of networks and tools, new ones in place of older ones."""

    def key(row: dict[str, Any]) -> tuple[str, float, str]:
        return row["network"], row["bound"], _tool(row)

    again = {key(row) for row in new}
    both = [*(row for row in rows if key(row) not in again), *new]
    return sorted(
        both,
        key=lambda row: (networks.index(row["network"]), -row["bound"], tools.index(_tool(row))),
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the tables; what holds is within the limit on all copies."""
    lines = ["# Tools beside each other", ""]
    for (network, bound), of in groupby(rows, key=lambda row: (row["network"], row["bound"])):
        here = list(of)
        layers = next((row["candidates"] for row in here if "candidates" in row), "?")
        lines += [f"## {network}, {here[0]['limit']} {bound:g}, {layers} layers", "", *HEAD]
        lines += [_line(row) for row in here]
        lines.append("")
    return "\n".join(lines)


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
