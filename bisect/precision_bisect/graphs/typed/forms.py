"""Which inputs and outputs of a node can be of the low type, by the node's ONNX schema.

All floats that a low node reads must be low, weights too: strongly typed engines want operands of
one type, even where ONNX would allow a mixture. Only settings (sizes, axes, ratios) stay FP32.

INT8 and FP8 are as in TensorRT's explicit quantization: activations are quantized with one scale
per tensor, weights are stored quantized with one scale per output channel. Bias and outputs stay
in the float type that the layer is stored in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx

from precision_bisect.graphs.graph import settings_of
from precision_bisect.graphs.lowtypes import BF16, LowType
from precision_bisect.graphs.quantization.quantized_layers import OPERANDS, quantizable
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.precisions import QuantizedName

_FLOAT = onnx.TensorProto.FLOAT
_TYPE_NAMES: dict[int, str] = {
    onnx.TensorProto.FLOAT16: "tensor(float16)",
    onnx.TensorProto.BFLOAT16: "tensor(bfloat16)",
}
_FP32_INSIDE = frozenset(("MeanVarianceNormalization",))
"""Operators whose ONNX definition adds an FP32 constant to what they read."""
_NO_BF16 = frozenset(["GRU", "GlobalLpPool", "HardSwish", "LpNormalization", "LpPool", "Mish"])
"""Operators that ONNX has in bfloat16 and TensorRT's parser refuses in it.

Seen with TensorRT-RTX 1.7.1, and read for 10.0 to 10.10 in onnxOpImporters.cpp of
github.com/onnx/onnx-tensorrt.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowForm:
    """The positions of the inputs and of the outputs that are low when the node runs low."""

    inputs: frozenset[int]
    outputs: frozenset[int]


class NoLowForm(Exception):
    """The node cannot run low; the message says why, in one sentence."""


def low_form(
    node: onnx.NodeProto, opset: int, low: LowType, elem_types: Mapping[str, int]
) -> LowForm:
    """Return the low form of a standard ONNX node in a model of this opset.

    `elem_types` are the ONNX element types of the model's tensors with every float in FP32. Raises
    NoLowForm where ONNX knows none.
    """
    try:
        schema = _schema(node.op_type, opset)
    except onnx.defs.SchemaError as error:
        raise NoLowForm(f"onnx {onnx.__version__} does not know {node.op_type}") from error
    if node.op_type in _FP32_INSIDE:
        raise NoLowForm(f"ONNX defines {node.op_type} with an FP32 constant inside")
    if low is BF16 and node.op_type in _NO_BF16:
        raise NoLowForm(f"TensorRT's parser takes no {node.op_type} in bf16")
    wanted = _TYPE_NAMES[low.onnx_type]
    settings = settings_of(node)
    inputs, variables = set(), set()
    for i, name in enumerate(node.input):
        if elem_types.get(name) != _FLOAT or i in settings:
            continue
        variable = _variable(schema.inputs, i)
        if wanted not in _allowed(schema, variable):
            what = schema.inputs[min(i, len(schema.inputs) - 1)].name
            raise NoLowForm(
                f"{node.op_type} takes no {low.name} as its input {what!r} at opset {opset}"
            )
        inputs.add(i)
        variables.add(variable)
    # An output is low if its type variable is that of a low input.
    outputs = {
        i
        for i, name in enumerate(node.output)
        if elem_types.get(name) == _FLOAT and _variable(schema.outputs, i) in variables
    }
    if not outputs:
        raise NoLowForm(f"no low input decides the type of what {node.op_type} returns")
    return LowForm(inputs=frozenset(inputs), outputs=frozenset(outputs))


@lru_cache(maxsize=1024)
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(op_type, opset)


def _variable(formals: Sequence[onnx.defs.OpSchema.FormalParameter], position: int) -> str:
    """Return the type variable, or the type, of a parameter; the last one may stand for many."""
    return formals[min(position, len(formals) - 1)].type_str


def _allowed(schema: onnx.defs.OpSchema, variable: str) -> list[str]:
    for constraint in schema.type_constraints:
        if constraint.type_param_str == variable:
            return list(constraint.allowed_type_strs)
    return [variable]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedForm:
    """The positions of the inputs that are quantized: activations, and weights by channel."""

    activations: tuple[int, ...]
    weights: tuple[int, ...]


def quantized_form(node: onnx.NodeProto, low: QuantizedName, scales: Scales) -> QuantizedForm:
    """Return which inputs of a node are quantized. Raises NoLowForm where it cannot be."""
    if not quantizable(node):
        raise NoLowForm(f"no {low.upper()} kernel for {node.op_type}")
    names = {i: node.input[i] for i in OPERANDS}
    for name in names.values():
        if name not in scales.weights and name not in scales.activations:
            raise NoLowForm(f"its input {name!r} has no calibrated scale")
    weights = tuple(i for i, name in names.items() if name in scales.weights)
    return QuantizedForm(
        activations=tuple(i for i in OPERANDS if i not in weights), weights=weights
    )
