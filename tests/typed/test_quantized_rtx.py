"""INT8 and FP8 on real TensorRT-RTX engines: low layers run in 8 bits, kept ones do not.

INT8 for compute capability 8.6; FP8 needs 8.9.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest

from effort import nightly
from models import keeping, normal, parse, save, with_weights
from precision_bisect.backends.inspection.engine_layers import parse_layers
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.tensorrt.flavour import without_kernel
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import QUANTIZED
from precision_bisect.graphs.quantization.calibration import (
    Calibration,
    calibrate,
    quantized_layers,
)
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.pinning import pin, pin_formless
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import (
    HALF_NAMES,
    HIGH_NAMES,
    Form,
    HalfName,
    HighName,
    Pair,
    QuantizedName,
)
from precision_bisect.trial import Honour
from rtx import build
from typed_graphs import guarded

NAFNET = Path(__file__).parents[2] / "examples" / "nafnet"
TARGETS = {"int8": "SM86", "fp8": "SM89"}
PRODUCTS = """(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) {
    [r] a = Relu(x) [conv] b = Conv<pads = [1, 1, 1, 1]>(a, w, k) s1 = Reshape(b, rows)
    [gemm] c = Gemm<transB = 1>(s1, v, h) [e] d = Sigmoid(c) t = Transpose(d) [g] f = Tanh(t)
    [two] m = MatMul(d, f) s2 = Reshape(m, image) [last] y = Mul(s2, a) }"""
WEIGHTS = {
    **{"w": normal(16, 16, 3, 3), "k": normal(16, seed=1), "v": normal(32, 32, seed=2)},
    **{"h": normal(32, seed=3), "rows": np.array([32, 32]), "image": np.array([1, 16, 8, 8])},
}


def products(folder: Path) -> Model:
    """Return a model of a convolution, a product with a bias and one of two activations."""
    return load_model(save(with_weights(parse(PRODUCTS), WEIGHTS), folder))


def writer_of(model: Model, pair: Pair, feed: dict[str, np.ndarray]) -> TypedWriter:
    """Return a writer of the model, its layers without a form pinned, its scales calibrated."""
    model = pin_formless(model, pair)
    kind = next((QUANTIZED[name] for name in (pair.low,) if name in QUANTIZED), None)
    if kind is None:
        return TypedWriter(model, pair)
    how = Calibration(method="minmax", kind=kind, stored=pair.high)
    return TypedWriter(model, pair, calibrate(model, quantized_layers(model, pair), [feed], how))


def read_by_products(text: str) -> dict[str, set[str]]:
    """Return for each ONNX layer the types that the engine layers read that multiply for it."""
    found: dict[str, set[str]] = {}
    for layer in parse_layers(text):
        if layer.kind in ("gemm", "correlation", "deconv", "runtime_fusion"):
            for node in layer.nodes:
                found.setdefault(node, set()).update(t.dtype for t in layer.inputs)
    return found


@pytest.mark.parametrize("high", HIGH_NAMES)
@pytest.mark.parametrize("low", QUANTIZED)
def test_products_run_in_8_bits_unless_kept(
    tmp_path: Path, low: QuantizedName, high: HighName
) -> None:
    """With weights, with a bias, of two activations; the kept one reads the high type."""
    feed = {"x": normal(1, 16, 8, 8)}
    writer = writer_of(products(tmp_path), Pair(low=low, high=high), feed)
    assert ("conv", "gemm", "two") == writer.model.table.names
    for kept in ("conv", "gemm", "two"):
        plan = keeping(writer.model, kept)
        typed = writer.write(plan)
        save_typed(typed, tmp_path / "typed.onnx")
        text = build(tmp_path / "typed.onnx", target=TARGETS[low])
        read = read_by_products(text)
        for name in ("conv", "gemm", "two"):
            assert ({high} if name == kept else {low}) == read[name], (kept, name)
        judged = judge_layers(writer.model, plan, typed, parse_layers(text), writer.pair)
        assert [(kept, Honour.HONOURED)] == [(j.layer, j.honoured) for j in judged]


@pytest.mark.parametrize("low", QUANTIZED)
def test_transposed_convolutions_are_not_low_on_rtx(tmp_path: Path, low: QuantizedName) -> None:
    """TensorRT-RTX quantizes what they read and computes in FP32, so that nothing is gained."""
    proto = parse(
        "(float[1, 16, 8, 8] x) => (float[1, 16, n, m] y) { [k] y = ConvTranspose(x, w) }"
    )
    model = load_model(save(with_weights(proto, {"w": normal(16, 16, 2, 2)}), tmp_path))
    writer = writer_of(model, Pair(low=low, high="fp32"), {"x": normal(1, 16, 8, 8)})
    save_typed(writer.write(Plan.of(())), tmp_path / "typed.onnx")
    assert {"fp32"} == read_by_products(build(tmp_path / "typed.onnx", target=TARGETS[low]))["k"]
    reason = f"tensorrt-rtx has no {low} kernel for ConvTranspose"
    assert {"k": reason} == without_kernel("tensorrt-rtx", model, writer.pair.low)
    assert {} == without_kernel("tensorrt", model, writer.pair.low)


def test_fp8_is_not_built_for_older_gpus(tmp_path: Path) -> None:
    """Compute capability 8.6 has none; the error says so, which the backend says beforehand."""
    feed = {"x": normal(1, 16, 8, 8)}
    writer = writer_of(products(tmp_path), Pair(low="fp8", high="fp32"), feed)
    save_typed(writer.write(Plan.of(())), tmp_path / "typed.onnx")
    with pytest.raises(AssertionError):
        build(tmp_path / "typed.onnx", target="SM86")


@pytest.mark.parametrize("low", HALF_NAMES)
def test_neither_16_bit_type_replaces_the_other(tmp_path: Path, low: HalfName) -> None:
    """A lone kept product between Casts from the other 16-bit type needs no guard."""
    high: HalfName = "bf16" if low == "fp16" else "fp16"
    body = (
        "(float[64, 128] x) => (float[64, 128] y)"
        "{ [r] a = Relu(x) [k] b = MatMul(a, w) [s] y = Relu(b) }"
    )
    model = load_model(save(with_weights(parse(body), {"w": normal(128, 128)}), tmp_path))
    writer = writer_of(model, Pair(low=low, high=high), {})
    plan = keeping(writer.model, "k")
    typed = writer.write(plan)
    assert [] == guarded(typed)
    save_typed(typed, tmp_path / "typed.onnx")
    text = build(tmp_path / "typed.onnx")
    assert {high} == read_by_products(text)["k"]
    judged = judge_layers(writer.model, plan, typed, parse_layers(text), writer.pair)
    assert [Honour.HONOURED] == [entry.honoured for entry in judged]


@pytest.mark.parametrize(("low", "high"), [("int8", "fp16"), *nightly(("fp8", "bf16"))])
def test_nafnet_builds_on_three_rungs(tmp_path: Path, low: QuantizedName, high: HighName) -> None:
    """Every other convolution low, one block in FP32: each runs as its rung says."""
    model = load_model(NAFNET / "nafnet.onnx")
    block = [n for n in model.table.names if n.startswith("/decoders.0")]
    assert block
    model = pin(model, dict.fromkeys(map(LayerName, block), "a rung"), Form(stored="fp32"))
    feed = dict(np.load(sorted((NAFNET / "inputs").iterdir())[0]))
    writer = writer_of(model, Pair(low=low, high=high), feed)
    names = writer.model.table.names
    plan = Plan.of(range(0, len(names), 2))
    save_typed(writer.write(plan), tmp_path / "typed.onnx")
    read = read_by_products(build(tmp_path / "typed.onnx", target=TARGETS[low]))
    for index, name in enumerate(names):
        assert ({low} if index % 2 else {high}) == read[name], name
    convolutions = {
        n.name for n in onnx.load(tmp_path / "typed.onnx").graph.node if n.op_type == "Conv"
    }
    fixed = convolutions.intersection(block)
    assert fixed
    assert {name: {"fp32"} for name in fixed} == {name: read[name] for name in fixed}
