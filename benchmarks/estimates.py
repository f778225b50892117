"""Rank correlation of the estimated time of plans with the latency that a GPU measured.

    python estimates.py --cache zoo-cache --out results/estimates.json

The latencies are those of `results/gpu_fronts.json`: the random plans of `gpu_fronts.py`, drawn
here again, every layer high, and every layer low. It needs no GPU; a network that cannot be
prepared here is left out.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gpu_fronts import NETWORKS, RANDOM, SEED

from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort_fusions import fused_groups
from precision_bisect.search.speed.costs import cost_graph
from zoo.networks import SkippedError, prepare

FRONTS = Path(__file__).parent / "results" / "gpu_fronts.json"


def main(argv: Sequence[str] | None = None) -> None:
    """Write the correlation of each network, with what it is if nothing is fused or launched."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--cache", type=Path, default=Path("zoo-cache"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    fronts = json.loads(FRONTS.read_text())
    rows = []
    for name in options.networks:
        latencies = {
            row["label"]: row["latency"]["median"]
            for row in fronts["rows"]
            if row["network"] == name and "latency" in row
        }
        try:
            rows.append({"network": name, **correlated(prepare(name, options.cache), latencies)})
        except SkippedError as why:
            print(f"{name}: {why}")
    medians = {key: statistics.median(row[key] for row in rows) for key in KEYS}
    outcome = {"machine": fronts["machine"], "median": medians, "rows": rows}
    options.out.write_text(json.dumps(outcome, indent=1) + "\n")


KEYS = ("estimate", "unfused", "full_batch", "kept")


def correlated(folder: Path, latencies: dict[str, float]) -> dict[str, float]:
    """Return how many plans were measured, and Spearman's coefficient of each estimate."""
    model = load_model(folder / "model.onnx")
    names = model.table.names
    rng = np.random.default_rng(SEED)
    plans = {"fp32": frozenset(range(len(names))), "nothing": frozenset[int]()}
    for number in range(RANDOM):
        kept = np.flatnonzero(rng.random(len(names)) < rng.random())
        plans[f"random {number}"] = frozenset(kept.tolist())
    plans = {label: plan for label, plan in plans.items() if label in latencies}
    sample = np.load(min((folder / "judged").glob("*.npz")))
    shapes = {name: array.shape for name, array in sample.items()}
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
