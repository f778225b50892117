"""Files with 16-bit floats: their FP32 form is exact, and it is what is searched."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.transformers.float16 import convert_float_to_float16

import tiny
from models import load_text, normal, parse, save, save_external, with_weights
from precision_bisect import find
from precision_bisect.backends.cuda.building import TypedSessions
from precision_bisect.backends.cuda.cuda_engine import SessionEngine
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.errors import ModelError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.runfolder import FP32_MODEL, MIXED_MODEL, TRTEXEC
from random_graphs import SIZE, random_models
from typed_graphs import run_as_written, types_of

KINDS: dict[str, tuple[str, list[str], list[str]]] = {
    "all of it": (
        "(float16[2] x) => (float16[2] y) { [n] a = Exp(x) [m] y = Mul(a, a) }",
        ["n", "m"],
        ["n", "m"],
    ),
    "bfloat16": (
        "(float[2] x) => (float[2] y) { [c] a = Cast<to = 16>(x) [n] b = Exp(a)"
        " [d] e = Cast<to = 1>(b) [m] y = Neg(e) }",
        ["n", "m"],
        ["c", "n"],
    ),
    "an island": (
        "(float16[2] x) => (float16[2] y) { [c] a = Cast<to = 1>(x) [n] b = Mul(a, a)"
        " [d] y = Cast<to = 10>(b) }",
        ["n"],
        ["d"],
    ),
    "a cast to an output that others read": (
        "(float[2] x) => (float16[2] y, float[2] z) { [n] a = Exp(x) [c] y = Cast<to = 10>(a)"
        " [d] b = Cast<to = 1>(y) [m] z = Neg(b) }",
        ["n", "m"],
        ["c"],
    ),
    "casts alone": (
        "(float16[2] x) => (float[2] y, float16[2] z) { [c] y = Cast<to = 1>(x)"
        " [d] z = Cast<to = 10>(y) }",
        [],
        ["d"],
    ),
    "types in attributes": (
        """(float[2] x) => (float[2] y, float16[4] z) <int64[1] two = {2}> {
        [c] h = Cast<to = 10>(x) [o] o = ConstantOfShape<value = float16[1] {16384}>(two)
        [n] m = Mul(h, o) [q] q = SequenceConstruct(h, m)
        [s] z = ConcatFromSequence<axis = 0>(q) [d] y = Cast<to = 1>(m) }""",
        ["n", "s"],
        ["c", "o", "n", "s"],
    ),
    "a cast like another": (
        "(float[2] x, float16[1] l) => (float[2] y) { [c] a = CastLike(x, l) [n] b = Exp(a)"
        " [d] y = Cast<to = 1>(b) }",
        ["n"],
        ["c", "n"],
    ),
    "ill-typed": (
        "(float[2,4] x) => (float[2,4] y) <float[4] s = {1, 2, 3, 4}> { [c] h = Cast<to = 10>(x)"
        " [n] b = LayerNormalization(h, s) [d] y = Cast<to = 1>(b) }",
        ["n"],
        ["c", "n"],
    ),
}
"""A file, its layers, and the nodes that store a 16-bit type."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_of_the_fp32_form_is_a_candidate(tmp_path: Path, kind: str) -> None:
    """No 16-bit type is left, the file's interface is known, and what it stores low is named."""
    text, layers, low = KINDS[kind]
    model = load_text(text, tmp_path)
    given = onnx.load(model.path).graph
    assert (layers, low) == (list(model.table.names), list(model.in_low))
    assert not {10, 16} & set(types_of(model.proto).values())
    halves = {v.name for v in (*given.input, *given.output) if v.type.tensor_type.elem_type == 10}
    assert halves == {*model.of_file.inputs, *model.of_file.outputs}
    assert [v.name for v in given.output] == [v.name for v in model.proto.graph.output]
    feed = {
        v.name: normal(*(d.dim_value for d in v.type.tensor_type.shape.dim)) for v in given.input
    }
    (outputs,) = reference_outputs(model, [feed], threads=1)
    assert [v.name for v in given.output] == list(outputs)


@given(proto=random_models(), keep=st.booleans(), blocked=st.sets(st.integers(0, 11), max_size=6))
def test_a_converted_model_computes_what_its_rounded_constants_say(
    tmp_path_factory: pytest.TempPathFactory,
    proto: onnx.ModelProto,
    keep: bool,
    blocked: set[int],
) -> None:
    """The FP32 form of a conversion is the original with constants rounded to FP16."""
    names = [node.name for node in proto.graph.node if node.op_type != "Constant"]
    converted = convert_float_to_float16(
        _copy(proto),
        keep_io_types=keep,
        force_fp16_initializers=True,
        node_block_list=[names[i] for i in blocked if i < len(names)],
    )
    rounded = _copy(proto)
    held = [a.t for node in rounded.graph.node for a in node.attribute if a.HasField("t")]
    for tensor in (*rounded.graph.initializer, *held):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    model = load_model(save(converted, tmp_path_factory.mktemp("converted")))
    feed = {"x": normal(SIZE, SIZE).astype(np.float16).astype(np.float32)}
    expected, found = (run_as_written(each, feed) for each in (rounded, model.proto))
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name])
    assert not any(node.op_type == "Cast" for node in model.proto.graph.node)


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def test_our_own_answer_is_searched_like_the_original(tmp_path: Path) -> None:
    """Casts, low weights and guards of model.mixed.onnx are no layers, so it keeps the same."""
    first = tiny.search(tiny.write_model(tmp_path / "tiny.onnx"), tmp_path / "run")
    again = tiny.search(tmp_path / "run" / MIXED_MODEL, tmp_path / "again")
    assert tiny.KEPT == first.kept == again.kept
    assert first.candidates == again.candidates
    assert again.fp32_form is not None
    low = {*load_model(tmp_path / "tiny.onnx").table.names} - {*first.kept}
    assert low == {*again.fp32_form.layers}


@pytest.mark.parametrize(
    ("guard", "layers"),
    [("Max(f, f)", ["e", "m"]), ("Max(f, a)", ["e", "precision_bisect/guard/m/0", "m"])],
)
def test_a_guard_is_no_layer(tmp_path: Path, guard: str, layers: list[str]) -> None:
    """What keeps builders from undoing an FP32 island vanishes; what changes values stays."""
    text = f"""(float[1,4] x) => (float[1,4] y) {{ a = Exp(x) h = Cast<to = 10>(a)
        f = Cast<to = 1>(h) g = {guard} y = MatMul(g, w) }}"""
    proto = with_weights(parse(text), {"w": np.eye(4, dtype=np.float32)})
    names = ["e", "down", "up", "precision_bisect/guard/m/0", "m"]
    for node, name in zip(proto.graph.node, names, strict=True):
        node.name = name
    assert layers == list(load_model(save(proto, tmp_path)).table.names)


def test_a_sum_that_an_fp16_file_overflows_is_found(tmp_path: Path) -> None:
    """The file alone cannot be judged; its FP32 form is searched, exported in the file's types."""
    model = load_text(
        """(float16[1] x) => (float16[1] y) {
            [halve] a = Add(x, x) [square] c = Mul(a, a) [root] y = Sqrt(c) }""",
        tmp_path,
    )
    result = find(
        model.path, inputs=[{"x": np.array([300], np.float16)}], out=tmp_path / "run", threads=1
    )
    assert (Status.FOUND, ["square", "root"]) == (result.status, result.kept)
    told = result.fp32_form
    assert told is not None
    assert (["fp16"], ["halve", "square", "root"]) == (told.types, told.layers)
    assert [("square", 1)] == [(each.node, each.samples) for each in told.overflowing]
    mixed = onnx.load(tmp_path / "run" / MIXED_MODEL)
    onnx.checker.check_model(mixed, full_check=True)
    assert list(onnx.load(model.path).graph.input) == list(mixed.graph.input)
    types = types_of(mixed)
    assert [10, 1, 10] == [types[name] for name in ("a", "c", "y")]
    script = (tmp_path / "run" / TRTEXEC).read_text()
    assert f"model=$here/{FP32_MODEL}" in script
    form = types_of(onnx.load(tmp_path / "run" / FP32_MODEL))
    assert [1, 1] == [form[name] for name in ("a", "c")]


def test_a_cast_of_the_file_that_overflows_is_named(tmp_path: Path) -> None:
    """A conversion that leaves Cast to FP16 and back between FP32 nodes is named."""
    model = load_text(
        """(float[1] x) => (float[1] y) <float k = {0.0001}> {
            [square] a = Mul(x, x) [down] b = Cast<to = 10>(a) [up] c = Cast<to = 1>(b)
            [scale] y = Mul(c, k) }""",
        tmp_path,
    )
    inputs = [{"x": np.array([value], np.float32)} for value in (300, 2)]
    result = find(model.path, inputs=inputs, out=tmp_path / "run", threads=1)
    assert ["square", "scale"] == result.kept
    assert result.fp32_form is not None
    assert [("down", 1)] == [(each.node, each.samples) for each in result.fp32_form.overflowing]


def test_external_fp16_weights_are_widened(tmp_path: Path) -> None:
    """FP16 weights in external data are read as the FP32 values that they stand for."""
    weights = normal(64, 64).astype(np.float16)
    proto = with_weights(
        parse("(float[1,64] x) => (float[1,64] y) { v = Cast<to = 1>(w) y = MatMul(x, v) }"),
        {"w": weights},
    )
    model = load_model(save_external(proto, tmp_path))
    (found,) = reference_outputs(model, [{"x": normal(1, 64)}], threads=1)
    np.testing.assert_allclose(
        found["y"], normal(1, 64) @ weights.astype(np.float32), rtol=1e-5, atol=1e-5
    )


def test_bodies_are_widened_at_any_depth(tmp_path: Path) -> None:
    """A branch that computes in FP16 gives what FP32 does; its Casts are gone."""
    model = load_text(
        """(float[1] x, bool c) => (float[1] y) {
            y = If (c) <
                then_branch = t () => (float[1] a) {
                    a = If (c) <
                        then_branch = tt () => (float[1] e) {
                            l = Cast<to = 10>(x) m = Mul(l, l) e = Cast<to = 1>(m) },
                        else_branch = te () => (float[1] f) {
                            h = Cast<to = 10>(x) f = Cast<to = 1>(h) }> },
                else_branch = e () => (float[1] b) { b = Neg(x) }> }""",
        tmp_path,
    )
    feed: dict[str, Any] = {"x": np.array([300], np.float32), "c": np.array(True)}
    (found,) = reference_outputs(model, [feed], threads=1)
    np.testing.assert_array_equal(found["y"], [90000])
    nodes = [node for graph in all_graphs(model.proto.graph) for node in graph.node]
    assert {"If", "Mul", "Identity", "Neg"} == {node.op_type for node in nodes}
    assert ["node_of_m"] == [*model.in_low]


@pytest.mark.parametrize("kinds", [(10, 16), (10, 1), (16, 11)])
def test_bodies_may_call_tensors_of_two_types_the_same(
    tmp_path: Path, kinds: tuple[int, int]
) -> None:
    """The type of such a tensor is not known by its name, and the file is widened for all that."""
    body = (
        "() => (float[1] {end})"
        " {{ h = Cast<to = {kind}>(x) m = Mul(h, h) {end} = Cast<to = 1>(m) }}"
    )
    model = load_text(
        "(float[1] x, bool c) => (float[1] y) { y = If (c) <"
        f" then_branch = t {body.format(end='a', kind=kinds[0])},"
        f" else_branch = e {body.format(end='b', kind=kinds[1])}> }}",
        tmp_path,
    )
    feeds = [{"x": np.array([300], np.float32), "c": np.array(way)} for way in (True, False)]
    for outputs in reference_outputs(model, feeds, threads=1):
        np.testing.assert_array_equal(outputs["y"], [90000])


def test_bits_of_16_bit_floats_have_no_fp32_form(tmp_path: Path) -> None:
    """A BitCast is told by its name, in one line."""
    proto = parse("(float16[2] x) => (int16[2] y) { [bits] y = BitCast<to = 5>(x) }", opset=26)
    with pytest.raises(ModelError, match="'bits' is a BitCast of 16-bit floats"):
        load_model(save(proto, tmp_path))


def test_an_engine_takes_fp16_inputs(tmp_path: Path) -> None:
    """Samples are FP32 inside the tool, and reach a session in the type that the graph has."""
    model = load_text(
        "(float16[4] x) => (float16[4] y, float[4] z) {"
        " y = Neg(x) a = Cast<to = 1>(x) [exp] z = Exp(a) }",
        tmp_path,
    )
    opener = Opener(providers=[CPU], profiles=tmp_path / "profile")
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    feed = {"x": normal(4).astype(np.float16).astype(np.float32)}
    plan = Plan.all_high(2)
    with SessionEngine(
        TypedSessions(writer, opener, tmp_path / "typed").open(plan), "cpu"
    ) as built:
        np.testing.assert_array_equal(-feed["x"], built.run(feed)["y"])
        assert built.time(feed)
