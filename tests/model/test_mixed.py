"""Models that hold 16-bit types already: an FP32 reference, and honest rounding where declared."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from models import keeping, load_text, normal, parse, save, save_external, with_weights
from precision_bisect import find
from precision_bisect.backends.cuda.building import TypedSessions
from precision_bisect.backends.cuda.cuda_engine import SessionEngine
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.layer_table import Exclusion
from precision_bisect.model.fp32_outputs import reference_outputs
from precision_bisect.model.load import Model, load_model
from precision_bisect.model.ort import CPU
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.run_folder.runfolder import MIXED_MODEL
from precision_bisect.typed.rewrite import TypedWriter
from typed_graphs import types_of


def ends(model: Model, feed: Sample) -> tuple[Sample, Sample]:
    """Return the reference and the outputs with every candidate high."""
    (reference,) = reference_outputs(model, [feed], threads=1)
    backend = EmulatedBackend(model, threads=1)
    return reference, backend.evaluate(Plan.all_high(len(model.table.candidates)), feed)


def test_what_the_file_declares_low_is_rounded_even_with_all_layers_high(tmp_path: Path) -> None:
    """A square that the file computes in FP16 overflows there; the reference does not."""
    model = load_text(
        """(float[1] x) => (float[1] y) <float k = {0.00333333333}> {
            a = Cast<to = 10>(x) [square] b = Mul(a, a) c = Cast<to = 1>(b) [scale] y = Mul(c, k)
        }""",
        tmp_path,
    )
    assert list(model.table.names) == ["scale"]
    reference, high = ends(model, {"x": np.array([300], np.float32)})
    np.testing.assert_allclose(reference["y"], [300], rtol=1e-6)
    assert np.isinf(high["y"]).all()


def test_an_all_fp16_model_has_nothing_to_decide(tmp_path: Path) -> None:
    """All layers of an FP16 model are low already; its inputs are fed as FP16."""
    proto = with_weights(
        parse("(float16[1,64] x) => (float16[1,64] y) { y = MatMul(x, w) }"),
        {"w": normal(64, 64).astype(np.float16)},
    )
    model = load_model(save(proto, tmp_path))
    assert not model.table.candidates
    assert model.inputs[0].dtype == "float16"
    assert model.weights["w"].dtype == np.float32
    reference, high = ends(model, {"x": normal(1, 64)})
    expected = reference["y"].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(high["y"], expected)


def test_external_fp16_weights_are_widened(tmp_path: Path) -> None:
    """FP16 weights in external data are read as the FP32 values that they stand for."""
    weights = normal(64, 64).astype(np.float16)
    proto = with_weights(
        parse("(float[1,64] x) => (float[1,64] y) { v = Cast<to = 1>(w) y = MatMul(x, v) }"),
        {"w": weights},
    )
    model = load_model(save_external(proto, tmp_path))
    reference, high = ends(model, {"x": normal(1, 64)})
    np.testing.assert_allclose(
        reference["y"], normal(1, 64) @ weights.astype(np.float32), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(high["y"], reference["y"], rtol=2e-6, atol=2e-6)


def test_low_types_inside_subgraphs_are_rounded(tmp_path: Path) -> None:
    """A body that computes in FP16 overflows there as well, at any depth."""
    model = load_text(
        """(float[1] x, bool c) => (float[1] y) {
            y = If (c) <
                then_branch = t () => (float[1] a) {
                    a = If (c) <
                        then_branch = tt () => (float[1] e) {
                            l = Cast<to = 10>(x) m = Mul(l, l) e = Cast<to = 1>(m) },
                        else_branch = te () => (float[1] f) { f = Neg(x) }> },
                else_branch = e () => (float[1] b) { b = Neg(x) }> }""",
        tmp_path,
    )
    reference, high = ends(model, {"x": np.array([300], np.float32), "c": np.array(True)})
    np.testing.assert_array_equal(reference["y"], [90000])
    assert np.isinf(high["y"]).all()


def test_low_constants_and_types_in_attributes_are_widened(tmp_path: Path) -> None:
    """Filled tensors and sequences of FP16 do not keep FP16 in the graph."""
    body = """(float[2] x) => (float[2] y, float16[4] z) {
        h = Cast<to = 10>(x) o = ConstantOfShape<value = float16[1] {16384}>(two) m = Mul(h, o)
        q = SequenceConstruct(h, m) z = ConcatFromSequence<axis = 0>(q) y = Cast<to = 1>(m) }"""
    proto = with_weights(parse(body), {"two": np.array([2])})
    proto.graph.value_info.append(
        onnx.helper.make_tensor_sequence_value_info("q", onnx.TensorProto.FLOAT16, [2])
    )
    model = load_model(save(proto, tmp_path))
    reference, high = ends(model, {"x": np.array([0.1, 1.0], np.float32)})
    np.testing.assert_allclose(reference["y"], [0.2, 2.0], rtol=1e-6)
    np.testing.assert_array_equal(high["y"], np.array([0.2, 2.0], np.float16))


def test_islands_of_fp32_in_an_fp16_model_can_be_searched(tmp_path: Path) -> None:
    """Layers that the file computes in FP32 are candidates, those in FP16 are not."""
    model = load_text(
        """(float16[1] x) => (float[1] y) <float k = {0.00333333333}> {
            [up] a = Cast<to = 1>(x) [square] b = Mul(a, a) [scale] y = Mul(b, k) }""",
        tmp_path,
    )
    assert list(model.table.names) == ["square", "scale"]
    feed = {"x": np.array([300], np.float32)}
    reference, high = ends(model, feed)
    np.testing.assert_array_equal(reference["y"], high["y"])
    low = EmulatedBackend(model, threads=1).evaluate(keeping(model, "scale"), feed)
    assert np.isinf(low["y"]).all()


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_reasons_in_a_mixed_model(tmp_path: Path, kind: str) -> None:
    """A layer with a 16-bit result is excluded as low already, for both types."""
    code = {"float16": 10, "bfloat16": 16}[kind]
    model = load_text(
        f"(float[2] x) => (float[2] y) {{ a = Cast<to = {code}>(x) [n] b = Exp(a)"
        " c = Cast<to = 1>(b) y = Neg(c) }",
        tmp_path,
    )
    reasons = {str(layer.name): layer.exclusion for layer in model.table.layers}
    assert reasons["n"] is Exclusion.ALREADY_LOW
    ends(model, {"x": normal(2)})


def test_a_mixed_model_gets_its_export(tmp_path: Path) -> None:
    """A run on a model that computes in FP16 already writes one of its types and the plan's."""
    model = load_text(
        """(float16[1] x) => (float16[1] y) <float k = {0.0001}> {
            [halve] a = Add(x, x) b = Cast<to = 1>(a) [square] c = Mul(b, b) [scale] d = Mul(c, k)
            y = Cast<to = 10>(d) }""",
        tmp_path,
    )
    inputs = [{"x": np.array([300], np.float16)}]
    result = find(model.path, inputs=inputs, out=tmp_path / "run", threads=1)
    assert ["square", "scale"] == result.kept
    mixed = onnx.load(tmp_path / "run" / MIXED_MODEL)
    onnx.checker.check_model(mixed, full_check=True)
    assert list(onnx.load(model.path).graph.input) == list(mixed.graph.input)
    types = types_of(mixed)
    assert [10, 1, 1] == [types[name] for name in ("a", "c", "d")]


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
    with SessionEngine(
        TypedSessions(writer, opener, tmp_path / "typed").open(Plan.all_high(1)), "cpu"
    ) as built:
        np.testing.assert_array_equal(-feed["x"], built.run(feed)["y"])
        assert built.time(feed)
