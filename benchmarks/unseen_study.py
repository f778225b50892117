"""Promised against true share of inputs over the limit, and what many samples cost a search.

Each run draws fresh samples of a network of the zoo, searches with them, and has the emulator
judge the answer on other fresh samples.
`python benchmarks/unseen_study.py --cache zoo-cache --out benchmarks/results/unseen.json`
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from precision_bisect.api import find
from precision_bisect.options import Options
from precision_bisect.pipeline.evaluators import evaluator
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.plan import Plan
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.result import Result
from precision_bisect.trial import Proposal, SampleSet
from zoo.judge import Sample
from zoo.networks import NETWORKS

JUDGING = 100
"""Fresh samples that tell the true share. The sound of silero_vad has 113 at most."""


def measured(name: str, cache: Path, count: int, seed: int, tol: float) -> dict[str, Any]:
    """Search with so many samples of a network, and judge the answer on others."""
    network, model = NETWORKS[name], cache / name / "model.onnx"
    drawn = network.draw(np.random.default_rng((seed, count)), model, count)
    if len(drawn) != count:
        raise SystemExit(f"{name} has {len(drawn)} samples, not {count}")
    fresh = network.draw(np.random.default_rng((seed, count, 1)), model, JUDGING)
    with tempfile.TemporaryDirectory() as work:
        begun = time.perf_counter()
        result = find(model, inputs=drawn, out=Path(work) / "run", tol=tol, backend="emulated")
        seconds = time.perf_counter() - begun
        judged = _errors(model, result, [*drawn, *fresh], count, Path(work) / "judged")
    over = [each is None or each > result_limit(result) for each in judged]
    return {
        "network": name,
        "limit": tol,
        "samples": count,
        "seed": seed,
        "status": result.status.value,
        "kept": len(result.kept),
        "of": result.candidates,
        "seconds": round(seconds, 1),
        "evaluations": result.evaluations,
        "unseen": None if result.unseen is None else asdict(result.unseen),
        "true_share": sum(over) / len(over),
    }


def result_limit(result: Result) -> float:
    """Return the limit of a run with one limit for all outputs."""
    assert isinstance(result.tolerance, float | int)
    return float(result.tolerance)


def _errors(
    model: Path, result: Result, samples: Sequence[Sample], given: int, out: Path
) -> Sequence[float | None]:
    """Return the errors of an answer on the samples after the given ones, each by itself."""
    tolerance = result_limit(result)
    options = Options(model=model, inputs=samples, tol=tolerance, out=out, backend="emulated")
    out.mkdir()
    prepared = prepare(options, ignore, out)
    assert prepared.here is not None
    kept = {*result.kept}
    names = prepared.case.model.table.names
    plan = Plan.of(i for i, name in enumerate(names) if name in kept)
    proposal = Proposal(plan=plan, samples=SampleSet.chosen(range(given)).others)
    found = evaluator(prepared, prepared.here)(proposal).evidence.one_by_one
    assert found is not None
    return found.errors


def main() -> None:
    """Measure the asked runs; what the file has is not run again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=["ppocr_rec", "magika", "nafnet"])
    parser.add_argument("--samples", nargs="+", type=int, default=[2, 8, 16, 64])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    asked = parser.parse_args()
    rows = json.loads(asked.out.read_text()) if asked.out.exists() else []
    had = {(row["network"], row["samples"], row["seed"]) for row in rows}
    for name in asked.networks:
        for count in asked.samples:
            for seed in asked.seeds:
                if (name, count, seed) in had:
                    continue
                rows.append(measured(name, asked.cache, count, seed, NETWORKS[name].limits[0]))
                asked.out.write_text(json.dumps(rows, indent=1) + "\n")
                print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
