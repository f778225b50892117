"""What an exported model does on samples, on copies of them, and on samples it was not made for.

The reference is plain ONNX Runtime on the original model, for each copy anew. A copy is
x · (1 + 1e-5 · N(0, 1)) of each float input. Where no input is a float, a copy is an evaluation
with noise of 1e-6 on each FP16 result before it is rounded, about what another order of FP32
summation does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from zoo.rounded import rounded

JITTER = 1e-5
NOISE = 1e-6
COPIES = 20
SEED = 25

Limit = Literal["tol", "atol"]
Sample = Mapping[str, NDArray[Any]]
Outputs = list[NDArray[Any]]
Run = Callable[[Sample], Outputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Errors in the limit's own unit; a copy is one of all samples, and as bad as its worst."""

    copied: Literal["inputs", "inside"]
    error: float
    copies: int
    copies_failed: int
    error_median: float
    error_max: float
    fresh: int
    fresh_failed: int
    fresh_max: float


def judge(
    original: Path,
    exported: Path,
    *,
    judged: Sequence[Sample],
    fresh: Sequence[Sample],
    limit: Limit,
    bound: float,
    copies: int = COPIES,
) -> Judgement:
    """Measure an exported model against its original."""
    reference, answer = plain(original), evaluator(exported)
    floats = any(value.dtype.kind == "f" for sample in judged for value in sample.values())

    def measure(sample: Sample, run: Run = answer) -> float:
        return error(run(sample), reference(sample), limit)

    draws = answer if floats else evaluator(exported, NOISE)
    seeds = np.random.SeedSequence(SEED).spawn(copies)
    spread = [
        max(measure(copy_of(sample, rng), draws) for sample in judged)
        for rng in map(np.random.default_rng, seeds)
    ]
    unseen = [measure(sample) for sample in fresh]
    return Judgement(
        copied="inputs" if floats else "inside",
        error=max(map(measure, judged)),
        copies=copies,
        copies_failed=sum(each > bound for each in spread),
        error_median=float(np.median(spread)),
        error_max=max(spread),
        fresh=len(unseen),
        fresh_failed=sum(each > bound for each in unseen),
        fresh_max=max(unseen),
    )


def plain(path: Path) -> Run:
    """Return what runs a model as ONNX Runtime does by itself, Q/DQ as ONNX defines them.

    Its integer kernels in place of Q, DQ and what lies between differ from that by 0.15 in one
    network of the zoo, more than any plan.
    """
    settings = ort.SessionOptions()
    settings.add_session_config_entry("session.disable_quant_qdq", "1")
    return _running(str(path), settings)


def evaluator(path: Path, noise: float = 0.0) -> Run:
    """Return what runs an exported model with each FP16 tensor rounded, nothing optimized.

    Draws of noise follow each other: the same in each process, another one for each run.
    """
    model = onnx.load(path)
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    ort.set_seed(SEED)
    return _running(rounded(model, noise).SerializeToString(), settings)


def error(outputs: Outputs, reference: Outputs, limit: Limit) -> float:
    """Return the largest error of any element: absolute, for `tol` the smaller of both."""
    return max(map(lambda got, want: _error(got, want, limit), outputs, reference))


def copy_of(sample: Sample, rng: np.random.Generator) -> Sample:
    """Return the sample with its floats moved by one part in 100,000."""
    return {name: _moved(value, rng) for name, value in sample.items()}


def load(folder: Path) -> list[Sample]:
    """Return the samples of a folder, in the order of their names."""
    return [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]


def _running(model: str | bytes, settings: Any) -> Run:
    settings.log_severity_level = 3
    session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    types = {value.name: value.type for value in session.get_inputs()}

    def run(sample: Sample) -> Outputs:
        return list(session.run(None, {name: sample[name] for name in types}))

    return run


def _moved(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    if value.dtype.kind != "f":
        return value
    return (value * (1 + JITTER * rng.standard_normal(value.shape))).astype(value.dtype)


def _error(got: NDArray[Any], want: NDArray[Any], limit: Limit) -> float:
    if got.shape != want.shape:
        return float("inf")
    if not got.size:
        return 0.0
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        gap = np.abs(got - want)
        if limit == "tol":
            gap = np.fmin(gap, gap / np.abs(want))
    gap[(got == want) | (np.isnan(got) & np.isnan(want))] = 0
    gap[np.isnan(gap)] = np.inf
    return float(gap.max())
