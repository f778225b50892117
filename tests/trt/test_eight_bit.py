"""INT8 and FP8 through the whole backend: built for GPUs that have them, refused for others."""

from dataclasses import replace
from pathlib import Path

import pytest

from models import keeping, normal, parse, save, with_weights
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.errors import RefusedError
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.lowtypes import QUANTIZED
from precision_bisect.graphs.quantization.calibration import (
    Calibration,
    calibrate,
    quantized_layers,
)
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import Pair, QuantizedName
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Honour

BODY = (
    "(float[1, 16, 8, 8] x) => (float[1, 16, n, m] y)"
    " { [a] a = Relu(x) [c] b = Conv(a, w) [t] y = ConvTranspose(b, v) }"
)
FEED = {"x": normal(1, 16, 8, 8)}


def writer(folder: Path, pair: Pair) -> TypedWriter:
    """Return a writer of a convolution and a transposed one, calibrated."""
    weights = {"w": normal(16, 16, 3, 3), "v": normal(16, 16, 2, 2, seed=1)}
    model = load_model(save(with_weights(parse(BODY), weights), folder))
    model = pin_formless(model, pair)
    if pair.low not in QUANTIZED:
        return TypedWriter(model, pair)
    how = Calibration(method="minmax", kind=QUANTIZED[pair.low], stored=pair.high)
    return TypedWriter(model, pair, calibrate(model, quantized_layers(model, pair), [FEED], how))


def backend(rtx: Flavour, folder: Path, pair: Pair, capability: str) -> TensorRTBackend:
    """Return the backend for one target."""
    settings = EngineSettings(compute_capability=capability)
    shapes = {"x": [(1, 16, 8, 8)]}
    return TensorRTBackend(writer(folder, pair), settings, rtx, shapes, folder / "work")


@pytest.mark.parametrize(("low", "capability"), [("int8", "8.6"), ("fp8", "8.9")])
def test_plans_are_built_and_judged(
    rtx: Flavour, tmp_path: Path, low: QuantizedName, capability: str
) -> None:
    """A kept convolution stays FP16; one without a kernel is no candidate of this library."""
    made = backend(rtx, tmp_path, Pair(low=low, high="fp16"), capability)
    assert {"t": f"tensorrt-rtx has no {low} kernel for ConvTranspose"} == made.unbuildable()
    model = pin_formless(load_model(tmp_path / "model.onnx"), Pair(low=low, high="fp16"))
    with made.build(keeping(model, "c", "t")) as engine:
        honours = {entry.layer: entry.honoured for entry in engine.evidence().honours}
    assert {"c": Honour.HONOURED, "t": Honour.HONOURED} == honours


def test_fp8_needs_a_gpu_that_has_it(rtx: Flavour, tmp_path: Path) -> None:
    """Before any build, with what to give instead."""
    with pytest.raises(RefusedError, match=r"compute capability 8\.6 has no fp8") as error:
        backend(rtx, tmp_path, Pair(low="fp8", high="fp32"), "8.6")
    assert "--compute-capability 8.9" in error.value.hint


@pytest.mark.parametrize(
    "pair", [Pair(low="int8", high="fp32"), Pair(low="fp16", high="bf16")], ids=str
)
def test_weak_typing_knows_fp16_and_bf16_against_fp32_only(
    rtx: Flavour, tmp_path: Path, pair: Pair
) -> None:
    """Marks cannot say scales, nor a high type below FP32."""
    weak = replace(rtx, weak=True)
    settings = EngineSettings(compute_capability="8.6", typing="weak")
    with pytest.raises(RefusedError, match=f"not {pair.low} against {pair.high}"):
        TensorRTBackend(writer(tmp_path, pair), settings, weak, {}, tmp_path / "work")
