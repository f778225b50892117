"""Whether `verify`'s verdicts agree with an independent reading of real TensorRT-RTX engines.

    pip install --group models onnxscript && python benchmarks/verdict_networks.py networks
    python benchmarks/verdicts.py networks/*.onnx --out benchmarks/results/verdicts.json
    python benchmarks/verdicts.py --zoo zoo-cache --out benchmarks/results/verdicts_zoo.json

No GPU is needed. Of each network engines are built for random plans, and with each layer that has
weights kept alone, with and without a guard. With `--zoo` the answers of the runs below a zoo's
folder are built instead. The reading knows nothing of kernels, names or
metadata: it looks for the bytes of a kept layer's weights in the engine file. Weights that FP16
cannot hold exactly are there as FP32, or in pieces as FP16, or neither where the builder has
folded them into others.
"""

import argparse
import json
import multiprocessing
import platform
import random
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from precision_bisect.backends.backend_plugin import sample_shapes
from precision_bisect.backends.tensorrt.flavour import load_flavour
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.graphs.constant_values import TypedConstants
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.judging.inputs.synthetic import synthetic_samples
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import BackendFailure
from precision_bisect.runs.runfolder import ENGINE
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Honour

Reading: TypeAlias = Literal["fp32", "fp16", "unclear", "no weights"]
Shape: TypeAlias = tuple[int, ...]

SHAPES: Mapping[str, Mapping[str, Shape]] = {
    "masked": {"ids": (2, 16), "mask": (2, 16)},
    "unet": {"x": (1, 3, 32, 32)},
}
"""Shapes of dynamic inputs, by the name of the network."""
LEAST_VALUES = 32
"""Values that tell FP32 from FP16 which a weight must have; fewer may be there by chance."""
MOST_VALUES = 4096
RUN = 4
"""FP16 values in a row that are looked for: 64 bits are in no engine by chance."""
RUNS = 64
THERE, ABSENT = 0.95, 0.05
"""Shares of the values, or runs, from which they are taken to be in the engine, or not."""
PLANS = 8
"""Random plans of each network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kept layer of one engine: what `verify` says, and what the engine file shows.

    `plan` is "all", "alone" or "random", with "unguarded" behind it where no guard was added.
    """

    network: str
    plan: str
    layer: str
    op_type: str
    verdict: str
    reading: Reading
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An engine that was not built, or whose build ended the process."""

    network: str
    plan: str
    kept: Sequence[str]
    why: str


def reading(weight: NDArray[np.float32], engine: bytes) -> Reading:
    """Return in which type the engine file holds the weight."""
    exact = weight.astype(np.float16).astype(np.float32) == weight
    values = np.unique(weight[~exact & np.isfinite(weight)])[:MOST_VALUES]
    if values.size < LEAST_VALUES:
        return "unclear"
    words = np.frombuffer(engine[: len(engine) // 4 * 4], np.uint32)
    high = float(np.isin(values.view(np.uint32), words).mean())
    low = _low_share(weight, engine)
    if high >= THERE and low <= ABSENT:
        return "fp32"
    return "fp16" if high <= ABSENT and low >= THERE else "unclear"


def _low_share(weight: NDArray[np.float32], engine: bytes) -> float:
    """Return the share of short runs of FP16 values that are there, along the best axis."""
    with np.errstate(over="ignore"):
        low = weight.astype(np.float16)
    best = 0.0
    for axis in range(low.ndim):
        rows = np.ascontiguousarray(np.moveaxis(low, axis, -1)).reshape(-1, low.shape[axis])
        if rows.shape[1] < RUN:
            continue
        chosen = rows[:: max(1, len(rows) // RUNS)]
        best = max(best, float(np.mean([row[:RUN].tobytes() in engine for row in chosen])))
    return best


def weights_of(model: Model) -> dict[LayerName, NDArray[np.float32]]:
    """Return the largest weight of each candidate that no other node reads."""
    readers = Counter(name for node in model.proto.graph.node for name in set(node.input))
    constants, names = TypedConstants(model), set(model.table.names)
    found = {}
    for node in model.proto.graph.node:
        own = [constants.array(name) for name in node.input if readers[name] == 1]
        held = [np.asarray(array, np.float32) for array in own if array is not None]
        if node.name in names and held:
            found[LayerName(node.name)] = max(held, key=lambda each: each.size)
    return found


def plans(names: Sequence[LayerName], weighty: Sequence[LayerName]) -> Iterator[tuple[str, Plan]]:
    """Yield the plans to build, each with what it is."""
    rng = random.Random(0)
    yield "all", Plan.all_high(len(names))
    for name in weighty:
        yield "alone", Plan.of([names.index(name)])
    for _ in range(PLANS):
        yield "random", Plan.of(i for i in range(len(names)) if rng.random() < rng.random())


def build(path: Path, what: str, plan: Plan, guard: bool) -> list[Row] | Failed:
    """Build one plan and return a row for each kept layer that has weights."""
    kind = what if guard else f"{what} unguarded"
    pair = Pair(low="fp16", high="fp32")
    model = pin_formless(load_model(path), pair)
    samples = synthetic_samples(model, _shapes(path), count=1, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        work, saved = Path(folder, "work"), Path(folder, "saved")
        work.mkdir()
        saved.mkdir()
        settings = EngineSettings(compute_capability="8.6", guard_islands=guard)
        make = partial(TensorRTBackend, settings=settings, flavour=load_flavour("tensorrt-rtx"))
        shapes = sample_shapes(model, samples)
        backend = make(TypedWriter(model, pair), shapes=shapes, workdir=work)
        kept = [str(model.table.names[i]) for i in plan.indices]
        try:
            with backend.build(plan) as engine:
                engine.save(saved)
                honours = engine.evidence().honours
        except BackendFailure as failure:
            why = failure.outcome.message
            return Failed(network=path.stem, plan=kind, kept=kept, why=why)
        data = (saved / ENGINE).read_bytes()
    weights, kinds = weights_of(model), {la.name: la.op_type for la in model.table.layers}
    return [
        Row(
            network=path.stem,
            plan=kind,
            layer=each.layer,
            op_type=kinds[LayerName(each.layer)],
            verdict=each.honoured.value,
            reading=reading(weights[LayerName(each.layer)], data)
            if each.layer in weights
            else "no weights",
            evidence=each.evidence,
        )
        for each in honours
    ]


def _shapes(path: Path) -> Mapping[str, Shape]:
    """Return the shapes of a network's dynamic inputs: those of the zoo's samples beside it."""
    for sample in sorted((path.parent / "judged").glob("*.npz"))[:1]:
        with np.load(sample) as arrays:
            return {name: array.shape for name, array in arrays.items()}
    return SHAPES.get(path.stem, {})


def answer_rows(zoo: Path) -> Iterator[tuple[str, list[Row] | Failed]]:
    """Yield what the engine of each answer of a zoo's runs shows, by the run's name."""
    spawn = multiprocessing.get_context("spawn")
    for run in sorted(zoo.glob("runs/*")):
        path = zoo / run.name.partition("-")[0] / "model.onnx"
        if not path.is_file():
            continue
        kept = json.loads((run / "result.json").read_text(encoding="utf-8"))["kept"]
        if not kept:
            continue
        names = list(pin_formless(load_model(path), Pair(low="fp16", high="fp32")).table.names)
        plan = Plan.of(map(names.index, kept))
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            try:
                yield run.name, pool.submit(build, path, run.name, plan, True).result()
            except BrokenProcessPool:
                why = "the process crashed"
                yield run.name, Failed(network=path.parent.name, plan=run.name, kept=kept, why=why)


def rows_of(path: Path) -> Iterator[list[Row] | Failed]:
    """Yield what each engine of a network shows; another process builds, as builds may crash."""
    model = pin_formless(load_model(path), Pair(low="fp16", high="fp32"))
    weighty = list(weights_of(model))
    asked = [
        (what, plan, guard)
        for what, plan in plans(model.table.names, weighty)
        for guard in ((True, False) if what == "alone" else (True,))
    ]
    spawn = multiprocessing.get_context("spawn")
    while asked:
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            try:
                while asked:
                    yield pool.submit(build, path, *asked[0]).result()
                    asked.pop(0)
            except BrokenProcessPool:
                what, plan, guard = asked.pop(0)
                kept = [str(model.table.names[i]) for i in plan.indices]
                kind = what if guard else f"{what} unguarded"
                yield Failed(network=path.stem, plan=kind, kept=kept, why="the process crashed")


def compared(rows: Sequence[Row]) -> dict[str, Any]:
    """Return how often verdicts and readings agree, and the rows where they contradict."""
    agree = {Honour.HONOURED.value: "fp32", Honour.DEMOTED.value: "fp16"}
    against = {Honour.HONOURED.value: "fp16", Honour.DEMOTED.value: "fp32"}
    return {
        "verdicts": len(rows),
        "agree": sum(agree.get(row.verdict) == row.reading for row in rows),
        "contradict": [asdict(row) for row in rows if against.get(row.verdict) == row.reading],
        "pairs": _pairs(rows),
    }


def _pairs(rows: Sequence[Row]) -> dict[str, int]:
    return dict(Counter(f"{row.verdict}, read as {row.reading}" for row in rows).most_common())


def main() -> None:
    """Build, compare and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--zoo", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows: list[Row] = []
    failed: list[Failed] = []
    engines: Counter[str] = Counter()
    found = [(path.stem, each) for path in args.models for each in rows_of(path)]
    found += answer_rows(args.zoo) if args.zoo else []
    for name, each in found:
        engines[name] += 1
        if isinstance(each, Failed):
            failed.append(each)
        else:
            rows += [replace(row, network=name) for row in each]
    unseen = (row.op_type for row in rows if row.verdict == Honour.NOT_OBSERVABLE.value)
    networks = list(engines)
    told = {
        "command": shlex.join(["python", "benchmarks/verdicts.py", *sys.argv[1:]]),
        "versions": {name: version(name) for name in ("tensorrt_rtx", "onnx", "numpy")},
        "python": platform.python_version(),
        "target": "8.6",
        "engines": dict(engines),
        **compared(rows),
        "by_network": {n: _pairs([row for row in rows if row.network == n]) for n in networks},
        "unseen": dict(Counter(unseen)),
        "failed": [asdict(each) for each in failed],
    }
    args.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
