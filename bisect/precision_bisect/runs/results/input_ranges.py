"""What the range of an input means for the answer, in `result.json`."""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRange:
    """An input on whose size the error of an operator depends, and what its range came to.

    The `operators` and their `layers` are empty for an input that only --range names.

    The samples hold values from `samples[0]` to `samples[1]`; with them a layer reads at most
    `reads`, where the low type has steps of `step`. `range` is what --range says, or
    the data type; None where neither does. At its ends it `reads_at_ends` at most. Of `variants`,
    made of the samples with the input at an end, so many have `failed`, `error` being the largest;
    `passed` is None where none was tried.
    """

    input: str
    operators: Sequence[str]
    layers: Sequence[str]
    samples: Sequence[Figure]
    reads: Figure
    step: Figure
    range: Sequence[Figure] | None = None
    reads_at_ends: Figure | None = None
    step_at_ends: Figure | None = None
    passed: bool | None = None
    error: Figure | None = None
    variants: Count = 0
    failed: Count = 0
