"""What runs high is what reads or writes FP32 in the written file, node by node."""

import random
import tempfile
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from effort import examples
from models import keeping, load_text, loaded
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.typed.high_nodes import told
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, LowName, Pair
from random_graphs import random_models
from wider_graphs import WIDER_KINDS, WiderMaker


def by_types(writer: TypedWriter, plan: Plan, low: LowName) -> list[str]:
    """Return the model's nodes that read or write FP32 by the types in the file of a plan.

    A node that computes in the low type may read FP32, too: settings such as a Resize's scales.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "typed.onnx"
        save_typed(writer.write(plan, guard_islands=False), path)
        graph = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    own = {layer.name for layer in writer.model.table.layers}
    half = LOW_TYPES[low].onnx_type
    return [
        node.name
        for node in graph.node
        if node.name in own and half not in {types.get(name) for name in node.output}
        if TensorProto.FLOAT in {types.get(name) for name in (*node.input, *node.output)}
        if node.op_type not in ("Shape", "Size", "Constant")
    ]


@examples(30)
@given(
    proto=random_models(WiderMaker, WIDER_KINDS),
    low=st.sampled_from(HALF_NAMES),
    choose=st.randoms(use_true_random=False),
)
def test_what_runs_high_is_what_the_file_says(
    proto: onnx.ModelProto, low: LowName, choose: random.Random
) -> None:
    """Whatever the graph and the plan, followers and comparisons behind kept layers included."""
    model = loaded(proto)
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    count = len(model.table.names)
    plan = Plan.of(choose.sample(range(count), count // 2))
    assert list(writer.high_nodes(plan)) == by_types(writer, plan, low)


def high(model: Model, *kept: str) -> dict[str, str]:
    """Return the nodes that run high in FP16 beside these kept ones, each with its type."""
    nodes = TypedWriter(model, Pair(low="fp16", high="fp32")).high_nodes(keeping(model, *kept))
    return {name: node.precision for name, node in nodes.items()}


@pytest.mark.parametrize(
    ("behind", "names"),
    [
        ("[i] i = ArgMax(d) y = Cast<to=1>(i)", ["i"]),
        ("[b] b = Greater(d, d) y = Cast<to=1>(b)", ["b"]),
        ("[t] t = Transpose(d) [i] i = ArgMax(t) y = Cast<to=1>(i)", ["t", "i"]),
        ("[c] c = Cast<to=7>(d) y = Cast<to=1>(c)", ["c"]),
        ("s = Shape(d) y = Cast<to=1>(s)", []),
    ],
)
def test_what_looks_at_a_kept_layer_goes_with_it(
    behind: str, names: list[str], tmp_path: Path
) -> None:
    """A label or a mask is computed of what was kept, unrounded; sizes look at no value."""
    model = load_text(
        f"(float[2,8] x) => (float y) {{ [e] e = Exp(x) [d] d = Div(e, x) {behind} }}", tmp_path
    )
    found = high(model, "d")
    assert ["d", *names] == [name for name in found if not name.startswith("node_of_y")]


def test_a_tie_between_kept_layers_goes_with_them(tmp_path: Path) -> None:
    """A Reshape moves what it is given: high behind a kept layer, low behind a low one."""
    model = load_text(
        "(float[2,8] x) => (float y) <int64[1] s = {16}>"
        " { [a] a = Exp(x) [r] r = Reshape(a, s) [b] b = Sin(r) [q] q = Reshape(b, s)"
        " [c] y = Cos(q) }",
        tmp_path,
    )
    assert dict.fromkeys("arbq", "fp32") == high(model, "a", "b")
    assert dict.fromkeys("bq", "fp32") == high(model, "b")
    assert dict.fromkeys("c", "fp32") == high(model, "c")


def test_all_that_a_loop_holds_goes_with_it(tmp_path: Path) -> None:
    """Control flow stays high as one unit: the nodes inside are told of, and what it hands in."""
    model = load_text(
        "(float[4] x, int64 n, bool c) => (float[4] y) { [e] e = Exp(x) [loop] y = Loop(n, c, e) <"
        "body = b (int64 i, bool k, float[4] a) => (bool k2, float[4] z)"
        " { k2 = Identity(k) [inner] z = Mul(a, e) }> }",
        tmp_path,
    )
    nodes = TypedWriter(model, Pair(low="fp16", high="fp32")).high_nodes(Plan.of(()))
    assert ["loop"] == list(nodes)
    assert {
        "loop": ("fp32", ("n", "c", "e"), ("y", "i", "k", "a")),
        "inner": ("fp32", ("a", "e"), ("z",)),
    } == told(nodes, model.table)


def test_a_node_inside_called_like_one_outside_has_a_name_of_its_own(tmp_path: Path) -> None:
    """TensorRT's parser up to 10 writes the name alone: a low layer would be marked with it."""
    model = load_text(
        "(float[4] x, bool c) => (float[4] y) { [relu] h = Relu(x) [if] y = If (c) <"
        "then_branch = t () => (float[4] z) { [relu] z = Relu(h) },"
        "else_branch = f () => (float[4] w) { [neg] w = Neg(h) }> }",
        tmp_path,
    )
    nodes = TypedWriter(model, Pair(low="fp16", high="fp32")).high_nodes(Plan.of(()))
    assert {"if": ["relu_0", "neg"]} == {name: list(node.inside) for name, node in nodes.items()}
