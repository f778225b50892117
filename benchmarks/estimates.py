"""Rank correlation of the estimated time of plans with the latency that a GPU measured.

    python estimates.py --cache zoo-cache --out results/estimates.json

The latencies are those of `results/gpu_fronts.json`: the random plans of `gpu_fronts.py`, drawn
here again, every layer high, and every layer low. Those of `results/gpu_deployed.json` are of
fewer plans, with TF32, at two batches: `estimate` is that of the batch, `of_one` of the samples'
batch. It needs no GPU; a network that cannot be prepared here is left out.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gpu_fronts import NETWORKS, PLAIN_FP32, RANDOM, SEED

from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort_fusions import fused_groups
from precision_bisect.pipeline.plan_estimates import FULL, at_batch
from precision_bisect.search.speed.costs import cost_graph
from zoo.networks import SkippedError, prepare

FRONTS, DEPLOYED = (
    Path(__file__).parent / "results" / name for name in ("gpu_fronts.json", "gpu_deployed.json")
)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the correlation of each network, with what it is if nothing is fused or launched."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--cache", type=Path, default=Path("zoo-cache"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    fronts, deployed = json.loads(FRONTS.read_text()), json.loads(DEPLOYED.read_text())["rows"]
    rows, at_batches = [], list[dict[str, Any]]()
    for name in options.networks:
        latencies = {
            row["label"]: row["latency"]["median"]
            for row in fronts["rows"]
            if row["network"] == name and "latency" in row
        }
        try:
            folder = prepare(name, options.cache)
        except SkippedError as why:
            print(f"{name}: {why}")
            continue
        rows.append({"network": name, **correlated(folder, latencies)})
        timed = [row for row in deployed if row["network"] == name and "latency" in row]
        for batch in sorted({row["batch"] for row in timed}):
            at = [row for row in timed if row["batch"] == batch]
            at_batches.append({"network": name, "batch": batch, **measured_at(folder, batch, at)})
    medians = {key: statistics.median(row[key] for row in rows) for key in KEYS}
    outcome = {"machine": fronts["machine"], "median": medians, "rows": rows}
    outcome |= {"at_batches": at_batches}
    options.out.write_text(json.dumps(outcome, indent=1) + "\n")


KEYS = ("estimate", "unfused", "full_batch", "kept")


def drawn_plans(size: int) -> dict[str, frozenset[int]]:
    """Return the plans that `gpu_fronts.py` names so, of a network with so many candidates."""
    rng = np.random.default_rng(SEED)
    everything = frozenset(range(size))
    plans = {"fp32": everything, PLAIN_FP32: everything, "nothing": frozenset[int]()}
    for number in range(RANDOM):
        kept = np.flatnonzero(rng.random(size) < rng.random())
        plans[f"random {number}"] = frozenset(kept.tolist())
    return plans


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a network's inputs in its first sample."""
    sample = np.load(min((folder / "judged").glob("*.npz")))
    return {name: array.shape for name, array in sample.items()}


def measured_at(folder: Path, batch: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the same of models as deployed, at a batch: by its estimate, and by that of one."""
    model, shapes = load_model(folder / "model.onnx"), shapes_of(folder)
    (many, at), large = (at_batch(model, shapes, size) for size in (batch, FULL))
    plans, fused = drawn_plans(len(model.table.names)), fused_groups(model)
    rows = [row for row in rows if row["label"] in plans]
    measured = [row["latency"]["median"] for row in rows]
    figures: dict[str, float] = {"plans": len(rows)}
    for key, graph in {
        "estimate": partial(cost_graph, many, at, fused=fused),
        "of_one": partial(cost_graph, model, shapes, fused=fused),
        "full_batch": partial(cost_graph, *large, 0.0, fused=fused),
    }.items():
        in_tf32 = {on: graph(tf32=on) for on in (False, True)}
        times = [
            in_tf32[row["options"].get("use_tf32") != "0"].time(plans[row["label"]])
            for row in rows
        ]
        figures[key] = spearman(times, measured)
    return figures


def correlated(folder: Path, latencies: dict[str, float]) -> dict[str, float]:
    """Return how many plans were measured, and Spearman's coefficient of each estimate."""
    model = load_model(folder / "model.onnx")
    plans = drawn_plans(len(model.table.names))
    plans = {label: plan for label, plan in plans.items() if label in latencies}
    shapes = shapes_of(folder)
    fused = fused_groups(model)
    measured = [latencies[label] for label in plans]
    estimates = {
        "estimate": cost_graph(model, shapes, fused=fused),
        "unfused": cost_graph(model, shapes),
        "full_batch": cost_graph(model, shapes, 0.0, fused=fused),
    }
    figures = {
        key: spearman([graph.time(plan) for plan in plans.values()], measured)
        for key, graph in estimates.items()
    }
    kept_count = [float(len(plan)) for plan in plans.values()]
    return {"plans": len(plans), **figures, "kept": spearman(kept_count, measured)}


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the correlation of the ranks; equal figures share theirs."""
    return round(float(np.corrcoef(ranks(left), ranks(right))[0, 1]), 3)


def ranks(figures: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the mean rank of each figure."""
    _, places, counts = np.unique(figures, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[places]


if __name__ == "__main__":
    main()
