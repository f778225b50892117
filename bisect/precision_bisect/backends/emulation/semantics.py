"""What one target stores inside the layers of a model, and the nodes that compute it so.

`settings.targets` has the table, `stored_sums` has the means. Other operators are computed in
steps, each of which stores its result: those of ONNX's own function for the operator, which ONNX
Runtime inlines where it has no kernel. Kernels that go other ways have theirs here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx
from onnx import helper
from onnx.inliner import inline_selected_functions

from precision_bisect.backends.emulation.snippets import under_names
from precision_bisect.backends.emulation.stored_sums import StoredSums
from precision_bisect.graphs.graph import attribute, copied, has_function, opset
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.types import (
    declared_low,
    in_fp32,
    infer_elem_types,
    rounded_where_declared,
)
from precision_bisect.layer_table import LayerName, forms_of
from precision_bisect.precisions import Pair
from precision_bisect.settings.targets import (
    LABELS,
    OWN_ARITHMETIC,
    STORED,
    TARGETS,
    Inside,
    TargetName,
    inside,
)

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
_FACTORS = {
    "Elu": {"alpha": 1.0, "gamma": 1.0},
    "Selu": {"alpha": 1.6732632, "gamma": 1.050701},
}
"""Those by default."""


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
        return node.op_type == "ReduceSumSquare" or has_function(node.op_type, self._opset)

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
            values = _FACTORS[node.op_type] | {each.name: each.f for each in node.attribute}
            nodes = _parsed(_EXPONENTIAL, low=low.onnx_type, **values)
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
        return _parsed(
            _INSTANCE_NORM,
            low=low.onnx_type,
            epsilon=1e-5 if held is None else held.f,
            rank=len(column),
            column=", ".join(map(str, column)),
        )


def _parsed(text: str, **values: object) -> list[onnx.NodeProto]:
    return list(onnx.parser.parse_graph(text.format(**values)).node)


class Semantics:
    """How a target computes the layers of a model's main graph."""

    def __init__(self, model: Model, target: TargetName) -> None:
        view = View(model)
        self._model = model
        self._target = target
        self.sums = StoredSums(view)
        self._steps = StoredSteps(model, view)

    def inside(self, node: onnx.NodeProto) -> Inside:
        """Return what is stored inside a node that runs low, for inputs of some shapes at least.

        What cannot be written counts as FP32.
        """
        found = Inside.FP32
        if node.domain in ("", "ai.onnx"):
            found = inside(node.op_type, self._target)
        known = {Inside.SUM: self.sums.stores, Inside.STEPS: self._steps.stores}.get(found)
        return found if known is not None and known(node) else Inside.FP32

    def affected(self, pair: Pair) -> Mapping[LayerName, Inside]:
        """Return what is stored inside each layer that may run in a 16-bit type, if anything."""
        half = _in_half(self._model, pair)
        found = {
            LayerName(node.name): self.inside(node)
            for node in self._model.proto.graph.node
            if node.name in half
        }
        return {name: each for name, each in found.items() if each is not Inside.FP32}

    def written(
        self, node: onnx.NodeProto, renamed: onnx.NodeProto, low: LowType, fused: str = ""
    ) -> list[onnx.NodeProto]:
        """Return the nodes of a layer that stores something inside, in `low`.

        `renamed` is the layer under the names that the nodes read and write. Their output is not
        rounded yet. `fused` names a boolean scalar that is on if nothing is stored after all.
        """
        if self.inside(node) is Inside.SUM:
            return self.sums.written(node, renamed, low, fused)
        body = self._steps.body(node, low)
        declared = declared_low(infer_elem_types(body, {}))
        for value in body.graph.output:
            del declared[value.name]
        proto, _ = in_fp32(body, {})
        nodes = [
            each
            for step in proto.graph.node
            for each in rounded_where_declared(step, declared, "raw")
        ]
        return under_names(nodes, renamed)


def distinct(model: Model, pair: Pair, targets: Sequence[TargetName]) -> tuple[TargetName, ...]:
    """Return targets that compute the model alike only once; the one that stores least is first.

    The first named stands for those that are alike.
    """
    if len(targets) == 1:
        return tuple(targets)
    stored: dict[TargetName, Mapping[LayerName, Inside]] = {}
    for target in targets:
        affected = Semantics(model, target).affected(pair)
        if affected not in stored.values():
            stored[target] = affected
    # Sorting is stable: equal numbers leave the order.
    return tuple(sorted(stored, key=lambda target: len(stored[target])))


def own_arithmetic(model: Model, pair: Pair, targets: Sequence[TargetName]) -> str:
    """Return a sentence about operators that each engine computes inside as it likes, or "".

    It counts those that are emulated with FP32 inside for one of the `targets`, and names the
    other targets that are known to do otherwise.
    """
    half = _in_half(model, pair)
    ops = {
        layer.name: layer.op_type
        for layer in model.table.layers
        if layer.name in half and layer.op_type in OWN_ARITHMETIC
    }
    stored = {each: Semantics(model, each).affected(pair) if ops else {} for each in TARGETS}
    taken = [name for name in ops if any(name not in stored[each] for each in targets)]
    if not taken:
        return ""
    said = [f"what engines compute inside {_counted(ops, taken)} was taken as FP32"]
    for target in (each for each in TARGETS if each not in targets):
        for kind, words in STORED.items():
            some = [name for name in taken if stored[target].get(name) is kind]
            if some:
                said.append(f"{LABELS[target]} stores {words} {_counted(ops, some)} there")
    return "; ".join(said)


def _counted(ops: Mapping[LayerName, str], names: Sequence[LayerName]) -> str:
    counts = Counter(ops[name] for name in names)
    return ", ".join(f"{count} {op_type}" for op_type, count in counts.items())


def _in_half(model: Model, pair: Pair) -> frozenset[LayerName]:
    """Return the layers that may run in a 16-bit type."""
    forms = forms_of(model.table, pair).items()
    return frozenset(
        name for name, each in forms if any(form.stored in LOW_TYPES for form in each.all)
    )
