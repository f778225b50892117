"""What one target stores inside the layers of a model, and the nodes that compute it so.

`settings.targets` has the table. Operators are computed in steps, each of which stores its result
(`steps`), but for means as ONNX Runtime's CUDA provider computes them: the sum is stored before
it is divided.

Suppose the values of each mean lie side by side in memory, or those of all means take turns. Then
the sum is accumulated in FP32 and stored in the layer's type, the number of values is stored in it
too, and one is divided by the other. A mean that FP16 could hold becomes infinite if its sum
leaves the range, and 0 or NaN if it is over 65520 values or more. In other layouts cuDNN reduces
and stores nothing in between. Nor is anything stored if a norm becomes one kernel.

Source: ONNX Runtime, core/providers/cuda/reduction, `get_applicable_matrix_reduction` in
reduction_functions.cc and `ReduceComputeCore` in reduction_ops.cc; the norms as seen on an H200.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.backends.emulation.snippets import under_names
from precision_bisect.backends.emulation.steps import StoredSteps
from precision_bisect.backends.emulation.whole_kernels import WholeKernels, kernels_of_cuda
from precision_bisect.graphs.graph import all_graphs, copied
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import FP16, LOW_TYPES, LowType
from precision_bisect.graphs.node_views import Dims, View
from precision_bisect.graphs.ort_fusions import Group, Kernel
from precision_bisect.graphs.types import (
    declared_low,
    in_fp32,
    infer_elem_types,
    round_trip,
    rounded_where_declared,
)
from precision_bisect.layer_table import LayerName, forms_of
from precision_bisect.precisions import Pair
from precision_bisect.settings.targets import (
    LABELS,
    OWN_ARITHMETIC,
    STORED,
    TARGETS,
    Inside,
    TargetName,
    inside,
    parser_steps,
    written_out,
)

_FLOAT = onnx.TensorProto.FLOAT


class StoredSums:
    """Knows the means of a model's main graph whose sums are stored."""

    def __init__(self, view: View) -> None:
        self._view = view

    def stores(self, node: onnx.NodeProto) -> bool:
        """Tell whether the sum of a layer is stored, for inputs of some shapes at least."""
        axes = self._axes(node)
        if not axes:
            return False
        dims = self._view.shape(node.input[0])
        return adjacent(dims or _of_any_rank(axes), axes, unknown=1 if dims else 2)

    def summed(self, node: onnx.NodeProto, shape: Sequence[int] | None) -> int:
        """Return the number of values in each sum that a layer stores, 0 if it stores none.

        `shape` is that of its input, None if it is not known.
        """
        axes = self._axes(node)
        if not axes or shape is None or not adjacent(tuple(shape), axes):
            return 0
        return math.prod(shape[axis] for axis in axes)

    def written(
        self, node: onnx.NodeProto, renamed: onnx.NodeProto, low: LowType, fused: str = ""
    ) -> list[onnx.NodeProto]:
        """Return the nodes of a layer that `stores`, with its sum stored in `low`.

        `renamed` is the layer under the names that the nodes read and write. Their output is not
        rounded yet. `fused` names a boolean scalar that is on if nothing is stored after all.
        """
        axes, out = self._axes(node), renamed.output[0]
        shape = self._view.shape(node.input[0])
        dims = shape or _of_any_rank(axes)
        mean, count, total = f"{out}/mean", f"{out}/count", f"{out}/sum"
        plain = copied(renamed)
        plain.output[0] = mean
        conditions: list[list[onnx.NodeProto]] = []
        if not adjacent(dims, axes):
            conditions.append(_whether_together(renamed.input[0], f"{out}/together", axes, dims))
        if fused:
            conditions.append([helper.make_node("Not", [fused], [f"{out}/apart"])])
        divided = f"{out}/divided" if conditions else out
        at = [axis + len(shape) if shape else axis for axis in axes]
        return [
            plain,
            *_count(renamed.input[0], count, [dims[axis] for axis in axes], at),
            # The sum is taken from the mean, so that both alternatives rest on one reduction.
            helper.make_node("Mul", [mean, count], [f"{total}/exact"]),
            *round_trip(f"{total}/exact", total, low.onnx_type),
            *round_trip(count, f"{count}/stored", low.onnx_type),
            helper.make_node("Div", [total, f"{count}/stored"], [divided]),
            *_where(conditions, divided, mean, out),
        ]

    def _axes(self, node: onnx.NodeProto) -> tuple[int, ...]:
        """Return the axes of a mean, from the last, -1; () if they are not known."""
        axes = self._view.axes(node) if node.op_type == "ReduceMean" else None
        if axes == ():
            axes = tuple(range(-len(self._view.shape(node.input[0]) or ()), 0))
        return axes or ()


def adjacent(dims: Dims, axes: Sequence[int], unknown: int = 2) -> bool:
    """Tell whether the reduced dimensions come before all others, or after them, apart from ones.

    `axes` are negative; `unknown` stands for dimensions that are not known.
    """
    sizes = [unknown if size is None else size for size in dims]
    reduced = {axis + len(sizes) for axis in axes}
    first = [i in reduced for i, size in enumerate(sizes) if size != 1]
    # A dimension of 1 may stand anywhere without moving a value in memory.
    return first in (sorted(first), sorted(first, reverse=True))


def _of_any_rank(axes: Sequence[int]) -> Dims:
    """Return dimensions that stand for those of a tensor of unknown rank."""
    return (None,) * (1 - min(axes))


def _where(
    conditions: Sequence[list[onnx.NodeProto]], stored: str, plain: str, out: str
) -> list[onnx.NodeProto]:
    """Return the nodes that give `stored` if all conditions hold, else `plain`.

    A condition is the last output of its nodes. Without conditions there are no nodes.
    """
    flags = [nodes[-1].output[0] for nodes in conditions]
    nodes = [node for condition in conditions for node in condition]
    if len(flags) > 1:
        nodes.append(helper.make_node("And", flags, [f"{out}/stored"]))
        flags = [f"{out}/stored"]
    return [*nodes, *(helper.make_node("Where", [flag, stored, plain], [out]) for flag in flags)]


def _count(
    source: str, out: str, sizes: Sequence[int | None], at: Sequence[int]
) -> list[onnx.NodeProto]:
    """Return the nodes that give the number of values of a mean, as a scalar in FP32.

    `sizes` are those of the dimensions that the mean is taken over, `at` has their places.
    """
    static_sizes = [size for size in sizes if size is not None]
    if len(static_sizes) == len(sizes):
        return [_constant(out, np.array(math.prod(static_sizes), np.float32))]
    return [
        helper.make_node("Shape", [source], [f"{out}/shape"]),
        _constant(f"{out}/axes", np.array(at, np.int64)),
        helper.make_node("Gather", [f"{out}/shape", f"{out}/axes"], [f"{out}/sizes"]),
        helper.make_node("ReduceProd", [f"{out}/sizes"], [f"{out}/whole"], keepdims=0),
        helper.make_node("Cast", [f"{out}/whole"], [out], to=_FLOAT),
    ]


def _whether_together(
    source: str, out: str, axes: Sequence[int], dims: Dims
) -> list[onnx.NodeProto]:
    """Return the nodes that compute `adjacent` at run time, when the shape is known.

    They count the pairs of dimensions larger than 1 that are in the wrong order.
    """
    rank = len(dims)
    reduced = np.isin(np.arange(rank), np.add(axes, rank))
    after = np.triu(np.outer(reduced, ~reduced)).astype(np.float32)
    before = np.tril(np.outer(reduced, ~reduced)).astype(np.float32)
    large = f"{out}/large"
    nodes = [
        helper.make_node("Shape", [source], [f"{out}/shape"]),
        _constant(f"{out}/one", np.array(1, np.int64)),
        helper.make_node("Greater", [f"{out}/shape", f"{out}/one"], [f"{large}/bool"]),
        helper.make_node("Cast", [f"{large}/bool"], [large], to=_FLOAT),
        _constant(f"{out}/none", np.array(0.5, np.float32)),
    ]
    for side, pairs in (("after", after), ("before", before)):
        part = f"{out}/{side}"
        nodes += [
            _constant(f"{part}/pairs", pairs),
            helper.make_node("MatMul", [large, f"{part}/pairs"], [f"{part}/half"]),
            helper.make_node("MatMul", [f"{part}/half", large], [f"{part}/count"]),
            helper.make_node("Less", [f"{part}/count", f"{out}/none"], [part]),
        ]
    return [*nodes, helper.make_node("Or", [f"{out}/after", f"{out}/before"], [out])]


def _constant(name: str, value: NDArray[np.generic]) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(value))


class Semantics:
    """How a target computes the layers of a model's main graph."""

    def __init__(self, model: Model, target: TargetName) -> None:
        view = View(model)
        self._model = model
        self.target = target
        self.sums = StoredSums(view)
        self._steps = StoredSteps(model, view, target)

    @cached_property
    def kernels(self) -> Sequence[Kernel]:
        """What the target makes one kernel of, with nothing stored inside."""
        return kernels_of_cuda(self._model) if self.target == "onnxruntime" else ()

    def inside(self, node: onnx.NodeProto) -> Inside:
        """Return what is stored inside a node that runs low, for inputs of some shapes at least.

        What cannot be written counts as FP32.
        """
        kind = Inside.FP32
        if node.domain in ("", "ai.onnx"):
            kind = inside(node.op_type, self.target)
        stores = {Inside.SUM: self.sums.stores, Inside.STEPS: self._steps.stores}.get(kind)
        return kind if stores is not None and stores(node) else Inside.FP32

    def affected(self, pair: Pair) -> Mapping[LayerName, Inside]:
        """Return what is stored inside each layer that may run in a 16-bit type, if anything."""
        half = _in_half(self._model, pair)
        kinds = {
            LayerName(node.name): self.inside(node)
            for node in self._model.proto.graph.node
            if node.name in half
        }
        return {name: kind for name, kind in kinds.items() if kind is not Inside.FP32}

    def written(
        self, node: onnx.NodeProto, renamed: onnx.NodeProto, low: LowType, fused: str = ""
    ) -> list[onnx.NodeProto]:
        """Return the nodes of a layer that stores something inside, in `low`.

        `renamed` is the layer under the names that the nodes read and write. Their output is not
        rounded yet. `fused` names a boolean scalar that is on if nothing is stored after all.
        """
        if self.inside(node) is Inside.SUM:
            return self.sums.written(node, renamed, low, fused)
        body = self._steps.body(node, low)
        declared = declared_low(infer_elem_types(body, {}))
        for value in body.graph.output:
            del declared[value.name]
        proto, _ = in_fp32(body, {})
        nodes = [
            part
            for step in proto.graph.node
            for part in rounded_where_declared(step, declared, "raw")
        ]
        return under_names(nodes, renamed)

    def unrounded(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the steps of a layer, none of which is rounded, in its place."""
        proto, _ = in_fp32(self._steps.body(node, FP16), {})
        return under_names(proto.graph.node, node)


def whole_kernels(model: Model, pair: Pair, targets: Sequence[TargetName]) -> WholeKernels:
    """Return the kernels that a plan may leave whole, on every one of the targets."""
    # Elsewhere a value may have a third type, and nothing is known of kernels.
    half = pair.high == "fp32" and pair.low in LOW_TYPES
    kernels = Semantics(model, targets[0]).kernels if half and len({*targets}) == 1 else ()
    return WholeKernels.of(model, kernels, model.table.names)


def distinct(model: Model, pair: Pair, targets: Sequence[TargetName]) -> tuple[TargetName, ...]:
    """Return targets that compute the model alike only once; the one that stores least is first.

    The first named stands for those that are alike.
    """
    if len(targets) == 1:
        return tuple(targets)
    stored: dict[TargetName, tuple[Mapping[LayerName, Inside], list[Group]]] = {}
    for target in targets:
        semantics = Semantics(model, target)
        stores = semantics.affected(pair), [kernel.pieces for kernel in semantics.kernels]
        if stores not in stored.values():
            stored[target] = stores
    # Sorting is stable: equal numbers leave the order.
    return tuple(sorted(stored, key=lambda target: len(stored[target][0])))


def as_parsed(model: Model, pair: Pair, targets: Sequence[TargetName]) -> str:
    """Return a sentence about operators that TensorRT's parser takes apart, or ""."""
    ops = {layer.name: layer.op_type for layer in model.table.layers}
    apart = [
        name
        for target in targets
        if target in ("tensorrt", "tensorrt-rtx")
        for name, kind in Semantics(model, target).affected(pair).items()
        if kind is Inside.STEPS
    ]
    if not apart:
        return ""
    # Said of the version whose steps were recorded: others may take operators apart otherwise.
    return (
        f"each step of {_counted(ops, list(dict.fromkeys(apart)))} is stored, taken as "
        f"TensorRT's parser writes it (tensorrt_rtx {parser_steps()['tensorrt_rtx']})"
    )


def not_imported(model: Model, _pair: Pair, targets: Sequence[TargetName]) -> str:
    """Return a sentence about operators that TensorRT-RTX builds in no type, or ""."""
    if "tensorrt-rtx" not in targets:
        return ""
    nodes = [node for graph in all_graphs(model.proto.graph) for node in graph.node]
    counts = Counter(form for form in map(_unknown_form, nodes) if form)
    if not counts:
        return ""
    return (
        f"TensorRT-RTX imports {_listed(counts)} by a plug-in or not at all "
        f"(tensorrt_rtx {parser_steps()['tensorrt_rtx']})"
    )


def _unknown_form(node: onnx.NodeProto) -> str:
    """Return an operator that the parser does not import, with the attribute why, else ""."""
    steps = parser_steps()
    if node.domain not in ("", "ai.onnx"):
        return ""
    if node.op_type in steps["no_importer"]:
        return node.op_type
    refused = steps["no_form"].get(node.op_type, {})
    for attribute in [setting for setting in node.attribute if setting.name in refused]:
        value = helper.get_attribute_value(attribute)
        value = value.decode(errors="replace") if isinstance(value, bytes) else value
        if value in refused[attribute.name]:
            return f"{node.op_type} ({attribute.name} {value})"
    return ""


def in_pieces(model: Model) -> str:
    """Return a sentence about operators that are searched and exported in pieces, or ""."""
    if not model.written_out:
        return ""
    versions = written_out()
    names = ", ".join(f"{count} {name}" for name, count in model.written_out.items())
    return (
        f"{names} in pieces, by ONNX's own function: tensorrt_rtx {versions['tensorrt_rtx']} or "
        f"onnxruntime {versions['onnxruntime']} takes no other form"
    )


def own_arithmetic(model: Model, pair: Pair, targets: Sequence[TargetName]) -> str:
    """Return a sentence about operators that each engine computes inside as it likes, or "".

    It counts those that are emulated with FP32 inside for one of the `targets`, and names the
    other targets that are known to do otherwise.
    """
    half = _in_half(model, pair)
    ops = {
        layer.name: layer.op_type
        for layer in model.table.layers
        if layer.name in half and layer.op_type in OWN_ARITHMETIC
    }
    stored = {target: Semantics(model, target).affected(pair) if ops else {} for target in TARGETS}
    fp32_names = [name for name in ops if any(name not in stored[target] for target in targets)]
    if not fp32_names:
        return ""
    clauses = [f"what engines compute inside {_counted(ops, fp32_names)} was taken as FP32"]
    for target in (other for other in TARGETS if other not in targets):
        for kind, words in STORED.items():
            some = [name for name in fp32_names if stored[target].get(name) is kind]
            if some:
                clauses.append(f"{LABELS[target]} stores {words} {_counted(ops, some)} there")
    return "; ".join(clauses)


def _counted(ops: Mapping[LayerName, str], names: Sequence[LayerName]) -> str:
    return _listed(Counter(ops[name] for name in names))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {op_type}" for op_type, count in counts.items())


def _in_half(model: Model, pair: Pair) -> frozenset[LayerName]:
    """Return the layers that may run in a 16-bit type."""
    forms = forms_of(model.table, pair).items()
    return frozenset(
        name
        for name, layer_forms in forms
        if any(form.stored in LOW_TYPES for form in layer_forms.all)
    )
