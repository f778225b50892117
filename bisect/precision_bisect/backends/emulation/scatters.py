"""ScatterElements and ScatterND that add or multiply: one value after the other, as atomics do.

On GPUs these are atomic operations in the type of the data: 8,000 times 0.4 come to 1024 in FP16.
TensorRT's open plug-in does so (plugin/scatterElementsPlugin, reducer.cuh), and so does the kernel
of ONNX Runtime on CUDA (scatter_elements_impl.cu, atomic/common.cuh). Atomics have no fixed order;
here values come in their order in the tensor of updates. Minima and maxima are the same in any
order and type.

All places take their next value at once, in rounds. Those that get most values come first, so the
places that still wait are the first of all, and their values lie side by side.
"""

import onnx

from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.node_views import View

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
