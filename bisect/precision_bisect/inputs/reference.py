"""The FP32 reference: every float in FP32, run by Polygraphy's ONNX Runtime runner.

What ONNX Runtime's optimizer does to a graph may change its results. A run compares the optimised
session with one that is not on its first sample, and believes the latter where they differ.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError, ModelError, PrecisionBisectError
from precision_bisect.inputs.copies import moved
from precision_bisect.inputs.given_outputs import same_samples
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.machine.stopping import Stopped
from precision_bisect.model.load import Model
from precision_bisect.model.ort import ON_CPU, CheckedGraph, Providers, Session, check, ort_message
from precision_bisect.protocols import Sample

MOST_DIFFERENT = 1e-4
"""Up to this share (see `distances`) two FP32 sessions differ by rounding, without a look.

Sums in another order differ by about 1e-6; what is rewritten wrongly, by far more.
"""
LIBRARIES_DIFFER = 1e-2
"""Other FP32 libraries differ by a smaller share of the largest value, other samples by more."""
_NUDGE = 1e-7
"""The relative change of an input that rounding it to FP32 might have brought."""
_AS_ROUNDING = 10
"""So many times what nudged inputs change is still rounding.

Measured on PP-OCR det and rec and a ConvNeXt: 0.7 to 5 times. In det both are up to 4e-3.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The FP32 outputs of every sample, by name.

    All cores together take `seconds` for a sample in an optimised session. The outputs are those
    of a session that is `optimised`, or else not; `remark` says why not, or what was not checked.
    They can be given although no session `runs` the model. It is `steady` if a session gave the
    same outputs of the first sample twice.
    """

    outputs: list[Sample]
    seconds: float
    optimised: bool = True
    remark: str = ""
    runs: bool = True
    steady: bool = True


def reference_outputs(
    model: Model, samples: Sequence[Sample], threads: int = 0, *, optimised: bool = True
) -> list[Sample]:
    """Return the FP32 outputs of every sample, by output name.

    Raises ModelError when ONNX Runtime cannot load or run the model, or an output is no array of
    numbers.
    """
    graph = check(model.proto, model.weights)
    return _timed(graph, samples, threads, optimised=optimised)[0]


def find_reference(model: Model, samples: Sequence[Sample], threads: int) -> Reference:
    """Return the outputs of an optimised session, or of one that is not where those differ.

    Raises as `reference_outputs` does. One session is open at a time.
    """
    graph = check(model.proto, model.weights)
    (*outputs, again), seconds = _timed(graph, [*samples, samples[0]], threads)
    apart = max(distances(again, outputs[0]).values())
    found = Reference(outputs=outputs, seconds=seconds, steady=not apart)
    # Of random outputs nobody can tell what the optimizer changes.
    if apart > MOST_DIFFERENT:
        return found
    try:
        remark = _changed(graph, samples[0], outputs[0], threads)
    except Stopped:
        raise
    except PrecisionBisectError as error:
        return replace(
            found, remark=f"the reference is unchecked: without optimisation, {error.message}"
        )
    if not remark:
        return found
    outputs, _ = _timed(graph, samples, threads, optimised=False)
    return replace(found, outputs=outputs, optimised=False, remark=remark)


def given_reference(
    model: Model, samples: Sequence[Sample], outputs: Sequence[Sample], threads: int
) -> Reference:
    """Return outputs that were given, beside what ONNX Runtime makes of the first sample.

    Raises ModelError for outputs that no comparator can judge.
    """
    found = [judgeable(each, number) for number, each in enumerate(outputs)]
    try:
        graph = check(model.proto, model.weights)
        (own, again), seconds = _timed(graph, [samples[0]] * 2, threads)
    except Stopped:
        raise
    except PrecisionBisectError as error:
        remark = (
            "nothing forecasts, since ONNX Runtime cannot run the model; layers are ranked by "
            f"engine builds: {error.message}"
        )
        return Reference(outputs=found, seconds=0.0, runs=False, remark=remark)
    apart = [*distances({**own}, {name: found[0][name] for name in own}).items()]
    remark = same_samples(apart, LIBRARIES_DIFFER)
    steady = not any(distances(again, own).values())
    return Reference(outputs=found, seconds=seconds, remark=remark, steady=steady)


def _changed(graph: CheckedGraph, sample: Sample, outputs: Sample, threads: int) -> str:
    """Return what the optimizer changes of a sample's outputs beyond rounding, "" for nothing."""
    (plain,), _ = _timed(graph, [sample], threads, optimised=False)
    apart = distances(outputs, plain)
    # Leaving FP32's range where fused nodes do not makes no better reference.
    if max(apart.values()) <= MOST_DIFFERENT or non_finite([plain]):
        return ""
    (nudged,), _ = _timed(graph, [_nudged(sample)], threads, optimised=False)
    rounding = distances(nudged, plain)
    for name, share in apart.items():
        if share > max(MOST_DIFFERENT, _AS_ROUNDING * rounding[name]):
            of = "its largest value" if plain[name].dtype.kind == "f" else "its values"
            return (
                "the FP32 reference is computed without optimisation: ONNX Runtime's optimizer "
                f"changes output {name!r} of the first sample by {share:.2g} of {of}"
            )
    return ""


def _nudged(sample: Sample) -> Sample:
    """Return the sample with its floats changed as rounding might have."""
    rng = np.random.default_rng(0)
    return {
        name: moved(array, rng, _NUDGE).astype(array.dtype) if array.dtype.kind == "f" else array
        for name, array in sample.items()
    }


def distances(found: Sample, expected: Sample) -> dict[str, float]:
    """Return how far each expected output is from the one found.

    That is the largest difference of floats as a share of the largest value, or the share of
    values that differ where they are none; infinity where shapes differ, or NaN or Inf.
    """
    return {name: _difference(found[name], expected[name]) for name in expected}


def _difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    if found.shape != expected.shape:
        return np.inf
    if expected.dtype.kind != "f":
        return float(np.mean(found != expected)) if expected.size else 0.0
    # A scalar's difference would be no array, and take no assignment.
    exact, wanted = (np.atleast_1d(each).astype(np.float64) for each in (found, expected))
    scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        gap = np.abs(exact - wanted)
    gap[(exact == wanted) | (np.isnan(exact) & np.isnan(wanted))] = 0.0
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)) / scale


def _timed(
    graph: CheckedGraph, samples: Sequence[Sample], threads: int, *, optimised: bool = True
) -> tuple[list[Sample], float]:
    """Return the outputs, and the seconds that all cores together take for a sample.

    The first sample warms up. Raises as `reference_outputs` does.
    """
    session = Session(graph, threads=threads, optimised=optimised)
    results = []
    spent = [time.process_time()]
    with quiet(), without_torch():
        from polygraphy.backend.onnxrt import OnnxrtRunner

        try:
            with OnnxrtRunner(session.stoppable) as runner:
                for sample in samples:
                    # The inputs were checked; Polygraphy's own check knows no text.
                    results.append(dict(runner.infer(dict(sample), check_inputs=False)))
                    spent.append(time.process_time())
        except Stopped:
            raise
        except Exception as error:  # Polygraphy and ONNX Runtime raise classes of their own
            raise InputError(
                f"ONNX Runtime cannot run the model on these inputs: {ort_message(error)}",
                "check the inputs' shapes and values",
            ) from error
    outputs = [judgeable(outputs, number) for number, outputs in enumerate(results)]
    return outputs, min((end - start for start, end in pairwise(spent)), default=0.0)


def judgeable(outputs: Mapping[str, Any], number: int) -> Sample:
    """Return the outputs as they are; raise ModelError for one that no comparator can judge."""
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise ModelError(
                f"output {name!r} is no array of numbers for sample {number}, so it cannot be "
                "judged",
                "remove this output from the model",
            )
    return outputs


class ReferenceSession:
    """The FP32 outputs of one feed at a time, by a session that opens when it is first asked.

    The `providers` compute it. With several threads it serves all of them. A call raises
    ModelError where ONNX Runtime cannot load the model, RuntimeError where the run fails.
    """

    def __init__(
        self,
        model: Model,
        threads: int = 0,
        *,
        optimised: bool = True,
        providers: Providers = ON_CPU,
    ) -> None:
        self._model = model
        self._providers = providers
        self._threads = threads
        self.optimised = optimised
        self._opening = threading.Lock()
        self._session: Session | None = None

    def __call__(self, feed: Sample) -> Sample:
        """Return the outputs, by name."""
        with self._opening:
            if self._session is None:
                self._session = Session(
                    self._model.proto,
                    self._model.weights,
                    self._threads,
                    self._providers,
                    optimised=self.optimised,
                )
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
