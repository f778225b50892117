"""FP32 outputs of a model by ONNX Runtime, and how far two sessions' outputs are apart.

No tolerance fits classes, and what differs from run to run. Class 4000 beside 4010 is not nearly
right: a relative error says nothing of whole numbers and truth values. ONNX Runtime draws random
numbers on from run to run: a seed fixes where it begins, no more. In training mode a
BatchNormalization updates its statistics in the session, where nothing else reads them.
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import InputError, ModelError, StepFailed
from precision_bisect.graphs.graph import (
    RANDOM,
    all_graphs,
    attribute,
    captured,
    constant_of,
    inner_nodes,
)
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.ort import ON_CPU, CheckedGraph, Providers, Session, check
from precision_bisect.machine.free_space import trim
from precision_bisect.protocols import DroppedNan, RunSample, Sample, once

MOST_DIFFERENT = 1e-4
"""Up to this share (see `distances`) two FP32 sessions differ by rounding, without a look.

Sums in another order differ by about 1e-6; what is rewritten wrongly, by far more.
"""


def reference_outputs(model: Model, samples: Sequence[Sample], threads: int = 0) -> list[Sample]:
    """Return the FP32 outputs of every sample, by output name.

    Raises ModelError when ONNX Runtime cannot load or run the model, or an output is no array of
    numbers.
    """
    graph = check(model.proto, model.weights)
    return timed_outputs(graph, [*map(model.of_file.rounded, samples)], threads)[0]


def distances(outputs: Sample, expected: Sample) -> dict[str, float]:
    """Return how far each expected output is from the one found.

    That is the largest difference of floats as a share of the largest value, or the share of
    values that differ where they are none; infinity where shapes differ, or NaN or Inf.
    """
    return {name: _difference(outputs[name], expected[name]) for name in expected}


def _difference(output: NDArray[Any], expected: NDArray[Any]) -> float:
    if output.shape != expected.shape:
        return np.inf
    if expected.dtype.kind != "f":
        return float(np.mean(output != expected)) if expected.size else 0.0
    # A scalar's difference would be no array, and take no assignment.
    exact, wanted = (np.atleast_1d(array).astype(np.float64) for array in (output, expected))
    scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        gap = np.abs(exact - wanted)
    gap[(exact == wanted) | (np.isnan(exact) & np.isnan(wanted))] = 0.0
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)) / scale


def timed_outputs(
    graph: CheckedGraph,
    samples: Sequence[Sample],
    threads: int,
    *,
    optimised: bool = True,
    how: RunSample = once,
) -> tuple[list[Sample], float]:
    """Return the outputs, and the seconds that all cores together take for a sample.

    The first sample warms up. Raises as `reference_outputs` does.
    """
    session = Session(graph, threads=threads, optimised=optimised)
    # CPU time, since other processes of this machine lengthen the wall's.
    results, spent = [], [time.process_time()]
    for sample in samples:
        try:
            results.append(how(session.run, sample))
        except RuntimeError as error:
            raise InputError(
                f"ONNX Runtime cannot run the model on these inputs: {error}",
                error.hint
                if isinstance(error, StepFailed)
                else "check the inputs' shapes and values",
            ) from error
        spent.append(time.process_time())
    outputs = [judgeable(outputs, number) for number, outputs in enumerate(results)]
    return outputs, min((end - start for start, end in pairwise(spent)), default=0.0)


def judgeable(outputs: Mapping[str, Any], number: int) -> Sample:
    """Return the outputs as they are; raise ModelError for one that no comparator can judge."""
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise ModelError(
                f"output {name!r} is no array of numbers for sample {number}, so it cannot be "
                "judged",
                "remove this output from the model",
            )
    return outputs


class ReferenceSession:
    """The FP32 outputs of one feed at a time, by a session that opens when it is first asked.

    The `providers` compute it. With several threads it serves all of them. A call raises
    ModelError where ONNX Runtime cannot load the model, RuntimeError where the run fails. It runs
    a sample as `how` says, of which `step` is one inference.
    """

    def __init__(
        self,
        model: Model,
        threads: int = 0,
        *,
        optimised: bool = True,
        providers: Providers = ON_CPU,
        how: RunSample = once,
    ) -> None:
        self._model = model
        self.how = how
        self._providers = providers
        self._threads = threads
        self.optimised = optimised
        self._opening = threading.Lock()
        self._session: Session | None = None

    def __call__(self, feed: Sample) -> Sample:
        """Return the outputs to judge, by name."""
        return self.how(self.step, feed)

    def step(self, feed: Sample) -> Sample:
        """Return the outputs of one inference, by name."""
        with self._opening:
            if self._session is None:
                self._session = Session(
                    self._model.proto,
                    self._model.weights,
                    self._threads,
                    self._providers,
                    optimised=self.optimised,
                )
            session = self._session
        return session.run(self._model.of_file.rounded(feed))

    def rest(self) -> None:
        """Give the session's memory back; the next call opens it again."""
        with self._opening:
            if self._session is not None:
                self._session = None
                trim()


def non_finite(outputs: Sequence[Sample]) -> str:
    """Return a sentence about the first NaN or Inf among the outputs, or "" if there is none."""
    for number, sample in enumerate(outputs):
        for name, array in sample.items():
            if told := not_finite(array):
                return f"output {name!r} has {told} in sample {number}"
    return ""


def not_finite(array: NDArray[np.generic]) -> str:
    """Return how many values of how many are NaN or Inf; "" for none, and for no floats."""
    bad = array.size - np.count_nonzero(np.isfinite(array)) if array.dtype.kind == "f" else 0
    return f"{bad} NaN or Inf of {array.size}" if bad else ""


_CASTS = ("Cast", "CastLike")
_QUANTIZES = ("QuantizeLinear", "DynamicQuantizeLinear")
_ARITHMETIC = ("Abs", "Add", "Clip", "Div", "Max", "Min", "Mul", "Neg", "Sub", "Concat", "Pad")
# Operators that move the values of their first input and change none.
_MOVES = ("Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
TRAINED = frozenset(("Dropout", "BatchNormalization"))
"""Operators that change from run to run in training mode alone."""


def class_outputs(model: Model) -> dict[str, str]:
    """Return the outputs that hold integers or truth values, each with its type.

    A float output that is cast from one counts, too: an ArgMax whose result is then a float.
    """
    types_by_output, view = {}, View(model)
    for spec in model.outputs:
        origin = _origin(spec.name, view, model.elem_types)
        kind = _whole(model.elem_types.get(origin))
        if kind is not None:
            types_by_output[spec.name] = kind if origin == spec.name else f"cast from {kind}"
    return types_by_output


def _origin(name: str, view: View, elem_types: Mapping[str, int]) -> str:
    """Return the first tensor of whole numbers on the way back through casts and moves."""
    while _whole(elem_types.get(name)) is None:
        node = view.made_by(name, *_CASTS, *_MOVES)
        if node is None:
            return name
        name = node.input[0]
    return name


def sized_outputs(model: Model, classes: Collection[str]) -> set[str]:
    """Return those of the outputs whose integers are sizes: rounded floats, as 8-bit pixels are.

    An ArgMax, a TopK, a comparison choose, and what is made of their results is no size.
    """
    view = View(model)
    return {name for name in classes if _is_size(name, view, model.elem_types)}


def _is_size(name: str, view: View, elem_types: Mapping[str, int]) -> bool:
    """Tell whether integers come from floats alone that no choice has made."""
    name = _origin(name, view, elem_types)
    kind = _whole(elem_types.get(name))
    if kind in (None, "bool"):
        return kind is None
    # Quantized values are sizes, too, in steps of a scale.
    if view.made_by(name, *_QUANTIZES) is not None:
        return True
    node = view.made_by(name, *_CASTS, *_MOVES)
    if node is not None:
        return _is_size(node.input[0], view, elem_types)
    node = view.made_by(name, *_ARITHMETIC)
    computed = (
        [source for source in node.input if source in view.maker] if node is not None else []
    )
    return bool(computed) and all(_is_size(source, view, elem_types) for source in computed)


def _whole(elem_type: int | None) -> str | None:
    """Return the name of an integer or boolean type; None for every other."""
    if not elem_type:
        return None
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return dtype.name if dtype.kind in "iub" else None


def changing_nodes(model: Model, outputs: Set[str]) -> list[onnx.NodeProto]:
    """Return the nodes on the way to these outputs that change, in network order, inner ones too.

    A Dropout that nobody can tell to be switched off counts.
    """
    graph = model.proto.graph
    needed, reversed_order = set(outputs), list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input, captured(node))
            reversed_order += reversed([node, *inner_nodes(node)])
    zeros = _zeros(graph)
    return [node for node in reversed(reversed_order) if _changes(node, zeros)]


def _changes(node: onnx.NodeProto, zeros: Set[str]) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Dropout":
        _, ratio, training = [*node.input, "", ""][:3]
        return training != "" and zeros.isdisjoint((ratio, training))
    if node.op_type == "BatchNormalization":
        trains = attribute(node, "training_mode")
        return any(node.output[1:]) or (trains is not None and trains.i == 1)
    return node.op_type in RANDOM


def _zeros(graph: onnx.GraphProto) -> set[str]:
    """Return the constants of one element, here or in subgraphs, that are zero or False."""
    zeros = set()
    for inner in all_graphs(graph):
        small = [tensor for tensor in inner.initializer if tensor.dims in ([], [1])]
        values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in small}
        values.update({n.output[0]: v for n in inner.node if (v := constant_of(n)) is not None})
        zeros |= {name for name, array in values.items() if array.size == 1 and not array.any()}
    return zeros


def in_fp32(outputs: Sample) -> Sample:
    """Return outputs of an FP16 interface in FP32: their squares would leave its range in a judge.

    They go on telling of a NaN that was dropped.
    """
    if not any(array.dtype == np.float16 for array in outputs.values()):
        return outputs
    wide = {
        name: array.astype(np.float32) if array.dtype == np.float16 else array
        for name, array in outputs.items()
    }
    return DroppedNan(wide, outputs.layers) if isinstance(outputs, DroppedNan) else wide
