"""The main graph of a model: who makes and who reads a tensor, what it is, and ways in between."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.graph import (
    all_graphs,
    attribute,
    captured,
    constant_of,
    copied,
    inferred,
    opset,
    refill,
)
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.shape_values import with_shapes
from precision_bisect.layer_table import Exclusion, LayerName
from precision_bisect.machine.stopping import look_at_clock

UNSEEN = (Exclusion.CONSTANT, Exclusion.SHAPE)
"""What shapes and constants come to is no matter of precision."""
Dims = tuple[int | None, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """A reduction with kept dimensions: its `axes`, counted from the last, -1, sorted."""

    node: onnx.NodeProto
    source: str
    axes: tuple[int, ...]


class View:
    """The main graph of a model: its nodes in order and by name, and the names of its outputs."""

    def __init__(self, model: Model) -> None:
        look_at_clock()
        self._model = model
        self.nodes = list(model.proto.graph.node)
        self.by_name = {node.name: node for node in self.nodes}
        self.outputs = [output.name for output in model.proto.graph.output]
        self.maker = {out: node.name for node in self.nodes for out in node.output if out}
        self._initializers = {tensor.name: tensor for tensor in model.proto.graph.initializer}

    @cached_property
    def opset(self) -> int:
        """The version of the standard operators."""
        return opset(self._model.proto)

    @cached_property
    def readers(self) -> dict[str, list[onnx.NodeProto]]:
        """The nodes that read each tensor, once for each time; subgraphs count as their node."""
        nodes_by_tensor: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in (*node.input, *sorted(captured(node))):
                nodes_by_tensor.setdefault(name, []).append(node)
        return nodes_by_tensor

    @cached_property
    def _places(self) -> dict[str, int]:
        return {node.name: i for i, node in enumerate(self.nodes)}

    @property
    def _shapes(self) -> dict[str, Dims]:
        held = self._model.held
        if View not in held:
            held[View] = _dimensions(inferred(self._model.proto))
        dims: dict[str, Dims] = held[View]
        return dims

    def shape(self, name: str) -> Dims | None:
        """Return the dimensions, None for each that is not known; None for an unknown rank."""
        return self._shapes.get(name)

    def made_by(self, name: str, *op_types: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor if it is a standard one of these types."""
        node = self.by_name.get(self.maker.get(name, ""))
        if node is None or node.domain not in ("", "ai.onnx") or node.op_type not in op_types:
            return None
        return node

    def in_order(self, names: set[str]) -> tuple[LayerName, ...]:
        """Return these nodes in network order, each once."""
        known = names & self._places.keys()
        return tuple(LayerName(name) for name in sorted(known, key=self._places.__getitem__))

    def sole_reader(self, name: str, op_type: str) -> onnx.NodeProto | None:
        """Return the one node of this type that alone reads a tensor, once; None otherwise."""
        readers = self.readers.get(name, [])
        if len(readers) != 1 or name in self.outputs or readers[0].op_type != op_type:
            return None
        return readers[0]

    def array(self, name: str) -> NDArray[Any] | None:
        """Return the values of a weight or of a Constant node, cast or not; None for others."""
        if name in self._model.weights:
            return self._model.weights[name]
        if name in self._initializers:
            return onnx.numpy_helper.to_array(self._initializers[name])
        node = self.made_by(name, "Constant", "Cast", "Identity")
        if node is None or node.op_type == "Constant":
            return None if node is None else constant_of(node)
        values, to = self.array(node.input[0]), attribute(node, "to")
        if values is None or to is None:
            return values
        return values.astype(onnx.helper.tensor_dtype_to_np_dtype(to.i))

    def scalar(self, name: str) -> float | None:
        """Return the value of a constant of one element; None for everything else."""
        array = self.array(name)
        return None if array is None or array.size != 1 else float(array.reshape(())[()])

    def with_scalar(self, node: onnx.NodeProto) -> Iterator[tuple[str, float]]:
        """Yield the other operand and the value, for each operand of two that is a constant."""
        for i, j in ((0, 1), (1, 0)):
            value = self.scalar(node.input[j])
            if value is not None:
                yield node.input[i], value

    def reduced(self, name: str, op_type: str) -> Reduced | None:
        """Return the reduction that makes a tensor, over known axes; None if it drops them."""
        node = self.made_by(name, op_type)
        if node is None:
            return None
        keeps = attribute(node, "keepdims")
        if keeps is not None and keeps.i == 0:
            return None
        axes = self.axes(node, self.shape(name))
        return Reduced(node=node, source=node.input[0], axes=axes) if axes else None

    def axes(self, node: onnx.NodeProto, like: Dims | None = None) -> tuple[int, ...] | None:
        """Return the axes of a reduction, from the last, -1, sorted; None if they are not known.

        () stands for all axes. `like` has as many dimensions as the tensor that is reduced.
        """
        attribute_axes = attribute(node, "axes")
        axes = list(attribute_axes.ints) if attribute_axes is not None else []
        # An attribute before opset 13 or 18, an input after.
        if attribute_axes is None and len(node.input) > 1 and node.input[1]:
            array = self.array(node.input[1])
            if array is None:
                return None
            axes = [int(axis) for axis in array.ravel()]
        if not axes:
            nothing = attribute(node, "noop_with_empty_axes")
            return None if nothing is not None and nothing.i else ()
        shape = self.shape(node.input[0]) or like
        if shape is None and max(axes) >= 0:
            return None
        rank = 0 if shape is None else len(shape)
        return tuple(sorted(axis if axis < 0 else axis - rank for axis in axes))

    def squared(self, node: onnx.NodeProto) -> str:
        """Return the tensor that a node squares, or whose squares it sums; "" for others."""
        if node.op_type == "ReduceSumSquare" and self.made_by(node.output[0], node.op_type):
            return node.input[0]
        square = self.square(node.output[0]) if node.output else None
        return square[0] if square else ""

    def square(self, name: str) -> tuple[str, onnx.NodeProto] | None:
        """Return the tensor that a tensor is the square of, and the node: a power or a product."""
        node = self.made_by(name, "Pow", "Mul")
        if node is None:
            return None
        if node.op_type == "Mul":
            return (node.input[0], node) if node.input[0] == node.input[1] else None
        return (node.input[0], node) if self.scalar(node.input[1]) == 2.0 else None

    def reading(self, node: onnx.NodeProto) -> Iterator[str]:
        """Yield the names of the nodes that read what a node makes."""
        for name in filter(None, node.output):
            yield from dict.fromkeys(reader.name for reader in self.readers.get(name, ()))

    def way(self, start: str, output: str, through: frozenset[str] | None = None) -> list[str]:
        """Return the nodes of a shortest way from a node to the maker of an output, both included.

        With `through` the way keeps to these nodes. Returns [] where there is none.
        """
        end = self.maker.get(output, "")
        came = self.reached(start, through)
        return way_back(came, end) if end in came else []

    def carried(
        self, start: str, output: str, brought: Callable[[onnx.NodeProto, str], float]
    ) -> list[str]:
        """Return the nodes of the way on which an error came from one node to an output.

        It is followed back from the output, at each node to the operand that brings in most of the
        error; `brought` tells how much, for a node and a tensor's name. Returns [] where there is
        no way.
        """
        reached = self.behind(start)
        way = [self.maker.get(output, "")]
        if way[0] not in reached:
            return []
        while way[-1] != start:
            node = self.by_name[way[-1]]
            read = [*node.input, *sorted(captured(node))]
            came = [name for name in read if self.maker.get(name) in reached]
            way.append(self.maker[max(came, key=lambda name: brought(node, name))])
        return way[::-1]

    def behind(self, start: str) -> frozenset[str]:
        """Return the node and all nodes that its values reach."""
        return frozenset(self.reached(start))

    def farthest(self, start: str, through: frozenset[str]) -> list[str]:
        """Return the nodes of the shortest way to the node that is farthest off, through these."""
        came = self.reached(start, through)
        # Breadth-first: the last one reached is the farthest.
        return way_back(came, next(reversed(came)))

    def reached(self, start: str, through: frozenset[str] | None = None) -> dict[str, str]:
        """Return what each node was first reached from, nearest first, by breadth-first search.

        With `through` the ways keep to these nodes.
        """
        came: dict[str, str] = {start: ""}
        pending = deque([start])
        while pending:
            name = pending.popleft()
            for reader in self.reading(self.by_name[name]):
                if reader not in came and (through is None or reader in through):
                    came[reader] = name
                    pending.append(reader)
        return came


def computed(model: Model) -> list[str]:
    """Return the FP32 tensors that are computed from the inputs, in network order."""
    return [
        name
        for layer in model.table.layers
        if layer.exclusion not in UNSEEN
        for name in layer.outputs
        if model.elem_types.get(name) == onnx.TensorProto.FLOAT
    ]


def way_back(came: Mapping[str, str], end: str) -> list[str]:
    """Return the way to a node, from what each was first reached from."""
    way = [end]
    while came[way[-1]]:
        way.append(came[way[-1]])
    return way[::-1]


# Sets of shapes that a model holds, the latest: samples of a hundred lengths have a hundred.
_SHAPES_HELD = 4


def tensor_shapes(model: Model, inputs: Mapping[str, Shape]) -> Mapping[str, Shape]:
    """Return the shape of every tensor, in bodies too, whose dimensions are all known.

    `inputs` are the shapes that are fed, by name. Where ONNX's inference fails, only inputs and
    weights have one.
    """
    held, key = model.shapes, frozenset(inputs.items())
    # Taken out and put back: what was asked for last goes last.
    held[key] = shapes = held.pop(key, None) or _inferred_shapes(model.proto, inputs)
    while len(held) > _SHAPES_HELD:
        held.pop(next(iter(held)), None)
    return shapes


def _inferred_shapes(given: onnx.ModelProto, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
    proto = copied(given)
    graph = proto.graph
    # The shapes in the file hold for any input, and may be symbolic.
    del graph.value_info[:]
    # Inference believes an output without a shape, of an input or a weight that is one, too.
    made = {name for node in graph.node for name in node.output}
    refill(graph.output, [output for output in graph.output if output.name in made])
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    for value in graph.input:
        if value.name in inputs:
            value.type.tensor_type.ClearField("shape")
            for size in inputs[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    # The main graph last: bodies may have tensors of the same names.
    graphs = [*all_graphs(with_shapes(proto))][::-1]
    return {
        name: tuple(size for size in dims if size is not None)
        for inner in graphs
        for name, dims in _dimensions(inner).items()
        if None not in dims
    }


def _dimensions(graph: onnx.GraphProto) -> dict[str, Dims]:
    """Return the dimensions of the tensors of known rank, None for each that is not known."""
    values = (*graph.input, *graph.value_info, *graph.output)
    dims_by_tensor: dict[str, Dims] = {
        value.name: tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
            for dim in value.type.tensor_type.shape.dim
        )
        for value in values
        if value.type.tensor_type.HasField("shape")
    }
    return dims_by_tensor | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def roles(model: Model) -> list[tuple[str, ...]]:
    """Return the role of each candidate, in network order: layers that repeat each other share it.

    It names the operators of the layer, of what makes its inputs, and of what reads its outputs.
    """
    view = View(model)
    operators = {node.name: node.op_type for node in view.nodes}

    def role(node: onnx.NodeProto) -> tuple[str, ...]:
        makers = (operators.get(view.maker.get(name, ""), "") for name in node.input)
        readers = (reader.op_type for name in node.output for reader in view.readers.get(name, ()))
        return (node.op_type, *makers, "", *sorted(readers))

    return [role(view.by_name[name]) for name in model.table.names]
