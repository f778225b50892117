"""Whether a model computes a batch as it does the samples in it."""

from collections.abc import Sequence
from dataclasses import replace

from precision_bisect.errors import ModelError
from precision_bisect.graphs.batching import (
    CannotBatchError,
    batch_of,
    rebatched,
    samples_apart,
    stacked,
)
from precision_bisect.graphs.fp32_outputs import ReferenceSession
from precision_bisect.graphs.load import Model
from precision_bisect.protocols import Sample


def try_batch(
    model: Model, batch: int, samples: Sequence[Sample], expected: Sequence[Sample], threads: int
) -> None:
    """Run a batch of samples in FP32, and compare with what they come to one by one, `expected`.

    Raises CannotBatchError where that differs, or the model does not run at this batch.
    """
    proto = rebatched(model.proto, batch)
    feed = stacked(samples, batch)
    try:
        outputs = ReferenceSession(replace(model, proto=proto), threads)(feed)
    except (ModelError, RuntimeError) as error:
        raise CannotBatchError(f"the model does not run at batch {batch}: {error}") from error
    samples_apart(expected, outputs, batch_of(samples[0]), batch)
