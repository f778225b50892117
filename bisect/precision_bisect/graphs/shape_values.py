"""What shape arithmetic comes to where all inputs' shapes are known.

ONNX's own inference loses sight of it at common spellings, as of positions that are a slice up to
the length of a sentence: nothing behind has a shape then.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.graph import attribute, constant_of, inferred

# So often shapes that became known may make others known; inference of a large graph is slow.
_ROUNDS = 4
# Tensors of more numbers are no shapes; what three of so many are spread to still is small.
_LARGEST = 64
_ARITHMETIC = frozenset(
    (
        *("Add", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Gather", "Identity"),
        *("Max", "Min", "Mod", "Mul", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"),
    )
)

_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    **{"Add": np.add, "Equal": np.equal, "Mul": np.multiply, "Sub": np.subtract},
    **{"Identity": np.asarray, "Where": np.where},
}


def with_shapes(proto: onnx.ModelProto) -> onnx.GraphProto:
    """Return the graph with the shapes that follow from its inputs'; `proto` is changed."""
    shown = inferred(proto)
    # Each constant found may settle a shape, from which further constants follow.
    for _ in range(_ROUNDS):
        dims = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*shown.input, *shown.value_info)
            if all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
            and value.type.tensor_type.HasField("shape")
        }
        dims |= {tensor.name: [*tensor.dims] for tensor in proto.graph.initializer}
        if all(name in dims for node in proto.graph.node for name in node.output[:1]):
            break
        if not _settle(proto, dims):
            break
        again = inferred(proto)
        # Inference may stop early at what it then takes for a contradiction.
        if len(again.value_info) < len(shown.value_info):
            break
        shown = again
    return shown


def _settle(proto: onnx.ModelProto, dims: Mapping[str, list[int]]) -> int:
    """Make constants of what shape arithmetic comes to; return how many tensors those are."""
    values = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in proto.graph.initializer
        if prod(tensor.dims) <= _LARGEST and not tensor.external_data
    }
    settled = 0
    for node in proto.graph.node:
        if (constant := constant_of(node)) is not None:
            if constant.size <= _LARGEST:
                values[node.output[0]] = constant
            continue
        value = _value(node, dims, values, proto)
        if value is None:
            continue
        values[node.output[0]] = value
        if value.dtype.kind in "bi":
            tensor = onnx.numpy_helper.from_array(value)
            constant_node = onnx.helper.make_node("Constant", [], node.output, value=tensor)
            node.CopyFrom(constant_node)
            settled += 1
    return settled


def _value(
    node: onnx.NodeProto,
    dims: Mapping[str, list[int]],
    values: Mapping[str, NDArray[Any]],
    proto: onnx.ModelProto,
) -> NDArray[Any] | None:
    """Return what a node of shape arithmetic comes to, None where that is not known."""
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if node.op_type == "Shape" and not node.attribute:
        return np.array(dims[node.input[0]], np.int64) if node.input[0] in dims else None
    if node.op_type not in _ARITHMETIC or any(n and n not in values for n in node.input):
        return None
    if node.op_type == "ConstantOfShape" and prod(map(int, values[node.input[0]].flat)) > _LARGEST:
        return None
    with (
        suppress(Exception),
        np.errstate(all="ignore"),
    ):  # whatever a file holds: a shape that is not known
        value = by_numpy(node, [values.get(name) for name in node.input])
        if value is None:
            value = by_reference(node, values, proto)
        return np.asarray(value) if np.size(value) <= _LARGEST else None
    return None


def by_numpy(node: onnx.NodeProto, read: Sequence[Any]) -> Any:
    """Return what a common node gives for what it reads, None for others; raises anything.

    ONNX's own evaluator takes longer to import than most runs take for all their shapes.
    """
    kind, (first, *others) = node.op_type, read
    axis, axes = attribute(node, "axis"), attribute(node, "axes")
    if first is None or axes is not None:
        return None
    if kind in _ELEMENTWISE and not node.attribute:  # before opset 7 some say how they broadcast
        return _ELEMENTWISE[kind](first, *others)
    if kind == "Concat" and axis is not None:
        return np.concatenate(read, axis.i)
    if kind == "Gather":
        return np.take(first, others[0], 0 if axis is None else axis.i)
    if kind == "Unsqueeze":
        return np.expand_dims(first, tuple(others[0]))
    if kind == "Reshape" and attribute(node, "allowzero") is None:
        sizes = enumerate(others[0])
        return first.reshape([size or first.shape[place] for place, size in sizes])
    if kind == "Cast" and (to := attribute(node, "to")) is not None:
        target = onnx.helper.tensor_dtype_to_np_dtype(to.i)
        return first.astype(target) if target.kind in "biu" and first.dtype.kind in "biu" else None
    if kind == "Slice" and len(others) > 1:
        starts, ends, *more = others
        places = [slice(None)] * first.ndim
        along = range(len(starts)) if not more or more[0] is None else more[0]
        steps = [1] * len(starts) if len(more) < 2 or more[1] is None else more[1]
        for place, start, end, step in zip(along, starts, ends, steps, strict=True):
            # Backwards, too, ONNX begins at the first element where a start lies before it.
            start = max(int(start), -first.shape[place])
            places[place] = slice(start, int(end), int(step))
        return first[tuple(places)]
    return None


def by_reference(
    node: onnx.NodeProto, values: Mapping[str, NDArray[Any]], proto: onnx.ModelProto
) -> Any:
    """Return what ONNX's own evaluator has a node give; raises anything."""
    from onnx.reference import ReferenceEvaluator  # slow to import

    graph = onnx.GraphProto(name="shape", node=[node])
    fed = {name: values[name] for name in node.input if name}
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in fed)
    graph.output.add(name=node.output[0])
    alone = onnx.ModelProto(ir_version=proto.ir_version, graph=graph)
    alone.opset_import.extend(proto.opset_import)
    (value,) = ReferenceEvaluator(alone).run(None, fed)
    return value
