"""ScatterElements and ScatterND that add or multiply: one value after the other, as atomics do.

On GPUs these are atomic operations in the type of the data: 8,000 times 0.4 come to 1024 in FP16.
TensorRT's open plug-in (plugin/scatterElementsPlugin, reducer.cuh) and ONNX Runtime on CUDA
(core/providers/cuda/atomic/common.cuh) do so. Atomics have no fixed order; here values come in
their order in the tensor of updates. Minima and maxima are the same in any order and type.

All places are computed at once, each by its next value: a round takes as long as there are places
that wait for one. The places that get most values come first, so those that still wait are the
first of all, and their values lie side by side.
"""

import onnx

from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.lowtypes import LowType

_OPERATIONS = {b"add": "Add", b"mul": "Mul"}
_PLACES = {"ScatterElements": "GatherElements<axis = {axis}>", "ScatterND": "GatherND"}

_ROUNDS = """g (float x0) => (float y0) {{
    flat = Constant<value = int64[1] {{-1}}>()
    zero = Constant<value = int64[1] {{0}}>()
    one = Constant<value = int64[1] {{1}}>()
    first = Constant<value = int64 {{0}}>()
    step = Constant<value = int64 {{1}}>()
    shape = Shape(x0)
    size = Size(x0)
    numbers = Range(first, size, step)
    grid = Reshape(numbers, shape)
    aimed = {places}(grid, x1)
    aims = Reshape(aimed, flat)
    updates = Reshape(x2, flat)
    data = Reshape(x0, flat)
    length = Shape(aims)
    sorted, order = TopK<largest = 0>(aims, length)
    place, begins, which, counts = Unique(sorted)
    many = Shape(place)
    falling, by_count = TopK(counts, many)
    width = Size(place)
    columns = Range(first, width, step)
    column_of = ScatterElements(columns, by_count, columns)
    places = Size(aims)
    positions = Range(first, places, step)
    begin = Gather(begins, which)
    round = Sub(positions, begin)
    padded = Concat<axis = 0>(falling, zero)
    most = Slice(padded, zero, one)
    none = ConstantOfShape<value = int64[1] {{0}}>(most)
    ones = ConstantOfShape<value = int64[1] {{1}}>(length)
    waiting = ScatterElements<reduction = "add">(none, round, ones)
    starts = CumSum<exclusive = 1>(waiting, first)
    start = Gather(starts, round)
    column = Gather(column_of, which)
    row = Add(start, column)
    in_order = Gather(updates, order)
    nothing = ConstantOfShape(length)
    rows = ScatterElements(nothing, row, in_order)
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
            values = Slice(rows, from, to)
            open = Slice(before, zero, count)
            done = Slice(before, count, many)
            exact = {operation}(open, values)
            rounded = Cast<to = {low}>(exact)
            wide = Cast<to = 1>(rounded)
            after = Concat<axis = 0>(wide, done)
        }}>(rounds, "", begun)
    whole = ScatterElements(data, targets, ended)
    y0 = Reshape(whole, shape) }}"""


def scatters(node: onnx.NodeProto) -> bool:
    """Tell whether a node's result depends on what is stored after each value."""
    return node.op_type in _PLACES and _operation(node) is not None


def scattered(node: onnx.NodeProto, low: LowType) -> str:
    """Return the text of the graph that stores in `low` after each value."""
    axis = attribute(node, "axis")
    return _ROUNDS.format(
        places=_PLACES[node.op_type].format(axis=0 if axis is None else axis.i),
        operation=_operation(node),
        low=low.onnx_type,
    )


def _operation(node: onnx.NodeProto) -> str | None:
    reduction = attribute(node, "reduction")
    return None if reduction is None else _OPERATIONS.get(reduction.s)
