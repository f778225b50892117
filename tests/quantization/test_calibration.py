"""Scales: what each method makes of known values, in every type that holds them."""

from pathlib import Path

import numpy as np
import pytest

from models import load_text, normal, parse, save, with_weights
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import FP8, INT8, LOW_TYPES, QuantizedType
from precision_bisect.graphs.quantization.calibration import Calibration, calibrate
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.options import CalibrationName
from precision_bisect.precisions import HIGH_NAMES, HighName


def matmul(folder: Path) -> Model:
    """Return a model of one product of an input with a weight."""
    return load_text(
        "(float[1,4] x) => (float[1,2] y) "
        "<float[4,2] w = {1, -8, 2, 4, -3, 2, 0.5, 1}> { [mm] y = MatMul(x, w) }",
        folder,
    )


def scales(
    model: Model,
    samples: list[np.ndarray],
    method: CalibrationName = "minmax",
    kind: QuantizedType = INT8,
    stored: HighName = "fp32",
) -> Scales:
    """Return the scales of all nodes, from samples of the input `x`."""
    how = Calibration(method=method, kind=kind, stored=stored)
    readers = frozenset(node.name for node in model.proto.graph.node)
    return calibrate(model, readers, [{"x": x} for x in samples], how, threads=1)


@pytest.mark.parametrize(("kind", "largest"), [(INT8, 127.0), (FP8, 448.0)])
def test_minmax_is_the_largest_magnitude_of_all_samples(
    tmp_path: Path, kind: QuantizedType, largest: float
) -> None:
    """Activations have one scale, weights one per output channel."""
    samples = [np.array([[1, 2, 3, 4]], np.float32), np.array([[0, -9, 1, 1]], np.float32)]
    found = scales(matmul(tmp_path), samples, kind=kind)
    assert {"x": pytest.approx(9 / largest)} == found.activations
    assert 1 == found.weights["w"].axis
    np.testing.assert_allclose(found.weights["w"].values, [3 / largest, 8 / largest], rtol=1e-6)


@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_outliers_are_cut_off(tmp_path: Path, method: CalibrationName) -> None:
    """One value of 1000 among ten thousands below 5 widens only the scale of minmax."""
    model = load_text(
        "(float[100,4] x) => (float[100,2] y) "
        "<float[4,2] w = {1, -8, 2, 4, -3, 2, 0.5, 1}> { [mm] y = MatMul(x, w) }",
        tmp_path,
    )
    samples = [normal(100, 4, seed=i) for i in range(60)]
    samples[7][0, 0] = 1000.0
    wide = scales(model, samples).activations["x"]
    narrow = scales(model, samples, method).activations["x"]
    assert pytest.approx(1000 / 127) == wide
    assert 3 / 127 < narrow < wide / 5


@pytest.mark.parametrize("stored", HIGH_NAMES)
@pytest.mark.parametrize("magnitude", [1e-6, 1e-3, 0.3, 7e4, 1e8])
def test_scales_are_exact_in_the_type_of_the_values(
    tmp_path: Path, stored: HighName, magnitude: float
) -> None:
    """They are held in that type by engines; none becomes zero or infinite, none cuts much off."""
    sample = np.array([[1, 2, 3, 4]], np.float32) * np.float32(magnitude)
    found = scales(matmul(tmp_path), [sample], stored=stored)
    every = np.array([found.activations["x"], *found.weights["w"].values], np.float32)
    if stored != "fp32":
        np.testing.assert_array_equal(every, LOW_TYPES[stored].round(every))
    assert np.isfinite(every).all()
    assert (every > 0).all()
    assert found.activations["x"] * 127 > 0.99 * sample.max() or magnitude == 1e8


def test_nothing_but_zeros_has_a_scale(tmp_path: Path) -> None:
    """A tensor without values other than zero is quantized by 1."""
    found = scales(matmul(tmp_path), [np.zeros((1, 4), np.float32)], "entropy")
    assert {"x": 1.0} == found.activations


@pytest.mark.parametrize(
    ("node", "shape", "axis"),
    [
        ("Conv(x, w)", (6, 3, 1, 1), 0),
        ("ConvTranspose(x, w)", (3, 6, 1, 1), 1),
        ("MatMul(x, w)", (1, 4, 4), 2),
    ],
)
def test_output_channels_of_weights(
    tmp_path: Path, node: str, shape: tuple[int, ...], axis: int
) -> None:
    """The axis is that of the output channels, wherever the operator has it."""
    body = f"(float[1,3,4,4] x) => (float[] y) {{ [n] y = {node} }}"
    proto = with_weights(parse(body.replace("float[]", "float[a,b,c,d]")), {"w": normal(*shape)})
    found = scales(load_model(save(proto, tmp_path)), [normal(1, 3, 4, 4)])
    assert (axis, (shape[axis],)) == (found.weights["w"].axis, found.weights["w"].values.shape)


def test_a_weight_read_along_two_axes_has_one_scale(tmp_path: Path) -> None:
    """Two layers that read it differently must share one stored form."""
    model = load_text(
        """(float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> {
            [a] s = Gemm(x, w) [b] y = Gemm<transB = 1>(s, w) }""",
        tmp_path,
    )
    found = scales(model, [normal(2, 2)])
    assert (None, ()) == (found.weights["w"].axis, found.weights["w"].values.shape)
    assert {"x", "s"} == found.activations.keys()


def test_constants_that_nodes_compute_are_weights(tmp_path: Path) -> None:
    """A transposed weight is calibrated as a weight, not as an activation."""
    model = load_text(
        """(float[2,3] x) => (float[2,4] y) <float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6}> {
            t = Transpose<perm = [1, 0]>(w) [mm] y = MatMul(x, t) }""",
        tmp_path,
    )
    found = calibrate(
        model,
        frozenset(("mm",)),
        [{"x": normal(2, 3)}],
        Calibration(method="minmax", kind=INT8, stored="fp32"),
    )
    assert {"t"} == found.weights.keys()
    np.testing.assert_allclose(found.weights["t"].values * 127, [3, 6, 9, 8], rtol=1e-6)
