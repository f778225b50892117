"""Who makes and who reads the tensors of a switched graph, and where few of them cross."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from precision_bisect.backends.emulation.declared import Declared
from precision_bisect.backends.emulation.snippets import SHORT_PREFIX
from precision_bisect.backends.emulation.switched import FLAGS_INPUT
from precision_bisect.graphs.graph import RANDOM, captured, subgraphs
from precision_bisect.judging.inputs.copies import FACTORS
from precision_bisect.machine.stopping import look_at_clock

_TENSORS = onnx.TensorProto
_PLAIN_TYPES = (_TENSORS.FLOAT, _TENSORS.DOUBLE, _TENSORS.INT64, _TENSORS.INT32, _TENSORS.BOOL)
_NOT_FLOATS = (_TENSORS.INT64, _TENSORS.INT32, _TENSORS.BOOL)


class Wiring:
    """Who makes and who reads each tensor.

    A tensor crosses a cut at a position if a node before it makes the tensor and a node from there
    on reads it. Reading through `light` nodes counts, since each segment has its own copy of
    these.
    """

    def __init__(self, graph: onnx.GraphProto, types: Mapping[str, int]) -> None:
        self.nodes = list(graph.node)
        self.reads = [{*node.input, *captured(node)} - {""} for node in self.nodes]
        self.maker = {out: i for i, node in enumerate(self.nodes) for out in node.output if out}
        self.outputs = {value.name for value in graph.output}
        self.light = self._light({tensor.name for tensor in graph.initializer}, types)
        self._last = self._last_reads()
        self._inputs = graph.input

    @property
    def plain(self) -> bool:
        """Whether only switches have subgraphs, nothing is random, and nodes make all outputs."""
        inputs = (value.type.tensor_type.elem_type in _PLAIN_TYPES for value in self._inputs)
        nodes = (
            node.op_type not in RANDOM and (_is_switch(node) or not any(subgraphs(node)))
            for node in self.nodes
        )
        return self.outputs <= self.maker.keys() and all(inputs) and all(nodes)

    def narrow(self, count: int, declared: "Declared") -> list[int]:
        """Return up to `count` - 1 positions where few tensors cross, and all of them may.

        A tensor may cross if a switch makes it or only switches read it, so that no fusion spans
        the cut. Its shape must be known as far as kernels are chosen by it.
        """
        direct = {name for node in self.nodes for name in node.input} | self.outputs
        crossing, barred = (np.zeros(len(self.nodes) + 1, np.int64) for _ in range(2))
        for name, end in self._last.items():
            start = self.maker[name]
            if not self.light[start]:
                crossing[start + 1 : end + 1] += 1
                fused = name in direct and self.nodes[start].op_type != "If"
                barred[start + 1 : end + 1] += fused or not declared.is_known(name)
        # Cut at equal numbers of switches: that is where plans begin to differ.
        done = np.cumsum([0, *(node.op_type == "If" for node in self.nodes)])
        step = done[-1] / count
        positions = []
        for number in range(1, count):
            off = np.abs(done - number * step)
            near = np.flatnonzero((off <= step / 3) & (barred == 0))
            if near.size:
                # Fewest crossing tensors first; of equal positions the one nearest to its ideal
                # place.
                positions.append(int(near[np.lexsort((off[near], crossing[near]))[0]]))
        return sorted({*positions})

    def crossing(self, positions: Sequence[int]) -> list[set[str]]:
        """Return the tensors that cross the cuts at these positions, which ascend."""
        crossing: list[set[str]] = [set() for _ in positions]
        for name, end in self._last.items():
            start = self.maker[name]
            if not self.light[start]:
                for place in range(bisect_right(positions, start), bisect_right(positions, end)):
                    crossing[place].add(name)
        return crossing

    def within(self, wanted: Sequence[str], available: set[str]) -> list[int]:
        """Return the nodes, in order, that compute the `wanted` tensors from `available` ones."""
        indices: set[int] = set()
        pending = list(wanted)
        while pending:
            name = pending.pop()
            i = self.maker.get(name)
            if i is not None and i not in indices and name not in available:
                indices.add(i)
                pending.extend(self.reads[i])
        return sorted(indices)

    def _light(self, fixed: set[str], types: Mapping[str, int]) -> list[bool]:
        """Tell which nodes make constants, flags, factors and whole numbers; adds to `fixed`."""
        light = []
        for node, reads in zip(self.nodes, self.reads, strict=True):
            look_at_clock()
            constant = reads <= fixed
            if constant:
                fixed.update(node.output)
            light.append(
                constant
                or not reads.isdisjoint((FLAGS_INPUT, FACTORS))
                or (node.op_type == "And" and node.output[0].startswith(SHORT_PREFIX))
                or all(types.get(name) in _NOT_FLOATS for name in node.output if name)
            )
        return light

    def _last_reads(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for i in reversed(range(len(self.nodes))):
            ends = (last.get(name, i) for name in self.nodes[i].output)
            end = max(ends, default=i) if self.light[i] else i
            for name in self.reads[i] & self.maker.keys():
                last[name] = max(last.get(name, 0), end)
        return last


def _is_switch(node: onnx.NodeProto) -> bool:
    inside = (inner for branch in subgraphs(node) for inner in branch.node)
    return (
        node.op_type == "If"
        and node.input[0].startswith(SHORT_PREFIX)
        and not any(any(subgraphs(inner)) for inner in inside)
    )
