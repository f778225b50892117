"""How far outputs are from the reference, output by output, in the units that they have."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from precision_bisect.judging.comparators.metrics import widened
from precision_bisect.protocols import Sample
from precision_bisect.trial import OutputError


def output_errors(
    outputs: Sequence[Sample], reference: Sequence[Sample], first: int = 0
) -> Sequence[OutputError]:
    """Return the error of each output whose shape is the reference's in every sample.

    Samples are numbered from `first` on.
    """
    return [
        _error(
            name,
            [sample[name] for sample in outputs],
            [sample[name] for sample in reference],
            first,
        )
        for name in reference[0]
        if all(
            got[name].shape == want[name].shape
            for got, want in zip(outputs, reference, strict=True)
        )
    ]


def together(parts: Iterable[Sequence[OutputError]]) -> Sequence[OutputError]:
    """Return the errors over the samples of all parts, of the outputs that each part has."""
    several = [{error.output: error for error in part} for part in parts] or [{}]
    common = [name for name in several[0] if all(name in part for part in several)]
    return [_together([part[name] for part in several]) for name in common]


def _together(errors: Sequence[OutputError]) -> OutputError:
    elements = sum(error.elements for error in errors)
    return replace(
        max(errors, key=lambda error: (error.elements > 0, error.max)),
        mean=sum(error.mean * error.elements for error in errors) / max(elements, 1),
        p99=max(error.p99 for error in errors),
        elements=elements,
        differing=sum(error.differing for error in errors),
    )


def _nothing(name: str, sample: int) -> OutputError:
    """Return the error of an output without an element."""
    return OutputError(
        output=name,
        max=0.0,
        mean=0.0,
        p99=0.0,
        elements=0,
        differing=0,
        sample=sample,
        index=(),
        expected=0.0,
        got=0.0,
    )


def _error(
    name: str, outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray], first: int
) -> OutputError:
    total, elements, differing, percentiles = 0.0, 0, 0, []
    worst, sample, place = -1.0, 0, 0
    for number, (got, want) in enumerate(zip(outputs, reference, strict=True)):
        if not want.size:
            continue
        # In double: the difference of two large floats may leave their own range.
        flat = (array.astype(np.float64) for array in widened(got, want, as_float=True))
        apart = np.abs(np.subtract(*flat))
        total += float(apart.sum())
        elements += apart.size
        differing += int(np.count_nonzero(apart))
        percentiles.append(float(np.quantile(apart, 0.99)))
        if (largest := float(apart.max())) > worst:
            worst, sample, place = largest, number, int(apart.argmax())
    if not elements:
        return _nothing(name, first)
    index = np.unravel_index(place, reference[sample].shape)
    return OutputError(
        output=name,
        max=worst,
        mean=total / elements,
        p99=max(percentiles),
        elements=elements,
        differing=differing,
        sample=first + sample,
        index=[int(coordinate) for coordinate in index],
        expected=float(reference[sample][index]),
        got=float(outputs[sample][index]),
    )
