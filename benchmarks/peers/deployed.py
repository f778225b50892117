"""Latencies of all tools' plans on a GPU, as they are deployed, as a table in Markdown."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

RANDOM = "random"
COLUMNS = {
    "FP32": ("fp32",),
    "all low": ("nothing",),
    "norms and softmax": ("norms and softmax",),
    "AutoCast": ("AutoCast",),
    "AutoCast, 65504": ("AutoCast, data_max 65504",),
    "onnxconverter-common": ("onnxconverter-common",),
    "Polygraphy": ("Polygraphy bisect, forward", "Polygraphy bisect, reverse"),
    "random": (RANDOM,),
    "ours, fewest": ("precision-bisect: fewest",),
    "ours, to deploy": ("precision-bisect: deploy",),
}
"""The labels that a column has the best of."""


def deployed(figures: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table with a row for each network and batch."""
    gpus = ", ".join(figures["machine"]["gpus"])
    lines = [
        "## Latency as deployed",
        "",
        f"{gpus}, ONNX Runtime {figures['onnxruntime']} with its own options, TF32 among them: "
        "milliseconds, of several plans those of the fastest that holds on judged and fresh "
        "samples. In brackets what is over the limit, or of several the fastest where none holds. "
        "Of random plans there are as many as the number says.",
        "",
        f"| network, batch | {' | '.join(COLUMNS)} |",
        f"|---|{'---:|' * len(COLUMNS)}",
    ]
    for (network, batch), rows in groupby(
        sorted(figures["rows"], key=_place), key=lambda row: (row["network"], row["batch"])
    ):
        measured = list(rows)
        cells = [_cell(measured, labels) for labels in COLUMNS.values()]
        lines.append(f"| {network}, {batch} | {' | '.join(cells)} |")
    return [*lines, ""]


def _place(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["network"], row["batch"]


def _cell(rows: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    """Return the latency of the fastest that holds, else of the fastest, in brackets."""
    own = [row for row in rows if any(_is(row, label) for label in labels)]
    times = sorted((not holds(row), row["latency"]["median"]) for row in own if "latency" in row)
    if not times:
        return "refused" if own else ""
    over, ms = times[0]
    many = f" of {len(own)}" if RANDOM in labels else ""
    return f"({ms:.3g}){many}" if over else f"{ms:.3g}{many}"


def _is(row: Mapping[str, Any], label: str) -> bool:
    return bool(row["label"] == label or (label == RANDOM and row["label"].startswith(RANDOM)))


def holds(row: Mapping[str, Any]) -> bool:
    """Whether a plan's error is within the limit on judged samples and on all fresh ones."""
    return float(row["error"]) <= row["bound"] and not row["fresh_over"]
