"""Random graphs with more operators: settings, mixed types, constants in followers, subgraphs."""

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper

from random_graphs import KINDS, SIZE, GraphMaker

IMAGES = ("BatchNormalization", "GlobalAveragePool", "InstanceNormalization", "Resize")
MOVERS = ("ConcatConstant", "Embedding", "PadConstant", "ScatterND", "SplitInThree")
MIXED = ("Clip", "ConstantChain", "ConstantOfShape", "If", "PowWeight", "TopK", "Where")
WIDER_KINDS = (*KINDS, *IMAGES, *MOVERS, *MIXED)


class WiderMaker(GraphMaker):
    """Builds graphs from `WIDER_KINDS`."""

    def add(self, op: str, first: int, second: int) -> None:
        """Append an operator that reads earlier tensors, chosen by two drawn numbers."""
        a, b = (self.tensors[k % len(self.tensors)] for k in (first, second))
        make: Callable[[str, str, str, int], list[str]]
        if op in IMAGES:
            make = self._image
        elif op in MOVERS:
            make = self._mover
        elif op in MIXED:
            make = self._mixed
        else:
            super().add(op, first, second)
            return
        self.tensors += make(op, a, b, second % 3)

    def constant(self, *values: float, kind: type[np.generic] = np.float32) -> str:
        """Return the name of a constant: a scalar for one value, else a vector."""
        name = f"c{len(self.weights)}"
        self.weights[name] = np.array(values if len(values) > 1 else values[0], kind)
        return name

    def _cut(self, tensor: str) -> list[str]:
        """Append a Slice of the last rows of a tensor of shape (more, SIZE)."""
        return self.node("Slice", [tensor, self.fixed(-SIZE), self.fixed(99), self.fixed(0)])

    def _image(self, op: str, a: str, b: str, which: int) -> list[str]:
        (planes,) = self.node("Reshape", [a, self.fixed(1, 1, SIZE, SIZE)])
        scale, shift = (self.weight(1, which=which + i) for i in range(2))
        if op == "GlobalAveragePool":
            (mean,) = self.node(op, [planes])
            (flat,) = self.node("Reshape", [mean, self.fixed(1)])
            return self.node("Sub", [b, flat])
        if op == "Resize":
            scales = self.constant(1, 1, 2, 1)
            (big,) = self.node(op, [planes, "", scales], mode="linear")
            (flat,) = self.node("Reshape", [big, self.fixed(2 * SIZE, SIZE)])
            return self._cut(flat)
        moments = [shift, self.node("Abs", [scale])[0]] if op == "BatchNormalization" else []
        (out,) = self.node(op, [planes, scale, shift, *moments])
        return self.node("Reshape", [out, self.fixed(SIZE, SIZE)])

    def _mover(self, op: str, a: str, b: str, which: int) -> list[str]:
        weight = self.weight(SIZE, SIZE, which=which)
        if op == "SplitInThree":
            upper, row, last = self.node(
                "Split", [a, self.fixed(SIZE - 2, 1, 1)], outputs=3, axis=0
            )
            return self.node("Concat", [last, upper, row], axis=0)
        if op == "ConcatConstant":
            (known,) = self.node("Identity", [weight]) if which == 1 else [weight]
            return self._cut(*self.node("Concat", [known, a, b][: which + 2], axis=0))
        if op == "PadConstant":
            fill = [self.constant((0.1, 0.5, -1.7)[which])]
            (padded,) = self.node("Pad", [a, self.fixed(0, 0, 2, 0), *(fill if which else [])])
            return self._cut(padded)
        if op == "ScatterND":
            self.weights["rows"] = np.array([[0], [SIZE - 1]], np.int64)
            (part,) = self.node("Slice", [b, self.fixed(0), self.fixed(2), self.fixed(0)])
            update = part if which else self.weight(2, SIZE, which=which)
            return self.node(op, [a, "rows", update])
        (places,) = self.node("ArgMax", [a], axis=1, keepdims=0)
        (rows,) = self.node("Gather", [weight, places])
        return [rows] if which else self.node("Add", [rows, b])

    def _mixed(self, op: str, a: str, b: str, which: int) -> list[str]:
        if op == "Where":
            (condition,) = self.node("Greater", [a, b])
            return self.node(op, [condition, b, self.weight(SIZE, which=which)])
        if op == "Clip":
            limits = [self.constant(-0.3)] if which else ["", self.constant(0.7)]
            return self.node(op, [a, *limits])
        if op == "PowWeight":
            (magnitude,) = self.node("Abs", [a])
            exponent = self.constant(2, kind=np.int64) if which else self.constant(1.3)
            return self.node("Pow", [magnitude, exponent])
        if op == "TopK":
            values, places = self.node(op, [a, self.fixed(SIZE)], outputs=2, axis=1)
            return [values, *self.node("Cast", [places], to=TensorProto.FLOAT)]
        if op == "ConstantOfShape":
            value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.3])
            (shape,) = self.node("Shape", [b])
            return self.node("Mul", [a, *self.node(op, [shape], value=value)])
        if op == "If":
            return self._branches(a, b)
        (turned,) = self.node("Transpose", [self.weight(SIZE, SIZE, which=which)], perm=[1, 0])
        return self.node("MatMul", [a, turned])

    def _branches(self, a: str, b: str) -> list[str]:
        """Append an If whose branches capture `b` and, one of them, `a`."""
        (mean,) = self.node("ReduceMean", [a], keepdims=0)
        (condition,) = self.node("Greater", [mean, self.constant(0)])
        number = len(self.nodes)
        branches = {}
        for name, (op, inputs) in {"then": ("Add", [a, b]), "else": ("Tanh", [b])}.items():
            out = f"{name}{number}"
            info = helper.make_tensor_value_info(out, TensorProto.FLOAT, [SIZE, SIZE])
            node = helper.make_node(op, inputs, [out], name=f"inner_{out}")
            branches[f"{name}_branch"] = helper.make_graph([node], name, [], [info])
        return self.node("If", [condition], 1, **branches)
