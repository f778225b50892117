"""Nodes of several layers in a row: each layer is marked with its own node, whoever names it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from effort import examples
from models import normal
from precision_bisect.backends.tensorrt.build import Marks, prepare_network
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.weak import inputs_of
from weak_networks import handles_floats, markable, parsed, told_by_file

OPERATORS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "Gemm": (("w", "b"), {"alpha": 0.5, "beta": 2.0}),
    "Mod": (("b",), {"fmod": 1}),
    "Clip": (("low", "high"), {}),
    "Add": (("b",), {}),
    "LogSoftmax": ((), {"axis": -1}),
    "LpNormalization": ((), {"axis": -1}),
    "HardSwish": ((), {}),
    "Celu": ((), {}),
    "Relu": ((), {}),
    "Softmax": ((), {"axis": -1}),
}
"""By name what else they read, and their attributes; they map (4, 8) to itself."""
WEIGHTS = {
    "w": normal(8, 8),
    "b": normal(8),
    "low": np.array(-1, np.float32),
    "high": np.array(1, np.float32),
}


def chain(operators: Sequence[str]) -> onnx.ModelProto:
    """Return a model of these operators in a row, which share their weights."""
    nodes = [
        helper.make_node(
            name, [f"t{i}", *OPERATORS[name][0]], [f"t{i + 1}"], name=f"n{i}", **OPERATORS[name][1]
        )
        for i, name in enumerate(operators)
    ]
    read = {name for node in nodes for name in node.input}
    shape = [4, 8]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"t{len(nodes)}", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items() if name in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def layers_of_nodes(rtx: Flavour, operators: Sequence[str]) -> list[int]:
    """Return for each layer of the chain's network which node it was made for.

    The parser takes node after node: what a longer chain has more is of its last node.
    """
    lengths = [
        len(parsed(rtx.module, chain(operators[:count])).layers)
        for count in range(1, len(operators) + 1)
    ]
    return [
        node
        for node, (start, end) in enumerate(pairwise([0, *lengths]))
        for _ in range(start, end)
    ]


@given(data=st.data())
@example(data=None)
@examples(15)
def test_layers_go_with_the_node_they_were_made_for(
    rtx: Flavour, data: st.DataObject | None
) -> None:
    """Marks follow the plan where parsers register a part of the layers, all of them, or none."""
    if data is None:
        operators, kept, forgotten = ["Gemm", "Mod", "Gemm"], {1}, set(range(99))
    else:
        operators = data.draw(st.lists(st.sampled_from(sorted(OPERATORS)), min_size=2, max_size=6))
        kept = data.draw(st.sets(st.integers(0, len(operators) - 1)))
        forgotten = data.draw(st.sets(st.integers(0, 60)))
    model = chain(operators)
    held, nodes = parsed(rtx.module, model), layers_of_nodes(rtx, operators)
    readers: dict[str, set[int]] = {}
    for place, layer in enumerate(held.layers):
        if place in forgotten:
            layer.metadata = ""
        for tensor in inputs_of(layer):
            readers.setdefault(tensor.name, set()).add(nodes[place])
    of = [
        readers[layer.get_output(0).name] if layer.type.name == "CONSTANT" else {node}
        for layer, node in zip(held.layers, nodes, strict=True)
    ]
    with markable(rtx.module) as noted:
        high = told_by_file(model.graph, *(f"n{i}" for i in kept))
        prepare_network(Marks(kept=(), high=high, low="fp16"), [], held.network)
    expected = {
        layer.name
        for layer, asking in zip(held.layers, of, strict=True)
        if asking <= kept and handles_floats(layer)
    }
    assert expected == set(noted.precision)
