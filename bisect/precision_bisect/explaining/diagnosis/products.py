"""The values that one element of a layer's output is the sum of, in the order of its axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.graph import attribute
from precision_bisect.graphs.node_views import View

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
