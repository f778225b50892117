"""Forecasts by what the parts of an engine add: their errors, put into the FP32 model.

For the layers that a plan has low, the errors are added at their places; one session serves every
plan. So the ranking is of the engine's own errors, and costs two builds and an FP32 inference a
layer. Cheaper ways are among what `bisect/README.md` tells as rejected.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import onnx

from precision_bisect.backends.backend_plugin import failure
from precision_bisect.backends.emulation.engine_errors import FLOAT, EngineErrors, Floats, Part
from precision_bisect.graphs.graph import Names, copied, refill
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import Session, runtime
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.trial import Evidence, TrialStatus


class ErrorForecasts:
    """A backend that forecasts plans for the feeds that the engine was looked into with.

    A part that is low in part adds its error times the root of that share: independent errors add
    up as squares. Raises ModelError.
    """

    name: ClassVar[str] = "engine errors"
    emulated: ClassVar[bool] = True

    def __init__(
        self, model: Model, errors: EngineErrors, feeds: Sequence[Sample], threads: int = 0
    ) -> None:
        self._errors = errors
        self._feeds = feeds
        self._layers = frozenset(range(len(model.table.candidates)))
        self._parts = {part.tensor: part for part in errors.parts}
        proto, self._inputs = with_errors(model.proto, list(self._parts))
        self._session = Session(proto, model.weights, threads)

    def tells(self, plan: Plan) -> bool:
        """Whether each layer that a plan has low belongs to a part of which the errors are known.

        What only leads to outputs that are no floats does not.
        """
        known = (part.layers for part in self._parts.values())
        return self._layers.difference(plan.kept) <= frozenset().union(*known)

    def versions(self) -> Mapping[str, str]:
        """Return the version of ONNX Runtime."""
        return {"onnxruntime": runtime().__version__}

    def unbuildable(self) -> Mapping[LayerName, str]:
        """Return nothing: the engine decides that."""
        return {}

    def build(self, plan: Plan, *, afresh: bool = False) -> "ErrorForecast":
        """Return the plan as an engine; nothing is built."""
        del afresh
        return ErrorForecast(self, plan)

    def evaluate(self, plan: Plan, feed: Sample) -> Sample:
        """Return the outputs, by name, of a plan for one of the feeds. Raises BackendFailure."""
        number = next(i for i, known in enumerate(self._feeds) if _same(known, feed))
        low, nothing = self._layers.difference(plan.kept), np.zeros((), np.float32)
        errors = {
            self._inputs[name]: self._error(part, number, low) if part.layers & low else nothing
            for name, part in self._parts.items()
        }
        try:
            return self._session.run({**feed, **errors})
        except RuntimeError as error:
            raise failure(TrialStatus.RUN_FAILED, str(error)) from error

    def _error(self, part: Part, number: int, low: frozenset[int]) -> Floats:
        added = self._errors.added[part.tensor][number]
        before = (self._parts[name].layers for name in part.reads if name in self._parts)
        # What comes in low is rounded already.
        error = added.own if any(layers & low for layers in before) else added.own + added.reading
        share = len(part.layers & low) / len(part.layers)
        return error if share == 1 else np.float32(math.sqrt(share)) * error


@dataclass(frozen=True, slots=True)
class ErrorForecast:
    """One plan, on the session that serves all of them."""

    backend: ErrorForecasts
    plan: Plan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Free nothing: the session belongs to the backend."""

    def run(self, feed: Sample) -> Sample:
        """Return the outputs by name. Raises BackendFailure."""
        return self.backend.evaluate(self.plan, feed)

    def time(self, feed: Sample) -> None:
        """Return None: a forecast has no latency."""

    def evidence(self) -> Evidence:
        """Return that nothing was seen."""
        return Evidence()

    def save(self, folder: Path) -> None:
        """Write nothing."""


def with_errors(
    proto: onnx.ModelProto, tensors: Sequence[str]
) -> tuple[onnx.ModelProto, Mapping[str, str]]:
    """Return the graph with an input that is added to each of these tensors, and their names."""
    graph, names = copied(proto), Names(proto.graph)
    made = {name: names(f"{name}/made") for name in tensors}
    errors = {name: names(f"{name}/error") for name in tensors}
    nodes = list[onnx.NodeProto]()
    for node in (copied(node) for node in proto.graph.node):
        own = [name for name in node.output if name in made]
        refill(node.output, [made.get(name, name) for name in node.output])
        adding = (
            onnx.helper.make_node("Add", [made[name], errors[name]], [name], errors[name])
            for name in own
        )
        nodes += [node, *adding]
    refill(graph.graph.node, nodes)
    # Shapes that were inferred for the graph as it was do not speak of the new tensors.
    graph.graph.ClearField("value_info")
    graph.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, FLOAT, None) for name in errors.values()
    )
    return graph, errors


def _same(known: Sample, feed: Sample) -> bool:
    return known is feed or all(
        # By bytes, as NaN equals nothing.
        known[name].tobytes() == feed[name].tobytes()
        for name in known
    )
