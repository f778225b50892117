"""Networks of TensorRT-RTX's parser whose layers take marks, as those of TensorRT 8.6 to 10.x do.

TensorRT-RTX parses as TensorRT does, and its layers have no precision to set. Here they have one
that is noted.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import onnx

from operator_cases import operator_cases
from precision_bisect.backends.tensorrt.flavour import Flavour

WITHOUT_PRECISION = {
    *("CAST", "QUANTIZE", "DEQUANTIZE", "SHAPE", "CONDITION", "CONDITIONAL_INPUT"),
    *("CONDITIONAL_OUTPUT", "TRIP_LIMIT", "ITERATOR", "RECURRENCE", "LOOP_OUTPUT"),
    *(
        "ATTENTION_INPUT",
        "ATTENTION_OUTPUT",
        "KV_CACHE_UPDATE",
        "PLUGIN",
        "PLUGIN_V2",
        "PLUGIN_V3",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What layers were asked for, by their name: the type to compute in, and that of outputs."""

    precision: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[int, str]] = field(default_factory=dict)


@contextmanager
def markable(trt: Any, *, strongly_typed: bool = False) -> Iterator[Noted]:
    """Give layers what weak typing needs; a strongly typed network takes no notice, as in 10.x."""
    noted = Noted()

    def ask(layer: Any, wanted: Any) -> None:
        if not strongly_typed:
            noted.precision[layer.name] = wanted.name

    def ask_output(layer: Any, index: int, wanted: Any) -> None:
        noted.outputs.setdefault(layer.name, {})[index] = wanted.name

    added = {
        "precision": property(lambda layer: noted.precision.get(layer.name), ask),
        "precision_is_set": property(lambda layer: layer.name in noted.precision),
        "set_output_type": ask_output,
    }
    for name, value in added.items():
        setattr(trt.ILayer, name, value)
    try:
        yield noted
    finally:
        for name in added:
            delattr(trt.ILayer, name)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A network, with the parser, which must be gone before it, and the model's bytes."""

    held: tuple[Any, Any, Any]

    @property
    def network(self) -> Any:
        """The network."""
        return self.held[1]

    @property
    def layers(self) -> list[Any]:
        """The layers, in the order in which the parser made them."""
        return [self.network.get_layer(i) for i in range(self.network.num_layers)]


@cache
def builder_of(trt: Any) -> tuple[Any, Any]:
    """Return a logger and a builder for the whole process: TensorRT takes one logger only."""
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    return logger, trt.Builder(logger)


def parsed(trt: Any, model: onnx.ModelProto) -> Parsed:
    """Return the network that the parser makes of a model. Raises ValueError if it makes none."""
    logger, builder = builder_of(trt)
    network, file = builder.create_network(0), model.SerializeToString()
    # Tuples let go of what they hold from the last on.
    found = Parsed((file, network, trt.OnnxParser(network, logger)))
    if not found.held[2].parse(file):
        raise ValueError(found.held[2].get_error(0).desc())
    return found


def told_by_file(graph: onnx.GraphProto, *names: str) -> Mapping[str, Any]:
    """Return, for nodes to be kept in FP32, what they read and write, without constants."""
    constants = {tensor.name for tensor in graph.initializer}
    return {
        node.name: (
            "fp32",
            tuple(name for name in node.input if name and name not in constants),
            tuple(node.output),
        )
        for node in graph.node
        if node.name in names
    }


def handles_floats(layer: Any) -> bool:
    """Tell whether a layer computes or compares floats, and has a precision."""
    outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
    inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
    types = {tensor.dtype.name for tensor in (*outputs, *inputs) if tensor is not None}
    shapes = any(tensor.is_shape_tensor for tensor in outputs)
    return layer.type.name not in WITHOUT_PRECISION and not shapes and "FLOAT" in types


def networks(rtx: Flavour, operator: str) -> Iterator[tuple[onnx.ModelProto, Parsed]]:
    """Yield the models of an operator that the parser takes, each with its network."""
    for model in operator_cases().get(operator, ()):
        try:
            yield model, parsed(rtx.module, model)
        except ValueError:
            continue
