"""Recurrences in a 16-bit type: the state is rounded after every step, as it is stored.

LSTM, GRU, RNN, CumSum, CumProd and scatters with a reduction are one operator of many steps.
Rounding only their outputs would miss what a low state does: in FP16 a sum of halves stalls at
1024. So their low form becomes a Scan or Loop of single steps. Engines may keep some of a state in
FP32 between steps: they have the last word. ONNX Runtime on CUDA stores more (`cudnn_cells`), and
nothing of cells that it leaves to the CPU.

On GPUs a ScatterElements or ScatterND that adds or multiplies does so by atomic operations in the
type of the data: 8,000 times 0.4 come to 1024 in FP16. TensorRT's open plug-in does so
(plugin/scatterElementsPlugin, reducer.cuh), and so does the kernel of ONNX Runtime on CUDA
(scatter_elements_impl.cu, atomic/common.cuh). Atomics have no fixed order; here values come in
their order in the tensor of updates. Minima and maxima are the same in any order and type.

All places take their next value at once, in rounds. Those that get most values come first, so the
places that still wait are the first of all, and their values lie side by side.
"""

from collections.abc import Sequence

import onnx

from precision_bisect.backends.emulation import cudnn_cells
from precision_bisect.backends.emulation.snippets import parsed
from precision_bisect.errors import first_of
from precision_bisect.graphs.graph import attribute, opset, subgraphs
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.settings.targets import TargetName

_OPERATIONS = {b"add": "Add", b"mul": "Mul"}
_SCATTERS = ("ScatterElements", "ScatterND")

# Each gives `data` and `updates` as rows, and `aims`: the row that each update goes to.
_ELEMENTS = """
    size = Size(x0)
    numbers = Range(first, size, step)
    shape = Shape(x0)
    grid = Reshape<allowzero = 1>(numbers, shape)
    aimed = GatherElements<axis = {axis}>(grid, x1)
    aims = Reshape(aimed, flat)
    column = Constant<value = int64[2] {{-1, 1}}>()
    updates = Reshape(x2, column)
    data = Reshape(x0, column)"""
# One index for each whole row.
_ROWS = """
    length_0 = Shape<end = 1>(x0)
    size = Squeeze(length_0)
    numbers = Range(first, size, step)
    indices = Flatten<axis = 1>(x1)
    chosen = Gather<axis = 1>(indices, first)
    aims = Gather(numbers, chosen)
    updates = Flatten<axis = 1>(x2)
    data = Flatten<axis = 1>(x0)"""
_SLICES = """
    shape = Shape(x0)
    ranks = Shape<start = -1>(x1)
    lead = Slice(shape, zero, ranks)
    rank = Size(shape)
    last = Unsqueeze(rank, zero)
    rest = Slice(shape, ranks, last)
    size = ReduceProd<keepdims = 0>(lead)
    numbers = Range(first, size, step)
    grid = Reshape<allowzero = 1>(numbers, lead)
    aimed = GatherND(grid, x1)
    aims = Reshape(aimed, flat)
    width = ReduceProd<keepdims = 1>(rest)
    length_0 = Shape(aims)
    of_updates = Concat<axis = 0>(length_0, width)
    updates = Reshape<allowzero = 1>(x2, of_updates)
    length_1 = Unsqueeze(size, zero)
    of_data = Concat<axis = 0>(length_1, width)
    data = Reshape<allowzero = 1>(x0, of_data)"""

_ROUNDS = """g (float x0) => (float y0) {{
    flat = Constant<value = int64[1] {{-1}}>()
    zero = Constant<value = int64[1] {{0}}>()
    one = Constant<value = int64[1] {{1}}>()
    first = Constant<value = int64 {{0}}>()
    step = Constant<value = int64 {{1}}>()
    {rows}
    length = Shape(aims)
    sorted, order = TopK<largest = 0>(aims, length)
    place, begins, which, counts = Unique(sorted)
    many = Shape(place)
    falling, by_count = TopK(counts, many)
    places = Size(place)
    columns = Range(first, places, step)
    column_of = ScatterElements(columns, by_count, columns)
    values = Size(aims)
    positions = Range(first, values, step)
    begin = Gather(begins, which)
    round = Sub(positions, begin)
    padded = Concat<axis = 0>(falling, zero)
    most = Slice(padded, zero, one)
    none = ConstantOfShape<value = int64[1] {{0}}>(most)
    ones = ConstantOfShape<value = int64[1] {{1}}>(length)
    waiting = ScatterElements<reduction = "add">(none, round, ones)
    starts = CumSum<exclusive = 1>(waiting, first)
    start = Gather(starts, round)
    slot = Gather(column_of, which)
    at_end = Add(start, slot)
    turn = ScatterElements(order, at_end, order)
    in_turn = Gather(updates, turn)
    targets = Gather(place, by_count)
    begun = Gather(data, targets)
    rounds = Squeeze(most)
    ended = Loop<
        body = step (int64 number, bool go, float before) => (bool on, float after) {{
            on = Identity(go)
            at = Unsqueeze(number, zero)
            count = Gather(waiting, at)
            from = Gather(starts, at)
            to = Add(from, count)
            now = Slice(in_turn, from, to)
            open = Slice(before, zero, count)
            done = Slice(before, count, many)
            exact = {operation}(open, now)
            rounded = Cast<to = {low}>(exact)
            wide = Cast<to = 1>(rounded)
            after = Concat<axis = 0>(wide, done)
        }}>(rounds, "", begun)
    targeted = Unsqueeze(targets, step)
    whole = ScatterND(data, targeted, ended)
    result = Shape(x0)
    y0 = Reshape<allowzero = 1>(whole, result) }}"""


def scatters(node: onnx.NodeProto) -> bool:
    """Tell whether a node's result depends on what is stored after each value."""
    return node.op_type in _SCATTERS and _operation(node) is not None


def scattered(node: onnx.NodeProto, view: View, low: LowType) -> str:
    """Return the text of the graph that stores in `low` after each value."""
    axis = attribute(node, "axis")
    number = 0 if axis is None else axis.i
    if node.op_type == "ScatterND":
        rows = _SLICES
    elif number == 0 and _by_rows(node, view):
        rows = _ROWS
    else:
        rows = _ELEMENTS.format(axis=number)
    return _ROUNDS.format(rows=rows, operation=_operation(node), low=low.onnx_type)


def _by_rows(node: onnx.NodeProto, view: View) -> bool:
    """Tell whether the indices are one for each row, repeated along it, as exporters write it."""
    expand = view.made_by(node.input[1], "Expand")
    data, indices = view.shape(node.input[0]), view.shape(node.input[1])
    source = None if expand is None else view.shape(expand.input[0])
    if (
        not data
        or not indices
        or not source
        or len(source) != len(indices)
        or data[1:] != indices[1:]
    ):
        return False
    return None not in data[1:] and all(size == 1 for size in source[1:])


def _operation(node: onnx.NodeProto) -> str | None:
    reduction = attribute(node, "reduction")
    return None if reduction is None else _OPERATIONS.get(reduction.s)


_STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
_LENGTHS, _FIRST_STATE = 4, 5
"""Positions of the inputs `sequence_lens` and `initial_h`; `initial_c` comes after these."""

# The operation of each step, and what it begins with.
_CUMULATIVE = {"CumSum": ("Add", 0), "CumProd": ("Mul", 1)}
_STEPS = """g (float x0) => (float y0) {{
    place = Constant<value = int64 {{0}}>()
    first = Gather<axis = {axis}>(x0, place)
    shape = Shape(first)
    begin = ConstantOfShape<value = float[1] {{{begin}}}>(shape)
    last, y0 = Scan<
        num_scan_inputs = 1, scan_input_axes = [{axis}], scan_output_axes = [{axis}],
        scan_input_directions = [{reverse}], scan_output_directions = [{reverse}],
        body = step (float before, float value) => (float after, float told) {{
            exact = {operation}(before, value)
            rounded = Cast<to = {low}>(exact)
            after = Cast<to = 1>(rounded)
            told = Identity({told})
        }}>(begin, x0) }}"""

# Both directions of a bidirectional one go through the same Scan. Each step computes both
# directions, for the value at either end of the sequence, and takes one of each.
_CELLS = """g (float x0) => (float y0) {{
    place_0 = Constant<value = int64[1] {{0}}>()
    place_1 = Constant<value = int64[1] {{1}}>()
    ways = Constant<value = int64[1] {{{ways}}}>()
    hidden = Constant<value = int64[1] {{{hidden}}}>()
    shape = Shape(x0)
    rows = Gather<axis = 0>(shape, place_1)
    sizes = Concat<axis = 0>(ways, rows, hidden)
    zeros = ConstantOfShape(sizes)
    {outside}
    {ends} = Scan<
        num_scan_inputs = {ways}, scan_input_directions = {directions},
        scan_output_directions = {directions},
        body = step ({reads}) => ({gives}) {{
            {inside}
        }}>({begins})
    y0 = Concat<axis = 1>({parts}) }}"""

# Rows whose sequence has ended give 0 and keep their state, as ONNX defines it. A Scan has no
# counter of its own, so the step's number is a state. The backward direction meets the padding of
# short rows first.
_LENGTHS_OUTSIDE = """
    column = Constant<value = int64[3] {1, -1, 1}>()
    lengths = Reshape(x4, column)
    steps = Gather<axis = 0>(shape, place_0)
    less = Sub(steps, place_1)
    last = Cast<to = 6>(less)
    begin = Constant<value = int32[1] {0}>()"""
_LENGTHS_INSIDE = """
    left = Sub(last, count)
    valid_0 = Less(count, lengths)
    valid_1 = Less(left, lengths)
    nought = Constant<value = float {0}>()
    step = Constant<value = int32[1] {1}>()
    next = Add(count, step)"""


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
    return (
        f"the emulator rounds what {first_of(names)} returns, not the state after every step: "
        "whether such a layer can run low is left to the engine"
    )


def is_recurrence(node: onnx.NodeProto) -> bool:
    """Tell whether the node computes in steps, each from the state that the last one left."""
    stepped = node.op_type in (*_STATES, *_CUMULATIVE) or scatters(node)
    return node.domain in ("", "ai.onnx") and stepped


class Recurrences:
    """Finds the recurrences of a model's main graph whose steps can be written one by one."""

    def __init__(self, view: View, opset: int, target: TargetName = "tensorrt") -> None:
        self._view = view
        self._opset = opset
        self._target = target

    def has_steps(self, node: onnx.NodeProto) -> bool:
        """Tell whether a node is a recurrence that `written` can write."""
        if not is_recurrence(node):
            return False
        if scatters(node):
            return True
        if node.op_type in _CUMULATIVE:
            return self._view.scalar(node.input[1]) is not None
        if self._target == "onnxruntime" and not cudnn_cells.in_cudnn(node):
            return False  # on the CPU, whose kernel is FP32 from end to end
        return attribute(node, "hidden_size") is not None and not _number(node, "layout")

    def written(
        self, node: onnx.NodeProto, renamed: onnx.NodeProto, low: LowType
    ) -> list[onnx.NodeProto]:
        """Return the nodes that compute a recurrence in steps, under the names of `renamed`."""
        if scatters(node):
            return parsed(scattered(node, self._view, low), renamed)
        if node.op_type not in _CUMULATIVE:
            cudnn = self._target == "onnxruntime" and cudnn_cells.in_cudnn(node)
            text = _cells(node, low, self._opset, cudnn=cudnn and low.name == "fp16")
            nodes = parsed(text, renamed)
            (scan,) = (inner for inner in nodes if inner.op_type == "Scan")
            # The text of a cell cannot hold lists of attributes, such as activations.
            for step in (inner for graph in subgraphs(scan) for inner in graph.node):
                if step.op_type == node.op_type:
                    step.attribute.extend(node.attribute)
            return nodes
        operation, begin = _CUMULATIVE[node.op_type]
        text = _STEPS.format(
            operation=operation,
            begin=begin,
            axis=int(self._view.scalar(node.input[1]) or 0),
            reverse=_number(node, "reverse"),
            low=low.onnx_type,
            told="before" if _number(node, "exclusive") else "after",
        )
        return parsed(text, renamed)


def _cells(node: onnx.NodeProto, low: LowType, opset: int, *, cudnn: bool) -> str:
    """Return an LSTM, GRU or RNN as a Scan over the operator itself, one step at a time.

    Each step is the operator, unless it is taken apart as `cudnn` has it.
    """
    states = range(_STATES[node.op_type])
    kind = attribute(node, "direction")
    directions = {b"reverse": [1], b"bidirectional": [0, 1]}.get(kind.s if kind else b"", [0])
    ways = range(len(directions))
    inputs = [f"x{i}" if name else "" for i, name in enumerate(node.input)]
    inputs += [""] * (_FIRST_STATE + len(states) - len(inputs))
    # Axes became an input at opset 13.
    axes = ("<axes = [0]>", "") if opset < 13 else ("", ", place_0")
    inside = [f"row_{way} = Unsqueeze{axes[0]}(value_{way}{axes[1]})" for way in ways]
    if cudnn:
        inside.append(f"values = Concat<axis = 0>({', '.join(f'row_{way}' for way in ways)})")
        inside += cudnn_cells.step(node, low)
    else:
        inside += _step(node.op_type, inputs, ways, low)
    reads = [f"float before_{i}" for i in states]
    gives = [f"float new_{i}" for i in states]
    begins = [inputs[_FIRST_STATE + i] or "zeros" for i in states]
    ends = [f"y{1 + i}" for i in states]
    outside, step_output = cudnn_cells.outside(node) if cudnn else "", "new_0"
    if inputs[_LENGTHS]:
        valid = ", ".join(f"valid_{way}" for way in directions)
        inside += [
            _LENGTHS_INSIDE,
            f"valid = Concat<axis = 0>({valid})",
            "told = Where(valid, new_0, nought)",
            *(f"after_{i} = Where(valid, new_{i}, before_{i})" for i in states),
        ]
        outside, step_output = outside + _LENGTHS_OUTSIDE, "told"
        reads.append("int32 count")
        gives = [*(f"float after_{i}" for i in states), "int32 next"]
        begins.append("begin")
        ends.append("end")
    inside += [f"told_{way} = Gather<axis = 0>({step_output}, place_{way})" for way in ways]
    parts = [f"part_{way}" for way in ways]
    return _CELLS.format(
        ways=len(ways),
        hidden=_number(node, "hidden_size"),
        directions=directions,
        outside=outside,
        ends=", ".join([*ends, *parts]),
        reads=", ".join([*reads, *(f"float value_{way}" for way in ways)]),
        gives=", ".join([*gives, *(f"float told_{way}" for way in ways)]),
        inside="\n".join(inside),
        begins=", ".join([*begins, *("x0" for _ in ways)]),
        parts=", ".join(parts),
    )


def _step(op_type: str, inputs: Sequence[str], ways: Sequence[int], low: LowType) -> list[str]:
    """Return the lines that make the states `new_0`, `new_1` of `before_0`, `before_1`."""
    states = range(_STATES[op_type])
    before = [f"before_{i}" for i in states]
    lines = []
    for way in ways:
        after_states = inputs[_FIRST_STATE + len(states) :]
        read = [f"row_{way}", *inputs[1:_LENGTHS], "", *before, *after_states]
        state_names = ", ".join(f"state_{i}_{way}" for i in states)
        lines += [
            f"all_{way}, {state_names} = {op_type}({', '.join(read)})",
            *(f"own_{i}_{way} = Gather<axis = 0>(state_{i}_{way}, place_{way})" for i in states),
        ]
    for i in states:
        lines += [
            f"exact_{i} = Concat<axis = 0>({', '.join(f'own_{i}_{way}' for way in ways)})",
            f"rounded_{i} = Cast<to = {low.onnx_type}>(exact_{i})",
            f"new_{i} = Cast<to = 1>(rounded_{i})",
        ]
    return lines


def _number(node: onnx.NodeProto, name: str) -> int:
    """Return an integer attribute, 0 where it is not given."""
    value = attribute(node, name)
    return 0 if value is None else int(value.i)
