"""Latencies of all tools' plans on a GPU, as they are deployed, as tables in Markdown."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]

RANDOM, FP32 = "random", "fp32"
COLUMNS = {
    "FP32": (FP32,),
    "FP32 without TF32": ("fp32 without TF32",),
    "all low": ("nothing",),
    "norms and softmax": ("norms and softmax",),
    "AutoCast": ("AutoCast", "AutoCast, data_max 65504"),
    "onnxconverter-common": ("onnxconverter-common",),
    "Polygraphy": ("Polygraphy bisect, forward", "Polygraphy bisect, reverse"),
    "random": (RANDOM,),
    "ours, fewest": ("precision-bisect: fewest",),
    "ours, to deploy": ("precision-bisect: deploy",),
    "ours, run there": ("precision-bisect, run there: deploy",),
}
"""The labels that a column has the best of."""
ANSWERS = ("precision-bisect, run there: answer", "precision-bisect: answer")
"""What ours says to deploy, FP32 or a plan: where it ran on the GPU, else where it did not."""
FEWEST = ("precision-bisect, run there: fewest", "precision-bisect: fewest")
NEAR = 0.02
"""What a plan may be slower and still count as the fastest; sessions of one file differ so."""


def deployed(figures: Mapping[str, Any], fronts: Sequence[Row] = ()) -> list[str]:
    """Return the lines of tables with a row for each network and batch.

    The `fronts` are rows of models that ran without TF32, at the samples' batch.
    """
    rounds = _rounds(figures["rows"])
    gpus = ", ".join(figures["machine"]["gpus"])
    return [
        "## Latency as deployed",
        "",
        f"{gpus}, ONNX Runtime {figures['onnxruntime']} with its own options, TF32 among them: "
        "milliseconds, of several plans those of the fastest that holds on judged and fresh "
        "samples. Each was timed in turns with FP32, and is told beside that of the second "
        "column. In brackets what is over the limit, or of several the fastest where none holds. "
        "Of random plans there are as many as the number says.",
        "",
        *_table(("network, batch", *COLUMNS), map(_latencies, rounds)),
        "",
        *_answers(rounds),
        *_gains(rounds, fronts),
        *_runs(figures.get("runs", ())),
    ]


def _rounds(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each network and batch."""

    def place(row: Row) -> tuple[str, int]:
        return row["network"], row["batch"]

    return [_alike(list(of)) for _, of in groupby(sorted(rows, key=place), key=place)]


def _alike(rows: list[Row]) -> list[Row]:
    """Return the rows with `ms`, as if all were timed beside the same FP32.

    Rows may be of several runs, whose clocks differ; each was timed in turns with FP32.
    """
    fp32 = next((row for row in rows if row["label"] == FP32 and "latency" in row), None)
    at = None if fp32 is None else fp32["latency"]
    timed: list[Row] = []
    for row in rows:
        own = row.get("latency", {})
        ms = own.get("median")
        if at is not None and "speedup" in at and "speedup" in own:
            ms = at["median"] * at["speedup"] / own["speedup"]
        timed.append({**row, "ms": ms})
    return timed


def _table(head: Sequence[str], lines: Any) -> list[str]:
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}", *rows]


def _latencies(rows: Sequence[Row]) -> list[str]:
    return [_place(rows), *(_cell(rows, labels) for labels in COLUMNS.values())]


def _place(rows: Sequence[Row]) -> str:
    return f"{rows[0]['network']}, {rows[0]['batch']}"


def _cell(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """Return the latency of the fastest that holds, else of the fastest, in brackets."""
    own = [row for row in rows if any(_is(row, label) for label in labels)]
    times = sorted((not holds(row), _ms(row)) for row in own if "latency" in row)
    if not times:
        return "refused" if own else ""
    over, ms = times[0]
    many = f" of {len(own)}" if RANDOM in labels else ""
    return f"({ms:.3g}){many}" if over else f"{ms:.3g}{many}"


def _answers(rounds: Sequence[Sequence[Row]]) -> list[str]:
    """Return what ours says to deploy beside the fastest plan that holds, and counts of it."""
    measured = [(rows, answer) for rows in rounds if (answer := _answer(rows)) is not None]
    if not measured:
        return []
    lines, losses, unseen = [], list[float](), dict[str, int]()
    slower = 0
    for rows, answer in measured:
        fastest = _fastest(rows)
        loss = _ms(answer) / _ms(fastest) - 1 if fastest and holds(answer) else None
        losses += [] if loss is None else [loss]
        fp32 = _fastest([row for row in rows if row["label"] == FP32])
        slower += fp32 is not None and _ms(answer) > (1 + NEAR) * _ms(fp32)
        network, over = answer["network"], answer["fresh_over"]
        unseen[network] = unseen.get(network, 0) + over
        share = float(answer["error"]) / answer["bound"]
        lines.append(
            [
                _place(rows),
                _what(rows, answer),
                f"{_ms(answer):.3g}",
                f"{_ms(fastest):.3g} ({fastest['label']})" if fastest else "none",
                "over the limit" if loss is None else f"{loss:.0%}",
                f"{share:.2g}",
                f"{over} of {answer['fresh']}",
            ]
        )
    near, clean = sum(loss <= NEAR for loss in losses), sum(not n for n in unseen.values())
    head = ("network, batch", "the answer", "ms", "fastest that holds", "slower by")
    return [
        "What ours says to deploy, FP32 or a plan, beside the fastest of all of these that holds; "
        f"its error on judged samples is a share of the limit. Within {NEAR:.0%} of the fastest "
        f"it is in {near} of {len(measured)} rows, slower than FP32 that holds in {slower}; "
        f"no fresh sample is over in {clean} of {len(unseen)} networks.",
        "",
        *_table((*head, "error", "fresh over"), lines),
        "",
    ]


def _gains(rounds: Sequence[Sequence[Row]], fronts: Sequence[Row]) -> list[str]:
    """Return how much less time what ours says to deploy takes than its fewest layers did.

    The fastest plan of any tool that holds stands beside: no rule could gain more.
    """
    lines, gains, most = [], list[float](), list[float]()
    for rows in rounds:
        answer, before = _answer(rows), _before_ms(rows, fronts)
        fastest = _fastest(rows)
        if answer is not None and before is not None and fastest is not None:
            gains.append(1 - _ms(answer) / before)
            most.append(1 - _ms(fastest) / before)
            ms = f"{before:.3g}", f"{_ms(answer):.3g}", f"{gains[-1]:.0%}"
            lines.append([_place(rows), *ms, f"{_ms(fastest):.3g}", f"{most[-1]:.0%}"])
    if not lines:
        return []
    head = ("network, batch", "fewest, ms", "to deploy, ms", "less", "fastest that holds", "less")
    return [
        "The fewest layers without TF32, as commit 3263d67e had its answers opened, beside what "
        f"ours says to deploy. It takes {median(gains):.0%} less time in the median, and the "
        f"fastest plan of any tool that holds {median(most):.0%} less. Where they "
        "were not timed in the same turns, their time is a share of FP32 without TF32 in "
        "`gpu_fronts.json`, times that of FP32 here.",
        "",
        *_table(head, lines),
        "",
    ]


def _fastest(rows: Sequence[Row]) -> Row | None:
    """Return the fastest of some plans that hold, None where none does."""
    return min((row for row in rows if "latency" in row and holds(row)), key=_ms, default=None)


def _before_ms(rows: Sequence[Row], fronts: Sequence[Row]) -> float | None:
    """Return what the fewest layers take without TF32, None where nothing tells."""
    timed = {row["label"]: row for row in rows if "latency" in row}
    for label in FEWEST:
        if (row := timed.get(f"{label}, without TF32")) is not None:
            return _ms(row)
        if (row := timed.get(label)) is not None and row["options"].get("use_tf32") == "0":
            return _ms(row)
    own = {
        row["label"]: float(row["latency"]["median"])
        for row in fronts
        if row["network"] == rows[0]["network"] and "latency" in row and rows[0]["batch"] == 1
    }
    fp32 = timed.get(COLUMNS["FP32 without TF32"][0])
    if fp32 is None or not {FP32, ANSWERS[1]} <= own.keys():
        return None
    return own[ANSWERS[1]] / own[FP32] * _ms(fp32)


def _answer(rows: Sequence[Row]) -> Row | None:
    """Return the row of what ours says to deploy, None where it was not measured."""
    timed = {row["label"]: row for row in rows if "latency" in row and "fresh_over" in row}
    answer = next((timed[label] for label in ANSWERS if label in timed), None)
    if answer is None or (fp32 := _fp32(rows, answer)) is None:
        return answer
    # The same file with the same options: one latency, though it was measured twice.
    return {**fp32, "label": answer["label"]}


def _what(rows: Sequence[Row], answer: Row) -> str:
    """Return whether an answer is FP32, with TF32 or without, or a plan, and where ours ran."""
    fp32 = _fp32(rows, answer)
    names = {labels[0]: name for name, labels in COLUMNS.items()}
    what = "a plan" if fp32 is None else names[fp32["label"]]
    return f"{what}{', run there' if answer['label'] == ANSWERS[0] else ''}"


def _fp32(rows: Sequence[Row], answer: Row) -> Row | None:
    """Return the row of FP32 that an answer is; a plan of ours has options of its own."""
    labels = [COLUMNS[name][0] for name in ("FP32", "FP32 without TF32")]
    alike = (row for row in rows if row.get("options") == answer["options"])
    return next((row for row in alike if row["label"] in labels), None)


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what runs of ours on the GPU took."""
    lines = [
        [
            run["network"],
            f"{run['wall_s']:.0f}{', full batch' * run.get('full', False)}",
            *(str(run.get(key, run.get("error", ""))) for key in ("builds", "evaluations")),
            *(str(run.get("layers", {}).get(point, "")) for point in ("fewest", "deploy")),
            str(run.get("candidates", "")),
        ]
        for run in runs
    ]
    head = ("run on the GPU", "seconds", "builds", "evaluations", "fewest", "to deploy", "of")
    return [*_table(head, lines), ""] if lines else []


def _is(row: Row, label: str) -> bool:
    return bool(row["label"] == label or (label == RANDOM and row["label"].startswith(RANDOM)))


def _ms(row: Row) -> float:
    return float(row["ms"])


def holds(row: Row) -> bool:
    """Whether a plan is within the limit on judged samples, and on all fresh ones."""
    return float(row["error"]) <= row["bound"] and not row.get("fresh_over", 0)
