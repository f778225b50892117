"""What leaves the range of a 16-bit low type: the first plan to try where values overflow.

It needs one run in FP32, no ranking and no trial.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from precision_bisect.backends.emulation.semantics import Semantics, distinct, whole_kernels
from precision_bisect.explaining.diagnosis.extremes import NEAR, Extremes
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.node_views import View
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.settings.targets import DEFAULT_TARGETS, Inside, TargetName

_LARGEST_OF = {low.onnx_type: low.largest for low in LOW_TYPES.values()}


def out_of_range(
    model: Model,
    pair: Pair,
    samples: Sequence[Sample],
    weights: Mapping[str, float],
    measure: Callable[[], Extremes | None],
    *,
    targets: Sequence[TargetName] = DEFAULT_TARGETS,
) -> tuple[Plan | None, Plan | None]:
    """Return the candidates that read or store what the low type cannot hold; None for none.

    `measure` runs the samples in FP32. `weights` are constants that leave the range, each with its
    largest magnitude. The rule is that of ModelOpt's AutoCast, with its limits at the type's
    largest value. It also holds for the sums behind means that one of the `targets` stores.
    The second plan leaves out those constants, and what is as far from 0 as one: attention
    masks, whose -3.4e38 does what -inf does. None, too, if the model cannot be run this way:
    nothing depends on these plans.
    """
    # The scales of 8-bit types take care of the range.
    extremes = measure() if pair.low in LOW_TYPES else None
    if extremes is None:
        return None, None
    values = [(name, value) for name, largest in extremes.largest.items() for value in largest]
    limit = LOW_TYPES[pair.low].largest
    summed = _summed(model, pair, targets)
    whole = whole_kernels(model, pair, targets)
    levels = {math.inf, *weights.values()}
    inputs = {
        name
        for sample in samples
        for name, value in sample.items()
        if value.dtype == np.float32 and np.abs(value[np.isfinite(value)]).max(initial=0.0) > limit
    }

    def beyond(some: Sequence[tuple[str, float]], constants: Collection[str]) -> Plan | None:
        # `not <=` rather than `>`: NaN counts as beyond the range.
        stored = {name for name, value in some if not value <= limit}.union(inputs, constants)
        sums = {name for name, value in some if not value * summed.get(name, 1) <= limit}
        # What a whole kernel has inside is not stored. It is kept as a whole, too.
        plan = _touching(model, stored - whole.interior.keys(), sums - whole.interior.keys())
        split = (k for k in whole.members if plan and not plan.kept.isdisjoint(k.tolist()))
        return plan and Plan.of(plan.kept.union(*(kernel.tolist() for kernel in split)))

    others = [
        (name, value)
        for name, value in values
        if not any(math.isclose(value, mask, rel_tol=NEAR) for mask in levels)
    ]
    return beyond(values, weights), beyond(others, ())


def overflowing_in_file(model: Model, extremes: Extremes | None) -> Mapping[str, int]:
    """Return the nodes that the file has store what their 16-bit type cannot hold.

    Each comes with the number of such samples, in network order. There are none where the model
    did not run and has no `extremes`.
    """
    if extremes is None:
        return {}
    stored = {node: (low.tensor, _LARGEST_OF[low.kind]) for node, low in model.in_low.items()}
    counts = {
        node: sum(limit < value < math.inf for value in extremes.largest.get(tensor, ()))
        for node, (tensor, limit) in stored.items()
    }
    return {node: count for node, count in counts.items() if count}


def _touching(model: Model, stored: Collection[str], sums: Collection[str]) -> Plan | None:
    """Return the candidates that read or store one of these, or make a mean of such sums."""
    stored, sums = frozenset(stored), frozenset(sums)
    index = {str(name): i for i, name in enumerate(model.table.names)}
    layers = [
        index[node.name]
        for node in model.proto.graph.node
        if node.name in index
        and not (stored.isdisjoint((*node.input, *node.output)) and sums.isdisjoint(node.output))
    ]
    return Plan.of(layers) if layers else None


def _summed(model: Model, pair: Pair, targets: Sequence[TargetName]) -> Mapping[str, int]:
    """Return the number of values in each mean whose sum is stored, by the mean's output."""
    semantics = Semantics(model, distinct(model, pair, targets)[-1])
    view = View(model)
    counts = {
        # A dimension that the model leaves open counts as 1: at worst that overlooks sums.
        node.output[0]: semantics.sums.summed(node, [size or 1 for size in shape])
        for node in model.proto.graph.node
        if semantics.inside(node) is Inside.SUM and (shape := view.shape(node.input[0]))
    }
    return {name: count for name, count in counts.items() if count}
