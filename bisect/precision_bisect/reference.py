"""The FP32 reference: every float in FP32, run by Polygraphy's ONNX Runtime runner."""

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from precision_bisect.errors import InputError, ModelError
from precision_bisect.model.load import Model
from precision_bisect.ort import Session, clean
from precision_bisect.polygraphy_quiet import quiet, without_torch
from precision_bisect.protocols import Sample


def reference_outputs(model: Model, samples: Sequence[Sample], threads: int = 0) -> list[Sample]:
    """Return the FP32 outputs of every sample, by output name.

    Raises ModelError when ONNX Runtime cannot load or run the model, or an output is empty or no
    array of numbers: Polygraphy's comparators pass such outputs unseen.
    """
    return timed_reference(model, samples, threads)[0]


def timed_reference(
    model: Model, samples: Sequence[Sample], threads: int
) -> tuple[list[Sample], float]:
    """Return the outputs, and the seconds that all cores together take for a sample.

    The first sample warms up. Raises as `reference_outputs` does.
    """
    session = Session(model.proto, model.weights, threads)
    results = []
    spent = [time.process_time()]
    with quiet(), without_torch():
        from polygraphy.backend.onnxrt import OnnxrtRunner

        try:
            with OnnxrtRunner(session.raw) as runner:
                for sample in samples:
                    # The inputs were checked; Polygraphy's own check knows no text.
                    results.append(dict(runner.infer(dict(sample), check_inputs=False)))
                    spent.append(time.process_time())
        except Exception as error:  # Polygraphy and ONNX Runtime raise classes of their own
            raise InputError(
                f"ONNX Runtime cannot run the model on these inputs: {clean(error)}",
                "check the inputs' shapes and values",
            ) from error
    outputs = [_judgeable(outputs, number) for number, outputs in enumerate(results)]
    return outputs, min((end - start for start, end in pairwise(spent)), default=0.0)


def _judgeable(outputs: Mapping[str, Any], number: int) -> Sample:
    """Return the outputs as they are; raise ModelError for one that no comparator can judge."""
    for name, array in outputs.items():
        numbers = isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
        if not numbers or array.size == 0:
            what = "is empty" if numbers else "is no array of numbers"
            raise ModelError(
                f"output {name!r} {what} for sample {number}, so it cannot be judged",
                "give inputs that reach it, or remove this output from the model",
            )
    return outputs


class Reference:
    """The FP32 outputs of one feed at a time, by a session that opens when it is first asked.

    With several threads it serves all of them. A call raises ModelError where ONNX Runtime cannot
    load the model, RuntimeError where the run fails.
    """

    def __init__(self, model: Model, threads: int = 0) -> None:
        self._model = model
        self._threads = threads
        self._opening = threading.Lock()
        self._session: Session | None = None

    def __call__(self, feed: Sample) -> Sample:
        """Return the outputs, by name."""
        with self._opening:
            if self._session is None:
                self._session = Session(self._model.proto, self._model.weights, self._threads)
            session = self._session
        return session.run(feed)

    def rest(self) -> None:
        """Give the session's memory back; the next call opens it again."""
        with self._opening:
            self._session = None


def non_finite(outputs: Sequence[Sample]) -> str:
    """Return a sentence about the first NaN or Inf among the outputs, or "" if there is none."""
    for number, sample in enumerate(outputs):
        for name, array in sample.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                bad = int((~np.isfinite(array)).sum())
                return f"output {name!r} has {bad} NaN or Inf of {array.size} in sample {number}"
    return ""
