"""Runs in FP32 with extra outputs: how large tensors are, what masks hide, where NaN is born."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from precision_bisect.backends.emulation.fixed_edges import is_bare
from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import attribute, copied, opset, showing
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View, computed
from precision_bisect.graphs.ort import Session, check
from precision_bisect.layer_table import Layer
from precision_bisect.machine.free_space import trim
from precision_bisect.protocols import Sample

NEAR = 1e-3
"""What differs from a mask by less, relative to it, is the mask and a score. A bound: masks are
1e4 and more, scores tens."""
LOWEST = (1 - NEAR) * float(np.finfo(np.float32).min)
"""What hides a place from a softmax, by its own size; -inf does, too."""
# Tensors of FP32 that are held at a time in a search for the first that is not finite.
_AT_ONCE = 64
_LARGEST, _ROW = "precision_bisect/largest", "precision_bisect/row"
_FLOAT = onnx.TensorProto.FLOAT
_AXIS_MEANS_ONE, _AXES_ARE_INPUTS = 13, 18
"""The opsets from which Softmax works along one axis, and ReduceMax reads its axes."""
_PAST = 4
# The input whose rows become weights: scores, or their mask.
_ROWS = {"Softmax": 0, "Attention": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """What FP32 runs of some samples showed.

    `largest` has the largest magnitude of each computed tensor in each sample, -inf where it is
    empty. `hidden` are the layers that read a row which a mask hides whole, in some sample.
    """

    largest: Mapping[str, Sequence[float]]
    hidden: Sequence[str] = ()


def extremes(model: Model, samples: Sequence[Sample], threads: int = 0) -> Extremes | None:
    """Run each sample once in FP32; None if the model cannot be run with extra outputs."""
    rows = list(_rows(model))
    try:
        # The message is gone before the session takes its memory. With an output for each tensor
        # nothing fuses, and the optimizer takes the square of their number.
        session = Session(
            check(_with_extremes(model, rows), model.weights),
            threads=threads,
            optimised=not is_bare(model),
            frugal=True,
        )
        runs = [session.run(sample) for sample in samples]
    except (ModelError, RuntimeError):
        return None
    # With thousands of layers it is as large as their weights.
    del session
    trim()
    return Extremes(
        largest={
            name.removeprefix(_LARGEST): [float(run[name]) for run in runs]
            for name in runs[0]
            if name.startswith(_LARGEST)
        },
        hidden=[
            row.layer
            for i, row in enumerate(rows)
            # Rows of no values have the same largest one: -inf.
            if any(
                run[f"{_ROW}{i}"] <= LOWEST and run.get(f"{_LARGEST}{row.tensor}") != -math.inf
                for run in runs
            )
        ],
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tensor whose values a layer turns into weights, row by row along these axes.

    Where it is `causal`, each row begins with a value more than the one before it. A `boolean` one
    tells which values are seen.
    """

    layer: str
    tensor: str
    axes: Sequence[int]
    causal: bool = False
    boolean: bool = False


def _rows(model: Model) -> Iterator[_Rows]:
    """Yield what softmaxes read, and the masks of Attention."""
    view, flattens = View(model), opset(model.proto) < _AXIS_MEANS_ONE
    for node in view.nodes:
        place = _ROWS.get(node.op_type, len(node.input))
        if node.domain not in ("", "ai.onnx") or place >= len(node.input):
            continue
        tensor, axis = node.input[place], attribute(node, "axis")
        kind = model.elem_types.get(tensor)
        boolean = kind == onnx.TensorProto.BOOL and node.op_type == "Attention"
        # Rows of FP32 are looked at, and masks of Attention that say yes or no.
        if kind != _FLOAT and not boolean:
            continue
        axes = [-1 if axis is None or node.op_type == "Attention" else axis.i]
        # Before opset 13 a softmax takes all axes from its own on as one row.
        if node.op_type == "Softmax" and flattens:
            shape = view.shape(tensor)
            if not shape:
                continue
            axes = [*range((1 if axis is None else axis.i) % len(shape), len(shape))]
        yield _Rows(node.name, tensor, axes, causal=_is_causal(node), boolean=boolean)


def _is_causal(node: onnx.NodeProto) -> bool:
    """Tell whether an Attention hides what comes later, counted from the first of its keys."""
    causal = attribute(node, "is_causal")
    has_past = any(node.input[_PAST:])
    return causal is not None and causal.i != 0 and not has_past


def _with_extremes(model: Model, rows: Sequence[_Rows]) -> onnx.ModelProto:
    """Return the model with what is asked of each computed FP32 tensor as its outputs.

    A reduction follows right behind the node that makes the tensor, so no tensor is held longer
    than in the model itself.
    """
    proto = copied(model.proto)
    graph, wanted = proto.graph, set(computed(model))
    by_tensor: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        by_tensor.setdefault(row.tensor, []).append(i)
    node_outputs = {name for node in model.proto.graph.node for name in node.output}
    del graph.node[:]
    del graph.output[:]

    def reduce(name: str) -> None:
        if name in wanted:
            magnitude, largest = f"{_LARGEST}/of{name}", f"{_LARGEST}{name}"
            graph.node.add(op_type="Abs", input=[name], output=[magnitude])
            graph.node.append(helper.make_node("ReduceMax", [magnitude], [largest], keepdims=0))
            graph.output.append(helper.make_tensor_value_info(largest, _FLOAT, []))
        for i in by_tensor.get(name, ()):
            out = f"{_ROW}{i}"
            graph.node.extend(_least_row(graph, rows[i], out, opset(proto)))
            graph.output.append(helper.make_tensor_value_info(out, _FLOAT, []))

    # Inputs and constants have no node that they could follow.
    for name in by_tensor.keys() - node_outputs:
        reduce(name)
    for node in model.proto.graph.node:
        graph.node.append(node)
        for name in node.output:
            reduce(name)
    return proto


def _least_row(graph: onnx.GraphProto, row: _Rows, out: str, version: int) -> list[onnx.NodeProto]:
    """Return the nodes that give the largest value of the row where that is least."""
    most, axes = f"{out}/most", list(row.axes)
    before: list[onnx.NodeProto] = []
    source = row.tensor
    if row.boolean:
        before, source = _as_floats(source, out)
    if row.causal:
        later, source = _before_later(source, out)
        before += later
    if version >= _AXES_ARE_INPUTS:
        along = onnx.numpy_helper.from_array(np.array(axes, np.int64), f"{out}/axes")
        graph.initializer.append(along)
        reduced = helper.make_node("ReduceMax", [source, along.name], [most], keepdims=0)
    else:
        reduced = helper.make_node("ReduceMax", [source], [most], keepdims=0, axes=axes)
    return [*before, reduced, helper.make_node("ReduceMin", [most], [out], keepdims=0)]


def _as_floats(mask: str, out: str) -> tuple[list[onnx.NodeProto], str]:
    """Return the nodes that make a float mask of a boolean one, and what they give."""
    values = {f"{out}/shown": 0.0, f"{out}/unseen": -math.inf}
    tensors = [helper.make_tensor("", _FLOAT, [], [value]) for value in values.values()]
    return [
        *(
            helper.make_node("Constant", [], [name], value=tensor)
            for name, tensor in zip(values, tensors, strict=True)
        ),
        helper.make_node("Where", [mask, *values], [f"{out}/floats"]),
    ], f"{out}/floats"


def _before_later(mask: str, out: str) -> tuple[list[onnx.NodeProto], str]:
    """Return the nodes that hide in each row of a mask what comes later, and what they give."""
    one, lowest = (helper.make_tensor("", _FLOAT, [1], [value]) for value in (1.0, -math.inf))
    shape, ones, seen, kept = (f"{out}/{name}" for name in ("shape", "ones", "seen", "kept"))
    return [
        helper.make_node("Shape", [mask], [shape]),
        helper.make_node("ConstantOfShape", [shape], [ones], value=one),
        helper.make_node("Trilu", [ones], [seen], upper=0),
        helper.make_node("Cast", [seen], [kept], to=onnx.TensorProto.BOOL),
        helper.make_node("Constant", [], [f"{out}/lowest"], value=lowest),
        helper.make_node("Where", [kept, mask, f"{out}/lowest"], [f"{out}/causal"]),
    ], f"{out}/causal"


def born_not_finite(model: Model, sample: Sample, threads: int = 0) -> Layer | None:
    """Return the first layer, in network order, whose NaN or Inf reaches an output in FP32.

    None if none is shown. A sample has arrays of the inputs' shapes by name. Inf that goes no
    further, such as that of a mask before Softmax, is none.
    """
    every = computed(model)
    broken: set[str] = set()
    for start in range(0, len(every), _AT_ONCE):
        names = every[start : start + _AT_ONCE]
        try:
            shown = showing(model.proto, names, model.elem_types)
            values = Session(shown, model.weights, threads).run(sample)
        except (ModelError, RuntimeError):
            return None
        broken |= {name for name in names if not np.isfinite(values[name]).all()}
    reached = {spec.name for spec in model.outputs} & broken
    by_output = {name: layer for layer in model.table.layers for name in layer.outputs}
    first = None
    for node in reversed(model.proto.graph.node):
        if reached.isdisjoint(node.output):
            continue
        first = next((by_output[name] for name in node.output if name in by_output), first)
        reached |= {*node.input} & broken
    return first
