"""Which tensors of a layer its low form changes, and which type holds them then."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx

from precision_bisect.explaining.diagnosis.magnitudes import Held, Magnitudes, Scaled
from precision_bisect.graphs.constant_values import read_constants
from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.graphs.node_settings import settings_of
from precision_bisect.graphs.quantization.quantized_layers import OPERANDS
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.precisions import Pair

_FLOAT = onnx.TensorProto.FLOAT
_CHANNELS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
"""The axis of the first operand along which products are summed. Channels along it share a scale.
"""


def read_low(node: onnx.NodeProto, pair: Pair) -> list[str]:
    """Return the tensors that a node reads low, each once; inputs such as axes do not count."""
    if pair.low in QUANTIZED:
        return list(dict.fromkeys(node.input[i] for i in OPERANDS if i < len(node.input)))
    settings = settings_of(node)
    return list(dict.fromkeys(each for i, each in enumerate(node.input) if i not in settings))


def stored_low(node: onnx.NodeProto, pair: Pair) -> list[str]:
    """Return the tensors that a node stores low: an 8-bit layer stores in the high type."""
    return [] if pair.low in QUANTIZED else [name for name in node.output if name]


def held_in(
    model: Model, pair: Pair, scales: Scales, nodes: Sequence[onnx.NodeProto]
) -> dict[str, Held]:
    """Return the type that holds each FP32 tensor that the nodes read or store low.

    Constants are left out: they have figures of their own (see `constants_of`).
    """
    if pair.low in QUANTIZED:
        return dict(_activations(pair, scales, nodes))
    low = LOW_TYPES[pair.low]
    return {
        name: low
        for node in nodes
        for name in (*node.input, *node.output)
        if model.elem_types.get(name) == _FLOAT
    }


def _activations(
    pair: Pair, scales: Scales, nodes: Sequence[onnx.NodeProto]
) -> Iterator[tuple[str, Scaled]]:
    axes: dict[str, set[int | None]] = {}
    for node in nodes:
        for position in OPERANDS:
            if (name := node.input[position]) in scales.activations:
                axes.setdefault(name, set()).add(_channels(node, position))
    for name, along in axes.items():
        scale = np.array(scales.activations[name], np.float32)
        # A channel to one reader is none to another that sums along another axis.
        channels = along.pop() if len(along) == 1 else None
        yield name, Scaled(kind=QUANTIZED[pair.low], scale=scale, channels=channels)


def _channels(node: onnx.NodeProto, position: int) -> int | None:
    """Return the axis of an operand's channels; None where it has none that are known."""
    transposed = attribute(node, "transA")
    if position != 0 or (transposed is not None and transposed.i):
        return None
    return _CHANNELS[node.op_type]


def constants_of(
    model: Model, pair: Pair, scales: Scales, nodes: Sequence[onnx.NodeProto]
) -> Mapping[str, Magnitudes]:
    """Return the magnitudes of the FP32 constants that the nodes read low, settings apart."""
    found = {}
    readers = frozenset(node.name for node in nodes)
    for name, array in read_constants(model, readers).values.items():
        held: Held
        if pair.low not in QUANTIZED:
            held = LOW_TYPES[pair.low]
        elif name in scales.weights:
            scale = scales.weights[name].along(array.ndim)
            held = Scaled(kind=QUANTIZED[pair.low], scale=scale)
        else:
            continue
        found[name] = Magnitudes()
        found[name].add(array.astype(np.float32, copy=False), held)
    return found
