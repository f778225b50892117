"""What one target stores inside the layers of a model, and the nodes that compute it so.

`settings.targets` has the table, `stored_sums` has the means. Other operators are computed in
steps, each of which stores its result (`steps`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx

from precision_bisect.backends.emulation.snippets import under_names
from precision_bisect.backends.emulation.steps import StoredSteps
from precision_bisect.backends.emulation.stored_sums import StoredSums
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import FP16, LOW_TYPES, LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.types import (
    declared_low,
    in_fp32,
    infer_elem_types,
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
)


class Semantics:
    """How a target computes the layers of a model's main graph."""

    def __init__(self, model: Model, target: TargetName) -> None:
        view = View(model)
        self._model = model
        self._target = target
        self.sums = StoredSums(view)
        self._steps = StoredSteps(model, view, target)

    def inside(self, node: onnx.NodeProto) -> Inside:
        """Return what is stored inside a node that runs low, for inputs of some shapes at least.

        What cannot be written counts as FP32.
        """
        kind = Inside.FP32
        if node.domain in ("", "ai.onnx"):
            kind = inside(node.op_type, self._target)
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


def distinct(model: Model, pair: Pair, targets: Sequence[TargetName]) -> tuple[TargetName, ...]:
    """Return targets that compute the model alike only once; the one that stores least is first.

    The first named stands for those that are alike.
    """
    if len(targets) == 1:
        return tuple(targets)
    stored: dict[TargetName, Mapping[LayerName, Inside]] = {}
    for target in targets:
        affected = Semantics(model, target).affected(pair)
        if affected not in stored.values():
            stored[target] = affected
    # Sorting is stable: equal numbers leave the order.
    return tuple(sorted(stored, key=lambda target: len(stored[target])))


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
    return (
        f"each step of {_counted(ops, list(dict.fromkeys(apart)))} is stored, taken as "
        f"TensorRT's parser writes it (tensorrt_rtx {parser_steps()['tensorrt_rtx']})"
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
    counts = Counter(ops[name] for name in names)
    return ", ".join(f"{count} {op_type}" for op_type, count in counts.items())


def _in_half(model: Model, pair: Pair) -> frozenset[LayerName]:
    """Return the layers that may run in a 16-bit type."""
    forms = forms_of(model.table, pair).items()
    return frozenset(
        name
        for name, layer_forms in forms
        if any(form.stored in LOW_TYPES for form in layer_forms.all)
    )
