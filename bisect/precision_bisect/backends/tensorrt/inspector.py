"""What TensorRT's inspector says of the layers of a loaded engine."""

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.backends.inspection.engine_json import parse_json
from precision_bisect.backends.inspection.engine_layers import EngineLayer

_PROFILE_VALUES = ("get_tensor_profile_values", "get_profile_shape_input")
"""What tells a profile's values: the second in TensorRT 8.6."""


def inspected(
    trt: ModuleType, engine: Any, context: Any, held: list[NDArray[Any]]
) -> list[EngineLayer]:
    """Return the engine's layers; see `information`."""
    return parse_json(information(trt, engine, context, held))


def information(trt: ModuleType, engine: Any, context: Any, held: list[NDArray[Any]]) -> str:
    """Return the inspector's JSON on the engine.

    If shapes are dynamic, an inspector gives neither shapes nor types unless it has a context with
    shapes, and with values for inputs that give a shape by these. What `context` already has
    stays; others become what the engine is tuned for. `held` must live as long as the context,
    which points to the values in it.
    """
    for name in _inputs(trt, engine):
        if -1 in tuple(context.get_tensor_shape(name)):
            _, best, _ = engine.get_tensor_profile_shape(name, 0)
            context.set_input_shape(name, best)
        if engine.is_shape_inference_io(name) and not context.get_tensor_address(name):
            held.append(_best_values(engine, name))
            context.set_tensor_address(name, held[-1].ctypes.data)
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _best_values(engine: Any, name: str) -> NDArray[Any]:
    """Return the values that the engine is tuned for of an input that gives a shape by them."""
    ask = next(getattr(engine, each) for each in _PROFILE_VALUES if hasattr(engine, each))
    # By position: the names of these arguments are the wrong way round in the bindings.
    _, best, _ = ask(0, name)
    kind = engine.get_tensor_dtype(name).name.lower()
    return np.array(best, "float32" if kind == "float" else kind)


def _inputs(trt: ModuleType, engine: Any) -> list[str]:
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    return [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
