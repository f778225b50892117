"""What share of a model's work runs low under a plan, by its shapes."""

from collections import Counter
from collections.abc import Mapping
from math import prod
from statistics import median

import onnx

from precision_bisect.graphs.graph import attribute, inner_nodes
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import Shape, tensor_shapes
from precision_bisect.layer_table import ASSIGNED, FIXED, SETTLED, assigned
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.runs.results.low_share import LowShare
from precision_bisect.search.speed.roofline import macs

# Operators that multiply as another one does, and the place of their second operand.
_ALIKE: Mapping[str, tuple[str, int]] = {
    "FusedMatMul": ("MatMul", 1),
    "FusedGemm": ("Gemm", 1),
    "FusedConv": ("Conv", 1),
    "MatMulInteger": ("MatMul", 1),
    "ConvInteger": ("Conv", 1),
    "QLinearMatMul": ("MatMul", 3),
    "QLinearConv": ("Conv", 3),
}
_ATTENTIONS = ("Attention", "MultiHeadAttention", "GroupQueryAttention")


def running_low(model: Model, pair: Pair, plan: Plan, inputs: Mapping[str, Shape]) -> LowShare:
    """Return what runs low under a plan, of a model whose inputs have these shapes.

    A tensor of unknown shape counts as one of the model's median size. Of bodies each node counts
    once: how often a loop runs, or which branch is taken, the file does not say.
    """
    shapes = tensor_shapes(model, inputs)
    sizes = {name: float(prod(shape)) for name, shape in shapes.items()}
    usual = median(sizes.values()) if sizes else 1.0
    types = assigned(model.table, pair, plan)
    layers = {str(layer.name): layer for layer in model.table.layers}
    fixed: Counter[str] = Counter()
    layers_low = 0
    work, low = [0.0, 0.0], [0.0, 0.0]
    for node in model.proto.graph.node:
        layer = layers.get(node.name)
        # What only moves values has no share of the work in either type.
        if layer is None or layer.exclusion not in (*ASSIGNED, *FIXED):
            continue
        runs_low = types.get(layer.name) == pair.low
        if layer.exclusion in FIXED:
            fixed[node.op_type] += max(1, layer.inside)
        elif layer.exclusion in SETTLED:
            fixed[node.op_type] += 1
        else:
            layers_low += runs_low
        names = [name for name in (*node.input, *node.output) if name]
        moved = sum(sizes.get(name, usual) * _width(model, name) for name in names)
        products = sum(
            _multiplications(each, shapes, sizes, usual) for each in (node, *inner_nodes(node))
        )
        for place, amount in enumerate((products, moved)):
            work[place] += amount
            low[place] += amount * runs_low
    shares = [part / whole if whole else None for part, whole in zip(low, work, strict=True)]
    return LowShare(
        layers=layers_low,
        fixed=dict(fixed.most_common()),
        multiplications=shares[0],
        bytes=shares[1],
    )


def _width(model: Model, name: str) -> float:
    """Return the bytes of one element, in the file as it is given; 4 where that is not known."""
    kind = model.elem_types.get(name, onnx.TensorProto.FLOAT)
    try:
        return float(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
    except KeyError:
        return 4.0


def _multiplications(
    node: onnx.NodeProto, shapes: Mapping[str, Shape], sizes: Mapping[str, float], usual: float
) -> float:
    """Return the multiply-adds of a node, those of ONNX Runtime's own operators too."""
    if node.op_type == "MatMulNBits":
        width = attribute(node, "N")
        return sizes.get(node.input[0], usual) * (0 if width is None else width.i)
    if node.op_type in _ATTENTIONS and len(node.input) > 1:
        keys = shapes.get(node.input[1], ())
        # The scores, and as much again for what they weigh.
        return 2 * sizes.get(node.input[0], usual) * (keys[-2] if len(keys) > 1 else 0)
    op_type, place = _ALIKE.get(node.op_type, (node.op_type, 1))
    if op_type != node.op_type and place < len(node.input):
        operands = [node.input[0], node.input[place]]
        alike = onnx.helper.make_node(op_type, operands, node.output[:1])
        alike.attribute.extend(node.attribute)
        return macs(alike, shapes)
    return macs(node, shapes)
