"""What TensorRT 10 before 10.11 refuses below FP32 is written otherwise, and computes the same."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from models import keeping, normal, parse, save, with_weights
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.tensorrt.flavour import Flavour, refused_by_every_parser
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend, refusals
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.layout import NOT_PARSED
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import HALF_NAMES, HalfName, Pair
from precision_bisect.protocols import Sample
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.targets import TARGETS

STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
GEMMS = {
    "weight and bias": "[k] y = Gemm<alpha = 0.3, beta = 2.5>(a, w, b)",
    "computed bias": "c = Tanh(b) d = Mul(c, a) [k] y = Gemm<alpha = 0.3, beta = 2.5>(a, w, d)",
    "weight first": "[k] y = Gemm<alpha = -4.0, transA = 1>(w, a)",
    "two results": "t = Sin(a) [k] y = Gemm<alpha = 0.125>(a, t)",
    "a factor too small for the weight": "[k] y = Gemm<alpha = 1e-5>(a, w)",
    "ones": "[k] y = Gemm<alpha = 1.0, beta = 1.0>(a, w, b)",
    "half of it shared": "e = MatMul(a, w) [k] f = Gemm<alpha = 0.5>(a, w) y = Add(e, f)",
}


def gemm(folder: Path, kind: str) -> Model:
    """Return a model around a Gemm."""
    body = f"(float[16, 16] x) => (float[16, 16] y) {{ a = Tanh(x) {GEMMS[kind]} }}"
    weights = {"w": normal(16, 16), "b": normal(16, seed=1)}
    return load_model(save(with_weights(parse(body), weights), folder))


def recurrent(folder: Path, op: str, direction: str, *, lengths: bool = False) -> Model:
    """Return a model of one recurrence over a batch of any size, without initial states."""
    settings = f'hidden_size = 4, direction = "{direction}"'
    body = (
        "(float[5, n, 8] x) => (float[5, d, n, 4] y) { t = Tanh(x)"
        f" [k] y = {op}<{settings}>(t, w, r{', , l' if lengths else ''}) }}"
    )
    ways = 2 if direction == "bidirectional" else 1
    weights = {"w": normal(ways, 4 * GATES[op], 8), "r": normal(ways, 4 * GATES[op], 4, seed=1)}
    more: dict[str, NDArray[np.int32]] = {"l": np.array([5, 3], np.int32)} if lengths else {}
    return load_model(save(with_weights(parse(body), {**weights, **more}), folder))


def outputs(model: onnx.ModelProto, feed: Sample) -> NDArray[Any]:
    """Return the one output, by ONNX's own definition."""
    found: Any = ReferenceEvaluator(model).run(None, dict(feed))
    return np.asarray(found[0])


def low_graph(model: Model, low: HalfName, folder: Path) -> onnx.ModelProto:
    """Return the typed graph in which everything is low, with its weights."""
    typed = TypedWriter(model, Pair(low=low, high="fp32")).write(keeping(model))
    save_typed(typed, folder / "typed.onnx")
    return onnx.load(folder / "typed.onnx")


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("kind", GEMMS)
def test_a_low_gemm_has_no_factors(rtx: Flavour, tmp_path: Path, kind: str, low: HalfName) -> None:
    """Its factors are in a weight or in products before it, and the result is the same."""
    model = gemm(tmp_path, kind)
    written = low_graph(model, low, tmp_path)
    (node,) = [node for node in written.graph.node if node.name == "k"]
    assert {"alpha", "beta"}.isdisjoint(each.name for each in node.attribute)
    assert not refusals(rtx, tmp_path / "typed.onnx")
    feed = {"x": normal(16, 16, seed=2)}
    wanted = outputs(onnx.load(model.path), feed)
    if low == "fp16":
        found = outputs(written, feed)
        assert np.abs(found - wanted).max() <= 5e-3 * np.abs(wanted).max()


def test_a_high_gemm_keeps_its_factors(tmp_path: Path) -> None:
    """FP32 factors are those of an FP32 layer, which no parser refuses."""
    model = gemm(tmp_path, "weight and bias")
    typed = TypedWriter(model, Pair(low="fp16", high="fp32")).write(keeping(model, "k"))
    (node,) = [node for node in typed.proto.graph.node if node.name == "k"]
    assert {"alpha", "beta"} == {each.name for each in node.attribute}


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", STATES)
def test_a_low_recurrence_has_states(
    rtx: Flavour, tmp_path: Path, op: str, direction: str, low: HalfName
) -> None:
    """They are zeros of its own type, of the batch's size; TensorRT-RTX takes them."""
    model = recurrent(tmp_path, op, direction)
    written = low_graph(model, low, tmp_path)
    (node,) = [node for node in written.graph.node if node.name == "k"]
    if (op, low) == ("GRU", "bf16"):
        assert 3 == len(node.input)
        return
    zeros = {each.output[0]: each for each in written.graph.node if "state" in each.name}
    for position in STATES[op]:
        (value,) = zeros[node.input[position]].attribute
        assert {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}[low] == (
            value.t.data_type
        )
    assert not refusals(rtx, tmp_path / "typed.onnx")
    if direction == "forward" and low == "fp16":
        feed = {"x": normal(5, 3, 8, seed=2)}
        wanted = outputs(onnx.load(model.path), feed)
        found = outputs(written, feed)
        assert np.abs(found - wanted).max() <= 1e-2


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("op", STATES)
def test_sequences_of_their_own_length_stay_high(
    rtx: Flavour, tmp_path: Path, op: str, low: HalfName
) -> None:
    """The real parser refuses them below FP32, and the emulator's files have them in FP32."""
    model = recurrent(tmp_path, op, "forward", lengths=True)
    work = tmp_path / "work"
    work.mkdir()
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    settings = EngineSettings(compute_capability="8.6")
    backend = TensorRTBackend(writer, settings, rtx, {"x": [(5, 2, 8)]}, work)
    assert {"k"} == backend.unbuildable().keys()
    if not writer.not_low:
        assert {"k"} == refused_by_every_parser(model, low).keys()
        assert {"k"} == EmulatedBackend(model, low).unbuildable().keys()


LOWS: tuple[tuple[HalfName, int], ...] = (("fp16", 10), ("bf16", 16))
SIGNATURES = {
    "GlobalLpPool": "(float[1, 2, 4, 4] x) => (float[1, 2, 1, 1] y)",
    "LpPool": "(float[1, 2, 4, 4] x) => (float[1, 2, 3, 3] y)",
}


@pytest.mark.parametrize("op", sorted({*NOT_PARSED["bf16"]} - {"GRU", *NOT_PARSED["fp16"]}))
def test_the_parser_refuses_these_in_bf16(rtx: Flavour, tmp_path: Path, op: str) -> None:
    """What has no form in BF16 for TensorRT's sake is refused by a real parser."""
    settings = "<kernel_shape = [2, 2]>" if op == "LpPool" else ""
    signature = SIGNATURES.get(op, "(float[2, 4] x) => (float[2, 4] y)")
    body = f"{signature} {{ c = Cast<to = 16>(x) d = {op}{settings}(c) y = Cast<to = 1>(d) }}"
    assert refusals(rtx, save(parse(body, opset=22, ir=10), tmp_path))


def test_the_parser_refuses_these_in_sixteen_bits(rtx: Flavour, tmp_path: Path) -> None:
    """ONNX has them in both types since opset 28, and no file has them so."""
    for low, kind in LOWS:
        for op in NOT_PARSED["fp16"]:
            body = f"(float[2, 4] x) => (float[2, 4] y) {{ c = Cast<to = {kind}>(x)"
            low_body = f"{body} d = {op}(c) y = Cast<to = 1>(d) }}"
            assert refusals(rtx, save(parse(low_body, opset=28, ir=14), tmp_path))
            high = f"(float[2, 4] x) => (float[2, 4] y) {{ [k] y = {op}(x) }}"
            model = load_model(save(parse(high, opset=28, ir=14), tmp_path))
            writer = TypedWriter(model, Pair(low=low, high="fp32"))
            assert {"k": f"TensorRT's parser takes no {op} in {low}"} == writer.not_low


def test_predictions_for_rtx_keep_what_it_has_no_kernel_for(tmp_path: Path) -> None:
    """The emulator says of a transposed convolution in BF16 what the backend would."""
    body = "(float[1, 4, 8, 8] x) => (float[1, 4, n, m] y) { [k] y = ConvTranspose(x, w) }"
    proto = with_weights(parse(body, opset=22, ir=10), {"w": normal(4, 4, 2, 2)})
    model = load_model(save(proto, tmp_path))
    found = {
        target: EmulatedBackend(model, "bf16", targets=[target], late=True).unbuildable()
        for target in TARGETS
    }
    assert {
        "tensorrt": {},
        "tensorrt-rtx": {"k": "tensorrt-rtx has no bf16 kernel for ConvTranspose"},
        "onnxruntime": {
            "k": "no BF16 kernel of ConvTranspose on ONNX Runtime on CUDA: the file would not open"
        },
    } == found
