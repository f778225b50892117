"""Engines of TensorRT-RTX, which needs no GPU to build."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

trt: Any = pytest.importorskip("tensorrt_rtx", reason="pip install tensorrt_rtx")


class Log(trt.ILogger):  # type: ignore[misc] # the bindings have no types
    """Keeps every message."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.messages: list[str] = []

    def log(self, severity: object, message: str) -> None:
        """Keep one message."""
        self.messages.append(message)


LOG = Log()
"""TensorRT takes one logger for the whole process."""


def build(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    target: str = "SM86",
    *,
    shown: bool = False,
) -> str:
    """Build an engine and return the builder's text on its layers, one line each.

    `shapes` are those of inputs whose shape is dynamic, `target` the GPU to build for. One that is
    `shown` can emit its unfused tensors.
    """
    build_bytes(path, shapes, target, shown=shown)
    return next(text for text in LOG.messages if text.startswith("Layers:"))


def build_bytes(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    target: str = "SM86",
    *,
    shown: bool = False,
) -> bytes:
    """Build an engine as `build` does, and return it."""
    LOG.messages.clear()
    builder = trt.Builder(LOG)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, LOG)
    assert parser.parse_from_file(str(path)), parser.get_error(0).desc()
    assert not shown or network.mark_unfused_tensors_as_debug_tensors()
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, target), 0)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if shapes:
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape, shape, shape)
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    assert engine is not None, LOG.messages[-1]
    return bytes(engine)


def weight_types(text: str, layer: str, shape: Sequence[int]) -> set[str]:
    """Return the types of the constants of this shape in the engine layers that name an ONNX node.

    A fused engine layer has the constants of its other nodes as well.
    """
    lines = (line for line in text.splitlines() if f"[ONNX Layer: {layer}]" in line)
    wanted = re.escape(",".join(map(str, shape)))
    pattern = rf"Dimensions: \[{wanted}\][^{{}}]*?Datatype: (\w+)"
    constants = (re.search(r"Constants: \[(.*?)\], Outputs: ", line) for line in lines)
    return {kind for part in constants if part for kind in re.findall(pattern, part.group(1))}
