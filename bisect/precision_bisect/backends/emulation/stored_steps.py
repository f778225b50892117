"""Operators in steps, each of which stores its result in a 16-bit type.

The steps are those of ONNX's own function for an operator, which ONNX Runtime inlines where it has
no kernel. Kernels that go other ways have theirs here.
"""

import onnx
from onnx import helper
from onnx.inliner import inline_selected_functions

from precision_bisect.graphs.graph import attribute, copied, opset
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.node_views import View

_FLOAT = onnx.TensorProto.FLOAT
_CONDITIONS = 9
"""The first opset whose Greater takes integers, and that has Where."""
# Above one image FP32 up to mean and variance, then the low type step by step. The kernel stores
# the variance over n - 1 and corrects it, which is left out: that rounds once or twice more.
_INSTANCE_NORM = """g (float x) => (float y) {{
    wide = Cast<to = 1>(x0)
    wide_mean = GlobalAveragePool(wide)
    wide_centred = Sub(wide, wide_mean)
    squares = Mul(wide_centred, wide_centred)
    wide_variance = GlobalAveragePool(squares)
    mean = Cast<to = {low}>(wide_mean)
    variance = Cast<to = {low}>(wide_variance)
    wide_epsilon = Constant<value = float {{{epsilon}}}>()
    epsilon = Cast<to = {low}>(wide_epsilon)
    spread = Add(variance, epsilon)
    root = Sqrt(spread)
    column = Constant<value = int64[{rank}] {{{column}}}>()
    scale = Reshape(x1, column)
    bias = Reshape(x2, column)
    centred = Sub(x0, mean)
    scaled = Mul(scale, centred)
    normal = Div(scaled, root)
    stepped = Add(normal, bias)
    shape = Shape(x0)
    first = Constant<value = int64 {{0}}>()
    one = Constant<value = int64 {{1}}>()
    batch = Gather(shape, first)
    many = Greater(batch, one)
    single = InstanceNormalization<epsilon = {epsilon}>(x0, x1, x2)
    y0 = Where(many, stepped, single) }}"""

# exp(x) is stored before 1 is taken off: off by 5e-4 wherever x is small.
_EXPONENTIAL = """g (float x) => (float y) {{
    wide_zero = Constant<value = float {{0}}>()
    zero = Cast<to = {low}>(wide_zero)
    wide_one = Constant<value = float {{1}}>()
    one = Cast<to = {low}>(wide_one)
    power = Exp(x0)
    less = Sub(power, one)
    wide_alpha = Constant<value = float {{{alpha}}}>()
    alpha = Cast<to = {low}>(wide_alpha)
    scaled = Mul(alpha, less)
    negative = Less(x0, zero)
    both = Where(negative, scaled, x0)
    wide_gamma = Constant<value = float {{{gamma}}}>()
    gamma = Cast<to = {low}>(wide_gamma)
    y0 = Mul(gamma, both) }}"""
_FACTORS = {"Elu": (1.0, 1.0), "Selu": (1.6732632, 1.050701)}
"""Alpha and gamma, by default."""


class StoredSteps:
    """Knows the nodes of a model's main graph that can be written in steps."""

    def __init__(self, model: Model, view: View) -> None:
        self._model = model
        self._view = view
        self._opset = opset(model.proto)

    def stores(self, node: onnx.NodeProto) -> bool:
        """Tell whether the steps of a node are known, for inputs of some shapes at least."""
        if node.op_type == "InstanceNormalization":
            batch, *_ = self._view.shape(node.input[0]) or (1,)
            return batch != 1 and self._opset >= _CONDITIONS
        if node.op_type in _FACTORS:
            return self._opset >= _CONDITIONS
        return node.op_type == "ReduceSumSquare" or _has_function(node, self._opset)

    def body(self, node: onnx.NodeProto, low: LowType) -> onnx.ModelProto:
        """Return the steps of a node that `stores`, typed as a runtime has them in `low`.

        Inputs are called x0, x1 and so on, outputs y0, y1 and so on.
        """
        copy = copied(node)
        inputs, outputs = [], []
        for i, name in enumerate(node.input):
            if name:
                copy.input[i] = f"x{i}"
                kind = self._model.elem_types.get(name, _FLOAT)
                kind = low.onnx_type if kind == _FLOAT else kind
                shape = self._view.shape(name)
                inputs.append(helper.make_tensor_value_info(f"x{i}", kind, shape))
        for i, name in enumerate(node.output):
            if name:
                copy.output[i] = f"y{i}"
                outputs.append(helper.make_tensor_value_info(f"y{i}", low.onnx_type, None))
        nodes = [copy]
        if node.op_type == "InstanceNormalization":
            nodes = self._instance_norm(node, low)
        elif node.op_type in _FACTORS:
            nodes = _exponential(node, low)
        elif node.op_type == "ReduceSumSquare":
            # A square is its own magnitude, and that operator has the same form in each opset.
            copy.op_type, copy.input[0] = "ReduceL1", "squares"
            nodes = [helper.make_node("Mul", ["x0", "x0"], ["squares"]), copy]
        body = helper.make_model(
            helper.make_graph(nodes, "steps", inputs, outputs),
            opset_imports=[helper.make_opsetid("", self._opset)],
            ir_version=self._model.proto.ir_version,
        )
        return inline_selected_functions(body, [("", node.op_type)], inline_schema_functions=True)

    def _instance_norm(self, node: onnx.NodeProto, low: LowType) -> list[onnx.NodeProto]:
        held, shape = attribute(node, "epsilon"), self._view.shape(node.input[0]) or ()
        column = [-1, *(1 for _ in shape[2:])]
        text = _INSTANCE_NORM.format(
            low=low.onnx_type,
            epsilon=1e-5 if held is None else held.f,
            rank=len(column),
            column=", ".join(map(str, column)),
        )
        return list(onnx.parser.parse_graph(text).node)


def _exponential(node: onnx.NodeProto, low: LowType) -> list[onnx.NodeProto]:
    alpha, gamma = _FACTORS[node.op_type]
    held = {each.name: each.f for each in node.attribute}
    text = _EXPONENTIAL.format(
        low=low.onnx_type, alpha=held.get("alpha", alpha), gamma=held.get("gamma", gamma)
    )
    return list(onnx.parser.parse_graph(text).node)


def _has_function(node: onnx.NodeProto, version: int) -> bool:
    schema = onnx.defs.get_schema(node.op_type, version)
    known: bool = schema.has_function or schema.has_context_dependent_function  # type: ignore[attr-defined] # the stubs lack both
    return known
