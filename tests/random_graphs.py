"""Random small graphs, and plans written into them directly: an oracle for the emulator."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from precision_bisect.graphs.load import Model

UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp")
BINARY = ("Add", "Sub", "Mul", "Max")
FOLLOWERS = ("Transpose", "Reshape", "Slice", "Concat", "Split", "Identity")
WEIGHTED = ("MatMul", "Gemm", "Conv", "LayerNormalization", "AddWeight", "PowConstant")
OTHERS = ("Softmax", "ReduceMean", "ReduceMax")
SIZE = 4
"""Every tensor is of shape (SIZE, SIZE), so that any may feed any operator."""


@dataclass
class GraphMaker:
    """Builds a graph from drawn operators; `tensors` are the values made so far."""

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[str] = field(default_factory=lambda: ["x"])
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def weight(self, *shape: int, which: int) -> str:
        """Return the name of a weight; the same `which` and shape give a shared one."""
        name = f"w{which}_{'x'.join(map(str, shape))}"
        values = np.random.default_rng([self.seed, which]).standard_normal(shape)
        self.weights.setdefault(name, values.astype(np.float32))
        return name

    def fixed(self, *values: int) -> str:
        """Return the name of an integer constant."""
        name = "i" + "_".join(str(v) for v in values).replace("-", "m")
        self.weights.setdefault(name, np.array(values, np.int64))
        return name

    def node(
        self, op: str, inputs: list[str], outputs: int = 1, **attributes: object
    ) -> list[str]:
        """Append a named node and return its outputs."""
        number = len(self.nodes)
        names = [f"t{number}_{i}" for i in range(outputs)]
        self.nodes.append(
            helper.make_node(op, inputs, names, name=f"n{number}", **attributes)  # type: ignore[arg-type]
        )
        return names

    def add(self, op: str, first: int, second: int) -> None:
        """Append an operator that reads earlier tensors, chosen by two drawn numbers."""
        a, b = (self.tensors[k % len(self.tensors)] for k in (first, second))
        which = second % 3
        # ONNX Runtime's optimizer moves a Transpose behind the mean, which then sums in another
        # order than the graph as it is written.
        if op == "ReduceMean" and any(node.op_type == "Transpose" for node in self.nodes):
            op = "ReduceMax"
        if op in UNARY or op == "Identity":
            out = self.node(op, [a])
        elif op in BINARY:
            out = self.node(op, [a, b])
        elif op == "AddWeight":
            out = self.node("Add", [a, self.weight(SIZE, which=which)])
        elif op == "PowConstant":
            value = numpy_helper.from_array(np.array(2.0001, np.float32))
            (power,) = self.node("Constant", [], value=value)
            (magnitude,) = self.node("Abs", [a])
            out = self.node("Pow", [magnitude, power])
        elif op == "MatMul":
            other = b if which == 2 else self.weight(SIZE, SIZE, which=which)
            out = self.node("MatMul", [a, other])
        elif op == "Gemm":
            weights = [self.weight(SIZE, SIZE, which=which), self.weight(SIZE, which=which)]
            out = self.node("Gemm", [a, *weights], transB=which % 2)
        elif op == "LayerNormalization":
            scale, shift = self.weight(SIZE, which=which), self.weight(SIZE, which=which + 1)
            out = self.node(op, [a, scale, shift])
        elif op == "Softmax":
            out = self.node(op, [a], axis=-1)
        elif op.startswith("Reduce"):
            (row,) = self.node(op, [a], axes=[1], keepdims=1)
            out = self.node("Sub", [b, row])
        else:
            out = self._shaped(op, a, b, which)
        self.tensors += out

    def _shaped(self, op: str, a: str, b: str, which: int) -> list[str]:
        """Append an operator that changes the shape, and what brings the shape back."""
        square = self.fixed(SIZE, SIZE)
        if op == "Transpose":
            return self.node(op, [a], perm=[1, 0])
        if op == "Reshape":
            (flat,) = self.node(op, [a, self.fixed(-1)])
            return self.node(op, [flat, square])
        if op == "Conv":
            (image,) = self.node("Reshape", [a, self.fixed(1, 1, SIZE, SIZE)])
            (out,) = self.node(op, [image, self.weight(1, 1, 1, 1, which=which)])
            return self.node("Reshape", [out, square])
        if op == "Split":
            halves = self.node(op, [a], outputs=2, axis=0)
            return self.node("Concat", halves[::-1], axis=0)
        (both,) = self.node("Concat", [a, b], axis=1)
        return self.node("Slice", [both, self.fixed(2), self.fixed(2 + SIZE), self.fixed(1)])

    def model(self) -> onnx.ModelProto:
        """Return the model; its outputs are the last tensors, read by others or not."""
        shape = [SIZE, SIZE]
        outputs = [t for t in self.tensors[-2:] if t != "x"]
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
            [numpy_helper.from_array(values, name) for name, values in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


KINDS = (*UNARY, *BINARY, *FOLLOWERS, *WEIGHTED, *OTHERS)


@st.composite
def random_models(
    draw: st.DrawFn, make: type[GraphMaker] = GraphMaker, among: Sequence[str] = KINDS
) -> onnx.ModelProto:
    """Return a model of up to a dozen operators with residuals and shared weights."""
    maker = make(draw(st.integers(0, 2**16)))
    kinds = st.sampled_from(among)
    reads = st.integers(0, 30)
    for op, first, second in draw(
        st.lists(st.tuples(kinds, reads, reads), min_size=1, max_size=12)
    ):
        maker.add(op, first, second)
    return maker.model()


def static_graph(model: Model, kept: Sequence[int], low_type: int) -> onnx.ModelProto:
    """Return the model with a plan written into it: a pair of Casts wherever a value is rounded.

    A low layer rounds each float it reads, weights too, and each float it writes; a high layer
    rounds nothing; other nodes pass on what is stored.
    """
    low = set(model.table.names) - {model.table.names[i] for i in kept}
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    del proto.graph.node[:]

    def rounded(name: str, out: str) -> None:
        half = f"{out}/half"
        proto.graph.node.extend(
            [
                helper.make_node("Cast", [name], [half], to=low_type),
                helper.make_node("Cast", [half], [out], to=TensorProto.FLOAT),
            ]
        )

    for node in model.proto.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.name not in low:
            proto.graph.node.append(copy)
            continue
        for i, name in enumerate(node.input):
            if model.elem_types[name] == TensorProto.FLOAT:
                copy.input[i] = f"{node.name}/in/{i}"
                rounded(name, copy.input[i])
        for i in range(len(node.output)):
            copy.output[i] = f"{node.name}/out/{i}"
        proto.graph.node.append(copy)
        for i, name in enumerate(node.output):
            rounded(copy.output[i], name)
    return proto
