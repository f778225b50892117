"""Recurrences in a 16-bit type: the state is rounded after every step, as it is stored.

LSTM, GRU, RNN and CumSum are one operator of many steps. Rounding only their outputs would miss
what a low state does: in FP16 a sum of halves stalls at 1024. So their low form becomes a Scan of
single steps. Engines may keep some of a state in FP32 between steps: they have the last word.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.graphs.graph import attribute, copied, opset
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.types import round_trip

_FLOAT = onnx.TensorProto.FLOAT
_INT32 = onnx.TensorProto.INT32
_STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
_LENGTHS, _FIRST_STATE = 4, 5
"""Positions of the inputs `sequence_lens` and `initial_h`; `initial_c` comes after these."""


def unpredicted(model: Model) -> str:
    """Return a sentence about the candidates whose steps the emulator cannot write, or ""."""
    recurrences = Recurrences(View(model), opset(model.proto))
    candidates = frozenset(model.table.names)
    names = [
        node.name
        for node in model.proto.graph.node
        if node.name in candidates and is_recurrence(node) and not recurrences.has_steps(node)
    ]
    if not names:
        return ""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"the emulator rounds what {names[0]}{others} returns, not the state after every step: "
        "whether such a layer can run low is left to the engine"
    )


def is_recurrence(node: onnx.NodeProto) -> bool:
    """Tell whether the node computes in steps, each from the state that the last one left."""
    return node.domain in ("", "ai.onnx") and (node.op_type in _STATES or node.op_type == "CumSum")


class Recurrences:
    """Finds the recurrences of a model's main graph whose steps can be written one by one."""

    def __init__(self, view: View, opset: int) -> None:
        self._view = view
        self._opset = opset

    def has_steps(self, node: onnx.NodeProto) -> bool:
        """Tell whether a node is a recurrence that `written` can write."""
        if not is_recurrence(node):
            return False
        if node.op_type == "CumSum":
            return self._view.scalar(node.input[1]) is not None
        return attribute(node, "hidden_size") is not None and not _number(node, "layout")

    def written(
        self, node: onnx.NodeProto, renamed: onnx.NodeProto, low: LowType
    ) -> list[onnx.NodeProto]:
        """Return the nodes that compute a recurrence in steps, under the names of `renamed`."""
        if node.op_type != "CumSum":
            return _Cells(renamed, low, self._opset).written()
        axis = int(self._view.scalar(node.input[1]) or 0)
        return _summed(renamed, low, axis)


def _summed(node: onnx.NodeProto, low: LowType, axis: int) -> list[onnx.NodeProto]:
    """Return a CumSum as a Scan along its axis."""
    source, out = node.input[0], node.output[0]
    outer, body = _Nodes(f"{out}/outer"), _Nodes(f"{out}/step")
    first = outer("Gather", source, outer.constant(np.array(0)), axis=axis)
    zero = outer("ConstantOfShape", outer("Shape", first))
    before, value = f"{out}/before", f"{out}/value"
    after = body.rounded(body("Add", before, value), low)
    told = body("Identity", before if _number(node, "exclusive") else after)
    directions = [_number(node, "reverse")]
    scan = _scan(
        {before: (zero, _FLOAT, f"{out}/sum")},
        {value: source},
        body,
        [after, told],
        [out],
        scan_input_axes=[axis],
        scan_output_axes=[axis],
        scan_input_directions=directions,
        scan_output_directions=directions,
    )
    return [*outer.nodes, scan]


class _Cells:
    """Writes one LSTM, GRU or RNN as a Scan over the operator itself, one step at a time.

    Both directions of a bidirectional one go through the same Scan. Each step computes both
    directions, for the value at either end of the sequence, and takes one of each.
    """

    def __init__(self, node: onnx.NodeProto, low: LowType, opset: int) -> None:
        self._node = node
        self._low = low
        self._opset = opset
        self._tag = next(name for name in node.output if name)
        kind = attribute(node, "direction")
        direction = kind.s.decode() if kind is not None else "forward"
        ways = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}
        self._ways = ways[direction]
        self._outer, self._body = _Nodes(f"{self._tag}/outer"), _Nodes(f"{self._tag}/step")

    def written(self) -> list[onnx.NodeProto]:
        """Return the nodes."""
        states = {
            f"{self._tag}/before/{i}": (self._initial(i), _FLOAT, self._output(1 + i))
            for i in range(_STATES[self._node.op_type])
        }
        values = {f"{self._tag}/value/{i}": self._node.input[0] for i in range(len(self._ways))}
        after = [
            self._body.rounded(each, self._low)
            for each in self._stepped(list(states), list(values))
        ]
        told = after[0]
        if self._input(_LENGTHS):
            # Rows whose sequence has ended give 0 and keep their state, as ONNX defines it.
            count = f"{self._tag}/count"
            valid = self._valid(count)
            told = self._body("Where", valid, told, self._body.constant(np.float32(0)))
            after = [
                self._body("Where", valid, new, old)
                for new, old in zip(after, states, strict=True)
            ]
            zero = self._outer.constant(np.zeros(1, np.int32))
            # A Scan has no counter of its own, so the step's number is a state.
            states[count] = (zero, _INT32, f"{count}/end")
            after.append(self._body("Add", count, self._body.constant(np.ones(1, np.int32))))
        parts = [f"{self._tag}/all/{i}" for i in range(len(self._ways))]
        scan = _scan(
            states,
            values,
            self._body,
            [*after, *(self._part(told, i) for i in range(len(parts)))],
            parts,
            scan_input_directions=self._ways,
            scan_output_directions=self._ways,
        )
        joined = helper.make_node("Concat", parts, [self._output(0)], axis=1)
        return [*self._outer.nodes, scan, joined]

    def _stepped(self, states: list[str], values: list[str]) -> list[str]:
        """Return the states after a step."""
        stepped = []
        for value in values:
            step = copied(self._node)
            step.name = ""
            inputs = [self._unsqueezed(value), *self._node.input[1:_LENGTHS]]
            inputs += [""] * (_FIRST_STATE - len(inputs))
            inputs += [*states, *self._node.input[_FIRST_STATE + len(states) :]]
            outputs = ["", *(f"{value}/after/{i}" for i in range(len(states)))]
            del step.input[:], step.output[:]
            step.input.extend(inputs)
            step.output.extend(outputs)
            self._body.nodes.append(step)
            stepped.append(outputs[1:])
        if len(values) == 1:
            return stepped[0]
        return [
            self._body(
                "Concat", *(self._part(each[i], way) for way, each in enumerate(stepped)), axis=0
            )
            for i in range(len(states))
        ]

    def _part(self, name: str, way: int) -> str:
        """Return one direction of a state, of shape (1, batch, hidden)."""
        if len(self._ways) == 1:
            return self._body("Identity", name)
        return self._body("Gather", name, self._body.constant(np.array([way])), axis=0)

    def _valid(self, count: str) -> str:
        """Return which rows of the batch reach this step, of shape (directions, batch, 1)."""
        lengths = self._outer(
            "Reshape", self._input(_LENGTHS), self._outer.constant(np.array([1, -1, 1]))
        )
        shape = self._outer("Shape", self._node.input[0])
        steps = self._outer("Gather", shape, self._outer.constant(np.array([0])), axis=0)
        last = self._outer("Sub", steps, self._outer.constant(np.array([1])))
        last = self._outer("Cast", last, to=_INT32)
        # The backward direction meets the padding of short rows first.
        places = [self._body("Sub", last, count) if way else count for way in self._ways]
        return self._body(
            "Concat", *(self._body("Less", place, lengths) for place in places), axis=0
        )

    def _initial(self, number: int) -> str:
        """Return a state before the first step: as given, else zeros."""
        if given := self._input(_FIRST_STATE + number):
            return given
        outer = self._outer
        batch = outer(
            "Gather", outer("Shape", self._node.input[0]), outer.constant(np.array([1])), axis=0
        )
        ways, size = len(self._ways), _number(self._node, "hidden_size")
        shape = outer(
            "Concat",
            outer.constant(np.array([ways])),
            batch,
            outer.constant(np.array([size])),
            axis=0,
        )
        return outer("ConstantOfShape", shape)

    def _unsqueezed(self, name: str) -> str:
        # Axes became an input at opset 13.
        if self._opset < 13:
            return self._body("Unsqueeze", name, axes=[0])
        return self._body("Unsqueeze", name, self._body.constant(np.array([0])))

    def _input(self, position: int) -> str:
        return self._node.input[position] if position < len(self._node.input) else ""

    def _output(self, position: int) -> str:
        name = self._node.output[position] if position < len(self._node.output) else ""
        return name or f"{self._tag}/unread/{position}"


class _Nodes:
    """Collects nodes whose outputs are called after `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._prefix = prefix

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node of one output; return its name."""
        name = f"{self._prefix}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def constant(self, value: NDArray[np.generic] | np.generic) -> str:
        """Return the name of a constant."""
        return self("Constant", value=onnx.numpy_helper.from_array(np.asarray(value)))

    def rounded(self, name: str, low: LowType) -> str:
        """Return a value rounded to a 16-bit type."""
        out = f"{self._prefix}/{len(self.nodes)}"
        self.nodes.extend(round_trip(name, out, low.onnx_type))
        return out


def _scan(
    states: Mapping[str, tuple[str, int, str]],
    values: Mapping[str, str],
    body: _Nodes,
    results: Sequence[str],
    stacked: Sequence[str],
    **attributes: Any,
) -> onnx.NodeProto:
    """Return a Scan.

    `states` has, for each name in the body, where it starts, its type, and the name it ends under.
    `values` are scanned; `results` are the states after a step, then the values to stack.
    """
    kinds = [kind for _, kind, _ in states.values()]
    graph = helper.make_graph(
        body.nodes,
        "step",
        [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(
                [*states, *values], [*kinds, *[_FLOAT] * len(values)], strict=True
            )
        ],
        [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(results, [*kinds, *[_FLOAT] * len(stacked)], strict=True)
        ],
    )
    return helper.make_node(
        "Scan",
        [*(start for start, _, _ in states.values()), *values.values()],
        [*(end for _, _, end in states.values()), *stacked],
        body=graph,
        num_scan_inputs=len(values),
        **attributes,
    )


def _number(node: onnx.NodeProto, name: str) -> int:
    """Return an integer attribute, 0 where it is not given."""
    found = attribute(node, name)
    return 0 if found is None else int(found.i)
