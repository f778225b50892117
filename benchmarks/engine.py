"""What the search costs and finds on real FP16 kernels, and how well the emulator predicts them.

    python benchmarks/engine.py --models nafnet minilm13 --folder minilm --out results

For each model: search with the engine, compare latencies at a batch that keeps the GPU busy, then
judge single layers and random plans by both the engine and the emulator. Writes one JSON file per
model into --out, after every stage, so that what was measured is kept when a later stage fails.
`--backend emulated --small` runs all of it without a GPU.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
from engine_judge import Judge, Setting, agreement, stratified, subsets
from engine_latency import latencies
from engine_models import RECIPES, Case

import precision_bisect
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.machine.gpu import cuda_version, devices, driver_version
from precision_bisect.model.fp32_outputs import reference_outputs
from precision_bisect.model.load import load_model
from precision_bisect.monitoring.events import Event, TrialFinished
from precision_bisect.plan import Plan
from precision_bisect.results.result import Result
from precision_bisect.trial import Kind, Phase

SQUARE = """<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y)
<float k = {0.00333333333}> { [square] s = Mul(x, x) [scale] y = Mul(s, k) }"""
"""For x = 300 the square is infinite where FP16 is really computed in FP16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for; `seconds` is the limit on each model's judging stages."""

    models: tuple[str, ...]
    folder: Path
    out: Path
    backend: str
    small: bool
    seconds: float
    workers: int


class Watch:
    """Counts the trials of a run as they end."""

    def __init__(self) -> None:
        self.builds: Counter[str] = Counter()
        self.predictions: Counter[str] = Counter()
        self.first_pass: dict[str, int] | None = None

    def __call__(self, event: Event, /) -> None:
        """Count one trial; note how many builds there were when the first plan passed."""
        if not isinstance(event, TrialFinished) or event.recalled:
            return
        phase = event.proposal.phase
        if event.proposal.kind is Kind.PREDICT:
            self.predictions[phase] += 1
            return
        self.builds[phase] += 1
        if self.first_pass is None and phase is Phase.SEARCH and event.outcome.passed:
            self.first_pass = {
                "search_builds": self.builds[Phase.SEARCH],
                "builds_with_preflight": self.builds.total(),
                "kept": len(event.proposal.plan),
            }

    def figures(self) -> dict[str, Any]:
        """Return the counts as JSON-able values."""
        return {
            "engine_builds_by_phase": dict(self.builds),
            "predictions_by_phase": dict(self.predictions),
            "first_pass": self.first_pass,
        }


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    packages = ("precision-bisect", "numpy", "onnx", "polygraphy")
    return {
        "gpus": [asdict(gpu) for gpu in devices()],
        "driver": driver_version(),
        "cuda": cuda_version(),
        "cpu": f"{len(names)} x {names[0]}" if names else platform.processor(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def self_check(asked: Asked, work: Path) -> dict[str, str]:
    """Return x * x / 300 at x = 300, high and low: 300 and, where FP16 is FP16, infinity."""
    path = work / "square.onnx"
    onnx.save(onnx.parser.parse_model(SQUARE), path)
    feed = {"x": np.full(1, 300, np.float32)}
    setting = Setting(path=path, samples=[feed], limits={"tol": 1e-2}, backend=asked.backend)
    model, backend = setting.settle(work)
    found = {}
    for name, plan in (("high", Plan.all_high(len(model.table.candidates))), ("low", Plan.of(()))):
        with backend.build(plan) as engine:
            found[name] = f"{engine.run(feed)['y'][0]:g}"
    if found["low"] != "inf":
        raise RuntimeError(f"300 * 300 is {found['low']} in FP16: this is not FP16")
    return found


def limits_of(case: Case) -> dict[str, float]:
    """Return the case's limits, or the share of the emulator's all-low error where it says so."""
    limits = dict(case.limits)
    if case.share is None:
        return limits
    model = load_model(case.path)
    reference = reference_outputs(model, case.samples)
    emulator = EmulatedBackend(model)
    worst = max(
        float(np.abs(outputs[name] - expected[name]).max())
        for sample, expected in zip(case.samples, reference, strict=True)
        for outputs in (emulator.evaluate(Plan.of(()), sample),)
        for name in expected
    )
    if limits.get("atol", worst) < worst:
        return limits
    return {"atol": float(f"{case.share * worst:.2g}")}


def figures_of(result: Result) -> dict[str, Any]:
    """Return what the search found, as in its own `result.json`."""
    plain = json.loads(result.to_text())
    left_out = ("layer_precisions", "layer_precisions_reason", "honoured_layers", "diagnosis")
    return {key: value for key, value in plain.items() if key not in left_out}


def study(name: str, asked: Asked, work: Path, record: dict[str, Any]) -> None:
    """Measure one model; each stage is written as soon as it exists."""
    recipe = RECIPES[name]
    file = asked.out / f"{name}.json"

    def note(**figures: Any) -> None:
        record.update(figures, wall_s=round(time.monotonic() - started, 1))
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {', '.join(figures)} after {record['wall_s']} s", flush=True)

    started = time.monotonic()
    case = recipe.make(asked.folder, recipe.small if asked.small else recipe.search)
    limits = limits_of(case)
    note(remark=case.remark, limits=limits)
    watch = Watch()
    result = precision_bisect.find(
        case.path,
        inputs=case.samples,
        out=work / name,
        backend=asked.backend,
        observer=watch,
        max_time_s=2 * asked.seconds,
        **limits,  # type: ignore[arg-type]
    )
    note(search={**figures_of(result), **watch.figures()})
    setting = Setting(path=case.path, samples=case.samples, limits=limits, backend=asked.backend)
    sizes = [recipe.small] if asked.small else recipe.sizes
    note(
        latency=latencies(
            setting, lambda size: recipe.make(asked.folder, size), sizes, result.kept
        )
    )
    judge = Judge(setting, asked.workers)
    count = len(judge.model.table.candidates)
    for stage, plans in (
        ("single_layers", [Plan.all_high(count).without((i,)) for i in stratified(judge.model)]),
        ("random_plans", subsets(count)),
    ):
        note(**{stage: agreement(judge, plans, asked.seconds / 2)})


def main() -> int:
    """Study the models one after the other; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--folder", type=Path, required=True, help="models are read and made here")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--small", action="store_true", help="batches of one, for a dry run")
    parser.add_argument("--seconds", type=float, default=120.0, help="for judging a model's plans")
    parser.add_argument("--workers", type=int, default=4, help="engines built at a time")
    given = vars(parser.parse_args())
    asked = Asked(**{**given, "models": tuple(given["models"])})
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.folder.mkdir(parents=True, exist_ok=True)
    failed = False
    with tempfile.TemporaryDirectory() as work:
        common = {
            "machine": machine(),
            "command": " ".join(sys.argv),
            "self_check": self_check(asked, Path(work)),
        }
        print(json.dumps(common, indent=1), flush=True)
        for name in asked.models:
            try:
                study(name, asked, Path(work), {"model": name, **common})
            except Exception:  # the other models are worth their time all the same
                failed = True
                traceback.print_exc()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
