"""Real engines tell which ONNX node a layer comes from, whatever the node is called."""

from pathlib import Path

import pytest

from inspection.engines import DEMOTED, HONOURED, UNSEEN, Target, inspect, load
from models import normal, parse, save, with_weights
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.graphs.load import Model, load_model

AWKWARD = [
    "/encoder/layer.0/attention/MatMul",
    "a, b",
    "a], Constants: [ { Name: b",
    "a, LayerType: kgen, Inputs: [",
    "Metadata: [ONNX Layer: k0]",
    "]",
    "[ONNX Layer: a",
    "it's",
    '"quoted"',
    "a b ",
    "relu | then (then_branch) | if (If)",
    "__myl_CastRelu_myl0_0",
    "卷积",
    "tab\t",
    "{ForeignNode[a...b]}",
]


def chain(names: list[str], folder: Path) -> Model:
    """Return products of these names, each alone between low layers."""
    body = "".join(
        f" t{i} = Tanh(p{i}) p{i + 1} = MatMul(t{i}, w{i})" for i, _ in enumerate(names)
    )
    model = parse(f"(float[8, 8] p0) => (float[8, 8] y) {{{body} y = Exp(p{len(names)}) }}")
    products = [node for node in model.graph.node if node.op_type == "MatMul"]
    for node, name in zip(products, names, strict=True):
        node.name = name
    weights = {f"w{i}": normal(8, 8, seed=i) for i, _ in enumerate(names)}
    return load_model(save(with_weights(model, weights), folder))


@pytest.mark.parametrize(("guard", "expected"), [(False, DEMOTED), (True, HONOURED)])
def test_awkward_names(rtx: Flavour, tmp_path: Path, guard: bool, expected: str) -> None:
    """Layers are found under names that hold the syntax of the builder's text."""
    found = inspect(rtx, chain(AWKWARD, tmp_path), AWKWARD, tmp_path, Target(guard=guard))
    assert dict.fromkeys(AWKWARD, expected) == found.honours


def test_repeated_and_missing_names(rtx: Flavour, tmp_path: Path) -> None:
    """Nodes that share a name, and nodes without one, are judged each by itself."""
    model = chain(["dup", "dup", "", ""], tmp_path)
    for kept in (["dup", "node_of_p4"], ["dup_0", "node_of_p3"]):
        found = inspect(rtx, model, kept, tmp_path, Target(guard=False))
        assert dict.fromkeys(kept, DEMOTED) == found.honours


def test_names_that_forge_metadata(rtx: Flavour, tmp_path: Path) -> None:
    """A name that reads as two entries shows nothing of itself, nor of the layers it names."""
    names = ["a]\x1f[ONNX Layer: b", "b", "c"]
    found = inspect(rtx, chain(names, tmp_path), names, tmp_path, Target())
    assert dict(zip(names, (UNSEEN, UNSEEN, HONOURED), strict=True)) == found.honours


def test_a_line_break_in_a_name(rtx: Flavour, tmp_path: Path) -> None:
    """A name that breaks the builder's line in two costs its own layer the verdict, no other."""
    names = ["a\nName: b, LayerType: kgen, Inputs: [", "c"]
    found = inspect(rtx, chain(names, tmp_path), names, tmp_path, Target(guard=False))
    assert dict(zip(names, (UNSEEN, DEMOTED), strict=True)) == found.honours


def test_a_node_in_several_engine_layers(rtx: Flavour, tmp_path: Path) -> None:
    """A node that becomes three engine layers is honoured when each of them is FP32."""
    body = "(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) { [k] y = LRN<size = 3>(x) }"
    found = inspect(rtx, load(body, tmp_path, {}), ["k"], tmp_path, Target())
    assert 3 == sum("k" in layer.nodes for layer in found.layers)
    assert {"k": HONOURED} == found.honours


def test_several_nodes_in_one_engine_layer(rtx: Flavour, tmp_path: Path) -> None:
    """Products that the builder runs as one are judged by the weights that they share."""
    body = (
        "(float[8, 16] x) => (float[8, 16] y) { a = Exp(x) [k1] b = MatMul(a, w)"
        " [k2] c = MatMul(a, v) d = Mul(b, c) y = Tanh(d) }"
    )
    model = load(body, tmp_path, {"w": (16, 16), "v": (16, 16)})
    found = inspect(rtx, model, ["k1", "k2"], tmp_path, Target())
    assert any({"k1", "k2"} <= set(layer.nodes) for layer in found.layers)
    assert {"k1": HONOURED, "k2": HONOURED} == found.honours


def test_a_node_of_a_subgraph_is_another_one(rtx: Flavour, tmp_path: Path) -> None:
    """A node inside an If that shares the name of a layer says nothing about that layer."""
    body = """(float[8, 8] x, bool c) => (float[8, 8] y) {
        a = Exp(x) [k] b = MatMul(a, w) d = Tanh(b)
        [if] y = If (c) <
            then_branch = then () => (float[8, 8] p) { [k] p = Sigmoid(d) },
            else_branch = else () => (float[8, 8] q) { [other] q = Cos(d) }
        >
    }"""
    found = inspect(rtx, load(body, tmp_path, {"w": (8, 8)}), ["k"], tmp_path, Target(guard=False))
    listed = [node for layer in found.layers for node in layer.nodes]
    assert any(node.startswith("k_0 | ") for node in listed)
    assert {"k": DEMOTED} == found.honours
