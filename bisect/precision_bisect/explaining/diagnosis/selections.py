"""Where a model chooses rows by comparing values, and whether it chooses otherwise in a low type.

NonMaxSuppression, TopK and the like turn values into indices. Two values that are nearly equal
change places by rounding, and the rows behind them are other ones, or more. No tolerance on
elements fits that.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.explaining.diagnosis.findings import Selection
from precision_bisect.explaining.diagnosis.instrument import Instrument
from precision_bisect.graphs.graph import captured, operators, subgraphs
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import UNSEEN, View
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample

# Operators that choose among values, with the outputs that tell what they have chosen.
_CHOICES: Mapping[str, Sequence[int]] = {
    "NonMaxSuppression": (0,),
    "TopK": (1,),
    "ArgMax": (0,),
    "ArgMin": (0,),
    "NonZero": (0,),
    "Unique": (0, 1, 2, 3),
}
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")


def selections(
    instrument: Instrument, samples: Sequence[Sample], broken: Collection[str] = ()
) -> list[Selection]:
    """Return what chooses otherwise with every layer low: for each output the nearest operator.

    One that several outputs lie behind is told once; comparisons are told where nothing else is.
    What makes or reads `broken` tensors stays high: among NaN and Inf everything is chosen
    otherwise. Where the model does not run so, only what leads to the choices is low. Returns []
    where it does not run then, either.
    """
    model, view = instrument.model, instrument.view
    fixed = {layer.name for layer in model.table.layers if layer.exclusion in UNSEEN}
    nodes = [node for node in view.nodes if _chosen(node) and node.name not in fixed]
    if not nodes:
        return []
    makers = {name: node.name for node in nodes for name in _chosen(node)}
    # An index that lost digits may be out of range.
    selections_by_layer: dict[str, dict[int, Selection]] = {}
    for plan in _plans(instrument, nodes, broken):
        with suppress(RuntimeError):
            selections_by_layer = _seen(instrument, makers, samples, plan)
            break
    # In network order: the last one is the nearest.
    otherwise = [node for node in nodes if node.name in selections_by_layer]
    behind: dict[str, list[str]] = {}
    for output in view.outputs:
        reaching = [node for node in otherwise if _reaches(view, node, output)]
        choosing = [node for node in reaching if node.op_type not in _COMPARISONS]
        for node in (choosing or reaching)[-1:]:
            behind.setdefault(node.name, []).append(output)
    choices = []
    for layer, outputs in behind.items():
        node, by_sample = view.by_name[layer], selections_by_layer[layer].values()
        worst = max(
            by_sample,
            key=lambda selection: (selection.shape != selection.expected, selection.differing),
        )
        choices.append(
            replace(
                worst,
                layer=layer,
                operator=_inside(node) or node.op_type,
                low=instrument.pair.low,
                reads=_reads(model, view, node, fixed),
                outputs=outputs,
                samples=len(by_sample),
            )
        )
    return choices


def _seen(
    instrument: Instrument, makers: Mapping[str, str], samples: Sequence[Sample], plan: Plan
) -> dict[str, dict[int, Selection]]:
    """Return how choices differ under a plan, by node and sample. Raises RuntimeError."""
    selections_by_layer: dict[str, dict[int, Selection]] = {}
    for tensors in instrument.shown(list(makers), samples, plan):
        for name, exact in tensors.exact.items():
            if (differs := _compared(exact, tensors.emulated[name])) is not None:
                selection = replace(differs, sample=tensors.sample, of_samples=len(samples))
                selections_by_layer.setdefault(makers[name], {})[tensors.sample] = selection
    return selections_by_layer


def _plans(
    instrument: Instrument, nodes: Sequence[onnx.NodeProto], broken: Collection[str]
) -> Iterator[Plan]:
    """Yield the plan with all low that stays finite, and that with none low behind the choices."""
    view = instrument.view
    high = {node.name for node in view.nodes if not {*node.input, *node.output}.isdisjoint(broken)}
    readers = {name for node in nodes for name in _readers(view, node)}
    behind = {name for reader in readers for name in view.behind(reader)}
    for kept in (high, high | behind):
        yield Plan.of(place for name, place in instrument.index.items() if name in kept)


def _readers(view: View, node: onnx.NodeProto) -> list[str]:
    chosen = set(_chosen(node))
    read = {name: view.by_name[name] for name in view.reading(node)}
    return [
        n
        for n, reader in read.items()
        if not chosen.isdisjoint({*reader.input, *captured(reader)})
    ]


def _chosen(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that tell what a node has chosen; [] for nodes that choose nothing."""
    if _inside(node):
        return [name for name in node.output if name]
    if node.domain not in ("", "ai.onnx"):
        return []
    places = (0,) if node.op_type in _COMPARISONS else _CHOICES.get(node.op_type, ())
    return [node.output[i] for i in places if i < len(node.output) and node.output[i]]


def _reads(model: Model, view: View, node: onnx.NodeProto, fixed: Collection[str]) -> list[str]:
    """Return the computed FP32 tensors that a node chooses by, behind comparisons and masks.

    What the `fixed` nodes make, of shapes and constants, is none of them.
    """
    tensors, pending, came = dict[str, None](), [node], set[str]()
    for current in pending:
        for name in (*current.input, *sorted(captured(current))):
            maker = view.maker.get(name, "")
            if not maker or maker in fixed:
                continue
            if model.elem_types.get(name) == onnx.TensorProto.FLOAT:
                tensors[name] = None
            elif maker not in came:
                came.add(maker)
                pending.append(view.by_name[maker])
    return list(tensors)


def _inside(node: onnx.NodeProto) -> str:
    """Return an operator in a node's subgraphs that chooses; "" where there is none."""
    inside = {name for graph in subgraphs(node) for name in operators(graph)}
    return min(inside & _CHOICES.keys(), default="")


def _compared(exact: NDArray[Any], low: NDArray[Any]) -> Selection | None:
    """Return how a choice differs; None where it is the same. Of values only the shape counts."""
    alike = exact.shape == low.shape
    if alike and exact.dtype.kind == "f":
        return None
    differing = int(np.count_nonzero(exact != low)) if alike else 0
    if alike and not differing:
        return None
    return Selection(
        shape=list(low.shape), expected=list(exact.shape), differing=differing, elements=exact.size
    )


def _reaches(view: View, node: onnx.NodeProto, output: str) -> bool:
    """Tell whether what a node chooses decides on an output of the model."""
    end, readers = view.maker.get(output, ""), _readers(view, node)
    return output in _chosen(node) or any(end in view.behind(name) for name in readers)
