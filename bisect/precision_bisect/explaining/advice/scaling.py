"""Norms and activations in pieces, which are better whole, and squares that overflow.

Squares may overflow although what is made of them does not: a power of two helps. A norm divides
by the root of its squares, so a factor before the square cancels, if epsilon takes it squared.
Elsewhere a root or a constant factor follows, behind which it is taken back.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import onnx

from precision_bisect.errors import PrecisionBisectError, counted
from precision_bisect.explaining.advice.diagnosed_model import (
    Advising,
    DiagnosedModel,
    Editor,
    ModelChange,
)
from precision_bisect.explaining.diagnosis.findings import Advice
from precision_bisect.graphs.classify import is_follower
from precision_bisect.graphs.fusing.fuse import fuse
from precision_bisect.graphs.fusing.norms import SINCE, Decomposed, Kind
from precision_bisect.graphs.graph import opset
from precision_bisect.search.case import single_runs

_REDUCING = frozenset(("ReduceMean", "ReduceSum", "ReduceMax", "GlobalAveragePool", "Cast"))
_ROOT = 0.5
# Squares are to stay below the low type's largest value by this factor.
_HEADROOM = 2.0


def in_pieces(net: DiagnosedModel) -> Advising:
    """Yield one piece of advice for each kind of operator of which kept layers are pieces."""
    hit: dict[Kind, list[Decomposed]] = {}
    for decomposed in net.decomposed:
        if net.kept.intersection(decomposed.members):
            hit.setdefault(decomposed.kind, []).append(decomposed)
    if not hit:
        return
    tried = yield from net.fused_by_run()
    fuses = tried is not None
    # Putting together may be refused.
    with suppress(PrecisionBisectError):
        if not fuses:
            fused, _ = fuse(net.case.model, *single_runs(net.case), net.work)
            kept_layers = [name for name in net.kept if name in fused.table.names]
            tried = yield from net.tried(kept_layers, ModelChange(what="pieces", model=fused))
            fuses = True
    flag = ", or search with --fuse-norms, which puts the pieces together" if fuses else ""
    measured = tried.clause("put together") if tried else ""
    for kind, every in hit.items():
        layers = [name for decomposed in every for name in decomposed.members if name in net.kept]
        yield Advice(
            id=f"whole-{kind.lower()}",
            title=f"Export {kind} as one operator",
            text=f"{_how(net, kind)}{flag}.",
            layers=layers,
            evidence=f"of {counted(len(net.kept), 'layer')} here {len(layers)} "
            f"{'is a piece' if len(layers) == 1 else 'are pieces'} of {kind}, which "
            f"the export took apart{f' in {len(every)} places' if len(every) > 1 else ''}"
            f"{measured}",
            tried=tried,
        )


def _how(net: DiagnosedModel, kind: Kind) -> str:
    if opset(net.case.model.proto) < SINCE[kind]:
        return f"Export the model at opset {SINCE[kind]} or newer, where {kind} is one operator"
    return (
        f"Have the model call the framework's own {kind}, so that it is exported as one operator"
    )


class Fold(NamedTuple):
    """A square to scale: `operand` is squared on the way to `end`, by the nodes `chain`.

    `largest` is the largest value on that way. `norm` is the norm in pieces that it is a part of,
    None where the factor is taken back at `end`, to the power `degree`. `bounds` are constants on
    that way that squares are added to or held above: epsilons.
    """

    operand: str
    end: str
    chain: Sequence[str]
    largest: float
    degree: int
    norm: Decomposed | None = None
    bounds: Sequence[str] = ()


def scaling(net: DiagnosedModel) -> Advising:
    """Yield the factor that keeps all squares in range, with what applying it comes to."""
    folds = folds_of(net)
    if not any(net.kept.intersection(fold.chain) for fold in folds):
        return
    worst = max(folds, key=lambda fold: fold.largest)
    bits = bits_for(worst.largest, net.low.largest)
    covered = {name for fold in folds for name in fold.chain}
    layers = [
        finding.layer for finding in net.findings.layers if finding.layer in covered & net.kept
    ]
    back = f"multiply what comes out by 2^{bits * worst.degree}, at {worst.end}"
    if worst.norm:
        back = f"multiply the norm's epsilon by 2^-{2 * bits}, which cancels it"
    tried = yield from net.applied("scale", scaled(net, folds, bits), covered)
    others = f", and likewise in all {len(folds)} such places" if len(folds) > 1 else ""
    yield Advice(
        id="scale",
        title="Scale before squaring",
        text=f"Multiply {worst.operand} by 2^-{bits} before it is squared, and {back}{others}.",
        layers=layers,
        evidence=f"squares reach {worst.largest:.3g}; scaled so, at most "
        f"{worst.largest * 4.0**-bits:.3g}{tried.clause() if tried else ''}",
        tried=tried,
    )


def bits_for(largest: float, limit: float) -> int:
    """Return k so that values that are squares stay within the limit when 2^-k is squared in."""
    return max(1, math.ceil(math.log2(largest * _HEADROOM / limit) / 2))


def folds_of(net: DiagnosedModel) -> list[Fold]:
    """Return the squares that leave the low type's range, in network order."""
    norms = {norm.squares: norm for norm in net.decomposed if norm.squares}
    folds = []
    for node in net.view.nodes:
        operand = net.view.squared(node)
        if not operand:
            continue
        fold = _fold(net, operand, node, norms.get(node.output[0]))
        if fold is not None and fold.largest > net.low.largest:
            folds.append(fold)
    return folds


def _fold(
    net: DiagnosedModel, operand: str, node: onnx.NodeProto, norm: Decomposed | None
) -> Fold | None:
    if norm is not None:
        return Fold(operand, norm.output, norm.members, _largest(net, [norm.squares]), 0, norm)
    chain, tensors, bounds = [node.name], [node.output[0]], list[str]()
    while True:
        readers = net.view.readers.get(tensors[-1], [])
        # Another reader would get the scaled value, too.
        if len(readers) != 1 or tensors[-1] in net.view.outputs:
            return None
        reader = readers[0]
        factors = (
            reader.input[reader.op_type == "Div" :] if reader.op_type in ("Mul", "Div") else ()
        )
        constant = any(net.view.array(name) is not None for name in factors)
        power = net.view.scalar(reader.input[1]) if reader.op_type == "Pow" else None
        root = reader.op_type == "Sqrt" or power == _ROOT
        # A root halves the exponent that has to be undone; a constant factor takes it in.
        ends, bound = root or constant, _bound(net, reader)
        moves = reader.op_type in _REDUCING or is_follower(reader)
        if not (ends or bound or moves):
            return None
        chain.append(reader.name)
        bounds += [bound] if bound else []
        if ends:
            degree, largest = 1 if root else 2, _largest(net, tensors)
            return Fold(operand, reader.output[0], chain, largest, degree, bounds=bounds)
        tensors.append(reader.output[0])


def _bound(net: DiagnosedModel, node: onnx.NodeProto) -> str:
    """Return the one constant that a node adds or holds values above; "" for others."""
    if node.op_type not in ("Add", "Max", "Clip") or len(node.input) != 2:
        return ""
    names = [name for name in node.input if net.view.scalar(name) is not None]
    return names[0] if len(names) == 1 else ""


def _largest(net: DiagnosedModel, tensors: Sequence[str]) -> float:
    magnitudes = [
        net.watched.magnitudes[name] for name in tensors if name in net.watched.magnitudes
    ]
    return max((tensor.largest for tensor in magnitudes), default=0.0)


def scaled(net: DiagnosedModel, folds: Sequence[Fold], bits: int) -> onnx.ModelProto:
    """Return the model with 2^-`bits` before each square, and its effect taken back."""
    editor = Editor(net.case.model.proto)
    for fold in folds:
        readers = set(fold.norm.members if fold.norm else fold.chain[:1])
        editor.scale_reads(fold.operand, readers, 2.0**-bits)
        for name in fold.bounds:
            value = np.float32((net.view.scalar(name) or 0.0) * 4.0**-bits)
            editor.replace(name, np.array(value), fold.chain)
        if fold.norm is None:
            editor.scale_made(fold.end, 2.0 ** (bits * fold.degree))
        elif fold.norm.epsilon_name:
            epsilon = np.array(fold.norm.epsilon * 4.0**-bits, np.float32)
            editor.replace(fold.norm.epsilon_name, epsilon, fold.norm.members)
    return editor.edited()
