"""What plans cost by estimate: time, in the samples' batch and in a full one, or bytes."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from precision_bisect.graphs.batching import CannotBatchError, rebatched
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import Shape
from precision_bisect.graphs.ort_fusions import fused_groups
from precision_bisect.options import Objective
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan_costs import CostGraph
from precision_bisect.search.speed.costs import cost_graph, weight_graph
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import CaseName

FULL = 32
"""Times the samples' batch that a full one is, whose products fill a device. A round figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What plans cost for the samples' batch, and for a batch so large that launches of kernels do
    not count, the same under TF32; and `instead` of time for the objectives that say so."""

    plain: CostGraph
    full_batch: CostGraph
    tf32: CostGraph
    full_batch_tf32: CostGraph
    instead: Mapping[Objective, CostGraph]

    def of(self, case: CaseName) -> tuple[CostGraph, CostGraph]:
        """Return the costs for the samples' batch and a full one, as a case computes."""
        in_tf32 = case.startswith(TF32)
        return (self.tf32, self.full_batch_tf32) if in_tf32 else (self.plain, self.full_batch)


def cost_graphs(prepared: Prepared) -> "partial[CostGraph]":
    """Return what makes cost graphs by the first sample's shapes, or at the batch that is timed.

    Operators that ONNX Runtime fuses count as one kernel, whatever the target.
    """
    case = prepared.case
    model, shapes, batch = case.model, case.shapes, case.options.engine.time_batch
    fused = fused_groups(model)
    if batch is not None:
        model, shapes = at_batch(model, shapes, batch)
    return partial(cost_graph, model, shapes, fused=fused)


def estimates_of(prepared: Prepared) -> Estimates:
    """Return what plans cost as `cost_graphs` has it, and in a full batch.

    Where a graph has no other batch, launches alone do not count in a full one.
    """
    case, graph = prepared.case, cost_graphs(prepared)
    in_tf32, (model, shapes) = case.options.engine.in_tf32, graph.args
    # Inputs with different first dimensions have no batch in common.
    own = {shape[0] for shape in shapes.values() if shape}
    full = partial(graph, kernel_ms=0.0)
    if len(own) == 1:
        with suppress(CannotBatchError):
            many, at = at_batch(model, shapes, FULL * own.pop())
            full = partial(cost_graph, many, at, **graph.keywords, kernel_ms=0.0)
    return Estimates(
        plain=graph(tf32=in_tf32),
        full_batch=full(tf32=in_tf32),
        tf32=graph(tf32=True),
        full_batch_tf32=full(tf32=True),
        instead={"smallest": weight_graph(case.model)},
    )


def at_batch(
    model: Model, shapes: Mapping[str, Shape], batch: int
) -> tuple[Model, Mapping[str, Shape]]:
    """Return a model for another batch, and the shapes of its inputs. Raises CannotBatchError."""
    many = replace(model, proto=rebatched(model.proto, batch))
    return many, {name: (batch, *shape[1:]) if shape else shape for name, shape in shapes.items()}
