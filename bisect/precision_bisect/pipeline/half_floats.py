"""What a file's own 16-bit floats and those of its interface mean for a run, for its result."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from precision_bisect.explaining.diagnosis.out_of_range import overflowing_in_file
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.runs.results.file_types import (
    Fp32Search,
    InterfaceCost,
    LostValues,
    Overflow,
)
from precision_bisect.search.driver import Driver
from precision_bisect.search.sample_sets import searched


def fp32_search(prepared: Prepared, *, late: bool) -> Fp32Search | None:
    """Return what a file with 16-bit floats computes in them; None for any other file.

    If it is `late`, nothing is run to find what overflows there.
    """
    model = prepared.case.model
    if not model.in_low:
        return None
    overflows = {} if late else overflowing_in_file(model, prepared.seen())
    kinds = {stored.kind for stored in model.in_low.values()}
    return Fp32Search(
        types=[low.name for low in LOW_TYPES.values() if low.onnx_type in kinds],
        layers=[str(name) for name in model.table.names if name in model.in_low],
        overflowing=[Overflow(node=node, samples=count) for node, count in overflows.items()],
        of_samples=len(prepared.case.fed),
    )


def interface_cost(prepared: Prepared, driver: Driver) -> InterfaceCost | None:
    """Return what the interface costs alone; None where it rounds nothing, or was not tried."""
    model, low = prepared.case.model, prepared.case.options.engine.io_types
    if not model.rounds_ends or low == "model":
        return None
    outcome = driver.outcome_of(prepared.everything, searched(driver.trials))
    if outcome is None:
        return None
    return InterfaceCost(
        low=low,
        error=outcome.error,
        passed=outcome.passed if outcome.verdict is not None else None,
        lost=[*_lost(model, prepared)],
    )


def _lost(model: Model, prepared: Prepared) -> Iterator[LostValues]:
    """Yield what inputs lose, and which outputs leave the range: small outputs may well be 0."""
    inputs, outputs = model.interface.inputs, model.interface.outputs
    ends = [(name, low, prepared.case.samples) for name, low in inputs.items()]
    ends += [
        (name, low, prepared.case.reference) for name, low in outputs.items() if name not in inputs
    ]
    for name, low, samples in ends:
        values = np.concatenate([sample[name].ravel() for sample in samples if name in sample])
        stored = low.round(values)
        zero = _share((values != 0) & (stored == 0)) if name in inputs else 0.0
        infinite = _share(np.isfinite(values) & ~np.isfinite(stored))
        if zero or infinite:
            yield LostValues(name=name, zero=zero, infinite=infinite)


def _share(those: NDArray[np.bool_]) -> float:
    return float(np.mean(those)) if those.size else 0.0
