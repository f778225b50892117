"""Checks that ONNX Runtime rounds where the emulator asks it to.

It is one tiny inference at start. Without it an optimizer that removes round trips would turn
every verdict into one on FP32.
"""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.backends.emulation.snippets import Quantizers
from precision_bisect.errors import ModelError, RefusedError
from precision_bisect.graphs.lowtypes import LowType, QuantizedType
from precision_bisect.graphs.ort import ON_CPU, Providers, Session, runtime
from precision_bisect.graphs.quantization.scales import fake_quantized
from precision_bisect.graphs.widen import round_trip

_SCALE = 0.0123
"""Scale of the values that probe a quantized type; no power of two, so that division rounds."""


def self_test(kind: LowType | QuantizedType, providers: Providers = ON_CPU) -> None:
    """Check that round trips survive ONNX Runtime's optimizer and round to nearest even.

    Raises RefusedError otherwise: every verdict would rest on FP32 results.
    """
    probe = _probe()
    quantizers = Quantizers()
    if isinstance(kind, LowType):
        nodes, expected = round_trip("x", "y", kind.onnx_type), kind.round(probe)
    else:
        nodes = quantizers.pair("x", "y", kind, _SCALE)
        expected = fake_quantized(probe, np.float32(_SCALE), kind)
    graph = helper.make_graph(
        nodes,
        "self-test",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [len(probe)])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [len(probe)])],
        list(quantizers.initializers.values()),
    )
    opset = max(13, kind.lowest_opset)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    try:
        got = Session(proto, {}, 1, providers).run({"x": probe})["y"]
    except (ModelError, RuntimeError) as error:
        raise RefusedError(
            f"ONNX Runtime {runtime().__version__} cannot round to {kind.name}: {error}",
            "install another version of onnxruntime",
        ) from error
    if not np.array_equal(got, expected):
        raise RefusedError(
            f"ONNX Runtime {runtime().__version__} does not keep a round trip to {kind.name}",
            "its verdicts would rest on FP32 results; install another version of onnxruntime",
        )


def _probe() -> NDArray[np.float32]:
    """Return values beyond every range, halfway between neighbours, and of every magnitude."""
    few = [300.0 * 300.0, -3.0e38, 3.0e38, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 1e-7]
    return np.concatenate(
        [
            np.array(few, np.float32),
            np.float32(2.0) ** np.arange(-140, 20, dtype=np.float32),
            np.arange(-300, 300, dtype=np.float32) * np.float32(_SCALE / 2),
        ]
    )
