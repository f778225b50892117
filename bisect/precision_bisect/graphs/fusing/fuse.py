"""`--fuse-norms`: the model with its norms and activations fused, as a file to search.

The opset is raised no further than needed, and only if onnx converts the model soundly. In FP32,
on the inputs of the run, the new model must give what the old one gives.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import ModelError, RefusedError, counted
from precision_bisect.graphs.fp32_outputs import MOST_DIFFERENT, distances, reference_outputs
from precision_bisect.graphs.fusing.norms import SINCE, Decomposed, find_decomposed
from precision_bisect.graphs.graph import Names, captured, copied, opset, refill
from precision_bisect.graphs.load import Model, at_least_opset
from precision_bisect.graphs.module_names import SCOPES
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.typed.model_files import save_rewritten
from precision_bisect.graphs.weights import Weights, drop_unused
from precision_bisect.protocols import Sample
from precision_bisect.runs.runfolder import FUSED_MODEL


def fuse(
    model: Model, samples: Sequence[Sample], reference: Sequence[Sample], work: Path
) -> tuple[Model, str]:
    """Return the model with everything fused that can be, and what was done, as a sentence.

    Its file lies in `work`. `reference` has the FP32 outputs of the samples. Raises ModelError
    where there is nothing to fuse, RefusedError for a model that fusing would change.
    """
    every = [operator for operator in find_decomposed(model) if is_fusable(operator)]
    if not every:
        raise ModelError(
            f"{model.path} has no norm, Softmax or Gelu in pieces", "leave --fuse-norms out"
        )
    raised, operators, remark = _raised(model, every)
    path = work / FUSED_MODEL
    proto, weights = fused(raised, operators)
    new = save_rewritten(proto, weights, path, "the fused model", like=model)
    difference = _difference(new, samples, reference)
    counts = Counter(operator.kind for operator in operators)
    what = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    layers = f"{counted(len(model.table.candidates), 'layer')} become {len(new.table.candidates)}"
    summary = f"fused {what}: {layers}; in FP32 the outputs change by at most {difference:.2g} of "
    return new, f"{summary}the largest value{remark}"


def _raised(model: Model, every: Sequence[Decomposed]) -> tuple[Model, list[Decomposed], str]:
    """Return the model at the newest opset that helps, what that allows, and a remark."""
    have = opset(model.proto)
    wanted = sorted({SINCE[operator.kind] for operator in every}, reverse=True)
    why = ""
    for target in wanted:
        allowed = [operator for operator in every if SINCE[operator.kind] <= max(target, have)]
        # Conversion may fail for operators that have nothing to do with norms; then fewer are
        # fused.
        try:
            raised = at_least_opset(model, target, allowed[-1].kind)
        except ModelError as error:
            why = error.message
            continue
        rest = len(every) - len(allowed)
        remark = f"; opset {have} became {target}" if target > have else ""
        remark += f"; {rest} more were left as they are: {why}" if rest else ""
        return raised, allowed, remark
    raise ModelError(f"--fuse-norms cannot raise the opset: {why}", "export at opset 17 or newer")


def _difference(new: Model, samples: Sequence[Sample], reference: Sequence[Sample]) -> float:
    """Return the largest difference over all outputs. Raises RefusedError beyond the bound."""
    pairs = zip(reference_outputs(new, samples), reference, strict=True)
    worst = max(max(distances(*pair).values()) for pair in pairs)
    # `not <=`: a NaN refuses, too.
    if not worst <= MOST_DIFFERENT:
        raise RefusedError(
            f"the fused model differs from the original by {worst:.2g} of an output's largest "
            f"value in FP32, more than {MOST_DIFFERENT:g}",
            "leave --fuse-norms out, and report the model's norm",
        )
    return worst


def is_fusable(operator: Decomposed) -> bool:
    """Tell whether what was found can be written as the operator of its kind."""
    if operator.kind == "Gelu":
        return True
    if operator.kind == "Softmax":
        return len(operator.axes) == 1
    if operator.size is None:
        return False
    # Norms work on the last axes. Others are moved there by a Transpose, which needs the rank.
    return _is_suffix(operator) or operator.rank > 0


def fused(model: Model, every: Sequence[Decomposed]) -> tuple[onnx.ModelProto, Weights]:
    """Return the model with these operators fused, and the values of its stubs.

    The fusion rules of onnxscript know norms along the last axis, with axes as an input. What is
    found here has channels on any axis, axes in attributes, and other spellings of the quotient.
    """
    proto, weights = copied(model.proto), dict(model.weights)
    writer = _Writer(model, proto.graph)
    for operator in every:
        writer.write(operator)
    refill(proto.graph.node, _needed(writer.nodes, proto.graph))
    drop_unused(proto.graph, weights)
    return proto, weights


def _needed(nodes: Sequence[onnx.NodeProto], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes that the outputs of a graph need, in their order."""
    read = {output.name for output in graph.output}
    needed = list[onnx.NodeProto]()
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            needed.append(node)
            read.update(filter(None, node.input), captured(node))
    return needed[::-1]


class _Writer:
    """Writes operators among the nodes of a copy of the model's graph, in place of pieces."""

    def __init__(self, model: Model, graph: onnx.GraphProto) -> None:
        self._written_at = [[node] for node in graph.node]
        self._places = {out: i for i, node in enumerate(graph.node) for out in node.output}
        self._view = View(model)
        self._names = Names(graph)
        self._numbers: dict[str, int] = {}
        self._graph = graph
        self._initializers = {tensor.name for tensor in graph.initializer}

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes with what was written among them, in order."""
        return [node for written in self._written_at for node in written]

    def write(self, operator: Decomposed) -> None:
        """Write the operator behind the last node of its pieces, whose output it takes over."""
        written = self._written_at[self._places[operator.output]]
        place = next(i for i, node in enumerate(written) if operator.output in node.output)
        last = written[place]
        nodes = self._written(operator)
        # All that read the output read the operator's from now on, the graph's outputs as well.
        nodes[-1].output[0] = operator.output
        aside = self._names(f"{operator.output}/in_pieces")
        refill(last.output, [aside if out == operator.output else out for out in last.output])
        for node in nodes:
            node.metadata_props.extend(e for e in last.metadata_props if e.key == SCOPES)
        written[place + 1 : place + 1] = nodes

    def _written(self, operator: Decomposed) -> list[onnx.NodeProto]:
        source = operator.source
        if operator.kind == "Softmax":
            return [self._node(operator, "Softmax", [source], axis=operator.axes[0])]
        if operator.kind == "Gelu":
            return [self._node(operator, "Gelu", [source], approximate=operator.approximate)]
        grouped = operator.kind == "GroupNormalization"
        inputs = [source, self._constant(operator, operator.scale, "scale", 1.0)]
        if operator.bias or grouped:
            inputs.append(self._constant(operator, operator.bias, "bias", 0.0))
        along = {"num_groups": operator.groups} if grouped else {"axis": -len(operator.axes)}
        attributes: Mapping[str, float] = {**along, "epsilon": operator.epsilon}
        if grouped or _is_suffix(operator):
            return [self._node(operator, operator.kind, inputs, **attributes)]
        places = [axis + operator.rank for axis in operator.axes]
        there = [i for i in range(operator.rank) if i not in places] + places
        # The inverse permutation puts the axes back.
        back = [there.index(i) for i in range(operator.rank)]
        moved = self._node(operator, "Transpose", [source], perm=there)
        norm = self._node(operator, operator.kind, [*moved.output, *inputs[1:]], **attributes)
        return [moved, norm, self._node(operator, "Transpose", norm.output, perm=back)]

    def _node(
        self, operator: Decomposed, op_type: str, inputs: Sequence[str], **attributes: Any
    ) -> onnx.NodeProto:
        """Return a node whose name is new in the graph and lies in the scope of the pieces."""
        name = self._name(operator, op_type)
        out = self._names(f"{name}_output_0")
        return onnx.helper.make_node(op_type, inputs, [out], name=name, **attributes)

    def _constant(self, operator: Decomposed, name: str, role: str, default: float) -> str:
        """Return the name of a constant with one value for each place along the axes."""
        assert operator.size is not None
        array: NDArray[np.float32] = np.full(operator.size, default, np.float32)
        if name:
            parameter = self._view.array(name)
            assert parameter is not None
            array = parameter.astype(np.float32).reshape(operator.size)
            # A constant that has the right shape already is shared, not copied.
            if self._view.shape(name) == operator.size and name in self._initializers:
                return name
        own = self._name(operator, role)
        self._graph.initializer.append(onnx.numpy_helper.from_array(array, own))
        return own

    def _name(self, operator: Decomposed, what: str) -> str:
        wish = f"{operator.module}/{what}" if operator.module else what
        number = self._numbers.get(wish, 0)
        self._numbers[wish] = number + 1
        return self._names(f"{wish}_{number}" if number else wish)


def _is_suffix(operator: Decomposed) -> bool:
    return operator.axes == tuple(range(-len(operator.axes), 0))
