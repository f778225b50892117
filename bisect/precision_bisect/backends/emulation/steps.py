"""Operators in the steps that an engine takes, each of which stores its result in the low type.

Steps are written in ONNX's text form, in which `own` marks a node that takes over the attributes
of the operator and its inputs after the first, axes for instance. Those of TensorRT are its
parser's (`parser_steps.json`), step by step and in their order. An operator without a text has the
steps of ONNX's own function for it, which ONNX Runtime inlines where it has no kernel.
"""

from collections.abc import Callable, Collection, Mapping

import onnx
from onnx import helper
from onnx.inliner import inline_selected_functions

from precision_bisect.backends.emulation.cudnn_cells import in_cudnn
from precision_bisect.backends.emulation.recurrences import is_recurrence
from precision_bisect.graphs.graph import attribute, copied, has_function, opset
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.layer_table import Exclusion
from precision_bisect.settings.targets import TargetName

_FLOAT = onnx.TensorProto.FLOAT
# The first opset whose Greater takes integers, and that has Where.
_CONDITIONS = 9
_OWN = "own"


class Typed:
    """A node whose steps are written, and the number of the low type, 0 if nobody asks for it.

    `constants` are the tensors of its model that are known before it runs.
    """

    def __init__(
        self, node: onnx.NodeProto, view: View, low: int, constants: Collection[str]
    ) -> None:
        self.node = node
        self.view = view
        self.low = low
        self._constants = constants

    def number(self, name: str, default: float) -> float:
        """Return a float attribute."""
        value = attribute(self.node, name)
        return default if value is None else value.f

    def column(self) -> tuple[int, ...]:
        """Return the shape of one value per channel, to go with the first input."""
        return (-1, *(1 for _ in (self.view.shape(self.node.input[0]) or ())[2:]))

    def computes(self, name: str) -> bool:
        """Tell whether a tensor is no constant."""
        return name not in self._constants

    def constants(self, **values: float) -> str:
        """Return the lines that make scalars of the low type."""
        return "".join(
            f"""
        wide_{name} = Constant<value = float {{{value}}}>()
        {name} = Cast<to = {self.low}>(wide_{name})"""
            for name, value in values.items()
        )


def _log_softmax(_: Typed) -> str:
    return """
        share = Softmax<own = 1>(x0)
        y0 = Log(share)"""


def _sum_square(_: Typed) -> str:
    # A square is its own magnitude, and ReduceL1 has the same form in each opset.
    return """
        square = Mul(x0, x0)
        y0 = ReduceL1<own = 1>(square)"""


def _log_sum_exp(to: Typed) -> str:
    """Shift by the largest value, or by 0 where that is infinite."""
    return (
        to.constants(zero=0.0, end=float("inf"))
        + "".join(
            f"""
        top_{keep} = ReduceMax<own = 1{kept}>(x0)
        size_{keep} = Abs(top_{keep})
        finite_{keep} = Less(size_{keep}, end)
        shift_{keep} = Where(finite_{keep}, top_{keep}, zero)"""
            for keep, kept in (("wide", ", keepdims = 1"), ("like_result", ""))
        )
        + """
        less = Sub(x0, shift_wide)
        power = Exp(less)
        total = ReduceL1<own = 1>(power)
        rest = Log(total)
        y0 = Add(rest, shift_like_result)"""
    )


def _sum(to: Typed) -> str:
    return _added(to, "y0") if len(to.node.input) > 2 else ""


def _mean(to: Typed) -> str:
    count = len(to.node.input)
    if count == 1:
        return ""
    return _added(to, "total") + to.constants(share=1 / count) + " y0 = Mul(total, share)"


def _added(to: Typed, last: str) -> str:
    """Add the inputs one by one, in their order."""
    count = len(to.node.input)
    names = ["x0", *(f"sum_{i}" for i in range(1, count - 1)), last]
    return "".join(f" {names[i]} = Add({names[i - 1]}, x{i})" for i in range(1, count))


def _mish(_: Typed) -> str:
    return " soft = Softplus(x0) bent = Tanh(soft) y0 = Mul(x0, bent)"


def _hard_swish(_: Typed) -> str:
    third = 1 / 6
    return f" gate = HardSigmoid<alpha = {third}, beta = 0.5>(x0) y0 = Mul(x0, gate)"


def _swish(to: Typed) -> str:
    alpha = to.number("alpha", 1.0)
    # By 1 it is one operation of the engine.
    if alpha == 1.0:
        return ""
    return (
        to.constants(alpha=alpha)
        + """
        scaled = Mul(x0, alpha)
        gate = Sigmoid(scaled)
        y0 = Mul(x0, gate)"""
    )


def _mod(to: Typed) -> str:
    kind = attribute(to.node, "fmod")
    if kind is None or not kind.i:
        return ""
    return (
        to.constants(zero=0.0)
        + """
        ratio = Div(x0, x1)
        down = Floor(ratio)
        below = Mul(down, x1)
        over = Sub(x0, below)
        up = Ceil(ratio)
        above = Mul(up, x1)
        under = Sub(x0, above)
        negative = Less(ratio, zero)
        y0 = Where(negative, under, over)"""
    )


def _batch_norm(to: Typed) -> str:
    """Return the steps of one whose statistics are computed; constants make one scale of it."""
    # TensorRT folds constant statistics into one scale and shift before it types anything.
    if not any(map(to.computes, to.node.input[1:5])):
        return ""
    column = to.column()
    reshaped = "".join(f" c{i} = Reshape(x{i}, column)" for i in range(1, 5))
    shape = ", ".join(map(str, column))
    return (
        f"""
        column = Constant<value = int64[{len(column)}] {{{shape}}}>()
        {reshaped}"""
        + to.constants(epsilon=to.number("epsilon", 1e-5))
        + """
        spread = Add(c4, epsilon)
        root = Sqrt(spread)
        centred = Sub(x0, c3)
        normal = Div(centred, root)
        scaled = Mul(normal, c1)
        y0 = Add(scaled, c2)"""
    )


def _instance_norm(to: Typed) -> str:
    """Take FP32 up to mean and variance above one image, then the low type step by step.

    The kernel stores the variance over n - 1 and corrects it, which is left out: that rounds once
    or twice more.
    """
    batch, *_ = to.view.shape(to.node.input[0]) or (1,)
    if batch == 1:
        return ""
    epsilon, column = to.number("epsilon", 1e-5), to.column()
    shape = ", ".join(map(str, column))
    return (
        f"""
        wide = Cast<to = 1>(x0)
        wide_mean = GlobalAveragePool(wide)
        wide_centred = Sub(wide, wide_mean)
        squares = Mul(wide_centred, wide_centred)
        wide_variance = GlobalAveragePool(squares)
        mean = Cast<to = {to.low}>(wide_mean)
        variance = Cast<to = {to.low}>(wide_variance)
        column = Constant<value = int64[{len(column)}] {{{shape}}}>()"""
        + to.constants(epsilon=epsilon)
        + f"""
        spread = Add(variance, epsilon)
        root = Sqrt(spread)
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
        y0 = Where(many, stepped, single)"""
    )


def _quick_gelu(to: Typed) -> str:
    """Return x * sigmoid(alpha * x) as CUDA's kernel has it, OP_QuickGelu.

    For negative values the sigmoid is 1 less what rounds to nearly 1: it is off by 2.4e-4, and 0
    from -8.3 on.
    """
    return (
        to.constants(alpha=to.number("alpha", 1.702), zero=0.0, one=1.0)
        + """
        scaled = Mul(x0, alpha)
        size = Abs(scaled)
        turned = Neg(size)
        power = Exp(turned)
        total = Add(one, power)
        share = Div(one, total)
        rest = Sub(one, share)
        negative = Less(scaled, zero)
        gate = Where(negative, rest, share)
        y0 = Mul(x0, gate)"""
    )


# Alpha and gamma by default.
_FACTORS = {"Elu": (1.0, 1.0), "Selu": (1.6732632, 1.050701)}


def _exponential(to: Typed) -> str:
    """Store exp(x) before 1 is taken off: off by 5e-4 wherever x is small."""
    alpha, gamma = _FACTORS[to.node.op_type]
    return (
        to.constants(
            zero=0.0, one=1.0, alpha=to.number("alpha", alpha), gamma=to.number("gamma", gamma)
        )
        + """
        power = Exp(x0)
        less = Sub(power, one)
        scaled = Mul(alpha, less)
        negative = Less(x0, zero)
        both = Where(negative, scaled, x0)
        y0 = Mul(gamma, both)"""
    )


def _softsign(to: Typed) -> str:
    return to.constants(one=1.0) + " size = Abs(x0) total = Add(one, size) y0 = Div(x0, total)"


def _gelu(to: Typed) -> str:
    """Return the kernel of the form by tanh; the other is FP32 inside."""
    how = attribute(to.node, "approximate")
    if how is None or how.s != b"tanh":
        return ""
    return (
        to.constants(half=0.5, slope=0.7978845608, bend=0.044715 * 0.7978845608)
        + """
        square = Mul(x0, x0)
        bent = Mul(bend, square)
        steep = Add(bent, slope)
        angle = Mul(x0, steep)
        turned = Tanh(angle)
        halved = Mul(half, turned)
        share = Add(half, halved)
        y0 = Mul(x0, share)"""
    )


_Texts = Mapping[str, Callable[[Typed], str]]
_OF_PARSER: _Texts = {
    "BatchNormalization": _batch_norm,
    "HardSwish": _hard_swish,
    "LogSoftmax": _log_softmax,
    "Mean": _mean,
    "Mish": _mish,
    "Mod": _mod,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": _sum_square,
    "Sum": _sum,
    "Swish": _swish,
}
TEXTS: Mapping[TargetName, _Texts] = {
    "tensorrt": _OF_PARSER,
    "tensorrt-rtx": _OF_PARSER,
    "onnxruntime": {
        "InstanceNormalization": _instance_norm,
        "Elu": _exponential,
        "Selu": _exponential,
        "Gelu": _gelu,
        "HardSwish": _hard_swish,
        "Mish": _mish,
        "QuickGelu": _quick_gelu,
        "ReduceLogSumExp": _log_sum_exp,
        "ReduceSumSquare": _sum_square,
        "Softsign": _softsign,
        "Sum": _sum,
    },
}
"""What writes the steps of a node, "" for one that is computed whole."""
KERNELS_IN_STEPS = frozenset(("QuickGelu",))
"""Kernels of ONNX Runtime that store steps of their own (contrib_ops/cuda/activation)."""


class StoredSteps:
    """Knows the nodes of a model's main graph that a target computes in steps."""

    def __init__(self, model: Model, view: View, target: TargetName) -> None:
        self._model = model
        self._view = view
        self._opset = opset(model.proto)
        self._texts = TEXTS[target]
        folded = (layer for layer in model.table.layers if layer.exclusion is Exclusion.CONSTANT)
        self._constants = {tensor.name for tensor in model.proto.graph.initializer}
        self._constants.update(name for layer in folded for name in layer.outputs)

    def stores(self, node: onnx.NodeProto) -> bool:
        """Tell whether the steps of a node are known, for inputs of some shapes at least."""
        if node.op_type in self._texts:
            return self._opset >= _CONDITIONS and self._text(node, 0) != ""
        if is_recurrence(node):
            return in_cudnn(node)
        return has_function(node.op_type, self._opset)

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
        # What has no text of ours is taken apart by the operator's own function in ONNX.
        nodes = [copy]
        if node.op_type in self._texts:
            text = f"g (float x) => (float y) {{ {self._text(node, low.onnx_type)} }}"
            nodes = [_owning(step, copy) for step in onnx.parser.parse_graph(text).node]
        body = helper.make_model(
            helper.make_graph(nodes, "steps", inputs, outputs),
            opset_imports=[helper.make_opsetid("", self._opset)],
            ir_version=self._model.proto.ir_version,
        )
        return inline_selected_functions(body, [("", node.op_type)], inline_schema_functions=True)

    def _text(self, node: onnx.NodeProto, low: int) -> str:
        return self._texts[node.op_type](Typed(node, self._view, low, self._constants))


def _owning(step: onnx.NodeProto, node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a step with what it takes over from the node that it is a part of."""
    if attribute(step, _OWN) is not None:
        of_step = {setting.name: setting for setting in step.attribute if setting.name != _OWN}
        of_node = {setting.name: setting for setting in node.attribute}
        copy = onnx.NodeProto(op_type=step.op_type, output=step.output)
        copy.input.extend([*step.input, *node.input[1:]])
        copy.attribute.extend((of_node | of_step).values())
        return copy
    return step
