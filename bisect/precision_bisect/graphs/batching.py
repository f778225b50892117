"""A graph for another batch: its inputs along their first axis, and what names their size.

Many files have the batch of their export written into them: in their inputs, in what a Reshape
makes, in constants that are joined to values of a sample. Other places are left as they are, so
whether the graph computes samples side by side is to be tried: `samples_apart` compares.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from precision_bisect.errors import UsageError
from precision_bisect.graphs.graph import Names, attribute, constant_of, copied, refill

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

APART = 1e-3
"""How much outputs may differ from those of single samples, as a share of the largest value: sums
of other kernels, not other samples. A bound."""
_SHAPES = frozenset(("Shape", "Size"))
_HINT = "leave it out, or export the model with a batch axis that is left open"


class CannotBatchError(UsageError):
    """A graph or its samples have no batch that could be another one; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"--time-batch: {reason}", _HINT)
        self.reason = reason

    def __reduce__(self) -> tuple[type["CannotBatchError"], tuple[str]]:
        return type(self), (self.reason,)


def batch_of(sample: Arrays) -> int:
    """Return the size of the first axis that all inputs of a sample share.

    Scalars have none. Raises CannotBatchError.
    """
    sizes = {name: array.shape[0] for name, array in sample.items() if array.ndim}
    if not sizes:
        raise CannotBatchError("no input has an axis")
    batch: int = next(iter(sizes.values()))
    for name, size in sizes.items():
        if size != batch:
            first = next(iter(sizes))
            raise CannotBatchError(
                f"the first axes of inputs {first!r} and {name!r} are {batch} and {size} long, "
                "so they are no batch"
            )
    return batch


def stacked(samples: Sequence[Arrays], batch: int) -> dict[str, NDArray[Any]]:
    """Return one sample of this batch: the first ones in turn, the last one cut.

    Raises CannotBatchError where their shapes differ.
    """
    own = batch_of(samples[0])
    taken = list(islice(cycle(samples), -(-batch // own)))
    stack = {}
    for name, first in samples[0].items():
        if any(sample[name].shape != first.shape for sample in taken):
            raise CannotBatchError(f"samples have several shapes of input {name!r}")
        arrays = [sample[name] for sample in taken]
        stack[name] = np.concatenate(arrays)[:batch] if first.ndim else first
    return stack


def rebatched(proto: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Return the graph for this batch; the same graph where its inputs leave the batch open.

    Raises CannotBatchError where the batch is no multiple of the graph's own.
    """
    own = _own_batch(proto.graph)
    if own is None or own == batch:
        return proto
    if batch % own:
        raise CannotBatchError(f"{batch} is no multiple of the model's batch, {own}")
    scaled = copied(proto)
    _scale(scaled.graph, batch // own)
    return scaled


def samples_apart(outputs: Sequence[Arrays], batch: Arrays, own: int, rows: int) -> None:
    """Check that a batch of `rows` has the outputs of its samples, each of `own`, in turn.

    Raises CannotBatchError where it has not.
    """
    for name, whole in batch.items():
        singles = [sample[name] for sample in outputs]
        size = singles[0].shape
        if not size or size[0] != own or whole.shape != (rows, *size[1:]):
            raise CannotBatchError(f"output {name!r} has the shape {list(whole.shape)}")
        turns = list(islice(cycle(singles), -(-rows // own)))
        if not _alike(whole, np.concatenate(turns)[:rows]):
            raise CannotBatchError(f"output {name!r} of a sample depends on its neighbours")


def _alike(actual: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Whether floats differ by sums of other kernels at most; values of other types are equal."""
    if actual.dtype.kind != "f":
        return np.array_equal(actual, expected)
    finite = np.abs(expected[np.isfinite(expected)])
    largest = max(float(finite.max(initial=0.0)), 1e-30)
    return np.allclose(actual, expected, rtol=APART, atol=APART * largest, equal_nan=True)


def _own_batch(graph: onnx.GraphProto) -> int | None:
    """Return the size that the inputs fix their first axis to, None where one leaves it open."""
    constants = {tensor.name for tensor in graph.initializer}
    sizes = set()
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and dims:
            sizes.add(dims[0].dim_value if dims[0].HasField("dim_value") else 0)
    return None if len(sizes) != 1 or min(sizes) <= 0 else sizes.pop()


def _scale(graph: onnx.GraphProto, factor: int) -> None:
    """Multiply the batch of a graph in its inputs, reshapes and joined constants."""
    names = Names(graph)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in _targets(graph)}
    weights = {tensor.name for tensor in graph.initializer}
    # What has no axis is the same for all samples.
    fed = [
        value
        for value in graph.input
        if value.name not in weights and value.type.tensor_type.shape.dim
    ]
    for value in fed:
        value.type.tensor_type.shape.dim[0].dim_value *= factor
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim[:1]:
            dim.Clear()
    del graph.value_info[:]
    batched, nodes = {value.name for value in fed}, list[onnx.NodeProto]()
    for node in graph.node:
        # The sizes that a Shape returns are of the batch as it is.
        if node.op_type not in _SHAPES and not batched.isdisjoint(node.input):
            batched.update(node.output)
            if node.op_type == "Reshape" and node.input[1] in constants:
                target = constants[node.input[1]].copy()
                if target.size and target[0] > 0:
                    target[0] *= factor
                    node.input[1] = names(f"{node.name}/shape")
                    graph.initializer.append(numpy_helper.from_array(target, node.input[1]))
            axis = attribute(node, "axis")
            if node.op_type == "Concat" and axis is not None and axis.i != 0:
                for place, name in enumerate(node.input):
                    if name not in batched:
                        node.input[place] = many = names(f"{node.name}/{place}")
                        nodes.append(
                            helper.make_node("Concat", [name] * factor, [many], many, axis=0)
                        )
        nodes.append(node)
    refill(graph.node, nodes)


def _targets(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the constants that reshapes are made to, under the names that these read."""
    read = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    yield from (tensor for tensor in graph.initializer if tensor.name in read)
    for node in graph.node:
        value = constant_of(node) if node.output and node.output[0] in read else None
        if value is not None:
            yield numpy_helper.from_array(value, node.output[0])
