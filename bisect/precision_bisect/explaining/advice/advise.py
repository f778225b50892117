"""All advice on a diagnosed model, and that on constants that the low type cannot hold.

Those are masks of attention, and epsilons.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.explaining.advice.chosen_rows import chosen_rows
from precision_bisect.explaining.advice.circumstances import (
    builder_warnings,
    never_reached,
    quantized_beside,
)
from precision_bisect.explaining.advice.diagnosed_model import Advising, DiagnosedModel, Editor
from precision_bisect.explaining.advice.quantizing import (
    bf16_instead,
    calibration,
    fp16_instead,
    smoothing,
)
from precision_bisect.explaining.advice.scaling import in_pieces, scaling
from precision_bisect.explaining.diagnosis.findings import Advice, Findings
from precision_bisect.graphs.classify import is_follower
from precision_bisect.graphs.lowtypes import QUANTIZED
from precision_bisect.graphs.node_views import way_back
from precision_bisect.machine.stopping import Stopped, TimedOut
from precision_bisect.protocols import Search
from precision_bisect.runs.results.advised import Tried

_MASKING = frozenset(("Add", "Sub", "Mul", "Where", "Cast", "Max", "Min", "Clip"))
# A softmax, what has one inside, or its piece that makes what is masked 0.
_ENDS = frozenset(("Softmax", "LogSoftmax", "Attention", "Exp"))
_MASK = 10000.0
# So many nodes may lie between a mask and its softmax, followers among them.
_MOST_HOPS = 8
_GUARDED = frozenset(("Sqrt", "Div", "Log", "Reciprocal", "Pow"))
_BETWEEN = frozenset(("Cast", "CastLike", "Clip", "Max"))


def masks(net: DiagnosedModel) -> Advising:
    """Yield advice about constants beyond the low type's range on their way to a softmax."""
    layers: dict[str, None] = {}
    mask_values: dict[str, float] = {}
    for node in net.view.nodes:
        for name in node.input if node.op_type in _MASKING or is_follower(node) else ():
            largest = _largest(net, name)
            between = _until_softmax(net, node.name) if abs(largest) > net.low.largest else ()
            # Only masks of layers that were kept explain the answer.
            hit = [layer for layer in between if layer in net.kept]
            if hit:
                layers.update(dict.fromkeys(hit))
                mask_values[name] = largest
    if layers:
        name, value = max(mask_values.items(), key=lambda item: abs(item[1]))
        mask, beyond = np.copysign(_MASK, value), np.copysign(np.inf, value)
        tried = yield from net.applied("mask", clamped(net, mask_values), layers)
        becomes = (
            ""
            if np.isinf(value)
            else f", and {net.low.name.upper()} ends at "
            f"{np.copysign(net.low.largest, value):.5g}: it becomes {beyond:g}"
        )
        yield Advice(
            id="mask",
            title="Mask attention with a number that the low type holds",
            text=f"Replace it by {mask:g}, which makes the softmax just as much 0, or mask by "
            "Where with a boolean.",
            layers=list(layers),
            evidence=f"{name} holds {value:.3g}{becomes}; 0 times {beyond:g}, or a row of "
            f"nothing else, is NaN{tried.clause() if tried else ''}",
            tried=tried,
        )


def clamped(net: DiagnosedModel, masks: Iterable[str]) -> onnx.ModelProto:
    """Return the model with these constants no larger than a number that every low type holds."""
    return _with(net, masks, lambda values: np.clip(values, -_MASK, _MASK))


def epsilons(net: DiagnosedModel) -> Advising:
    """Yield advice about small constants that keep a divisor above 0, and are 0 themselves."""
    layers: dict[str, None] = {}
    epsilon_values: dict[str, float] = {}
    for node in net.view.nodes:
        if node.op_type not in ("Add", "Max", "Clip"):
            continue
        for name in node.input:
            value = net.view.scalar(name)
            if value is None or not 0 < value:
                continue
            if net.low.round(np.array([value], np.float32))[0] != 0:
                continue
            near = [node.name, *_guards(net, node)]
            hit = [layer for layer in near if layer in net.kept]
            # Without a division, root or logarithm behind it nothing suffers from a 0.
            if len(near) > 1 and hit:
                layers.update(dict.fromkeys(hit))
                epsilon_values[name] = value
    if layers:
        name, value = min(epsilon_values.items(), key=lambda item: item[1])
        smallest = net.low.smallest_normal * 2.0 ** (1 - net.low.digits)
        epsilon, tried = yield from _least_that_passes(net, epsilon_values, layers, smallest)
        pieces = {name for decomposed in net.decomposed for name in decomposed.members}
        whole = ", or export the norm as one operator, which adds it in FP32"
        yield Advice(
            id="epsilon",
            title="Raise epsilon to what the low type can hold",
            text=f"Give an epsilon of at least {epsilon:.2g}"
            f"{'' if pieces.isdisjoint(layers) else whole}.",
            layers=list(layers),
            evidence=f"{name} is {value:.3g} and becomes 0: the smallest number of "
            f"{net.low.name.upper()} is {smallest:.3g}{tried.clause() if tried else ''}",
            tried=tried,
        )


def _least_that_passes(
    net: DiagnosedModel, names: Iterable[str], layers: Collection[str], smallest: float
) -> Search[tuple[float, Tried | None]]:
    """Return an epsilon and what it came to: the smallest normal number where that serves.

    Hardware may flush what is smaller to 0, but a larger epsilon changes more of what is computed.
    """
    normal = net.low.smallest_normal
    tried = yield from net.applied("epsilon", raised(net, names, normal), layers)
    if tried and not tried.holds:
        other = yield from net.applied("epsilon", raised(net, names, smallest), layers)
        if other and other.holds:
            return smallest, other
    return normal, tried


def raised(net: DiagnosedModel, names: Iterable[str], epsilon: float) -> onnx.ModelProto:
    """Return the model with another value in the place of these epsilons."""
    return _with(net, names, lambda values: np.full_like(values, epsilon))


def _with(
    net: DiagnosedModel, names: Iterable[str], changed: Callable[[NDArray[Any]], NDArray[Any]]
) -> onnx.ModelProto:
    editor = Editor(net.case.model.proto)
    for name in names:
        values = net.view.array(name)
        if values is not None:
            editor.replace(name, changed(values))
    return editor.edited()


def _largest(net: DiagnosedModel, name: str) -> float:
    """Return the number of a constant that is furthest from 0; 0 for other tensors."""
    array = net.view.array(name)
    if array is None or array.dtype.kind != "f":
        return 0.0
    return max(
        (float(extreme(array[~np.isnan(array)], initial=0)) for extreme in (np.min, np.max)),
        key=abs,
    )


def _until_softmax(net: DiagnosedModel, start: str) -> list[str]:
    """Return the nodes from one to the nearest softmax, both included; [] where none is near."""
    view = net.view
    passing = _MASKING | _ENDS
    through = (n.name for n in view.nodes if n.op_type in passing or is_follower(n))
    came = view.reached(start, frozenset(through))
    end = next((name for name in came if view.by_name[name].op_type in _ENDS), None)
    way = way_back(came, end) if end else []
    return way if len(way) <= _MOST_HOPS else []


def _guards(net: DiagnosedModel, node: onnx.NodeProto) -> list[str]:
    """Return the roots and quotients that read what the node makes, and what reads those.

    Exporters put an Expand, a Cast or a Clip between them.
    """
    first = [n for n in _beyond_moves(net, node) if net.view.by_name[n].op_type in _GUARDED]
    second = [
        name
        for guard in first
        for name in _beyond_moves(net, net.view.by_name[guard])
        if net.view.by_name[name].op_type in (*_GUARDED, "Mul")
    ]
    return list(dict.fromkeys((*first, *second)))


def _beyond_moves(net: DiagnosedModel, node: onnx.NodeProto) -> Iterator[str]:
    """Yield the nodes that read what a node makes, and what is only moved, cast or clipped."""
    for name in net.view.reading(node):
        yield name
        reader = net.view.by_name[name]
        if reader.op_type in _BETWEEN or is_follower(reader):
            yield from _beyond_moves(net, reader)


class Adviser(NamedTuple):
    """What yields advice on a model, for low types of so many `bits`, 0 for all.

    A `cure` changes the model: of two that help, the one that leaves fewer layers comes first.
    """

    advise: Callable[[DiagnosedModel], Advising]
    bits: Literal[8, 16, 0] = 0
    cure: bool = False


ADVISERS: Sequence[Adviser] = (
    Adviser(in_pieces, 16, cure=True),
    Adviser(masks, 16, cure=True),
    Adviser(epsilons, 16, cure=True),
    Adviser(scaling, 16, cure=True),
    Adviser(smoothing, 8, cure=True),
    Adviser(calibration, 8),
    Adviser(fp16_instead, 8),
    Adviser(chosen_rows),
    Adviser(bf16_instead, 16),
    Adviser(quantized_beside),
    Adviser(builder_warnings),
    Adviser(never_reached),
)
"""Those first whose advice removes the need for good."""


def advised(net: DiagnosedModel) -> Search[Findings]:
    """Return the findings with advice, and with its ids at the layers that it would help.

    No further advice is tried once the case's allowance is spent. What changes nothing for its
    plan is no advice.
    """
    cures, others = list[Advice](), list[Advice]()
    bits = 8 if net.case.pair.low in QUANTIZED else 16
    with suppress(Stopped):  # what was tried before stays
        for advise, for_bits, cure in ADVISERS:
            if for_bits in (0, bits) and not net.variants.allowance.spent:
                with suppress(TimedOut):
                    yield from _collected(advise(net), cures if cure else others)
    # The fewer layers stay kept, the better; what does not hold comes last.
    cures.sort(key=lambda entry: entry.tried.kept if entry.tried and entry.holds else math.inf)
    ordered = [*cures, *others]
    layers = [
        replace(
            finding,
            advice=list(dict.fromkeys(one.id for one in ordered if finding.layer in one.layers)),
        )
        for finding in net.findings.layers
    ]
    return replace(net.findings, layers=layers, advice=ordered)


def _collected(advising: Advising, advice: list[Advice]) -> Search[None]:
    """Return the search without its advice, which is added to the list where it changes a plan."""
    with suppress(StopIteration):
        step = next(advising)
        while True:
            if isinstance(step, Advice):
                if not (step.tried and step.tried.idle):
                    advice.append(step)
                step = advising.send(())
                continue
            try:
                outcomes = yield step
            except BaseException as error:  # as in `feed`
                step = advising.throw(error)
            else:
                step = advising.send(outcomes)
