"""Scales by calibration: from the values of every tensor on the judging samples, in FP32.

Thresholds come from ONNX Runtime's quantization tools (their histogram collector): the largest
magnitude (`minmax`), the least Kullback-Leibler divergence (`entropy`; Migacz, "8-bit inference
with TensorRT", GTC 2017), or the magnitude that 99.99 percent of the values stay below
(`percentile`).

As in explicit quantization by TensorRT, the two operands of convolutions and matrix products are
quantized, biases and outputs are not.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray

from precision_bisect.graphs.constant_values import constant_outputs, read_constants
from precision_bisect.graphs.graph import attribute, showing
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import INT8, LOW_TYPES, QUANTIZED, QuantizedType
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.quantization.scales import Scales, WeightScale
from precision_bisect.layer_table import LayerName, forms_of
from precision_bisect.options import CalibrationName, Options
from precision_bisect.precisions import HighName, Pair, QuantizedName
from precision_bisect.protocols import Sample

QUANTIZABLE = frozenset(("Conv", "ConvTranspose", "MatMul", "Gemm"))
OPERANDS = (0, 1)
"""Positions of the inputs that are quantized; others are biases."""

_CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))


def quantizable(node: onnx.NodeProto) -> bool:
    """Tell whether the node has a quantized kernel, its operands apart."""
    return node.domain in ("", "ai.onnx") and node.op_type in QUANTIZABLE


def not_quantizable(model: Model, low: QuantizedName) -> Mapping[LayerName, str]:
    """Return the candidates that have no quantized kernel, each with the reason."""
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    constants |= constant_outputs(model)
    nodes = {node.name: node for node in model.proto.graph.node}
    reasons = {}
    for name in model.table.names:
        node = nodes[name]
        if not quantizable(node):
            reasons[name] = f"no {low.upper()} kernel"
        # Scales per channel need the values when the graph is written.
        elif node.op_type in _CONVOLUTIONS and node.input[1] not in constants:
            reasons[name] = f"computed weights, {low.upper()} needs constants"
    return reasons


def quantized_layers(model: Model, pair: Pair) -> frozenset[str]:
    """Return the names of the layers that some plan quantizes, fixed ones among them."""
    return frozenset(
        str(name)
        for name, forms in forms_of(model.table, pair).items()
        if any(form.quantized for form in forms.all)
    )


def weight_axis(node: onnx.NodeProto, position: int, rank: int) -> int | None:
    """Return the axis of a weight's output channels; None where it has none.

    `position` is that of the weight among the node's inputs, `rank` its number of dimensions.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if position != 1 or rank < 2:
        return None
    transposed = attribute(node, "transB") if node.op_type == "Gemm" else None
    return 0 if transposed is not None and transposed.i else rank - 1


# Tensors in one inference, at most: their values are held in memory. A bound.
_AT_ONCE = 32
_BINS = 2048
# Bins of the histogram and of the quantized distribution, as in Migacz's talk.
_QUANTIZED_BINS = 128
# Percent of the values that the threshold covers. Half and double change nothing in
# benchmarks/constants.py.
_PERCENTILE = 99.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How scales are found: for values that are stored in `stored` and quantized to `kind`.

    Every scale is exact in `stored`, so that engines that hold scales in that type agree.
    """

    method: CalibrationName
    kind: QuantizedType
    stored: HighName


def scales_for(model: Model, pair: Pair, samples: Sequence[Sample], options: Options) -> Scales:
    """Return the scales of everything that some plan of the pair quantizes, fixed layers too.

    Raises as `calibrate` does.
    """
    readers = quantized_layers(model, pair)
    forms = [forms_of(model.table, pair)[LayerName(name)].low for name in sorted(readers)]
    kinds = {form for form in forms if form.quantized}
    if not kinds:
        return Scales()
    (form,) = kinds
    kind = QUANTIZED[form.precision]
    # The other methods cut off the tails, which FP8 has range enough to keep.
    method = options.calibration if kind is INT8 else "minmax"
    how = Calibration(method=method, kind=kind, stored=form.stored)
    return calibrate(model, readers, samples, how, options.threads)


def calibrate(
    model: Model,
    readers: frozenset[str],
    samples: Sequence[Sample],
    how: Calibration,
    threads: int = 0,
) -> Scales:
    """Return the scales of everything that the nodes of these names would read quantized.

    Raises ModelError where ONNX Runtime cannot load the model, RuntimeError where it cannot run.
    """
    constants = read_constants(model, readers).values
    nodes = [node for node in model.proto.graph.node if node.name in readers]
    activations = {name: None for node in nodes for _, name in _operands(node)}.keys() - constants
    thresholds = _thresholds(model, sorted(activations), samples, how.method, threads)
    return Scales(
        activations={
            name: float(_scale(np.float32(threshold), how))
            for name, threshold in thresholds.items()
        },
        weights=_weight_scales(nodes, constants, how),
    )


def _operands(node: onnx.NodeProto) -> list[tuple[int, str]]:
    return [(i, node.input[i]) for i in OPERANDS]


def _scale(threshold: ArrayLike, how: Calibration) -> NDArray[np.float32]:
    """Return scales for magnitudes up to the thresholds, in their shape; 1 where all are 0."""
    magnitudes = np.asarray(threshold, np.float32)
    scale = np.where(magnitudes > 0, magnitudes / np.float32(how.kind.largest), np.float32(1.0))
    if how.stored == "fp32":
        limits = np.finfo(np.float32)
        # A subnormal scale has few digits, and 1 / scale overflows.
        return np.asarray(np.clip(scale, limits.smallest_normal, limits.max))
    stored = LOW_TYPES[how.stored]
    # A subnormal scale is rounded up: to nearest, it could cut off up to half of the range.
    step = np.float32(stored.smallest_normal * 2.0 ** (1 - stored.digits))
    small = np.minimum(scale, np.float32(stored.smallest_normal))
    raised = np.where(small < scale, scale, np.ceil(small / step) * step)
    return stored.round(np.asarray(np.clip(raised, step, stored.largest), np.float32))


def _weight_scales(
    nodes: Sequence[onnx.NodeProto], constants: Mapping[str, NDArray[np.generic]], how: Calibration
) -> dict[str, WeightScale]:
    axes: dict[str, set[int | None]] = {}
    for node in nodes:
        for i, name in _operands(node):
            if name in constants:
                axes.setdefault(name, set()).add(weight_axis(node, i, constants[name].ndim))
    scales = {}
    for name, wanted in axes.items():
        magnitudes = np.abs(constants[name].astype(np.float32, copy=False))
        # Layers that read one weight along different axes share one scale.
        axis = wanted.pop() if len(wanted) == 1 else None
        others = tuple(i for i in range(magnitudes.ndim) if i != axis)
        largest = magnitudes.max(axis=others if axis is not None else None, initial=0.0)
        scales[name] = WeightScale(axis=axis, values=_scale(largest, how))
    return scales


def _thresholds(
    model: Model,
    names: Sequence[str],
    samples: Sequence[Sample],
    method: CalibrationName,
    threads: int,
) -> dict[str, float]:
    """Return the magnitude up to which each tensor is covered."""
    session = Session(showing(model.proto, names), model.weights, threads)
    largest = dict.fromkeys(names, 0.0)
    for name, values in _values(session, names, samples):
        largest[name] = max(largest[name], float(np.abs(values).max(initial=0.0)))
    if method == "minmax":
        return largest
    from onnxruntime.quantization.calibrate import HistogramCollector

    collector = HistogramCollector(method, True, _BINS, _QUANTIZED_BINS, _PERCENTILE, "same")
    nonzero_names = [name for name in names if largest[name] > 0]
    # The collector prints its progress.
    with redirect_stdout(io.StringIO()):
        # The first array sets the bins; a smaller one would have them extended many times over.
        ends = {name: np.array([0.0, largest[name]], np.float32) for name in nonzero_names}
        collector.collect(ends)
        for counts, *_ in collector.get_histogram_dict().values():
            counts[:] = 0
        for name, values in _values(session, nonzero_names, samples):
            collector.collect({name: values})
        collection = collector.compute_collection_result() if nonzero_names else {}
    return largest | {name: _cut(collection[name][:2], largest[name]) for name in nonzero_names}


def _cut(bounds: Sequence[Any], largest: float) -> float:
    """Return the threshold of the bounds; `largest` where they are of no use."""
    threshold = max(abs(float(bound)) for bound in bounds)
    return threshold if 0 < threshold <= largest else largest


def _values(
    session: Session, names: Sequence[str], samples: Sequence[Sample]
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield every tensor's finite values, flat, for each sample."""
    for start in range(0, len(names), _AT_ONCE):
        chunk = names[start : start + _AT_ONCE]
        for sample in samples:
            # A graph input may be quantized as well; no session computes it.
            computed = [name for name in chunk if name not in sample]
            arrays = {**sample, **session.run(sample, computed)}
            for name in chunk:
                values = np.asarray(arrays[name]).ravel()
                yield name, values[np.isfinite(values)]
