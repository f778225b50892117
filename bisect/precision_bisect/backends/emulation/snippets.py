"""Pieces of ONNX graph that the switched graph is made of, and whether ONNX Runtime keeps them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.errors import ModelError, RefusedError
from precision_bisect.graphs.graph import subgraphs
from precision_bisect.graphs.lowtypes import LowType, QuantizedType
from precision_bisect.graphs.ort import ON_CPU, Providers, Session, runtime
from precision_bisect.graphs.quantization.scales import fake_quantized
from precision_bisect.graphs.types import round_trip

NO_LAYER = -1
SHORT_PREFIX = "pb:"
"""A short prefix for names of which there are thousands: sessions copy each some dozen times."""

Branch = tuple[list[onnx.NodeProto], list[str]]
"""The nodes of a branch and the names of its outputs."""

Condition = tuple[int, int, int, int]
"""Three candidates and a kernel: on if one of the first two runs low and neither the third does,
nor all layers of the kernel. Each may be NO_LAYER. A kernel stands for all of its layers."""
# Types of a loop's number and condition.
_OF_LOOPS = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
# Scale of the values that probe a quantized type; no power of two, so that division rounds.
_SCALE = 0.0123


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


def parsed(text: str, renamed: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes of a graph in ONNX's text form, in place of the node `renamed`.

    x0, x1 and so on stand for its inputs, y0, y1 and so on for its outputs.
    """
    return under_names(onnx.parser.parse_graph(text).node, renamed)


def under_names(nodes: Iterable[onnx.NodeProto], renamed: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes with the names of a layer in place of x0, y0 and so on; they change."""
    outer = {f"x{i}": name for i, name in enumerate(renamed.input) if name}
    outer |= {f"y{i}": name for i, name in enumerate(renamed.output) if name}
    tag = next(filter(None, renamed.output))
    snippet = list(nodes)
    for node in snippet:
        node.name = ""
        for names in (node.input, node.output):
            names[:] = [name and outer.get(name, f"{tag}/{name}") for name in names]
        for inner in subgraphs(node):
            under_names(inner.node, renamed)
            for value in (*inner.input, *inner.output):
                value.name = f"{tag}/{value.name}"
                # A type without a shape is a scalar's in the text form, as only a loop's are.
                if value.type.tensor_type.elem_type not in _OF_LOOPS:
                    value.type.tensor_type.ClearField("shape")
    return snippet


def identity(source: str, out: str) -> list[onnx.NodeProto]:
    """Return the node that passes `source` on as `out`."""
    return [onnx.NodeProto(op_type="Identity", input=[source], output=[out])]


def switch_node(flag: str, kinds: dict[str, int], low: Branch, high: Branch) -> onnx.NodeProto:
    """Return the If that runs `low` where the flag is on; `kinds` are its outputs' types."""
    # Filled in place: the helpers copy each branch twice, and there are thousands.
    node = onnx.NodeProto(op_type="If", input=[flag], output=kinds)
    branches = (("else_branch", "high", high), ("then_branch", "low", low))
    for attribute, name, (nodes, outs) in branches:
        branch = node.attribute.add(name=attribute, type=onnx.AttributeProto.GRAPH).g
        branch.name = name
        branch.node.extend(nodes)
        for out, kind in zip(outs, kinds.values(), strict=True):
            branch.output.add(name=out).type.tensor_type.elem_type = kind
    return node


def split_flags(flags: str, names: Sequence[str], opset: int) -> onnx.NodeProto:
    """Return the node that splits the input `flags` into one boolean per name."""
    node = helper.make_node("Split", [flags], names, axis=0)
    # From opset 18 on Split wants the number of its outputs, or their sizes.
    if opset >= 18:
        node.attribute.append(helper.make_attribute("num_outputs", len(names)))
    return node


def self_test(kind: LowType | QuantizedType, providers: Providers = ON_CPU) -> None:
    """Check that round trips survive ONNX Runtime's optimizer and round to nearest even.

    It is one tiny inference. Raises RefusedError otherwise: every verdict would rest on FP32.
    """
    probe = _probe()
    quantizers = Quantizers()
    if isinstance(kind, LowType):
        nodes, expected = round_trip("x", "y", kind.onnx_type), kind.round(probe)
    else:
        nodes = quantizers.pair("x", "y", kind, _SCALE)
        expected = fake_quantized(probe, np.float32(_SCALE), kind)
    graph = helper.make_graph(
        nodes,
        "self-test",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [len(probe)])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [len(probe)])],
        list(quantizers.initializers.values()),
    )
    # Below opset 13 QuantizeLinear has no axis, and Cast no BF16.
    opset = max(13, kind.lowest_opset)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    try:
        got = Session(proto, {}, 1, providers).run({"x": probe})["y"]
    except (ModelError, RuntimeError) as error:
        raise RefusedError(
            f"ONNX Runtime {runtime().__version__} cannot round to {kind.name}: {error}",
            "install another version of onnxruntime",
        ) from error
    if not np.array_equal(got, expected):
        raise RefusedError(
            f"ONNX Runtime {runtime().__version__} does not keep a round trip to {kind.name}",
            "its verdicts would rest on FP32 results; install another version of onnxruntime",
        )


def _probe() -> NDArray[np.float32]:
    """Return values beyond every range, halfway between neighbours, and of every magnitude."""
    few = [300.0 * 300.0, -3.0e38, 3.0e38, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 1e-7]
    return np.concatenate(
        [
            np.array(few, np.float32),
            np.float32(2.0) ** np.arange(-140, 20, dtype=np.float32),
            np.arange(-300, 300, dtype=np.float32) * np.float32(_SCALE / 2),
        ]
    )
