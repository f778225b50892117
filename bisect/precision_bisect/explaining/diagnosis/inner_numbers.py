"""Single numbers of tensors inside a graph, each reduced right behind the node that makes it.

One inference tells them of all tensors, and none of these leaves the graph: to show them takes a
session and an inference for as many as memory holds, and a pass in Python over each.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.graphs.graph import copied, refill
from precision_bisect.graphs.ort import Session, check
from precision_bisect.protocols import Sample

_PREFIX = "precision_bisect/number"


class What(StrEnum):
    """What is told of a tensor, by the operator that computes it.

    `NORM` is the root of the sum of squares: no magnitude is above it, and NaN or Inf make it so.
    The largest and the least value may hide NaN.
    """

    NORM = "ReduceL2"
    LARGEST = "ReduceMax"
    LEAST = "ReduceMin"
    SIZE = "Size"


class InnerNumbers:
    """A session of a graph that gives numbers of FP32 tensors in it, by name.

    It computes node by node what the graph says. Raises ModelError where it cannot be loaded.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        weights: Mapping[str, NDArray[Any]],
        names: Iterable[str],
        numbers: Iterable[What],
        threads: int,
    ) -> None:
        self._names, self._numbers = [*names], [*numbers]
        graph = check(with_numbers(proto, {*self._names}, self._numbers), weights)
        self._session = Session(graph, threads=threads, optimised=False, frugal=True)

    def run(self, feed: Sample) -> dict[str, dict[What, float]]:
        """Return the numbers of each tensor for one feed. Raises RuntimeError."""
        arrays = self._session.run(feed)
        return {
            name: {what: float(arrays[_named(what, name)]) for what in self._numbers}
            for name in self._names
        }


def with_numbers(
    proto: onnx.ModelProto, names: Collection[str], numbers: Iterable[What]
) -> onnx.ModelProto:
    """Return a copy of a model that has these numbers of these tensors as its outputs."""
    reduced = copied(proto)
    nodes, outputs = list[onnx.NodeProto](), list[onnx.ValueInfoProto]()
    for node in reduced.graph.node:
        nodes.append(node)
        for name in node.output:
            for what in numbers if name in names else ():
                out, counts = _named(what, name), what is What.SIZE
                nodes.append(helper.make_node(what.value, [name], [out]))
                if not counts:
                    nodes[-1].attribute.append(helper.make_attribute("keepdims", 0))
                kind = onnx.TensorProto.INT64 if counts else onnx.TensorProto.FLOAT
                outputs.append(helper.make_tensor_value_info(out, kind, []))
    refill(reduced.graph.node, nodes)
    refill(reduced.graph.output, outputs)
    return reduced


def _named(what: What, tensor: str) -> str:
    return f"{_PREFIX}/{what}/{tensor}"
