"""Models that ONNX Runtime quantized: their int32 biases are floats in the typed graph."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from exports_models import export_of
from models import Arrays, normal, parse, save, with_weights
from precision_bisect.exports.write import write_mixed
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter, with_float_biases
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.runs.runfolder import RunFolder

BODY = """(float[1, 3, 16, 16] x) => (float[1, 5] y) {
    [conv] a = Conv<pads = [1, 1, 1, 1]>(x, w, b) [relu] r = Relu(a)
    [pool] p = GlobalAveragePool(r) [flat] f = Flatten(p) [gemm] y = Gemm<transB = 1>(f, v, c) }"""
WEIGHTS: Arrays = {
    **{"w": normal(8, 3, 3, 3) / 5, "b": normal(8, seed=1)},
    **{"v": normal(5, 8, seed=2), "c": normal(5, seed=3)},
}
FEED = {"x": normal(1, 3, 16, 16, seed=4)}
"""Also what calibrates."""


@pytest.fixture(params=[False, True], ids=["per tensor", "per channel"])
def quantized(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a model that ONNX Runtime's quantizer wrote, as TensorRT's documentation asks."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc] # has no types
        """Gives one sample."""

        def __init__(self) -> None:
            self._feeds = iter([FEED])

        def get_next(self) -> dict[str, np.ndarray] | None:
            """Return the sample, then None."""
            return next(self._feeds, None)

    path = tmp_path / "quantized.onnx"
    quantization.quantize_static(
        save(with_weights(parse(BODY), WEIGHTS), tmp_path),
        path,
        Reader(),
        per_channel=request.param,
        activation_type=quantization.QuantType.QInt8,
        weight_type=quantization.QuantType.QInt8,
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
    )
    return path


def integers(nodes: Sequence[onnx.NodeProto], graph: onnx.GraphProto) -> list[str]:
    """Return the nodes that dequantize int32."""
    wide = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.INT32}
    return [n.name for n in nodes if n.op_type == "DequantizeLinear" and n.input[0] in wide]


def test_the_floats_are_what_the_integers_stand_for(quantized: Path) -> None:
    """ONNX Runtime computes the same, and what is left of the integers is gone."""
    model = load_model(quantized)
    found = with_float_biases(model).proto
    assert ["b_DequantizeLinear", "c_DequantizeLinear"] == sorted(
        integers(model.proto.graph.node, model.proto.graph)
    )
    assert [] == integers(found.graph.node, found.graph)
    assert not any(t.data_type == onnx.TensorProto.INT32 for t in found.graph.initializer)
    expected, values = (
        Session(proto, {}, threads=1).run(FEED)["y"] for proto in (model.proto, found)
    )
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


def test_a_model_without_them_is_left_alone(tmp_path: Path) -> None:
    """It is the same object."""
    model = load_model(save(with_weights(parse(BODY), WEIGHTS), tmp_path))
    assert with_float_biases(model) is model


@pytest.mark.parametrize("kept", [(), (0,), (0, 1, 2, 3)], ids=["all low", "one kept", "all high"])
def test_tensorrt_builds_it(quantized: Path, tmp_path: Path, kept: tuple[int, ...]) -> None:
    """It refuses int32 there; with floats each plan builds."""
    from rtx import build

    writer = TypedWriter(load_model(quantized), Pair(low="fp16", high="fp32"))
    save_typed(writer.write(Plan.of(kept)), tmp_path / "typed.onnx")
    assert "Name: " in build(tmp_path / "typed.onnx")


def test_kept_layers_behind_the_quantization_of_the_model_are_exported(
    quantized: Path, tmp_path: Path
) -> None:
    """What the model dequantizes is FP32 to them: it was not quantized for a layer in 8 bits."""
    typed = write_mixed(RunFolder(tmp_path / "run"), export_of(quantized, ["conv", "gemm"]))
    assert {"conv", "gemm"} < {node.name for node in typed.proto.graph.node}
