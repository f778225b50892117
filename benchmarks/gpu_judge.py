"""Judges an exported model in a process of its own, with no code of the tool.

    python benchmarks/gpu_judge.py PREPARED RUN --limit tol --bound 1e-2 --out judged.json

PREPARED is a folder of `gpu_networks`, RUN the run's. The references are the FP32 model's outputs
on the CPU; they are kept in PREPARED. The answer is opened with the options that `result.json`
recommends, and judged on the samples, on copies of them, and on fresh samples. A copy is one of
all samples, and as bad as its worst; where no input is a float there are none. Latency is measured
with inputs and outputs on the device, for the FP32 model and the answer with the library's own
options but TF32 off, and for the answer with the recommended ones.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from zoo.judge import SEED, Limit, Outputs, Sample, copy_of, error, load, plain

CUDA = "CUDAExecutionProvider"
COPIES = 16
WARM_UP = 10
MOST_RUNS, MOST_S = 200, 3.0
"""What ends the timing of a session."""
OPENING = (
    "provider_options",
    "session_config",
    "graph_optimization_level",
    "disabled_optimizers",
)
"""What of a `deployment` says how a session is opened."""
TF32_OFF: Mapping[str, Any] = {"provider_options": {"use_tf32": "0"}}


def opened(model: Path, options: Mapping[str, Any], provider: str) -> ort.InferenceSession:
    """Return a session with the options of a `deployment`, all of them optional.

    Raises RuntimeError where the provider does not take the model.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    level = options.get("graph_optimization_level", "ORT_ENABLE_ALL")
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    for key, value in options.get("session_config", {}).items():
        settings.add_session_config_entry(key, value)
    own = options.get("provider_options", {}) if provider == CUDA else {}
    session = ort.InferenceSession(
        str(model),
        settings,
        providers=[(provider, own)],
        disabled_optimizers=set(options.get("disabled_optimizers", ())),
    )
    if session.get_providers()[0] != provider:
        raise RuntimeError(f"{provider} does not load here")
    return session


def judge(
    prepared: Path,
    run: Path,
    *,
    limit: Limit,
    bound: float,
    copies: int = COPIES,
    provider: str = CUDA,
) -> dict[str, Any]:
    """Return counts over the limit, worst errors and latencies, for JSON."""
    if provider == CUDA and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    original, answer = prepared / "model.onnx", run / "model.mixed.onnx"
    options = json.loads((run / "result.json").read_text())["deployment"] or TF32_OFF
    rounds = list(_rounds(prepared, copies))
    wanted = _references(original, rounds, prepared / "references")
    begun = time.perf_counter()
    session = opened(answer, options, provider)
    names = [value.name for value in session.get_inputs()]
    errors = {
        kind: [
            max(
                error(session.run(None, {name: sample[name] for name in names}), want, limit)
                for sample, want in zip(samples, wants, strict=True)
            )
            for (other, samples), wants in zip(rounds, wanted, strict=True)
            if other == kind
        ]
        for kind in ("samples", "copies", "fresh")
    }
    judged_s = time.perf_counter() - begun
    sample = rounds[0][1][0]
    latency = {"recommended": timed(session, sample, provider)}
    del session
    for name, model in (("fp32", original), ("answer", answer)):
        latency[name] = timed(opened(model, TF32_OFF, provider), sample, provider)
    return {
        **{kind: _counted(found, bound) for kind, found in errors.items()},
        "options": {key: value for key, value in options.items() if key in OPENING},
        "provider": provider,
        "onnxruntime": ort.__version__,
        "seconds": round(judged_s, 1),
        "latency_ms": latency,
    }


def timed(session: ort.InferenceSession, sample: Sample, provider: str) -> dict[str, float]:
    """Return the median of some inferences in milliseconds, its spread, and their number."""
    device = "cuda" if provider == CUDA else "cpu"
    binding = session.io_binding()
    for value in session.get_inputs():
        array = np.ascontiguousarray(sample[value.name])
        binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
    for value in session.get_outputs():
        binding.bind_output(value.name, device)
    for _ in range(WARM_UP):
        session.run_with_iobinding(binding)
    times: list[float] = []
    while len(times) < MOST_RUNS and (len(times) < WARM_UP or sum(times) < 1e3 * MOST_S):
        begun = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        times.append(1e3 * (time.perf_counter() - begun))
    first, middle, third = statistics.quantiles(times, n=4)
    return {"median": round(middle, 3), "spread": round(third - first, 3), "runs": len(times)}


def _rounds(prepared: Path, copies: int) -> Iterator[tuple[str, list[Sample]]]:
    """Yield samples that are judged together: one at a time, those of a copy all together."""
    judged = load(prepared / "judged")
    for sample in judged:
        yield "samples", [sample]
    if any(value.dtype.kind == "f" for sample in judged for value in sample.values()):
        for seed in np.random.SeedSequence(SEED).spawn(copies):
            rng = np.random.default_rng(seed)
            yield "copies", [copy_of(sample, rng) for sample in judged]
    for sample in load(prepared / "fresh"):
        yield "fresh", [sample]


def _references(
    original: Path, rounds: Sequence[tuple[str, list[Sample]]], kept: Path
) -> list[list[Outputs]]:
    """Return the FP32 outputs of each sample of each round, computed once for all runs."""
    kept.mkdir(exist_ok=True)
    run = None
    wanted: list[list[Outputs]] = []
    numbers: Counter[str] = Counter()
    for kind, samples in rounds:
        path = kept / f"{kind}-{numbers[kind]:03}.npz"
        numbers[kind] += 1
        if not path.exists():
            run = run or plain(original)
            outputs = {
                f"{sample}-{output}": value
                for sample, fed in enumerate(samples)
                for output, value in enumerate(run(fed))
            }
            making = path.with_suffix(".making.npz")
            np.savez(making, **outputs)  # type: ignore[arg-type]  # no allow_pickle
            making.rename(path)
        with np.load(path) as stored:
            count = len(stored) // len(samples)
            wanted.append(
                [
                    [stored[f"{sample}-{output}"] for output in range(count)]
                    for sample in range(len(samples))
                ]
            )
    return wanted


def _counted(errors: Sequence[float], bound: float) -> dict[str, Any]:
    """Return how many errors there are, how many are over the limit, and the worst."""
    over = sum(not each <= bound for each in errors)
    worst = max(errors, default=0.0)
    told = float(f"{worst:.4g}") if np.isfinite(worst) else str(worst)
    return {"count": len(errors), "over": over, "worst": told if errors else None}


def main(argv: Sequence[str] | None = None) -> int:
    """Judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("prepared", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--limit", choices=["tol", "atol"], default="tol")
    parser.add_argument("--bound", type=float, required=True)
    parser.add_argument("--copies", type=int, default=COPIES)
    parser.add_argument("--provider", default=CUDA)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    found = judge(
        given.prepared,
        given.run,
        limit=given.limit,
        bound=given.bound,
        copies=given.copies,
        provider=given.provider,
    )
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
