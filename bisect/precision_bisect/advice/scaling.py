"""Squares that overflow although what is made of them does not: a power of two helps.

A norm divides by the root of its squares, so a factor before the square cancels, if epsilon takes
it squared. Elsewhere a root or a constant factor follows, behind which it is taken back.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from precision_bisect.advice.case import Case
from precision_bisect.diagnosis.findings import Advice
from precision_bisect.errors import PrecisionBisectError
from precision_bisect.fusing.found import Decomposed
from precision_bisect.model.classify import is_follower
from precision_bisect.model.names import Names

_REDUCING = frozenset(("ReduceMean", "ReduceSum", "ReduceMax", "GlobalAveragePool"))
_HEADROOM = 2.0
"""Squares are to stay below the low type's largest value by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A square to scale: `operand` is squared on the way to `end`, by the nodes `chain`.

    `largest` is the largest value on that way. `norm` is the norm in pieces that it is a part of,
    None where the factor is taken back at `end`, to the power `degree`.
    """

    operand: str
    end: str
    chain: tuple[str, ...]
    largest: float
    degree: int
    norm: Decomposed | None


def scaling(case: Case) -> Iterator[Advice]:
    """Yield the factor that keeps all squares in range, with what applying it comes to."""
    folds = folds_of(case)
    if not any(case.kept.intersection(each.chain) for each in folds):
        return
    worst = max(folds, key=lambda each: each.largest)
    bits = bits_for(worst.largest, case.low.largest)
    covered = {name for each in folds for name in each.chain}
    layers = [each.layer for each in case.findings.layers if each.layer in covered & case.kept]
    back = f"multiply what comes out by 2^{bits * worst.degree}, at {worst.end}"
    if worst.norm:
        back = f"multiply the norm's epsilon by 2^-{2 * bits}, which cancels it"
    others = f", and likewise in all {len(folds)} such places" if len(folds) > 1 else ""
    yield Advice(
        id="scale",
        title="Scale before squaring",
        text=f"Multiply {worst.operand} by 2^-{bits} before it is squared, and {back}{others}.",
        layers=layers,
        evidence=f"squares reach {worst.largest:.3g}; scaled so, at most "
        f"{worst.largest * 4.0**-bits:.3g}{_measured(case, folds, bits, covered)}",
    )


def bits_for(largest: float, limit: float) -> int:
    """Return k so that values that are squares stay within the limit when 2^-k is squared in."""
    return max(1, math.ceil(math.log2(largest * _HEADROOM / limit) / 2))


def folds_of(case: Case) -> list[Fold]:
    """Return the squares that leave the low type's range, in network order."""
    norms = {each.squares: each for each in case.decomposed if each.squares}
    found = []
    for node in case.view.nodes:
        square = case.view.square(node.output[0]) if node.output else None
        if square is None:
            continue
        fold = _fold(case, square[0], node, norms.get(node.output[0]))
        if fold is not None and fold.largest > case.low.largest:
            found.append(fold)
    return found


def _fold(case: Case, operand: str, node: onnx.NodeProto, norm: Decomposed | None) -> Fold | None:
    if norm is not None:
        largest = _largest(case, [norm.squares])
        return Fold(
            operand=operand,
            end=norm.output,
            chain=norm.members,
            largest=largest,
            degree=0,
            norm=norm,
        )
    chain, tensors, degree = [node.name], [node.output[0]], 2
    while True:
        readers = case.view.readers.get(tensors[-1], [])
        if len(readers) != 1 or tensors[-1] in case.wiring.outputs:
            return None
        reader = readers[0]
        constant = reader.op_type in ("Mul", "Div") and any(
            True for _ in _by_constant(case, reader)
        )
        ends = reader.op_type == "Sqrt" or constant
        if not ends and reader.op_type not in _REDUCING and not is_follower(reader):
            return None
        chain.append(reader.name)
        if ends:
            return Fold(
                operand=operand,
                end=reader.output[0],
                chain=tuple(chain),
                largest=_largest(case, tensors),
                degree=1 if reader.op_type == "Sqrt" else degree,
                norm=None,
            )
        tensors.append(reader.output[0])


def _by_constant(case: Case, node: onnx.NodeProto) -> Iterator[str]:
    """Yield the constants that multiply or divide what a node reads."""
    names = node.input if node.op_type == "Mul" else node.input[1:]
    yield from (name for name in names if case.view.array(name) is not None)


def _largest(case: Case, tensors: Sequence[str]) -> float:
    seen = [case.watched.magnitudes[name] for name in tensors if name in case.watched.magnitudes]
    return max((each.largest for each in seen), default=0.0)


def _measured(case: Case, folds: Sequence[Fold], bits: int, covered: set[str]) -> str:
    """Return what the scaled model comes to with these layers no longer kept."""
    left = sorted(case.kept - covered)
    try:
        model = case.loaded(scaled(case, folds, bits), dict(case.model.weights), "scaled")
    except (PrecisionBisectError, OSError):
        return ""
    tried = case.tried(left, model=model)
    return "" if tried is None else f"; applied, with {len(left)} layers kept: {tried}"


def scaled(case: Case, folds: Sequence[Fold], bits: int) -> onnx.ModelProto:
    """Return the model with 2^-`bits` before each square, and its effect taken back."""
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model.proto)
    writer = _Writer(proto)
    for fold in folds:
        readers = set(fold.norm.members if fold.norm else fold.chain[:1])
        writer.scale_reads(fold.operand, readers, 2.0**-bits)
        if fold.norm is None:
            writer.scale_made(fold.end, 2.0 ** (bits * fold.degree))
        elif fold.norm.epsilon_name:
            writer.replace(fold.norm, fold.norm.epsilon * 4.0**-bits)
    return writer.written()


class _Writer:
    """Adds constants and products to a graph, each product where its operand is known."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._proto = proto
        self._names = Names(proto.graph)
        self._nodes = list(proto.graph.node)
        self._number = 0

    def scale_reads(self, name: str, readers: set[str], factor: float) -> None:
        """Have the nodes of these names read the tensor times the factor."""
        product = self._product(name, self._new("value"), factor)
        for node in self._nodes:
            if node.name in readers:
                for i, each in enumerate(node.input):
                    if each == name:
                        node.input[i] = product.output[0]
        self._nodes.insert(self._behind(name), product)

    def scale_made(self, name: str, factor: float) -> None:
        """Have the tensor be what is made under its name, times the factor."""
        place = self._behind(name)
        maker = self._nodes[place - 1]
        raw = self._new("value")
        for i, each in enumerate(maker.output):
            if each == name:
                maker.output[i] = raw
        self._nodes.insert(place, self._product(raw, name, factor))

    def replace(self, norm: Decomposed, epsilon: float) -> None:
        """Have the norm read another epsilon."""
        constant = self._constant(epsilon)
        for node in self._nodes:
            if node.name in norm.members:
                for i, each in enumerate(node.input):
                    if each == norm.epsilon_name:
                        node.input[i] = constant

    def written(self) -> onnx.ModelProto:
        """Return the model with everything that was added."""
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self._nodes]
        del self._proto.graph.node[:]
        self._proto.graph.node.extend(nodes)
        return self._proto

    def _behind(self, name: str) -> int:
        places = [i for i, node in enumerate(self._nodes) if name in node.output]
        return places[0] + 1 if places else 0

    def _product(self, source: str, out: str, factor: float) -> onnx.NodeProto:
        operands = [source, self._constant(factor)]
        return onnx.helper.make_node("Mul", operands, [out], name=self._new("Mul"))

    def _constant(self, value: float) -> str:
        name = self._new("constant")
        array = np.array(value, np.float32)
        self._proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return name

    def _new(self, what: str) -> str:
        self._number += 1
        return self._names(f"precision_bisect/scaled/{what}_{self._number}")
