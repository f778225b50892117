"""What TensorRT's inspector says of the layers of a loaded engine."""

from types import ModuleType
from typing import Any

from precision_bisect.inspection.engine_json import parse_json
from precision_bisect.inspection.engine_layers import EngineLayer


def inspected(trt: ModuleType, engine: Any, context: Any) -> list[EngineLayer]:
    """Return the engine's layers; see `information`."""
    return parse_json(information(trt, engine, context))


def information(trt: ModuleType, engine: Any, context: Any) -> str:
    """Return the inspector's JSON on the engine.

    If shapes are dynamic, an inspector gives neither shapes nor types unless it has a context with
    shapes. Shapes that `context` already has stay; others become those that the engine is tuned
    for.
    """
    for name in _inputs(trt, engine):
        if -1 in tuple(context.get_tensor_shape(name)):
            _, best, _ = engine.get_tensor_profile_shape(name, 0)
            context.set_input_shape(name, best)
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _inputs(trt: ModuleType, engine: Any) -> list[str]:
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    return [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
