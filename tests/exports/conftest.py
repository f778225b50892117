"""Real TensorRT-RTX networks: parsed on any machine, no GPU needed."""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import onnx
import pytest

Parse = Callable[[onnx.ModelProto], Any]


@pytest.fixture(scope="session")
def parse_rtx() -> Parse:
    """Return a function from a model to the network that TensorRT-RTX's parser makes of it."""
    try:
        trt = import_module("tensorrt_rtx")
    except ImportError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("tensorrt_rtx is not installed")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(logger)
    alive: list[Any] = []

    def parse(model: onnx.ModelProto) -> Any:
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, logger)
        alive[:] = [network, parser]
        errors = "" if parser.parse(model.SerializeToString()) else parser.get_error(0).desc()
        assert errors == ""
        return network

    return parse
