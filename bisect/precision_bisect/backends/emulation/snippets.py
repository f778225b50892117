"""Pieces of ONNX graph that the switched graph is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from precision_bisect.graphs.lowtypes import QuantizedType

NO_LAYER = -1
SHORT_PREFIX = "pb:"
"""A short prefix for names of which there are thousands: sessions copy each some dozen times."""

Branch = tuple[list[onnx.NodeProto], list[str]]
"""The nodes of a branch and the names of its outputs."""

Condition = tuple[int, int, int]
"""Three candidates: on if one of the first two runs low and the third does not, or is NO_LAYER."""


@dataclass(slots=True)
class Flags:
    """The switches of a graph, in order."""

    conditions: list[Condition] = field(default_factory=list)

    def add(self, condition: Condition) -> str:
        """Return the name of a new flag."""
        self.conditions.append(condition)
        return self.name(len(self.conditions) - 1)

    @staticmethod
    def name(number: int) -> str:
        """Return the name of a flag, a boolean scalar in the graph."""
        return f"{SHORT_PREFIX}{number}"


@dataclass(slots=True)
class Quantizers:
    """Writes Q/DQ pairs; scales and zero points are initializers, each there once."""

    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def pair(
        self, source: str, out: str, kind: QuantizedType, scale: float
    ) -> list[onnx.NodeProto]:
        """Return the nodes that quantize `source` with one scale and give it back as `out`."""
        zero = f"precision_bisect/zero/{kind.name}"
        scaled = f"precision_bisect/scale/{np.float32(scale).tobytes().hex()}"
        self.initializers[zero] = helper.make_tensor(zero, kind.onnx_type, [], [0])
        # Equal scales share one initializer: the name is made of the value's bytes.
        self.initializers[scaled] = onnx.numpy_helper.from_array(
            np.array(scale, np.float32), scaled
        )
        return [
            helper.make_node("QuantizeLinear", [source, scaled, zero], [f"{out}/8bit"]),
            helper.make_node("DequantizeLinear", [f"{out}/8bit", scaled, zero], [out]),
        ]


def identity(source: str, out: str) -> list[onnx.NodeProto]:
    """Return the node that passes `source` on as `out`."""
    return [helper.make_node("Identity", [source], [out])]


def switch_node(flag: str, kinds: dict[str, int], low: Branch, high: Branch) -> onnx.NodeProto:
    """Return the If that runs `low` where the flag is on; `kinds` are its outputs' types."""
    then_graph, else_graph = (
        helper.make_graph(
            nodes,
            name,
            [],
            [
                helper.make_tensor_value_info(out, kind, None)
                for out, kind in zip(outs, kinds.values(), strict=True)
            ],
        )
        for name, (nodes, outs) in (("low", low), ("high", high))
    )
    return helper.make_node(
        "If", [flag], list(kinds), then_branch=then_graph, else_branch=else_graph
    )


def split_flags(flags: str, names: Sequence[str], opset: int) -> onnx.NodeProto:
    """Return the node that splits the input `flags` into one boolean per name."""
    node = helper.make_node("Split", [flags], names, axis=0)
    # From opset 18 on Split wants the number of its outputs, or their sizes.
    if opset >= 18:
        node.attribute.append(helper.make_attribute("num_outputs", len(names)))
    return node
