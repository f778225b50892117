"""Sessions of ONNX Runtime timed in turns with a baseline, as CUDA graphs where they can be."""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

TURNS = 5
TURN_S = 0.02
LEAST_RUNS = 3
"""Turns of each model that count, the seconds of one, and its inferences at least."""


@dataclass(slots=True, kw_only=True)
class Bound:
    """A session with inputs and outputs on the device, as a CUDA graph where it can be one."""

    session: Any
    samples: Sequence[Any]
    wanted: Sequence[Any]
    graph: bool
    device: str
    binding: Any = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[Any] = ()

    def run(self) -> None:
        """Run once, and wait for the end."""
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()

    def bind(self, sample: Any, want: Any) -> None:
        """Take memory on the device for a sample and for what the FP32 model makes of it."""
        from onnxruntime import OrtValue

        self.binding = self.session.io_binding()
        self.inputs = {
            each.name: OrtValue.ortvalue_from_numpy(
                np.ascontiguousarray(sample[each.name]), self.device, 0
            )
            for each in self.session.get_inputs()
        }
        self.outputs = [
            OrtValue.ortvalue_from_shape_and_type(list(each.shape), each.dtype, self.device, 0)
            for each in want
        ]
        for name, given in self.inputs.items():
            self.binding.bind_ortvalue_input(name, given)
        for each, held in zip(self.session.get_outputs(), self.outputs, strict=True):
            self.binding.bind_ortvalue_output(each.name, held)

    def errors(self, limit: Any, parts: int = 1) -> list[float]:
        """Return the error of each sample, of each of its `parts` where it is several."""
        from zoo.judge import error

        errors: list[float] = []
        for sample, want in zip(self.samples, self.wanted, strict=True):
            if self.graph:
                for name, value in self.inputs.items():
                    value.update_inplace(np.ascontiguousarray(sample[name]))
            else:
                self.bind(sample, want)
            self.run()
            split = [
                (np.split(output.numpy(), parts), np.split(wanted, parts))
                for output, wanted in zip(self.outputs, want, strict=True)
            ]
            errors += [
                error([outputs[part] for outputs, _ in split], [w[part] for _, w in split], limit)
                for part in range(parts)
            ]
        return errors


def opened_for(
    model: Path,
    options: Mapping[str, Any],
    samples: Sequence[Any],
    wanted: Sequence[Any],
    provider: str,
) -> Bound:
    """Return a session that has run; with a CUDA graph if all of it runs on the device.

    Samples of several shapes are none of one graph.
    """
    from gpu_judge import CUDA, opened

    device = "cuda" if provider == CUDA else "cpu"
    own = {**options.get("provider_options", {}), "enable_cuda_graph": "1"}
    shapes = {tuple(value.shape for value in sample.values()) for sample in samples}

    def bound(options: Mapping[str, Any], *, graph: bool) -> Bound:
        session = opened(model, options, provider)
        found = Bound(session=session, samples=samples, wanted=wanted, graph=graph, device=device)
        found.bind(samples[0], wanted[0])
        for _ in range(3):
            found.run()
        return found

    if len(shapes) == 1 and provider == CUDA:
        # No graph where a node runs on the CPU, whatever the library says of it.
        with suppress(Exception):
            return bound({**options, "provider_options": own}, graph=True)
    return bound(options, graph=False)


def in_turns(bound: Bound, baseline: Bound) -> dict[str, float]:
    """Return milliseconds of a model, and how many times as fast as the baseline it is.

    Each turn of the model lies between two of the baseline, whose mean cancels a clock's drift.
    """
    baseline_turns = [_turn(baseline)]
    turns = []
    for _ in range(TURNS):
        turns.append(_turn(bound))
        baseline_turns.append(_turn(baseline))
    beside = [statistics.fmean(pair) for pair in pairwise(baseline_turns)]
    first, middle, third = statistics.quantiles(turns, n=4)
    ratios = [high / own for high, own in zip(beside, turns, strict=True)]
    low, speedup, high = statistics.quantiles(ratios, n=4)
    return {
        "median": round(middle, 4),
        "spread": round(third - first, 4),
        "speedup": round(speedup, 4),
        "speedup_spread": round(high - low, 4),
    }


def _turn(bound: Bound) -> float:
    """Return the median milliseconds of the runs of a turn; the first is not counted."""
    bound.run()
    times: list[float] = []
    while len(times) < LEAST_RUNS or sum(times) < 1e3 * TURN_S:
        begun = time.perf_counter()
        bound.run()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)
