"""Golden inputs and outputs: samples and what FP32 makes of them, in Polygraphy's JSON.

Polygraphy reads them by --load-inputs and --load-outputs, `run_onnxruntime.py` by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.exports.layer_precisions import NotWritable
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.protocols import Sample

MOST_GOLDEN_SAMPLES = 16
MOST_GOLDEN_BYTES = 64 * 2**20
"""Of all arrays together; as text they take a third more."""
RUNNER = "onnxruntime-fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """Samples and their FP32 outputs, in the types of the exported model's inputs and outputs.

    `runner` is what Polygraphy calls the run that gave the outputs.
    """

    inputs: Sequence[Sample]
    outputs: Sequence[Sample]
    runner: str = RUNNER

    def inputs_text(self) -> str:
        """Return the inputs as `--load-inputs` reads them."""
        with quiet(), without_torch():
            from polygraphy.json import to_json

            text: str = to_json([dict(sample) for sample in self.inputs])
            return text

    def outputs_text(self) -> str:
        """Return the outputs as `--load-outputs` reads them."""
        with quiet(), without_torch():
            from polygraphy.comparator import RunResults

            results = RunResults()
            results.add([dict(sample) for sample in self.outputs], runner_name=self.runner)
            text: str = results.to_json()
            return text


def golden_of(
    graph: onnx.GraphProto, samples: Sequence[Sample], reference: Sequence[Sample]
) -> Golden:
    """Return as many of the first samples as may be stored, and what FP32 makes of them.

    `graph` is the exported one. Raises NotWritable for text, for types that numpy does not have or
    that do not hold the values, and where one sample is too large.
    """
    takes = {value.name: _dtype(value) for value in graph.input}
    gives = {value.name: _dtype(value) for value in graph.output}
    inputs: list[Sample] = []
    outputs: list[Sample] = []
    room = MOST_GOLDEN_BYTES
    for feed, wanted in zip(samples, reference, strict=True):
        pair = _cast(feed, takes), _cast(wanted, gives)
        room -= sum(array.nbytes for side in pair for array in side.values())
        if room < 0 or len(inputs) == MOST_GOLDEN_SAMPLES:
            break
        inputs.append(pair[0])
        outputs.append(pair[1])
    if not inputs:
        raise NotWritable(f"one sample has more than {MOST_GOLDEN_BYTES // 2**20} MiB")
    return Golden(inputs=inputs, outputs=outputs)


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    """Return the numpy type of a graph's input or output. Raises NotWritable."""
    kind = value.type.tensor_type.elem_type
    try:
        found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, TypeError) as error:
        raise NotWritable(f"{value.name!r} has a type that arrays cannot have") from error
    if found.kind not in "fiubc":
        what = "text" if found.kind == "O" else f"{found.name}, which Polygraphy cannot store"
        raise NotWritable(f"{value.name!r} is {what}")
    return found


def _cast(sample: Sample, types: Mapping[str, np.dtype[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays that have a type there, in that type. Raises NotWritable outside of it."""
    cast = {}
    for name in (name for name in sample if name in types):
        array = np.ascontiguousarray(sample[name]).reshape(sample[name].shape)
        with np.errstate(over="ignore"):
            cast[name] = array.astype(types[name], copy=False)
        if array.dtype.kind == "f" and (np.isfinite(array) & ~np.isfinite(cast[name])).any():
            raise NotWritable(
                f"{name!r} has values beyond the range of {types[name].name}, which the exported "
                "model takes and gives; leave out --io-types"
            )
    return cast
