"""What one emulated trial costs, against a plain ONNX Runtime inference of the same model.

    python benchmarks/emulator_overhead.py examples/nafnet/nafnet.onnx examples/nafnet/inputs

Both run with the same session settings and threads, interleaved in random order, so that a slow
moment of the machine hits both and none always runs after the same other. Prints JSON: median
milliseconds, and the ratios to the plain inference. `ranking` has the mean over the plans of a
ranking (each block of 8 layers low alone, then each layer), as one session and in segments.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import Session
from precision_bisect.judging.inputs.input_check import check_samples
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, LowName
from precision_bisect.protocols import Sample
from precision_bisect.search.sensitivity import BLOCK


def overhead(
    model: Model, sample: Sample, low: LowName, *, runs: int = 50, threads: int = 0
) -> dict[str, dict[str, float]]:
    """Return medians in milliseconds, and ratios to the plain inference, by kind of plan."""
    count = len(model.table.candidates)
    chosen = np.flatnonzero(np.random.default_rng(0).random(count) < 0.5)
    plans = {
        "all_high": Plan.all_high(count),
        "all_low": Plan.of(()),
        "random": Plan.of(int(index) for index in chosen),
    }
    plain = Session(model.proto, model.weights, threads)
    backend = EmulatedBackend(model, low, threads)
    actions: dict[str, Callable[[], object]] = {"plain": lambda: plain.run(sample)}
    for name, plan in plans.items():
        actions[name] = lambda plan=plan: backend.evaluate(plan, sample)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in actions}
    order = list(actions)
    for action in actions.values():
        action()
    for run in range(runs):
        # Another order every time: who runs before whom changes what is in the caches.
        for name in np.random.default_rng(run).permutation(order):
            started = time.perf_counter()
            actions[name]()
            times[name].append(time.perf_counter() - started)
    medians = {name: float(np.median(values)) * 1e3 for name, values in times.items()}
    return {
        "median_ms": {name: round(value, 3) for name, value in medians.items()},
        "ratio": {name: round(medians[name] / medians["plain"], 3) for name in plans},
    }


def ranking(
    model: Model, sample: Sample, low: LowName, *, most: int, threads: int = 0
) -> dict[str, dict[str, float]]:
    """Return means over the plans of a ranking, in milliseconds of processor time, and ratios.

    Of more than `most` plans as many are taken, evenly.
    """
    count = len(model.table.candidates)
    groups = [range(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]
    groups += [range(layer, layer + 1) for layer in range(count)]
    groups = groups[:: -(-len(groups) // most)]
    everything = Plan.all_high(count)
    plain = Session(model.proto, model.weights, threads)
    whole, segments = (EmulatedBackend(model, low, threads, whole=each) for each in (True, False))
    for _ in range(3):
        for backend in (whole, segments):
            backend.evaluate(everything, sample)
    times: dict[str, float] = dict.fromkeys(("plain", "whole", "segments"), 0.0)
    for number, group in enumerate(groups):
        plan = everything.without(group)
        actions: dict[str, Callable[[], object]] = {
            "plain": lambda: plain.run(sample),
            "whole": lambda plan=plan: whole.evaluate(plan, sample),  # type: ignore[misc]
            "segments": lambda plan=plan: segments.evaluate(plan, sample),  # type: ignore[misc]
        }
        for name in np.random.default_rng(number).permutation(list(actions)):
            started = time.process_time()
            actions[name]()
            times[name] += time.process_time() - started
    return {
        "mean_ms": {name: round(value / len(groups) * 1e3, 3) for name, value in times.items()},
        "ratio": {name: round(times[name] / times["plain"], 3) for name in ("whole", "segments")},
    }


def main() -> None:
    """Measure both low types on the first sample and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--plans", type=int, default=1000, help="the most of a ranking")
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    model = load_model(given.model)
    names = [spec.name for spec in model.inputs]
    sample = check_samples(model, read_samples(given.inputs, names))[0]
    found: dict[str, Any] = {"model": given.model.name, "layers": len(model.table.candidates)}
    for low in HALF_NAMES:
        found[low] = overhead(model, sample, low, runs=given.runs, threads=given.threads)
        found[f"{low} ranking"] = ranking(
            model, sample, low, most=given.plans, threads=given.threads
        )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
