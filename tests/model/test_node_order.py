"""Files whose nodes are out of order: ONNX Runtime opens them, and each is as the sorted one."""

import random
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from effort import examples
from models import loaded, normal, parse, save
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import all_graphs, copied, refill
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.runs.runfolder import MIXED_MODEL
from random_graphs import SIZE, random_models
from typed_graphs import run_as_written

PAIR = Pair(low="fp16", high="fp32")
NESTED = """(float[2] x, bool c) => (float[2] y) {
    n = Constant<value = int64 {3}>() go = Constant<value = bool {1}>()
    a = Exp(x)
    half = Constant<value = float {0.5}>()
    b = Mul(a, half)
    l = Loop (n, go, a) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2) {
        m = Mul(s, half)
        r = If (k) <then_branch = t () => (float[2] o) { p = Add(m, b) o = Sqrt(p) },
                    else_branch = e () => (float[2] q) { q = Sub(a, m) }>
        k2 = Identity(k) s2 = Add(r, a) }>
    z = Constant<value = int64[1] {0}>()
    u = Unsqueeze(l, z)
    v, w = Scan (l, u) <num_scan_inputs = 1, body = d (float[2] f, float[2] g)
        => (float[2] f2, float[2] g2) { h = Add(f, b) f2 = Tanh(h) g2 = Mul(h, g) }>
    j = local.act(v)
    y = Sqrt(j) }
    <domain: "local", opset_import: ["": 17]>
    act (p) => (q) { t = Sigmoid(p) s = Abs(t) q = Mul(s, t) }"""
"""Bodies that read what outer nodes make, at one level and at two, and a function."""


def shuffled(proto: onnx.ModelProto, drawn: random.Random) -> onnx.ModelProto:
    """Return a copy whose nodes are out of order, wherever a graph or a function has several."""
    changed = copied(proto)
    graphs = [graph.node for graph in all_graphs(changed.graph)]
    for nodes in (*graphs, *(function.node for function in changed.functions)):
        refill(nodes, drawn.sample([*nodes], k=len(nodes)))
    return changed


def outputs_of(proto: onnx.ModelProto, feed: Sample, kept: list[str]) -> list[list[np.ndarray]]:
    """Return what a plan gives in the emulator, and its typed graph in ONNX Runtime."""
    model = loaded(proto)
    plan = Plan.of(i for i, name in enumerate(model.table.names) if name in kept)
    emulated = EmulatedBackend(model, "fp16", threads=1).evaluate(plan, feed)
    typed = TypedWriter(model, PAIR).write(plan)
    for name, array in typed.weights.items():
        (stub,) = [each for each in typed.proto.graph.initializer if each.name == name]
        values = array.source.astype(array.dtype)
        stub.CopyFrom(onnx.numpy_helper.from_array(values, name))
    onnx.checker.check_model(typed.proto, full_check=True)
    found = run_as_written(typed.proto, dict(feed))
    return [[found[name], emulated[name]] for name in sorted(found)]


@examples(15)
@given(proto=random_models(), drawn=st.randoms(use_true_random=False))
def test_every_plan_is_that_of_the_sorted_file(
    proto: onnx.ModelProto, drawn: random.Random
) -> None:
    """Outputs, emulated and of the typed file, do not depend on where nodes stand."""
    names = [node.name for node in proto.graph.node]
    kept = drawn.sample(names, k=len(names) // 2)
    feed = {"x": normal(SIZE, SIZE)}
    expected = outputs_of(proto, feed, kept)
    np.testing.assert_equal(outputs_of(shuffled(proto, drawn), feed, kept), expected)


@examples(15)
@given(proto=random_models(), drawn=st.randoms(use_true_random=False))
def test_permutations_are_one_model(proto: onnx.ModelProto, drawn: random.Random) -> None:
    """All files that are out of order give the same layers in the same order."""
    orders = []
    for _ in range(3):
        other = shuffled(proto, drawn)
        if list(other.graph.node) == list(proto.graph.node):
            return
        model = loaded(other)
        made = {"x", *(tensor.name for tensor in model.proto.graph.initializer)}
        for node in model.proto.graph.node:
            assert made.issuperset(node.input)
            made.update(node.output)
        if list(model.proto.graph.node) != list(other.graph.node):
            orders.append([node.name for node in model.proto.graph.node])
    assert orders == orders[:1] * len(orders)


@examples(10)
@given(drawn=st.randoms(use_true_random=False))
def test_bodies_and_functions_are_sorted(drawn: random.Random) -> None:
    """If, Loop, Scan and functions, with inputs from outer nodes that the file lists later."""
    proto = parse(NESTED, domains='"local": 1')
    feed = {"x": normal(2), "c": np.array(True)}
    expected = outputs_of(proto, feed, ["y"])
    np.testing.assert_equal(outputs_of(shuffled(proto, drawn), feed, ["y"]), expected)


def test_a_sorted_file_keeps_its_order(tmp_path: Path) -> None:
    """Layers stand where the exporter put them, though another order would do, too."""
    model = load_model(
        save(parse("(float x) => (float y) { b = Exp(x) a = Abs(x) y = Add(a, b) }"), tmp_path)
    )
    assert ["Exp", "Abs", "Add"] == [node.op_type for node in model.proto.graph.node]


@pytest.mark.parametrize("seed", range(2))
def test_a_search_finds_what_it_finds_in_the_sorted_file(tmp_path: Path, seed: int) -> None:
    """Kept layers and error are the same, and the exported file opens."""
    proto = onnx.load(tiny.write_model(tmp_path / "tiny.onnx"))
    known = tiny.search(tmp_path / "tiny.onnx", tmp_path / "sorted")
    path = save(shuffled(proto, random.Random(seed)), tmp_path, "shuffled.onnx")
    found = tiny.search(path, tmp_path / "run")
    assert (tiny.KEPT, known.error) == (list(found.kept), found.error)
    (judged,) = tiny.samples()
    session = onnxruntime.InferenceSession(tmp_path / "run" / MIXED_MODEL)
    assert np.isfinite(session.run(None, judged)[0]).all()


def test_a_circle_is_refused(tmp_path: Path) -> None:
    """Nodes that wait for each other have no order, and one of them is named."""
    body = "(float x) => (float y) { [r] a = Relu(x) [s] b = Add(a, y) [t] y = Abs(b) }"
    with pytest.raises(ModelError, match="node 's' waits for a circle of nodes"):
        load_model(save(parse(body), tmp_path))


def test_two_nodes_that_write_a_tensor_are_refused(tmp_path: Path) -> None:
    """As PyTorch exports an output that is named as a tensor inside; ONNX Runtime blames the file.

    The line says what to change, not that an operator is unknown.
    """
    nodes = "embedding = Abs(x) z = Neg(embedding) embedding = Exp(z)"
    path = save(parse(f"(float x) => (float embedding) {{ {nodes} }}"), tmp_path)
    with pytest.raises(ModelError, match="two nodes write a tensor 'embedding'; export the file"):
        load_model(path)
