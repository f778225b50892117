"""The interface of what is deployed: inputs and outputs in 16-bit floats, where it has such.

Samples are FP32 in this package. What is judged gets them rounded to the interface, as the
exported file does, and gives its outputs in the types of that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from precision_bisect.graphs.graph import (
    HALF_TYPES,
    Names,
    all_graphs,
    attribute,
    refill,
    rename_tensors,
)
from precision_bisect.graphs.lowtypes import LOW_TYPES, LowType
from precision_bisect.graphs.types import infer_elem_types, round_trip
from precision_bisect.protocols import Sample
from precision_bisect.settings.targets import parser_conditions

FLOAT = onnx.TensorProto.FLOAT
_BY_TYPE = {low.onnx_type: low for low in LOW_TYPES.values()}
IO_PREFIX = "precision_bisect/io"
AT_THE_BORDER = frozenset[str](parser_conditions()["at_the_border"])
"""Operators that share the memory of an input of the network with an output of it.

TensorRT's parser takes them with no Cast between their first input and that of the network, and
none behind them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """The inputs and outputs of a 16-bit float type, with that type; others are as they are."""

    inputs: Mapping[str, LowType] = field(default_factory=dict)
    outputs: Mapping[str, LowType] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> "Interface":
        """Return the interface that a file declares."""
        return cls(inputs=_declared(graph.input), outputs=_declared(graph.output))

    def with_floats(self, graph: onnx.GraphProto, low: LowType) -> "Interface":
        """Return the interface with every FP32 input and output in a 16-bit type, too.

        The graph is in FP32 throughout. What an operator wants without a cast stays FP32.
        """
        shared = [node for node in graph.node if node.op_type in AT_THE_BORDER]
        uncast = {name for node in shared for name in (*node.input[:1], *node.output)}
        inputs, outputs = (
            {
                value.name: low
                for value in side
                if value.type.tensor_type.elem_type == FLOAT and value.name not in uncast
            }
            for side in (graph.input, graph.output)
        )
        return Interface(inputs={**inputs, **self.inputs}, outputs={**outputs, **self.outputs})

    def rounded(self, feed: Sample) -> Sample:
        """Return a feed as the interface takes it, in FP32."""
        if self.inputs.keys().isdisjoint(feed):
            return feed
        return {
            name: self.inputs[name].round(array) if name in self.inputs else array
            for name, array in feed.items()
        }

    def stored(self, feed: Sample) -> Sample:
        """Return a feed in the types of the interface, as a file or a device takes it."""
        with np.errstate(over="ignore"):
            return {
                name: array.astype(self.inputs[name].numpy_type) if name in self.inputs else array
                for name, array in feed.items()
            }

    def declare(self, proto: onnx.ModelProto) -> None:
        """Give a typed graph the interface, and cast at the border.

        What reads an input in its type, or gives an output from that type, needs no cast.
        """
        graph = proto.graph
        inputs = {v.name for v in graph.input}
        takes = {v.name: v for v in graph.input if v.name in self.inputs}
        gives = {
            v.name: v for v in graph.output if v.name in self.outputs and v.name not in inputs
        }
        if not (takes or gives):
            return
        types = infer_elem_types(proto, {})
        for side, kinds in ((takes, self.inputs), (gives, self.outputs)):
            for name, value in side.items():
                value.type.tensor_type.elem_type = kinds[name].onnx_type
        for value in graph.output:
            if value.name in takes:
                value.type.tensor_type.elem_type = self.inputs[value.name].onnx_type
        # A model that was exported before has nodes and tensors of these names.
        free = Names(graph)
        names = {name: free(f"{IO_PREFIX}/{name}") for name in (*takes, *gives)}
        outputs = {value.name for value in graph.output}
        nodes = []
        for node in graph.node:
            source = node.input[0] if node.input else ""
            low = self.inputs.get(source) if source in takes else None
            if low and _casts(node, low.onnx_type) and node.output[0] not in outputs:
                names[node.output[0]] = source
            else:
                nodes.append(node)
        refill(graph.node, nodes)
        rename_tensors(graph, names)
        ends, direct = [], dict[str, str]()
        made = {name for node in graph.node for name in node.output} - outputs
        for name in gives:
            end = _given(name, names[name], self.outputs[name].onnx_type, graph.node, types)
            source = end.input[0]
            if end.op_type == "Identity" and source in made and source not in direct:
                # TensorRT-RTX takes no node between a cache and the output of the network.
                direct[source] = name
            else:
                end.input[0] = direct.get(source, source)
                ends.append(end)
        rename_tensors(graph, direct)
        begins = [_cast(name, names[name], FLOAT) for name in takes]
        for node in (*begins, *ends):
            node.name = free(node.name)
        read = {name for inner in all_graphs(graph) for node in inner.node for name in node.input}
        read |= {name for node in ends for name in node.input} | outputs
        every = (*begins, *graph.node, *ends)
        useful = [n for n in every if not _casts(n, FLOAT) or n.output[0] in read]
        refill(graph.node, useful)

    def round_ends(self, proto: onnx.ModelProto) -> Mapping[str, str]:
        """Have an FP32 graph round its inputs and outputs to the types of the interface.

        Returns what the tensors of these names are called inside.
        """
        graph = proto.graph
        inputs = {value.name for value in graph.input}
        takes = {name: low for name, low in self.inputs.items() if name in inputs}
        gives = {
            value.name: self.outputs[value.name]
            for value in graph.output
            if value.name in self.outputs and value.name not in inputs
        }
        if not (takes or gives):
            return {}
        free = Names(graph)
        names = {name: free(f"{IO_PREFIX}/{name}") for name in (*takes, *gives)}
        rename_tensors(graph, names)
        begins = [
            node
            for name, low in takes.items()
            for node in round_trip(name, names[name], low.onnx_type)
        ]
        # The graph may have a round trip of this tensor already, by its own name.
        ends = [
            node
            for name, low in gives.items()
            for node in (
                helper.make_node(
                    "Cast", [names[name]], [f"{names[name]}/16bit"], to=low.onnx_type
                ),
                helper.make_node("Cast", [f"{names[name]}/16bit"], [name], to=FLOAT),
            )
        ]
        refill(graph.node, [*begins, *graph.node, *ends])
        return names


def _declared(values: Iterable[onnx.ValueInfoProto]) -> Mapping[str, LowType]:
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    return {name: _BY_TYPE[kind] for name, kind in kinds.items() if kind in HALF_TYPES}


def _given(
    name: str, inner: str, kind: int, nodes: Iterable[onnx.NodeProto], types: Mapping[str, int]
) -> onnx.NodeProto:
    """Return the node that gives an output in a 16-bit type, which is `inner` in FP32."""
    for node in nodes:
        came_low = inner in node.output and _casts(node, FLOAT)
        goes_low = inner in node.input and _casts(node, kind)
        source = node.output[0] if goes_low else node.input[0] if came_low else ""
        if goes_low or (came_low and types.get(source) == kind):
            return helper.make_node("Identity", [source], [name], name=f"{inner}/identity")
    return _cast(inner, name, kind)


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    inner = target if kind == FLOAT else source
    return helper.make_node("Cast", [source], [target], name=f"{inner}/cast", to=kind)


def _casts(node: onnx.NodeProto, kind: int) -> bool:
    to = attribute(node, "to") if node.op_type == "Cast" else None
    return to is not None and to.i == kind
