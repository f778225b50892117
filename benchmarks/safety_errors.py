"""Errors of single samples and their copies, of plans of many costs: what rules of safety see.

    python safety_errors.py --cache zoo-cache --out errors

One file for each network. The emulator ranks layers on a few samples; plans of least cost under
the law for several limits, FP32 and every layer low are judged on each of many fresh samples, with
TF32 and without. `safety_rules.py` has rules decide by some of them, and counts on the others.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precision_bisect.layer_table import LayerName
from precision_bisect.options import Options
from precision_bisect.pipeline.elsewhere import has_tf32, in_tf32
from precision_bisect.pipeline.evaluators import evaluator
from precision_bisect.pipeline.plan_estimates import estimates_of
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search, T
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.saved import read_result
from precision_bisect.search.other_cases import Cases
from precision_bisect.search.rounding_law import Law
from precision_bisect.search.sensitivity import rank
from precision_bisect.search.speed.cheapest import cheapest
from precision_bisect.search.workers import Evaluate
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import CaseName, OneByOne, Proposal, SampleSet
from zoo.networks import NETWORKS
from zoo.networks import prepare as prepare_network

RANKED, COPIED, FRESH = 4, 16, 64
"""Samples that rank, further ones with copies that rules decide by, and those that count."""
AIMS = (0.2, 0.4, 0.7, 1.1)
"""Shares of the limit that the law allows a plan."""
WORST = 3
"""Times the limit from which no rule is asked of a plan."""
SEED = 52


def main() -> None:
    """Measure the networks that have no file yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--fresh", type=int, default=FRESH)
    parser.add_argument("--runs", type=Path, help="folder of NETWORK/RUN, to judge their plans")
    asked = parser.parse_args()
    asked.out.mkdir(exist_ok=True)
    for name in asked.networks:
        path = asked.out / f"{name}.json"
        if path.exists():
            continue
        began = time.perf_counter()
        runs = [] if asked.runs is None else sorted(asked.runs.glob(f"{name}/*/result.json"))
        rows = measured(name, asked.cache, asked.fresh, runs)
        path.write_text(json.dumps(rows) + "\n")
        print(name, len(rows["plans"]), round(time.perf_counter() - began), flush=True)


def measured(name: str, cache: Path, fresh: int, runs: Sequence[Path]) -> dict[str, Any]:
    """Return the errors of a network's plans, as shares of its limit: those of `runs` if any."""
    network = NETWORKS[name]
    model = prepare_network(name, cache) / "model.onnx"
    samples = network.draw(np.random.default_rng((SEED, 0)), model, RANKED + COPIED + fresh)
    limits: dict[str, Any] = {network.limit: network.limits[0]}
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "judging"
        out.mkdir()
        options = Options(
            model=model,
            inputs=samples,
            out=out,
            backend="emulated",
            target="onnxruntime",
            **limits,
        )
        prepared = prepare(options, ignore, out)
        return {
            "network": name,
            "limit": network.limits[0],
            **_plans(prepared, len(samples), runs),
        }


def _plans(prepared: Prepared, count: int, runs: Sequence[Path]) -> dict[str, Any]:
    assert prepared.here is not None
    evaluate: Evaluate = evaluator(prepared, prepared.here)
    limit, table = prepared.problem.tolerance or 1.0, prepared.case.model.table
    scores = [] if runs else driven(rank(prepared.problem), evaluate).scores
    estimates = estimates_of(prepared)
    high_ms = estimates.plain.time(prepared.everything.kept)
    rows = []
    cases: dict[CaseName, Evaluate] = {"": evaluate}
    beside = Cases()
    with in_tf32(prepared, beside):
        if has_tf32(prepared):
            cases[TF32] = beside
        for case, judge in cases.items():
            costs = estimates.of(case)[0]
            plans = {Plan.of(()): "low"} | ({prepared.everything: "FP32"} if case else {})
            law = Law.of(scores, Plan.of(()))
            for path in runs:
                result = read_result(path, "")
                plans.setdefault(table.plan_of(map(LayerName, result.kept)), "fewest")
                if result.deploy is not None and not result.deploy.fused:
                    kept = map(LayerName, result.deploy.kept)
                    plans.setdefault(table.plan_of(kept), "deploy")
            for aim in () if runs else AIMS:
                starts = [prepared.everything, Plan.of(())]
                for plan in cheapest(costs, scores, aim * limit, starts)[:1]:
                    plans.setdefault(plan, f"law {aim:g}")
                places = range(law.steps + 1)
                count = next((n for n in places if law.left(n) <= aim * limit), law.steps)
                plans.setdefault(Plan.of(law.order[:count]), f"prefix {aim:g}")
            if not case:
                plans.pop(prepared.everything, None)
            for plan, what in plans.items():
                copied = SampleSet.chosen(range(RANKED + COPIED, count)).others
                others = SampleSet.chosen(range(RANKED + COPIED)).others
                ranked = SampleSet.chosen(range(RANKED, count)).others
                given = _judged(judge, Proposal(plan=plan, samples=ranked, case=case))
                if max(_shares(given.errors, limit)) > WORST:
                    continue
                own, fresh = (
                    _judged(judge, Proposal(plan=plan, samples=s, draw=draw, case=case))
                    for s, draw in ((copied, 1), (others, 0))
                )
                rows.append(
                    {
                        "plan": what,
                        "tf32": bool(case),
                        "kept": len(plan),
                        "of": len(prepared.everything),
                        "time": costs.time(plan.kept) / high_ms,
                        "errors": _shares(own.errors, limit),
                        "copies": [_shares(each, limit) for each in own.copies],
                        "fresh": _shares(fresh.errors, limit),
                    }
                )
    return {"plans": rows}


def _judged(evaluate: Evaluate, proposal: Proposal) -> OneByOne:
    judgement = evaluate(proposal).evidence.one_by_one
    assert judgement is not None
    return judgement


def _shares(errors: Sequence[float | None], limit: float) -> list[float]:
    """Return errors as shares of the limit, 1e9 for what is not finite."""
    return [1e9 if e is None or not np.isfinite(e) else float(f"{e / limit:.5g}") for e in errors]


def driven(search: Search[T], evaluate: Evaluate) -> T:
    """Return what a search comes to, whose every trial is evaluated here."""
    try:
        batch = next(search)
        while True:
            batch = search.send(tuple(map(evaluate, batch)))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
