"""Random graphs of operators whose operands ONNX Runtime's optimizer lays out anew."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""From channels first to channels last, and back."""
FIRST = ("Conv", "Relu", "Full", "Channels", "Softmax")
"""What may follow where channels come first; `Full` multiplies by, `Channels` adds a constant."""
LAST = ("MatMul", "Full", "LayerNormalization", "Relu")
"""What may follow where channels come last."""


@dataclass
class LayoutMaker:
    """Builds a graph over one tensor of shape (1, channels, height, width).

    Most constants are larger than what `precision_bisect.graphs.weights` leaves in the graph.
    """

    channels: int
    height: int
    width: int
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    last: str = "x"

    def constant(self, array: np.ndarray) -> str:
        """Return the name of a new initializer."""
        name = f"w{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        """Return the name of a new weight, small enough for sums to keep their magnitude."""
        values = self.rng.standard_normal(shape) / np.sqrt(shape[-1])
        return self.constant(values.astype(np.float32))

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """Append a node and return its output."""
        out = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, inputs, [out], name=f"n{out}", **attributes)  # type: ignore[arg-type]
        )
        return out

    def first(self, op: str) -> None:
        """Append an operator to the tensor whose channels come first."""
        c, h, w = self.channels, self.height, self.width
        if op == "Conv":
            self.last = self.node("Conv", self.last, self.weight(c, c, 3, 3), pads=[1, 1, 1, 1])
        elif op == "Full":
            self.last = self.node("Mul", self.last, self.weight(1, c, h, w))
        elif op == "Channels":
            self.last = self.node("Add", self.last, self.weight(c, 1, 1))
        elif op == "Softmax":
            self.last = self.node("Softmax", self.last, axis=1)
        else:
            self.last = self.node(op, self.last)

    def channels_last(self, ops: list[str]) -> None:
        """Append operators between two Transposes."""
        c, h, w = self.channels, self.height, self.width
        self.last = self.node("Transpose", self.last, perm=TO_LAST)
        for op in ops:
            if op == "MatMul":
                self.last = self.node("MatMul", self.last, self.weight(c, c))
            elif op == "Full":
                self.last = self.node("Mul", self.last, self.weight(1, h, w, c))
            elif op == "LayerNormalization":
                self.last = self.node(op, self.last, self.weight(c), self.weight(c))
            else:
                self.last = self.node(op, self.last)
        self.last = self.node("Transpose", self.last, perm=TO_FIRST)

    def attention(self, heads: int) -> None:
        """Append attention with rotary embedding over the pixels."""
        c, pixels, of_head = self.channels, self.height * self.width, self.channels // heads
        rows = self.node("Reshape", self.last, self.constant(np.array([1, c, pixels])))
        rows = self.node("Transpose", rows, perm=[0, 2, 1])
        split = self.constant(np.array([1, pixels, heads, of_head]))
        query, key, value = (
            self.node(
                "Transpose",
                self.node("Reshape", self.node("MatMul", rows, self.weight(c, c)), split),
                perm=[0, 2, 1, 3],
            )
            for _ in range(3)
        )
        query, key = (self._rotated(each, heads, pixels, of_head) for each in (query, key))
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        rows = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        rows = self.node("Reshape", rows, self.constant(np.array([1, pixels, c])))
        rows = self.node("Transpose", rows, perm=[0, 2, 1])
        shape = self.constant(np.array([1, c, self.height, self.width]))
        self.last = self.node("Reshape", rows, shape)

    def _rotated(self, name: str, heads: int, pixels: int, size: int) -> str:
        cosines, sines = (self.weight(1, heads, pixels, size) for _ in range(2))
        axis = self.constant(np.array([3]))
        bounds = [self.constant(np.array([k])) for k in (0, size // 2, size)]
        low = self.node("Slice", name, bounds[0], bounds[1], axis)
        high = self.node("Slice", name, bounds[1], bounds[2], axis)
        turned = self.node("Concat", self.node("Neg", high), low, axis=3)
        kept = self.node("Mul", name, cosines)
        return self.node("Add", kept, self.node("Mul", turned, sines))

    def model(self) -> onnx.ModelProto:
        """Return the graph as a model, from "x" to "y"."""
        self.nodes.append(helper.make_node("Identity", [self.last], ["y"], name="end"))
        shape = [1, self.channels, self.height, self.width]
        graph = helper.make_graph(
            self.nodes,
            "layouts",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            self.initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@st.composite
def layout_models(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw a model of operators with layouts, joined by Transposes."""
    # Where height, width and channels are equal, a weight laid out wrongly is no error.
    channels = draw(st.sampled_from([8, 12]))
    height, width = (draw(st.sampled_from([6, channels])) for _ in range(2))
    maker = LayoutMaker(
        channels, height, width, np.random.default_rng(draw(st.integers(0, 2**16)))
    )
    maker.first("Conv")
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["first", "last", "last", "attention"]))
        if kind == "first":
            maker.first(draw(st.sampled_from(FIRST)))
        elif kind == "last":
            maker.channels_last(draw(st.lists(st.sampled_from(LAST), max_size=3)))
        else:
            maker.attention(heads=draw(st.sampled_from([1, 2])))
    return maker.model()
