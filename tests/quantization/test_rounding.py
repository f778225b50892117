"""Quantization in numpy is what ONNX Runtime's Q/DQ operators do, bit for bit."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from assigned_graphs import run_as_written
from effort import examples
from precision_bisect.graphs.lowtypes import FP8, INT8, QuantizedType
from precision_bisect.graphs.quantization.scales import (
    WeightScale,
    dequantized,
    fake_quantized,
    quantized,
)

FLOATS = st.floats(-1e6, 1e6, width=32)
SCALES = st.floats(2.0**-20, 2.0**10, width=32)


def by_operators(
    values: np.ndarray, scale: WeightScale, kind: QuantizedType, name: str = "y"
) -> np.ndarray:
    """Return what a Q/DQ pair makes of the values."""
    zero = helper.make_tensor("z", kind.onnx_type, scale.values.shape, np.zeros(scale.values.size))
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=scale.axis or 0),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], [name], axis=scale.axis or 0),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, values.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, values.shape)],
        [numpy_helper.from_array(scale.values, "s"), zero],
    )
    opset = helper.make_opsetid("", max(13, kind.lowest_opset))
    proto = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    onnx.checker.check_model(proto)
    return run_as_written(proto, {"x": values})[name]


@examples(30)
@given(
    values=hnp.arrays(np.float32, (3, 5), elements=FLOATS),
    scales=hnp.arrays(np.float32, (3,), elements=SCALES),
    axis=st.sampled_from((None, 0)),
    kind=st.sampled_from((INT8, FP8)),
)
def test_activations_equal_the_operators(
    values: np.ndarray, scales: np.ndarray, axis: int | None, kind: QuantizedType
) -> None:
    """Rounding is to nearest even, values beyond the range saturate at both of its ends."""
    scale = WeightScale(axis=axis, values=scales if axis == 0 else scales[0].reshape(()))
    expected = by_operators(values, scale, kind)
    np.testing.assert_array_equal(expected, fake_quantized(values, scale.along(2), kind))


@examples(30)
@given(
    weight=hnp.arrays(np.float32, (4, 3), elements=FLOATS),
    axis=st.sampled_from((0, 1)),
    kind=st.sampled_from((INT8, FP8)),
)
def test_weights_equal_the_operators(weight: np.ndarray, axis: int, kind: QuantizedType) -> None:
    """With scales from their own range weights are what the operators give, and never -128."""
    largest = np.abs(weight).max(axis=1 - axis)
    values = np.where(largest > 0, largest / np.float32(kind.largest), np.float32(1.0))
    values = np.maximum(values, np.finfo(np.float32).smallest_normal).astype(np.float32)
    scale = WeightScale(axis=axis, values=values)
    stored = quantized(weight, scale, kind)
    assert kind.numpy_type == stored.dtype
    assert float(np.abs(stored.astype(np.float32)).max()) <= kind.largest
    np.testing.assert_array_equal(by_operators(weight, scale, kind), dequantized(stored, scale))


@pytest.mark.parametrize(("kind", "kept"), [(INT8, 0.0), (FP8, 1.0)])
def test_fp8_keeps_small_values_beside_large_ones(kind: QuantizedType, kept: float) -> None:
    """Beside 448, INT8 loses a value of 1, which FP8's exponents hold."""
    values = np.array([448.0, 1.0], np.float32)
    scale = np.float32(448.0 / kind.largest)
    np.testing.assert_array_equal([448.0, kept], fake_quantized(values, scale, kind))
