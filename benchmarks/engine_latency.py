"""Latencies of the all-high, the all-low and the found plan, at a batch that fills the GPU."""

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine_judge import Setting
from engine_models import Case

from precision_bisect.model.fp32_outputs import reference_outputs
from precision_bisect.model.load import Model
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend

FAST_ENOUGH = 1.3
"""A batch is large enough when all-low is so many times faster than all-high."""
ROUNDS = 3


def latencies(
    setting: Setting, make: Callable[[int], Case], sizes: Sequence[int], kept: Collection[str]
) -> dict[str, Any]:
    """Return latencies at the first size that is large enough, else at the last.

    Every plan is built afresh in each of `ROUNDS` rounds, so that a moment of the machine hits all
    plans, and the spread of builds is seen. `error` is the found plan's at that size.
    """
    tried = []
    for size in sizes:
        case = make(size)
        large = replace(setting, path=case.path, samples=case.samples)
        with tempfile.TemporaryDirectory() as work:
            model, backend = large.settle(Path(work))
            plans = _plans(model, kept)
            ends = [_timed(backend, plans[end], large) for end in ("all_high", "all_low")]
            tried.append({"batch": size, "all_high": ends[0], "all_low": ends[1]})
            ratio = _ratio(*ends)
            if size != sizes[-1] and ratio is not None and ratio < FAST_ENOUGH:
                continue
            rounds = [
                {name: _timed(backend, plan, large) for name, plan in plans.items()}
                for _ in range(ROUNDS)
            ]
            return {
                "batch": size,
                "remark": case.remark,
                "tried": tried,
                "rounds": rounds,
                "kept_error": _error(backend, model, plans["kept"], large),
                "versions": dict(backend.versions()),
            }
    raise ValueError("no size to measure at")


def _plans(model: Model, kept: Collection[str]) -> dict[str, Plan]:
    names = model.table.names
    return {
        "all_high": Plan.all_high(len(names)),
        "all_low": Plan.of(()),
        "kept": Plan.of(i for i, name in enumerate(names) if name in kept),
    }


def _timed(backend: Backend, plan: Plan, setting: Setting) -> dict[str, Any] | None:
    """Return the latency of a fresh build; None where the backend measures none."""
    with backend.build(plan) as engine:
        engine.run(setting.samples[0])
        latency = engine.time(setting.samples[0])
        notes = engine.evidence().notes
    return None if latency is None else {**asdict(latency), "notes": list(notes)}


def _ratio(high: dict[str, Any] | None, low: dict[str, Any] | None) -> float | None:
    return None if high is None or low is None else high["median_ms"] / low["median_ms"]


def _error(backend: Backend, model: Model, plan: Plan, setting: Setting) -> float | None:
    reference = reference_outputs(model, setting.samples)
    with backend.build(plan) as engine:
        outputs = [engine.run(sample) for sample in setting.samples]
    return setting.comparator(model).judge(outputs, reference).error
