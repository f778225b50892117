"""The inspector of a loaded engine, on an engine and a context that are written down here.

An engine cannot be loaded without a GPU; that TensorRT has what is used, `test_bindings` finds.
"""

import ctypes
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inspection.real_texts import GEMM, message
from precision_bisect.backends.inspection.engine_layers import EngineLayer, parse_json
from precision_bisect.backends.tensorrt.build import BuiltEngine
from precision_bisect.backends.tensorrt.build_remarks import Remarks
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.layer_times import information
from precision_bisect.backends.tensorrt.tensorrt_engine import TensorRTEngine
from precision_bisect.trial import LayerHonour

NAME = "/classifier/classifier_6/Gemm_myl9_4"


class RecordedEngine:
    """An engine of one layer that reads `x`, of dynamic shape, and `w`, and writes `y`.

    Values of `s` give a shape.
    """

    num_io_tensors = 4

    def __init__(self, trt: Any, metadata: str) -> None:
        self.execution_context: Any = None
        self._trt = trt
        self._metadata = metadata

    def get_tensor_name(self, index: int) -> str:
        """Return the name of a tensor."""
        return "xwsy"[index]

    def get_tensor_mode(self, name: str) -> Any:
        """Return what the tensor is for."""
        modes = self._trt.TensorIOMode
        return modes.OUTPUT if name == "y" else modes.INPUT

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        """Return the least, the best and the largest shape."""
        assert ("x", 0) == (name, index)
        return [(1, 8), (4, 8), (16, 8)]

    def is_shape_inference_io(self, name: str) -> bool:
        """Tell whether values of the tensor give a shape."""
        return name == "s"

    def get_tensor_profile_values(self, index: int, name: str) -> list[list[int]]:
        """Return the least, the best and the largest values; the arguments are in this order."""
        assert (0, "s") == (index, name)
        return [[1, 2], [3, 4], [5, 6]]

    def get_tensor_dtype(self, name: str) -> Any:
        """Return the type of the values."""
        return self._trt.int64

    def create_engine_inspector(self) -> "RecordedEngine":
        """Return the inspector, which is this."""
        return self

    def get_engine_information(self, layout: Any) -> str:
        """Return JSON as TensorRT 10 gives it: shapes and types only if the context has shapes."""
        assert layout == self._trt.LayerInformationFormat.JSON
        context = self.execution_context
        shape = context and context.shapes["x"]
        known = shape and -1 not in shape and context.values() == context.wanted
        tensor = {
            "Name": "x",
            "Dimensions": list(shape) if known else [-1, 8],
            "Format/Datatype": "Half" if known else "N/A due to dynamic shapes",
        }
        layer = {"Name": "k", "LayerType": "gemm", "Inputs": [tensor], "Metadata": self._metadata}
        return json.dumps({"Layers": [layer]})


class RecordedContext:
    """Holds the shapes of the inputs, and where the values of `s` lie: they should be `wanted`."""

    def __init__(self, *shape: int, given: NDArray[np.int64] | None = None) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {"x": shape, "w": (8, 8), "s": (2,)}
        self.address = 0 if given is None else given.ctypes.data
        self.wanted = [3, 4] if given is None else given.tolist()

    def values(self) -> list[int]:
        """Return the values of `s`."""
        return list((ctypes.c_int64 * 2).from_address(self.address)) if self.address else []

    def get_tensor_address(self, name: str) -> int:
        """Return where the tensor lies, 0 for nowhere."""
        assert "s" == name
        return self.address

    def set_tensor_address(self, name: str, address: int) -> None:
        """Note where the tensor lies."""
        assert "s" == name
        self.address = address

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape, with -1 where it is not set."""
        return self.shapes[name]

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Set the shape."""
        self.shapes[name] = shape


@pytest.mark.parametrize(("before", "after"), [((-1, 8), (4, 8)), ((2, 8), (2, 8))])
def test_dynamic_shapes_have_types(
    rtx: Flavour, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """The inspector is given a context with shapes: those of the last run, else the best ones."""
    engine = RecordedEngine(rtx.module, "")
    (layer,) = parse_json(information(rtx.module, engine, RecordedContext(*before), []))
    (read,) = layer.inputs
    assert ("fp16", after) == (read.dtype, read.dims)


def test_values_of_the_last_run_stay(rtx: Flavour) -> None:
    """An input that gives a shape keeps its values; without any it has the best, as above."""
    context = RecordedContext(2, 8, given=np.array([7, 8]))
    (layer,) = parse_json(information(rtx.module, RecordedEngine(rtx.module, ""), context, []))
    assert ["fp16"] == [read.dtype for read in layer.inputs]


@pytest.mark.parametrize(
    ("metadata", "why_not", "expected"),
    [("[ONNX Layer: k]", "", "k"), ("", "", NAME), ("[ONNX Layer: k]", "no GPU", NAME)],
)
def test_the_inspector_comes_first(
    rtx: Flavour, monkeypatch: pytest.MonkeyPatch, metadata: str, why_not: str, expected: str
) -> None:
    """The builder's text is read where the engine cannot be loaded or names no nodes."""
    seen: list[EngineLayer] = []

    def judge(layers: Any) -> list[LayerHonour]:
        seen.extend(layers)
        return []

    built = BuiltEngine(engine=b"", layers=message(GEMM), remarks=Remarks())
    engine = TensorRTEngine(rtx, built, why_not, judge)
    loaded = SimpleNamespace(
        engine=RecordedEngine(rtx.module, metadata), context=RecordedContext(1, 8)
    )
    monkeypatch.setattr(
        "precision_bisect.backends.tensorrt.tensorrt_engine._activated", lambda _: loaded
    )
    assert not engine.evidence().honours
    assert [expected] == [layer.name for layer in seen]
