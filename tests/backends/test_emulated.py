"""The emulator against an oracle that shares nothing with it, and against known tiny models."""

import random
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from effort import examples
from models import (
    CANCELLATION,
    OVERFLOW,
    UNDERFLOW,
    keeping,
    load_text,
    loaded,
    normal,
    parse,
    save,
    with_weights,
)
from precision_bisect.backends.emulation import snippets as self_testing
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.switched import switch
from precision_bisect.errors import ModelError, RefusedError
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.lowtypes import (
    BF16,
    FP8,
    FP16,
    INT8,
    LOW_TYPES,
    QUANTIZED,
    LowType,
    QuantizedType,
)
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, LOW_NAMES, LowName, Pair
from precision_bisect.protocols import BackendFailure
from precision_bisect.trial import TrialStatus, Verdict
from random_graphs import SIZE, random_models, static_graph
from typed_graphs import run_as_written

FP16_IN_FP32 = Pair(low="fp16", high="fp32")


@examples(30)
@given(
    proto=random_models(),
    low=st.sampled_from(HALF_NAMES),
    choose=st.randoms(use_true_random=False),
    scale=st.sampled_from((0.01, 1.0, 30.0)),
)
def test_every_plan_equals_casts_written_into_the_graph(
    proto: onnx.ModelProto, low: LowName, choose: random.Random, scale: float
) -> None:
    """Whatever the graph and the plan, switching gives what a static graph of Casts gives."""
    model = loaded(proto)
    count = len(model.table.candidates)
    backend = EmulatedBackend(model, low, threads=1)
    x = normal(SIZE, SIZE) * np.float32(scale)
    plans = [range(count), (), *(choose.sample(range(count), k=count // 2) for _ in range(3))]
    for kept in plans:
        static = static_graph(model, kept, LOW_TYPES[low].onnx_type)
        expected = run_as_written(static, {"x": x}).values()
        found = backend.evaluate(Plan.of(kept), {"x": x})
        for wanted, (name, array) in zip(expected, found.items(), strict=True):
            magnitude = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0))
            np.testing.assert_allclose(
                array, wanted, rtol=1e-6, atol=1e-6 * magnitude, err_msg=f"{name} of {kept}"
            )
    (reference,) = reference_outputs(model, [{"x": x}], threads=1)
    high = backend.evaluate(Plan.all_high(count), {"x": x})
    for name, array in reference.items():
        magnitude = float(np.abs(array[np.isfinite(array)]).max(initial=0))
        np.testing.assert_allclose(high[name], array, rtol=1e-5, atol=1e-5 * magnitude)


def test_constants_from_nodes_are_rounded_like_weights(tmp_path: Path) -> None:
    """A constant that a node makes, or a chain of nodes, is rounded with its reader, once."""
    model = load_text(
        """(float[2,2] x) => (float[2,2] y) {
            c = Constant<value = float[2,2] {1.0001, 2.0001, 3.0001, 4.0001}>()
            t = Transpose<perm = [1, 0]>(c)
            [add] y = Add(x, t) }""",
        tmp_path,
    )
    x = np.zeros((2, 2), np.float32)
    backend = EmulatedBackend(model, threads=1)
    exact = np.array([[1.0001, 3.0001], [2.0001, 4.0001]], np.float32)
    high = backend.evaluate(keeping(model, "add"), {"x": x})
    np.testing.assert_array_equal(high["y"], exact)
    low = backend.evaluate(Plan.of(()), {"x": x})
    np.testing.assert_array_equal(low["y"], exact.astype(np.float16))
    graph = switch(model, FP16_IN_FP32, Scales())
    assert len(graph.switches.layers) == 3  # what it reads, its weight, what it stores


def test_exact_constants_cost_no_switch(tmp_path: Path) -> None:
    """An exponent of 2 is the same in every type, so nothing is switched for it."""
    model = load_text(
        "(float[2] x) => (float[2] y) { c = Constant<value = float {2}>() y = Pow(x, c) }",
        tmp_path,
    )
    graph = switch(model, FP16_IN_FP32, Scales())
    assert len(graph.switches.layers) == 2  # what it reads and what it stores


@pytest.mark.parametrize(
    ("body", "x", "true", "kept", "bad"),
    [
        (OVERFLOW, [300], [300], (0, 1), np.isinf),
        (UNDERFLOW, [1, 2, 3, 4], [1, 2, 3, 4], (0, 1, 2), lambda y: y[:1] != 1),
        (CANCELLATION, [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4], (0, 1),
         lambda y: np.abs(y - [0.1, 0.2, 0.3, 0.4]) > 0.01),
    ],
    ids=["overflow", "underflow", "cancellation"],
)  # fmt: skip
def test_known_models(
    tmp_path: Path,
    body: str,
    x: list[float],
    true: list[float],
    kept: tuple[int, ...],
    bad: Callable[[np.ndarray], np.ndarray],
) -> None:
    """Each textbook failure happens in FP16 and is gone with its layers kept."""
    model = load_text(body, tmp_path)
    feed = {"x": np.array(x, np.float32)}
    backend = EmulatedBackend(model, threads=1)
    high = backend.evaluate(Plan.of(kept), feed)["y"]
    np.testing.assert_allclose(high, true, rtol=1e-4)
    assert bad(backend.evaluate(Plan.of(()), feed)["y"]).any()


def test_bf16_rounds_as_the_reference_type_does(tmp_path: Path) -> None:
    """A low Identity-like layer gives what ml_dtypes gives, over all magnitudes and ties."""
    bits = np.arange(0, 2**32, 2**32 // 50_021, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, ties, ties + 1, ties - 1]).view(np.float32)
    values = values[np.isfinite(values)]
    model = load_text("(float[n] x) => (float[n] y) { y = Neg(x) }", tmp_path)
    for low, kind in ((BF16, ml_dtypes.bfloat16), (FP16, np.float16)):
        backend = EmulatedBackend(model, low.name, threads=1)
        found = backend.evaluate(Plan.of(()), {"x": values})["y"]
        with np.errstate(over="ignore"):
            expected = -values.astype(kind).astype(np.float32)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(low.round(values), -expected)


def test_no_plan_builds_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty plans are fifty inferences of one session."""
    made: list[object] = []
    real = onnxruntime.InferenceSession

    def counted(*arguments: object, **options: object) -> object:
        made.append(arguments)
        return real(*arguments, **options)

    model = load_text(OVERFLOW, tmp_path)
    # The self-test is made once a process.
    EmulatedBackend(model, threads=1)
    monkeypatch.setattr(onnxruntime, "InferenceSession", counted)
    backend = EmulatedBackend(model, threads=1)
    for number in range(50):
        backend.evaluate(Plan.from_key(format(number % 4, "x")), {"x": np.ones(1, np.float32)})
    assert len(made) == 1


def test_fp16_graphs_are_refused_and_why(tmp_path: Path) -> None:
    """ONNX Runtime's CPU provider computes FP16-typed graphs in FP32, so a verdict would lie."""
    body = """(float[1] x) => (float[1] y) {
        k = Constant<value = float[1] {0.00333333333}>()
        a = Cast<to = 10>(x) kk = Cast<to = 10>(k) s = Mul(a, a) t = Mul(s, kk)
        y = Cast<to = 1>(t) }"""
    typed = parse(body)
    (lie,) = run_optimized(typed, np.array([300], np.float32))
    assert 299 < lie[0] < 301
    with pytest.raises(RefusedError, match="16-bit float type") as caught:
        Session(typed, {})
    assert caught.value.hint
    model = load_model(save(typed, tmp_path))
    feed = {"x": np.array([300], np.float32)}
    truth = EmulatedBackend(model, threads=1).evaluate(Plan.of(()), feed)
    assert np.isinf(truth["y"]).all()


def run_optimized(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """Run a graph as ONNX Runtime does unless told otherwise."""
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs: list[np.ndarray] = session.run(None, {"x": x})
    return outputs


@pytest.mark.parametrize(
    "body",
    [
        "(float16[1] x) => (float16[1] y) { y = Neg(x) }",
        "(float[1] x) => (float16[1] y) { y = Cast<to = 10>(x) }",
        "(float[1] x) => (float[1] y) <float16[1] w = {1}> { v = Cast<to = 1>(w) y = Mul(x, v) }",
        "(float[1] x) => (float[1] y) { c = Constant<value = float16[1] {1}>()"
        " v = Cast<to = 1>(c) y = Mul(x, v) }",
        "(float[1] x, bool c) => (float[1] y) { h = Cast<to = 10>(x) y = If (c) <"
        "then_branch = t () => (float[1] a) { g = Neg(h) a = Cast<to = 1>(g) },"
        "else_branch = e () => (float[1] b) { b = Neg(x) }> }",
        "(float[1] x) => (float[1] y) { r = RandomNormal<dtype = 10, shape = [1]>()"
        " s = Neg(r) y = Cast<to = 1>(s) }",
    ],
    ids=["input", "output", "initializer", "constant", "captured", "random"],
)
def test_every_place_that_a_16_bit_type_hides_in(body: str) -> None:
    """16-bit types are found in inputs, outputs, weights, attributes and subgraphs."""
    with pytest.raises(RefusedError):
        Session(parse(body), {})


@pytest.mark.parametrize("low", LOW_NAMES)
def test_the_self_test_passes_here(low: LowName) -> None:
    """The installed ONNX Runtime keeps round trips to every type."""
    self_testing.self_test((LOW_TYPES | QUANTIZED)[low])


@pytest.mark.parametrize("low", [FP16, BF16, INT8, FP8])
def test_the_self_test_refuses_what_does_not_round(
    low: LowType | QuantizedType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If round trips were optimized away, nothing would be judged."""

    class Careless(Session):
        def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:  # type: ignore[override]
            return {"y": feed["x"]}

    monkeypatch.setattr(self_testing, "Session", Careless)
    with pytest.raises(RefusedError, match="does not keep a round trip"):
        self_testing.self_test(low)


@pytest.mark.parametrize("operator", ["Softmax", "Hardmax"])
def test_conversion_refuses_what_would_change(tmp_path: Path, operator: str) -> None:
    """Without an axis these flatten before opset 13, which onnx converts to more, or wrongly."""
    body = f"(float[2,3,4] x) => (float[2,3,4] y) {{ [s] y = {operator}(x) }}"
    with pytest.raises(ModelError, match="opset 11") as caught:
        EmulatedBackend(load_text(body, tmp_path, opset=11), "bf16", threads=1)
    assert "opset 13" in caught.value.hint


@pytest.mark.parametrize(
    ("operator", "shape"), [("Softmax<axis = 2>", (2, 3, 4)), ("Softmax", (2, 3))]
)
def test_conversion_keeps_what_operators_mean(
    tmp_path: Path, operator: str, shape: tuple[int, ...]
) -> None:
    """A converted model computes what the model computes."""
    dims = ",".join(str(dim) for dim in shape)
    body = f"(float[{dims}] x) => (float[{dims}] y) {{ [s] y = {operator}(x) }}"
    model = load_text(body, tmp_path, opset=11)
    feed = {"x": normal(*shape)}
    (reference,) = reference_outputs(model, [feed], threads=1)
    found = EmulatedBackend(model, "bf16", threads=1).evaluate(Plan.all_high(1), feed)
    np.testing.assert_allclose(found["y"], reference["y"], rtol=1e-6)


def test_a_failing_run_is_an_outcome(tmp_path: Path) -> None:
    """An inference that fails ends the trial, not the program."""
    model = load_text("(float[n] x, float[m] z) => (float[k] y) { y = Add(x, z) }", tmp_path)
    backend = EmulatedBackend(model, threads=1)
    with pytest.raises(BackendFailure) as caught:
        backend.evaluate(Plan.of(()), {"x": normal(2), "z": normal(3)})
    assert caught.value.outcome.message
    assert "\n" not in caught.value.outcome.message


@pytest.mark.parametrize("few", [False, True])
def test_an_index_that_leaves_its_table_fails(few: bool, tmp_path: Path) -> None:
    """ONNX Runtime stops there, and FP32 does not: the plan is at fault, whatever engines do."""
    text = """(float[1] x, float[4096] table) => (float[1] y) <float k = {1.0}> {
        a = Mul(x, k) i = Cast<to = 7>(a) y = Gather(table, i) }"""
    model = load_text(text, tmp_path)
    feed = {"x": np.array([4095], np.float32), "table": normal(4096)}
    backend = EmulatedBackend(model, threads=1, few=few)
    with pytest.raises(BackendFailure) as caught:
        backend.evaluate(Plan.of(()), feed)
    outcome = caught.value.outcome
    assert (Verdict.FAIL, np.inf) == (outcome.verdict, outcome.error)
    assert feed["table"][-1:] == backend.evaluate(Plan.all_high(1), feed)["y"]
    with pytest.raises(BackendFailure) as caught:
        backend.evaluate(Plan.of(()), {**feed, "x": np.array([5000], np.float32)})
    assert TrialStatus.RUN_FAILED == caught.value.outcome.status


@pytest.mark.parametrize(
    "message", ["std::bad_alloc", "Failed to allocate memory for requested buffer of size 8"]
)
@pytest.mark.parametrize("few", [False, True])
def test_want_of_memory_is_held_against_no_plan(
    few: bool, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A low plan takes more of it than FP32, which may still run."""
    model = load_text("(float[1] x) => (float[1] y) { y = Exp(x) }", tmp_path)
    backend, feed = EmulatedBackend(model, threads=1, few=few), {"x": np.ones(1, np.float32)}
    _stop_once(monkeypatch, message)
    with pytest.raises(BackendFailure) as caught:
        backend.evaluate(Plan.of(()), feed)
    assert TrialStatus.RUN_FAILED == caught.value.outcome.status


def test_the_graph_of_all_plans_judges_one_that_its_own_graph_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no fault of the plan is no failure of it."""
    model = load_text("(float[1] x) => (float[1] y) { y = Exp(x) }", tmp_path)
    backend, feed = EmulatedBackend(model, threads=1, few=True), {"x": np.ones(1, np.float32)}
    _stop_once(monkeypatch, "no kernel")
    assert np.float16(np.exp(1)) == backend.evaluate(Plan.of(()), feed)["y"]


def _stop_once(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """Have the next run of a session end with a message of ONNX Runtime's."""

    def run(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError(message)

    monkeypatch.setattr(Session, "run", run)


def test_a_shared_weight_is_rounded_for_its_low_reader_only(tmp_path: Path) -> None:
    """Two layers that read one weight each see it in their own precision."""
    proto = with_weights(
        parse("(float[1] x) => (float[1] a, float[1] b) { [p] a = Mul(x, w) [q] b = Mul(x, w) }"),
        {"w": np.array([1.0001], np.float32)},
    )
    model = load_model(save(proto, tmp_path))
    backend = EmulatedBackend(model, threads=1)
    found = backend.evaluate(keeping(model, "p"), {"x": np.ones(1, np.float32)})
    assert found["a"] == np.float32(1.0001)
    assert found["b"] == 1


def test_a_model_without_layers_runs(tmp_path: Path) -> None:
    """A graph with nothing to switch is emulated as it is."""
    model = load_text("(int64[2] x) => (int64[2] y) { y = Neg(x) }", tmp_path)
    found = EmulatedBackend(model, threads=1).evaluate(Plan.of(()), {"x": np.array([1, 2])})
    np.testing.assert_array_equal(found["y"], [-1, -2])


def test_unaligned_weights_are_read(tmp_path: Path) -> None:
    """External data may start at any byte."""
    values = normal(64, 64)
    (tmp_path / "w.bin").write_bytes(b"abc" + values.tobytes())
    proto = parse("(float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }")
    tensor = helper.make_tensor("w", onnx.TensorProto.FLOAT, [64, 64], values.tobytes(), raw=True)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "3")):
        tensor.external_data.add(key=key, value=value)
    proto.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    (outputs,) = reference_outputs(load_model(path), [{"x": normal(1, 64)}], threads=1)
    np.testing.assert_allclose(outputs["y"], normal(1, 64) @ values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("low", HALF_NAMES)
def test_spatial_convolutions_round_like_casts_in_the_graph(tmp_path: Path, low: LowName) -> None:
    """Blocked kernels sum in another order, so a value may land on the neighbouring low number."""
    proto = parse(
        "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {"
        " a = Conv<pads = [1, 1, 1, 1]>(x, w, b)"
        " c = Relu(a)"
        " y = Conv<pads = [1, 1, 1, 1], group = 4>(c, v) }"
    )
    shapes = {"w": (4, 4, 3, 3), "b": (4,), "v": (4, 1, 3, 3)}
    weights = {name: normal(*shape) for name, shape in shapes.items()}
    model = load_model(save(with_weights(proto, weights), tmp_path))
    backend = EmulatedBackend(model, low)
    low_type = LOW_TYPES[low]
    feed = {"x": normal(1, 4, 6, 6)}
    for kept in ((), (0,), (1, 2), (0, 1, 2)):
        (wanted,) = run_as_written(static_graph(model, kept, low_type.onnx_type), feed).values()
        found = backend.evaluate(Plan.of(kept), feed)["y"]
        steps = np.abs(found - wanted) / np.abs(wanted).max()
        assert steps.max() <= 2.0 ** (1 - low_type.digits)
