"""Sums inside layers that an engine would lose which adds in the low type.

The emulator adds in FP32, as tensor cores do. Where partial sums leave FP16's range, or are many
times as large as the results, an engine that adds in FP16 gives something else.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.backends.emulation.semantics import Semantics
from precision_bisect.errors import ModelError
from precision_bisect.explaining.diagnosis.extremes import NEAR, Extremes
from precision_bisect.explaining.diagnosis.instrument import AT_ONCE_BYTES
from precision_bisect.graphs.constant_values import read_constants
from precision_bisect.graphs.graph import attribute, copied, showing
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import Shape, View, tensor_shapes
from precision_bisect.graphs.ort import Session
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.other_targets import InnerSum
from precision_bisect.settings.targets import TARGETS, Inside

MEANS = ("ReduceMean", "GlobalAveragePool")
REDUCED = ("ReduceSum", *MEANS)

Array = NDArray[Any]


def axes_of(view: View, node: onnx.NodeProto, rank: int) -> tuple[int, ...] | None:
    """Return the axes that a layer of REDUCED adds along, from 0 on; None if nobody knows."""
    if node.op_type == "GlobalAveragePool":
        return tuple(range(2, rank))
    axes = view.axes(node)
    if axes is None:
        return None
    return tuple(axis % rank for axis in axes) if axes else tuple(range(rank))


def products(
    node: onnx.NodeProto, arrays: Sequence[Array], index: Sequence[int], axes: Sequence[int] = ()
) -> Array:
    """Return what is added for the element at this place of the output; a bias is left out.

    `axes` are those of a reduction. What a mean divides by is left out, too.
    """
    if node.op_type in REDUCED:
        return _reduced(node, arrays[0], index, axes)
    first, second = arrays[:2]
    match node.op_type:
        case "Conv":
            return _convolved(node, first, second, index)
        case "Einsum":
            return _einsum(node, first, second, index)
        case "Gemm":
            alpha = attribute(node, "alpha")
            first, second = (
                array.T if (flag := attribute(node, name)) is not None and flag.i else array
                for array, name in ((first, "transA"), (second, "transB"))
            )
            times = 1.0 if alpha is None else alpha.f
            return np.asarray(times * first[index[0]] * second[:, index[1]])
        case _:
            return _multiplied(first, second, index)


def _reduced(
    node: onnx.NodeProto, array: Array, index: Sequence[int], axes: Sequence[int]
) -> Array:
    keeps = attribute(node, "keepdims")
    places = list(index)
    if keeps is not None and not keeps.i:
        for axis in axes:
            places.insert(axis, 0)
    chosen = [slice(None) if axis in axes else place for axis, place in enumerate(places)]
    return array[tuple(chosen)].ravel()


def _multiplied(first: Array, second: Array, index: Sequence[int]) -> Array:
    """Return the products of a row and a column; batches are broadcast, vectors promoted."""
    places = list(index)
    if second.ndim == 1:
        second, places = second[:, None], [*places, 0]
    if first.ndim == 1:
        first, places = first[None], [*places[:-1], 0, places[-1]]
    *batch, row, column = places

    def at(array: Array) -> Array:
        own = batch[len(batch) - (array.ndim - 2) :]
        sizes = zip(own, array.shape, strict=False)
        return np.asarray(array[tuple(0 if size == 1 else place for place, size in sizes)])

    return np.asarray(at(first)[row] * at(second)[:, column])


def _einsum(node: onnx.NodeProto, first: Array, second: Array, index: Sequence[int]) -> Array:
    setting = attribute(node, "equation")
    equation = "" if setting is None else setting.s.decode().replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    left, right = inputs.split(",")
    # Without an arrow the letters that occur once are the output, in the order of the alphabet.
    if not arrow:
        letters = sorted({*left, *right})
        output = "".join(letter for letter in letters if (left + right).count(letter) == 1)
    place = dict(zip(output, index, strict=True))

    def at(array: Array, letters: str) -> tuple[Array, str]:
        chosen = tuple(place.get(letter, slice(None)) for letter in letters)
        return array[chosen], "".join(letter for letter in letters if letter not in place)

    (one, own), (other, others) = at(first, left), at(second, right)
    added = "".join(dict.fromkeys(own + others))
    return np.asarray(np.einsum(f"{own},{others}->{added}", one, other)).ravel()


def _convolved(node: onnx.NodeProto, array: Array, weight: Array, index: Sequence[int]) -> Array:
    number, channel, *place = index
    spatial = array.ndim - 2
    groups = attribute(node, "group")
    size = weight.shape[1]
    group = channel // (weight.shape[0] // (1 if groups is None else groups.i))
    read = array[number, group * size : (group + 1) * size]
    ones = [1] * spatial
    strides, dilations = (
        ones if (setting := attribute(node, name)) is None else list(setting.ints)
        for name in ("strides", "dilations")
    )
    spans = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    before = _padding(node, array.shape[2:], strides, spans)
    patch = np.zeros((size, *weight.shape[2:]), array.dtype)
    for kernel in np.ndindex(*weight.shape[2:]):
        source = [
            p * s - b + k * d
            for p, s, b, k, d in zip(place, strides, before, kernel, dilations, strict=True)
        ]
        # What is padded adds zeros.
        if all(0 <= at < most for at, most in zip(source, array.shape[2:], strict=True)):
            patch[(slice(None), *kernel)] = read[(slice(None), *source)]
    return np.asarray(patch * weight[channel]).ravel()


def _padding(
    node: onnx.NodeProto, sizes: Sequence[int], strides: Sequence[int], spans: Sequence[int]
) -> list[int]:
    """Return how much is added before each axis."""
    auto, pads = attribute(node, "auto_pad"), attribute(node, "pads")
    if auto is not None and auto.s in (b"SAME_UPPER", b"SAME_LOWER"):
        # What is left over lies at the end, or with LOWER before.
        totals = [
            max((-(-size // stride) - 1) * stride + span - size, 0)
            for size, stride, span in zip(sizes, strides, spans, strict=True)
        ]
        return [(total + (auto.s == b"SAME_LOWER")) // 2 for total in totals]
    if pads is None or (auto is not None and auto.s == b"VALID"):
        return [0] * len(sizes)
    return list(pads.ints[: len(sizes)])


MATRICES = ("MatMul", "Gemm", "Conv", "Einsum")
LOST = 2.0**5
"""Partial sums over results, from which an engine loses digits that adds in FP16: 5 of 11. Sums of
random products stay below 10 up to 4,096 of them."""
MOST_LAYERS, ELEMENTS = 32, 64
"""Layers that are looked at closely, and elements of each. Bounds on time."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A layer whose sums may be lost, by what is known of its operands.

    `bound` is more than any partial sum, `result` the largest result, both before a mean divides.
    """

    node: onnx.NodeProto
    bound: float
    result: float
    sample: int


class _Layers:
    """The layers of a model that add, what they read, and how large that is in each sample."""

    def __init__(self, model: Model, extremes: Extremes, samples: Sequence[Sample]) -> None:
        self.model, self.samples, self.view = model, samples, View(model)
        self.shapes: Mapping[str, Shape] = tensor_shapes(
            model, {name: array.shape for name, array in samples[0].items()}
        )
        self._largest = dict(extremes.largest)
        for name in (name for name, array in samples[0].items() if array.dtype == np.float32):
            self._largest[name] = [float(np.abs(each[name]).max(initial=0)) for each in samples]

    def suspects(self, layers: frozenset[str], limit: float) -> Iterator[_Suspect]:
        """Yield those of the layers whose bound is beyond the limit, or far above the results."""
        nodes = [
            node
            for node in self.view.nodes
            if node.name in layers
            and node.domain in ("", "ai.onnx")
            and node.op_type in (*MATRICES, *REDUCED)
        ]
        constants = read_constants(self.model, frozenset(node.name for node in nodes)).values
        for node in nodes:
            count, results = self._count(node), self._largest.get(node.output[0], [])
            operands = [self._sizes(name, constants) for name in node.input[:2]]
            if count is None or not results or not operands[0]:
                continue
            times = count if node.op_type in MEANS else 1
            result, bound = max(results), count * max(operands[0])
            if node.op_type not in REDUCED:
                bound = max(operands[0]) * self._weights(node, operands[1], constants, count)
            # A result beyond the range is told of as such.
            if 0 < result <= limit and (bound > limit or bound > LOST * times * result):
                sample = int(np.argmax(max(operands, key=len)))
                yield _Suspect(node, bound, times * result, sample)

    def stored(self, node: onnx.NodeProto) -> bool:
        """Tell whether some target is known to store the sum of a mean in the low type."""
        return any(Semantics(self.model, target).inside(node) is Inside.SUM for target in TARGETS)

    def _sizes(self, name: str, constants: Mapping[str, Array]) -> Sequence[float]:
        """Return the largest magnitude of a tensor in each sample, or that of a constant."""
        if name in constants:
            return [float(np.abs(constants[name]).max(initial=0))]
        return self._largest.get(name, [])

    def _weights(
        self,
        node: onnx.NodeProto,
        sizes: Sequence[float],
        constants: Mapping[str, Array],
        count: int,
    ) -> float:
        """Return the largest sum of magnitudes that the first operand is multiplied by."""
        weight = constants.get(node.input[1])
        if weight is None or node.op_type == "Einsum":
            return count * max(sizes, default=0.0)
        if node.op_type == "Conv":
            along: int | tuple[int, ...] = tuple(range(1, weight.ndim))
        else:
            transposed = (flag := attribute(node, "transB")) is not None and flag.i
            along = -1 if transposed or weight.ndim == 1 else -2
        return float(np.abs(weight).sum(axis=along).max(initial=0))

    def _count(self, node: onnx.NodeProto) -> int | None:
        """Return how many values a sum of a layer has at most; None where shapes do not tell."""
        first, second = ([self.shapes.get(name) for name in node.input[:2]] + [None])[:2]
        if not first or not prod(first):
            return None
        if node.op_type in REDUCED:
            axes = axes_of(self.view, node, len(first))
            return None if axes is None else prod(first[axis] for axis in axes)
        if not second:
            return None
        match node.op_type:
            case "Conv":
                return prod(second[1:])
            case "Gemm":
                return first[0] if (flag := attribute(node, "transA")) and flag.i else first[1]
            case "Einsum":
                # More than are added: each product has a value of its own of one operand.
                return max(prod(first), prod(second))
            case _:
                return first[-1]


def inner_sums(
    model: Model,
    extremes: Extremes,
    samples: Sequence[Sample],
    layers: frozenset[str],
    limit: float,
    threads: int = 0,
) -> list[InnerSum]:
    """Return the layers whose sums are lost where they are added in a type with this limit.

    Bounds by the operands' sizes come first. Sums of magnitudes, and partial sums of the largest
    of these, are then computed for few layers, each on the sample where its input is largest.
    """
    model_layers = _Layers(model, extremes, samples)
    try:
        suspects = sorted(model_layers.suspects(layers, limit), key=lambda suspect: -suspect.bound)
        suspects = _affordable(model_layers, suspects[:MOST_LAYERS])
        sums = [
            inner_sum
            for inner_sum in _looked_at(model_layers, suspects, limit, threads)
            if inner_sum
        ]
    except (ModelError, RuntimeError):
        # Nothing depends on it.
        return []
    order = {node.name: i for i, node in enumerate(model_layers.view.nodes)}
    return sorted(sums, key=lambda inner_sum: order[inner_sum.layer])


def _affordable(model_layers: _Layers, suspects: Sequence[_Suspect]) -> list[_Suspect]:
    """Return the suspects whose tensors may be held at one time."""
    chosen, budget = [], AT_ONCE_BYTES
    for suspect in suspects:
        names = (*suspect.node.input, *suspect.node.output)
        needed = 4 * sum(prod(model_layers.shapes.get(name, ())) for name in names if name)
        if needed <= budget:
            chosen.append(suspect)
            budget -= needed
    return chosen


def _looked_at(
    model_layers: _Layers, suspects: Sequence[_Suspect], limit: float, threads: int
) -> Iterator[InnerSum | None]:
    if not suspects:
        return
    model = model_layers.model
    nodes = frozenset(suspect.node.name for suspect in suspects)
    constants = read_constants(model, nodes).values
    names = {
        name
        for suspect in suspects
        for name in suspect.node.input
        if name in model_layers.view.maker
    }
    wanted = sorted(name for name in names - constants.keys() if model.elem_types.get(name))
    session = Session(showing(model.proto, wanted, model.elem_types), model.weights, threads)
    # One inference serves all suspects of a sample.
    for sample, _ in Counter(suspect.sample for suspect in suspects).most_common():
        feed = model_layers.samples[sample]
        values = {**constants, **feed, **session.run(feed, wanted)}
        for suspect in suspects:
            if suspect.sample == sample:
                arrays = [
                    values[name] if name in values else model_layers.view.array(name)
                    for name in suspect.node.input
                    if name
                ]
                operands = [array for array in arrays if array is not None]
                complete = len(operands) == len(arrays) and len(arrays) == len(suspect.node.input)
                yield _sums(model_layers, suspect, operands, limit) if complete else None


def _sums(
    model_layers: _Layers, suspect: _Suspect, arrays: Sequence[Array], limit: float
) -> InnerSum | None:
    """Return the sums of a layer for its operands; None where they are nothing to tell of."""
    node, times = suspect.node, 1
    axes: Sequence[int] = ()
    if node.op_type in REDUCED:
        axes = axes_of(model_layers.view, node, arrays[0].ndim) or ()
        times = prod(arrays[0].shape[axis] for axis in axes) if node.op_type in MEANS else 1
    magnitudes = [np.abs(array) if array.dtype == np.float32 else array for array in arrays]
    absolute = times * _alone(model_layers.model.proto, node, magnitudes)
    most = float(absolute.max(initial=0))
    if not np.isfinite(most) or (most <= limit and most < LOST * suspect.result):
        return None
    flat = absolute.ravel()
    count = min(ELEMENTS, flat.size)
    partial = 0.0
    for place in np.argpartition(flat, -count)[-count:]:
        index = tuple(map(int, np.unravel_index(place, absolute.shape)))
        added = products(node, arrays, index, axes).astype(np.float64)
        partial = max(partial, float(np.abs(np.cumsum(added)).max(initial=0)))
        # Engines add products in tiles: all of one sign may come first.
        if node.op_type in MATRICES and (one_sign := _one_sign(added)) > limit:
            partial = max(partial, one_sign)
    if partial <= limit and partial < LOST * suspect.result:
        return None
    # The sum itself is beyond: a target that is known to store it has been evaluated.
    if partial <= (1 + NEAR) * suspect.result and model_layers.stored(node):
        return None
    return InnerSum(layer=node.name, partial=partial, absolute=most, result=suspect.result / times)


def _one_sign(added: NDArray[np.float64]) -> float:
    """Return the larger of the sums of all positive and of all negative values, as a magnitude."""
    return float(max(added[added > 0].sum(), -added[added < 0].sum()))


def _alone(model: onnx.ModelProto, node: onnx.NodeProto, arrays: Sequence[Array]) -> Array:
    """Return what one node gives for these inputs."""
    copy = copied(node)
    copy.input[:] = [f"x{i}" for i in range(len(arrays))]
    copy.output[:] = ["y"]
    inputs = [
        helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for i, a in enumerate(arrays)
    ]
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    proto = helper.make_model(
        helper.make_graph([copy], "alone", inputs, [out]),
        opset_imports=list(model.opset_import),
        ir_version=model.ir_version,
    )
    feed = {f"x{i}": array for i, array in enumerate(arrays)}
    return np.asarray(Session(proto, {}, threads=1).run(feed)["y"])
