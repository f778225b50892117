"""The FP32 reference: every float in FP32, run by Polygraphy's ONNX Runtime, or from a file.

What ONNX Runtime's optimizer does to a graph may change its results. A run compares the optimised
session with one that is not on its first sample, and believes the latter where they differ.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError, ModelError, PrecisionBisectError, counted
from precision_bisect.graphs.batching import (
    CannotBatchError,
    batch_of,
    rebatched,
    samples_apart,
    stacked,
)
from precision_bisect.graphs.fp32_outputs import (
    MOST_DIFFERENT,
    ReferenceSession,
    distances,
    judgeable,
    non_finite,
    reference_outputs,
    timed_outputs,
)
from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.ort import CheckedGraph, check
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.copies import moved
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.judging.inputs.input_shapes import fits, show
from precision_bisect.judging.inputs.loops import PLAIN, Loop
from precision_bisect.protocols import Sample

LIBRARIES_DIFFER = 1e-2
"""Other FP32 libraries differ by a smaller share of the largest value, other samples by more."""
_QUANTIZING = frozenset(("QuantizeLinear", "DynamicQuantizeLinear"))
# Samples that are computed without optimisation, too, where a model quantizes. A bound.
_LOOKED_AT = 8
# The relative change of an input that rounding it to FP32 might have brought.
_NUDGE = 1e-7
# So many times what nudged inputs change is still rounding. Measured on PP-OCR det and rec and a
# ConvNeXt: 0.7 to 5 times. In det both are up to 4e-3.
_AS_ROUNDING = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The FP32 outputs of every sample, by name.

    An inference takes all cores together `seconds` in an optimised session. The outputs are those
    of a session that is `optimised`, or else not; `remark` says why not, or what was not checked.
    They can be given although no session `runs` the model. It is `steady` if a session gave the
    same outputs of the first sample twice. `plain` are outputs of the first samples without
    optimisation, of a model that quantizes: the last digit of FP32 decides there on whole steps.
    """

    outputs: list[Sample]
    seconds: float
    optimised: bool = True
    remark: str = ""
    runs: bool = True
    steady: bool = True
    plain: Sequence[Sample] = ()


def find_reference(
    model: Model, samples: Sequence[Sample], threads: int, loop: Loop = PLAIN
) -> Reference:
    """Return the outputs of an optimised session, or of one that is not where those differ.

    Raises as `reference_outputs` does. One session is open at a time.
    """
    graph = check(model.proto, model.weights)
    every = [*samples, samples[0]]
    (*outputs, again), seconds = timed_outputs(graph, every, threads, how=loop)
    apart = max(distances(again, outputs[0]).values())
    reference = Reference(outputs=outputs, seconds=seconds / loop.runs, steady=not apart)
    # Of random outputs nobody can tell what the optimizer changes.
    if apart > MOST_DIFFERENT:
        return reference
    try:
        remark = _changed(graph, samples[0], outputs[0], threads, loop)
        plain = _plain(graph, model, samples, threads, loop) if not remark else ()
    except PrecisionBisectError as error:
        return replace(
            reference, remark=f"the reference is unchecked: without optimisation, {error.message}"
        )
    if not remark:
        return replace(reference, plain=plain)
    outputs, _ = timed_outputs(graph, samples, threads, optimised=False, how=loop)
    return replace(reference, outputs=outputs, optimised=False, remark=remark)


def given_reference(
    model: Model,
    samples: Sequence[Sample],
    outputs: Sequence[Sample],
    threads: int,
    loop: Loop = PLAIN,
) -> Reference:
    """Return outputs that were given, beside what ONNX Runtime makes of the first sample.

    Raises ModelError for outputs that no comparator can judge.
    """
    reference = [judgeable(sample, number) for number, sample in enumerate(outputs)]
    try:
        graph = check(model.proto, model.weights)
        # Twice the same sample: what differs by itself is not steady.
        (own, again), seconds = timed_outputs(graph, [samples[0]] * 2, threads, how=loop)
    except PrecisionBisectError as error:
        remark = (
            "nothing forecasts, since ONNX Runtime cannot run the model; layers are ranked by "
            f"engine builds: {error.message}"
        )
        return Reference(outputs=reference, seconds=0.0, runs=False, remark=remark)
    apart = [*distances({**own}, {name: reference[0][name] for name in own}).items()]
    remark = same_samples(apart, LIBRARIES_DIFFER)
    steady = not any(distances(again, own).values())
    return Reference(outputs=reference, seconds=seconds / loop.runs, remark=remark, steady=steady)


def _plain(
    graph: CheckedGraph, model: Model, samples: Sequence[Sample], threads: int, loop: Loop
) -> Sequence[Sample]:
    """Return what the first samples give without optimisation, if the model quantizes."""
    if not any(node.op_type in _QUANTIZING for node in model.proto.graph.node):
        return ()
    return timed_outputs(graph, samples[:_LOOKED_AT], threads, optimised=False, how=loop)[0]


def _changed(
    graph: CheckedGraph, sample: Sample, outputs: Sample, threads: int, loop: Loop
) -> str:
    """Return what the optimizer changes of a sample's outputs beyond rounding, "" for nothing."""
    (plain,), _ = timed_outputs(graph, [sample], threads, optimised=False, how=loop)
    apart = distances(outputs, plain)
    # Leaving FP32's range where fused nodes do not makes no better reference.
    if max(apart.values()) <= MOST_DIFFERENT or non_finite([plain]):
        return ""
    (nudged,), _ = timed_outputs(graph, [_nudged(sample)], threads, optimised=False, how=loop)
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


_FLAG = "--reference"
_FIGURES, _TEXTS = "biuf", "OUS"
"""Kinds of numpy types that outputs may be stored in."""


def read_outputs(path: Path, model: Model, count: int) -> list[Sample]:
    """Return the outputs of so many samples, by name, in the order of the model's outputs.

    The file is as those that `read_samples` takes, or what `polygraphy run --save-outputs` writes
    of one runner. What is no output of the model is left out. Raises InputError for a file that
    cannot be read or is not of these samples.
    """
    samples = read_samples(path, [spec.name for spec in model.outputs])
    if len(samples) != count:
        raise InputError(
            f"{_FLAG} {path} holds the outputs of {counted(len(samples), 'sample')}, and --inputs "
            f"{count}",
            "give those of every sample, in the same order",
        )
    return [of_model(model, outputs, number) for number, outputs in enumerate(samples)]


def of_model(model: Model, outputs: Sample, number: int) -> Sample:
    """Return the outputs of one sample in the model's order, in the types of a reference.

    Raises InputError for outputs that are not the model's.
    """
    missing = [spec.name for spec in model.outputs if spec.name not in outputs]
    if missing:
        raise InputError(
            f"{_FLAG} lacks {', '.join(missing)} for sample {number}",
            f"the model's outputs are {', '.join(spec.name for spec in model.outputs)}",
        )
    return {spec.name: _as_computed(spec, outputs[spec.name], number) for spec in model.outputs}


def _as_computed(spec: TensorSpec, array: NDArray[Any], number: int) -> NDArray[Any]:
    """Return the array in the type that a reference has, FP32 for any float below."""
    wanted = np.dtype("float32" if spec.dtype in ("float16", "bfloat16", None) else spec.dtype)
    where = f"{_FLAG}: output {spec.name!r} of sample {number}"
    strange = array.dtype.kind not in (_TEXTS if wanted.kind == "O" else _FIGURES)
    if strange or (spec.dtype and (array.dtype.kind == "f") != (wanted.kind == "f")):
        has = spec.dtype or "figures"
        raise InputError(
            f"{where} is {array.dtype.name}, and the model has {has}",
            "give the outputs as the model computes them",
        )
    if not fits(spec, array.shape):
        raise InputError(
            f"{where} has the shape {show(array.shape)}, but the model has {show(spec.shape)}",
            "give the outputs of these samples, in their order, or mend the shape in the model",
        )
    if array.dtype.kind == "f":
        return array.astype(wanted)
    values = array if spec.dtype is None else array.astype(wanted)
    # A cast of integers wraps around without a word.
    if not np.array_equal(values, array):
        raise InputError(
            f"{where} holds values that {spec.dtype} does not have",
            "give the outputs as the model computes them",
        )
    return values


def same_samples(apart: Sequence[tuple[str, float]], limit: float) -> str:
    """Return a remark where ONNX Runtime's own outputs are further apart than rounding, or ""."""
    name, share = max(apart, key=lambda item: item[1])
    if share <= limit:
        return ""
    return (
        f"{_FLAG} is far from what ONNX Runtime computes in FP32: output {name!r} of the first "
        f"sample differs by {share:.2g} of its largest value; check the order of the samples"
    )


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


_HALVING = frozenset(("Conv", "MaxPool", "AveragePool", "LpPool"))
_ENLARGING = frozenset(("Resize", "Upsample", "ConvTranspose", "DepthToSpace"))
_LARGEST_STRIDE = 256


def with_fitting_size(error: InputError, model: Model, sample: Sample) -> InputError:
    """Return the error of a run with images, with a size that was tried where others fit."""
    for name, height, width in _open_images(model, sample):
        stride = _stride(View(model), name)
        # Slices may halve an image, too, before the first layer.
        for multiple in (stride, 2 * stride):
            high, wide = (math.ceil(side / multiple) * multiple for side in (height, width))
            if 1 < multiple <= _LARGEST_STRIDE and _runs(model, sample, name, high, wide):
                return InputError(
                    error.message,
                    f"--image-size {wide}x{high} was tried and fits: multiples of {multiple}",
                )
    return error


def _open_images(model: Model, sample: Sample) -> Iterator[tuple[str, int, int]]:
    """Yield the inputs whose last two dimensions are open, with their sizes in the sample."""
    for spec in model.inputs:
        shape = spec.shape or ()
        if len(shape) == 4 and not any(isinstance(side, int) for side in shape[-2:]):
            yield spec.name, *sample[spec.name].shape[-2:]


def _stride(view: View, start: str) -> int:
    """Return how many pixels the smallest map of an image takes for one, as far as is seen."""
    strides = {start: 1}
    for node in view.nodes:
        reached = [strides[name] for name in node.input if name in strides]
        if not reached:
            continue
        steps = attribute(node, "strides")
        stride, step = max(reached), max(steps.ints if steps is not None else (), default=1)
        if node.op_type in _HALVING:
            stride *= step
        elif node.op_type in _ENLARGING:
            stride = max(1, stride // max(step, 2))
        strides.update(dict.fromkeys(node.output, stride))
    return max(strides.values())


def _runs(model: Model, sample: Sample, name: str, height: int, width: int) -> bool:
    shape = (*sample[name].shape[:2], height, width)
    try:
        reference_outputs(model, [{**sample, name: np.zeros(shape, sample[name].dtype)}])
    except PrecisionBisectError:
        return False
    return True
