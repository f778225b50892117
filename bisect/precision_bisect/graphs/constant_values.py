"""The FP32 constants of a model: weights in the file, and what nodes compute from them.

A `Constant` node, or a chain of nodes over constants, is a weight to its readers: it is rounded
once, with the layer that reads it, not at every trial.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.graph import constant_of, settings_of
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.typed.typed_graph import THREADS, chunks
from precision_bisect.layer_table import Exclusion

_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Values by tensor name; `folded` are those that nodes compute, the others are initializers.

    The values of large initializers are the arrays of the model, not copies.
    """

    values: Mapping[str, NDArray[np.generic]]
    folded: frozenset[str]


def read_constants(model: Model, readers: frozenset[str]) -> Constants:
    """Return the FP32 constants that the nodes of these names read, settings apart.

    Raises ModelError when ONNX Runtime cannot load the nodes that compute some of them.
    """
    graph = model.proto.graph
    read = {
        name
        for node in graph.node
        if node.name in readers
        for i, name in enumerate(node.input)
        if i not in settings_of(node)
    }
    stored = {
        tensor.name: model.weights[tensor.name]
        if tensor.name in model.weights
        else onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type == _FLOAT and tensor.name in read
    }
    # Constants that nodes compute are constants to engines as well, which fold them first.
    computed = folded(model, constant_outputs(model) & read)
    return Constants(values={**stored, **computed}, folded=frozenset(computed))


def constant_outputs(model: Model) -> set[str]:
    """Return the FP32 tensors that nodes compute from constants only."""
    return {
        name
        for layer in model.table.layers
        if layer.exclusion is Exclusion.CONSTANT
        for name in layer.outputs
        if model.elem_types.get(name) == _FLOAT
    }


def folded(model: Model, wanted: set[str]) -> dict[str, NDArray[np.generic]]:
    """Return the values of the `wanted` tensors, which depend only on constants.

    Raises ModelError when ONNX Runtime cannot load the nodes that compute them.
    """
    if not wanted:
        return {}
    needed = set(wanted)
    chain: list[onnx.NodeProto] = []
    # Backwards from what is wanted: only nodes that contribute are run.
    for node in reversed(model.proto.graph.node):
        if needed.intersection(node.output):
            chain.append(node)
            needed.update(node.input)
    # No inputs: ONNX Runtime computes the chain as it would in the model.
    graph = onnx.GraphProto(name="constants")
    graph.node.extend(reversed(chain))
    tensors = [tensor for tensor in model.proto.graph.initializer if tensor.name in needed]
    graph.initializer.extend(tensors)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(wanted))
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, graph=graph)
    proto.opset_import.extend(model.proto.opset_import)
    weights = {t.name: model.weights[t.name] for t in tensors if t.name in model.weights}
    return Session(proto, weights, threads=1).run({})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """A weight with finite values that become infinite in the low type, and the largest of them.

    That is a magnitude.
    """

    name: str
    largest: float


class TypedConstants:
    """The FP32 tensors of a model that depend on no input.

    Those in the file, as initializers or Constant nodes, have an `array`; those that other nodes
    compute from them have none. `names` has all of them.
    """

    def __init__(self, model: Model) -> None:
        self._weights = model.weights
        graph = model.proto.graph
        self._tensors = {t.name: t for t in graph.initializer if t.data_type == _FLOAT}
        self._nodes: dict[str, onnx.NodeProto] = {}
        self._same_as: dict[str, str] = {}
        self._exact: dict[tuple[str, str], bool] = {}
        constant = {
            layer.name for layer in model.table.layers if layer.exclusion is Exclusion.CONSTANT
        }
        self.names = set(self._tensors)
        for node in graph.node:
            if node.name in constant:
                self._take(node, model)

    def _take(self, node: onnx.NodeProto, model: Model) -> None:
        floats = [name for name in node.output if model.elem_types.get(name) == _FLOAT]
        self.names.update(floats)
        if not floats or node.domain not in ("", "ai.onnx"):
            return
        if node.op_type == "Identity":
            self._same_as[floats[0]] = self.source(node.input[0])
        elif node.op_type == "Constant":
            self._nodes[floats[0]] = node

    def source(self, name: str) -> str:
        """Return the tensor whose values a constant has, `name` itself where it has its own."""
        return self._same_as.get(name, name)

    def array(self, name: str) -> NDArray[np.generic] | None:
        """Return the values of a constant, None where a node computes them."""
        name = self.source(name)
        if name in self._weights:
            return self._weights[name]
        if name in self._tensors:
            return onnx.numpy_helper.to_array(self._tensors[name])
        constant = constant_of(self._nodes[name]) if name in self._nodes else None
        return None if constant is None else np.asarray(constant, np.float32)

    def is_exact(self, name: str, low: LowType) -> bool:
        """Tell whether the low type holds every value of a constant exactly."""
        name = self.source(name)
        key = (name, low.name)
        if key not in self._exact:
            array = self.array(name)
            self._exact[key] = array is not None and all(
                np.array_equal(low.round(part), part, equal_nan=True) for part in chunks(array)
            )
        return self._exact[key]

    def out_of_range(self, names: Iterable[str], low: LowType) -> Iterator[OutOfRange]:
        """Yield the constants among `names` with finite values that become infinite, in order."""
        sources = list(dict.fromkeys(map(self.source, names)))
        # From half a step above the largest value on, rounding gives infinity.
        step_at_largest = low.largest * 2.0**-low.digits / (1 - 2.0**-low.digits)
        with ThreadPoolExecutor(THREADS) as pool:
            for source, largest in zip(sources, pool.map(self._largest, sources), strict=True):
                if largest >= low.largest + step_at_largest / 2:
                    yield OutOfRange(name=source, largest=largest)

    def _largest(self, name: str) -> float:
        """Return the largest finite magnitude in a constant; 0 where a node computes it."""
        array = self.array(name)
        return 0.0 if array is None else max(map(_magnitude, chunks(array)), default=0.0)


def _magnitude(values: NDArray[np.generic]) -> float:
    with np.errstate(invalid="ignore"):
        ends = float(values.max()), float(values.min())
    if not np.isfinite(ends).all():
        ends = (float(np.abs(values[np.isfinite(values)]).max(initial=0)),) * 2
    return max(abs(end) for end in ends)
