"""What TensorRT-RTX makes of operators whose inputs, and outputs, go through INT8 or FP8.

An operator of FP32 stands behind a QuantizeLinear and a DequantizeLinear for each of its operands,
and before another pair or none. It is built for the first GPUs that have the type.
"""

import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from engines.children import Children, one_line
from engines.operator_models import FLOAT, NODE
from precision_bisect.backends.inspection.engine_layers import parse_layers
from precision_bisect.graphs.graph import refill, settings_of
from rtx import build

TYPES: Mapping[str, tuple[int, str]] = {
    "INT8": (TensorProto.INT8, "SM86"),
    "FP8": (TensorProto.FLOAT8E4M3FN, "SM89"),
}
"""The type that operands go through, and the GPU that is built for."""
FORMS = ("before", "around")
OPSET = 19
"""The first whose QuantizeLinear knows FP8."""
SCALE = 0.05
GENERATED = "kgen"
REFUSED = "no: "
_STEP, _ZERO = "pair/scale", "pair/zero"


def quantized(placed: onnx.ModelProto, kind: int, form: str) -> onnx.ModelProto:
    """Return a model of `between` with pairs before the node's operands, or around the node.

    Operands are the floats of two dimensions and more, or the first: not biases and settings.
    """
    model = onnx.ModelProto.FromString(placed.SerializeToString())
    graph = model.graph
    model.opset_import[0].version = max(model.opset_import[0].version, OPSET)
    ranks = _ranks(model)
    graph.initializer.append(helper.make_tensor(_STEP, FLOAT, [], [SCALE]))
    graph.initializer.append(helper.make_tensor(_ZERO, kind, [], [0]))
    nodes = []
    for node in graph.node:
        if node.name != NODE:
            nodes.append(node)
            continue
        settings = settings_of(node)
        floats = [i for i, name in enumerate(node.input) if name in ranks and i not in settings]
        operands = [i for i in floats if ranks[node.input[i]] >= 2]
        for i in operands or floats[:1]:
            nodes += _pair(node.input[i], f"pair/operand_{i}")
            node.input[i] = f"pair/operand_{i}"
        nodes.append(node)
        if form == "around":
            first = next(i for i, name in enumerate(node.output) if name)
            nodes += _pair("pair/result", node.output[first])
            node.output[first] = "pair/result"
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    refill(graph.node, copies)
    return model


def _pair(source: str, result: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [source, _STEP, _ZERO], [f"{result}_low"]),
        helper.make_node("DequantizeLinear", [f"{result}_low", _STEP, _ZERO], [result]),
    ]


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    """Return the ranks of FP32 tensors, as far as ONNX infers them."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    ranks = {
        tensor.name: len(tensor.dims) for tensor in graph.initializer if tensor.data_type == FLOAT
    }
    for value in (*graph.input, *graph.value_info):
        if value.type.tensor_type.elem_type == FLOAT:
            ranks[value.name] = len(value.type.tensor_type.shape.dim)
    return ranks


def reads(model: onnx.ModelProto, target: str) -> str:
    """Build a model; return the types that the node's own kernels read, or why there are none.

    "generated" is a kernel that the builder wrote for several operators: it may read what the
    pairs read.
    """
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.onnx"
        onnx.save(model, path)
        try:
            text = build(path, target=target)
        except AssertionError as error:
            return f"{REFUSED}{one_line(str(error))}"
    layers = [layer for layer in parse_layers(text) if NODE in layer.nodes]
    own = [layer for layer in layers if layer.kind != GENERATED]
    types = {tensor.dtype for layer in own for tensor in layer.inputs}
    return ", ".join(sorted(types)) or ("generated" if layers else "not shown")


def rows(
    operator: str, models: Iterable[onnx.ModelProto], children: Children
) -> dict[str, dict[str, str]]:
    """Return by type and form what an operator's kernels read, of the first model that is built.

    Where none is, the words are those for the first. `models` are of `between`.
    """
    first: dict[str, dict[str, str]] = {}
    for model in models:
        answers = {
            name: {
                form: children.call(reads, quantized(model, kind, form), target) for form in FORMS
            }
            for name, (kind, target) in TYPES.items()
        }
        print(operator, answers, file=sys.stderr)
        if not answers["INT8"]["before"].startswith(REFUSED):
            return answers
        first = first or answers
    return first
