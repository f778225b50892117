"""What each part of an engine adds to the error, from the tensors that the engine shows.

The error of a tensor accumulates on the way to it. What a part adds is the difference between the
tensor that the engine wrote and what FP32 makes of the tensors that the engine read there.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.inspection.shown_tensors import (
    LIKE_FP32,
    LIKE_LOW,
    ShownTensor,
    recognised,
    relative_error,
)
from precision_bisect.errors import RefusedError
from precision_bisect.graphs.graph import Names, captured, copied, refill, showing
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.node_views import View, computed
from precision_bisect.graphs.ort import Session
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.tensor_errors import TensorError, TensorErrors

Floats: TypeAlias = NDArray[np.float32]
Show: TypeAlias = Callable[[Plan, Sequence[Sample]], Sequence[Sequence[ShownTensor]]]
"""Builds a plan and returns what its engine shows of each feed, as `ShowsTensors.show` does."""

MOST_LOW_BUILDS = 3
"""Engines with low layers to look into, at most. Behind NaN or Inf nothing tells of rounding, so
the layers where it is born are high in the next one."""
FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The nodes between tensors that an engine shows, up to the `tensor` that it shows of them.

    `layers` are the candidates among them, `reads` the shown tensors that they start from.
    """

    tensor: str
    layers: frozenset[int]
    reads: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What a part adds to its tensor on one feed, in the tensor's shape.

    `reading` comes on top where what it reads of other parts is high, and is rounded for it. What
    it reads of the model's inputs is always rounded, so that is in its `own`.
    """

    own: Floats
    reading: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineErrors:
    """What the parts of an engine add, by tensor and feed, and the errors of its tensors."""

    parts: Sequence[Part]
    added: Mapping[str, Sequence[Added]]
    tensors: TensorErrors


def look_into(
    model: Model, low: LowType, feeds: Sequence[Sample], show: Show, threads: int = 0
) -> EngineErrors:
    """Build every layer high, and every layer low; return what the latter's parts add.

    Layers where NaN or Inf is born are kept high in further builds, so that those behind them
    tell, too. A tensor counts if the engine with every layer high agrees with FP32 on it. Raises
    BackendFailure, RefusedError, ModelError, and RuntimeError where a run in FP32 fails.
    """
    names = computed(model)
    session = Session(showing(model.proto, names, model.elem_types), model.weights, threads)
    exact = [session.run(feed, names) for feed in feeds]
    everything = Plan.all_high(len(model.table.candidates))
    high = _seen(show(everything, feeds), exact, names, LIKE_FP32)
    if not high[0]:
        raise RefusedError(
            "no tensor that the engine shows agrees with FP32 while every layer is high",
            "leave out --rank-by",
        )
    plan, added, parts = Plan.of(()), dict[str, Sequence[Added]](), dict[str, Part]()
    first: Sequence[Mapping[str, Floats]] = ()
    born: list[str] = []
    for _ in range(MOST_LOW_BUILDS):
        seen = _seen(show(plan, feeds), exact, high[0].keys(), LIKE_LOW)
        first = first or seen
        tensors = [name for name in names if name in seen[0]]
        fresh = [
            part for part in parts_between(model, tensors) if part.layers.isdisjoint(plan.kept)
        ]
        broken: dict[str, Part] = {}
        for part, errors in _added(model, low, fresh, (feeds, exact, seen), threads, broken):
            parts[part.tensor], added[part.tensor] = part, errors
        wider = plan.with_(layer for part in broken.values() for layer in part.layers)
        # Of the engine with every layer low; later ones round what is beyond the range.
        born = born or list(broken)
        if wider == plan:
            break
        plan = wider
    return EngineErrors(
        parts=[parts[name] for name in names if name in parts],
        added=added,
        tensors=_errors(model, names, (exact, high, first), [n for n in names if n in born]),
    )


def _seen(
    shown: Sequence[Sequence[ShownTensor]],
    exact: Sequence[Mapping[str, NDArray[Any]]],
    among: Collection[str],
    largest_error: float,
) -> Sequence[dict[str, Floats]]:
    """Return the tensors that were shown and recognised on every feed."""
    seen = [
        recognised(tensors, values, among, largest_error)
        for tensors, values in zip(shown, exact, strict=True)
    ]
    everywhere = set(seen[0]).intersection(*seen)
    return [{name: one[name] for name in one if name in everywhere} for one in seen]


def parts_between(model: Model, shown: Iterable[str]) -> list[Part]:
    """Return the parts that the shown tensors cut the main graph into, in network order.

    A layer of which nothing is shown belongs to the first shown tensor that it reaches.
    """
    view, wanted = View(model), set(shown)
    index = {str(name): i for i, name in enumerate(model.table.names)}
    sources: dict[str, set[str]] = {}
    hidden: dict[str, set[int]] = {}
    parts, placed = list[Part](), set[int]()
    for node in view.nodes:
        reads = set[str]()
        layers = {index[node.name]} if node.name in index else set[int]()
        for name in (*node.input, *captured(node)):
            reads |= {name} if name in wanted else sources.get(name, set())
            layers |= set() if name in wanted else hidden.get(name, set())
        for name in node.output:
            sources[name], hidden[name] = reads, layers
            if name in wanted:
                own = frozenset(layers - placed)
                parts.append(Part(tensor=name, layers=own, reads=frozenset(reads)))
                # A layer that reaches several shown tensors counts once, for the first.
                placed |= own
    return parts


def _added(
    model: Model,
    low: LowType,
    parts: Sequence[Part],
    values: tuple[
        Sequence[Sample], Sequence[Mapping[str, NDArray[Any]]], Sequence[Mapping[str, Floats]]
    ],
    threads: int,
    broken_parts: dict[str, Part],
) -> Iterable[tuple[Part, list[Added]]]:
    """Return what the parts add; those where NaN or Inf is born go into `broken_parts`."""
    tensors = list(values[2][0])
    proto, made = detached(model.proto, tensors)
    session = Session(proto, model.weights, threads)
    wanted = [made[part.tensor] for part in parts]
    added: dict[str, list[Added]] = {part.tensor: [] for part in parts}
    for feed, exact, engine in zip(*values, strict=True):
        broken = {name for name in tensors if _breaks(engine[name], exact[name])}
        # Each part is computed by itself, so what one makes of NaN reaches no other.
        whole = {n: np.where(np.isfinite(engine[n]), engine[n], exact[n]) for n in tensors}
        of_engine = session.run({**feed, **whole}, wanted)
        rounded = {name: low.round(exact[name]) for name in tensors}
        of_rounded = session.run({**feed, **rounded}, wanted)
        for part in parts:
            name = part.tensor
            of_part, fp32 = of_engine[made[name]], exact[name]
            if part.reads.isdisjoint(broken):
                own = _difference(engine[name], of_part)
                if name in broken:
                    broken_parts.setdefault(name, part)
            else:
                # The engine read what FP32 never has there: as if only the result were rounded.
                own = _difference(low.round(fp32), fp32)
            reading = _difference(of_rounded[made[name]], fp32)
            added[name].append(Added(own=own, reading=reading))
    return [(part, added[part.tensor]) for part in parts]


def _breaks(engine: Floats, exact: NDArray[Any]) -> bool:
    """Tell whether something is not finite that is in FP32."""
    return bool((np.isfinite(exact) & ~np.isfinite(engine)).any())


def _difference(values: NDArray[Any], exact: NDArray[Any]) -> Floats:
    """Return the error; equal infinities have none."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(values == exact, np.float32(0), values - exact).astype(np.float32)


def detached(
    proto: onnx.ModelProto, tensors: Sequence[str]
) -> tuple[onnx.ModelProto, Mapping[str, str]]:
    """Return the graph with these tensors fed to their readers, and the names they are made by."""
    cut, names = copied(proto), Names(proto.graph)
    made = {name: names(f"{name}/made") for name in tensors}
    for node in cut.graph.node:
        refill(node.output, [made.get(name, name) for name in node.output])
    cut.graph.ClearField("value_info")
    cut.graph.ClearField("output")
    value = onnx.helper.make_tensor_value_info
    cut.graph.input.extend(value(name, FLOAT, None) for name in tensors)
    cut.graph.output.extend(value(name, FLOAT, None) for name in made.values())
    return cut, made


def _errors(
    model: Model,
    names: Sequence[str],
    values: tuple[
        Sequence[Mapping[str, NDArray[Any]]],
        Sequence[Mapping[str, Floats]],
        Sequence[Mapping[str, Floats]],
    ],
    born: Sequence[str],
) -> TensorErrors:
    """Return the errors of the low engine's tensors against the high one's."""
    maker = View(model).maker
    errors = []
    for name in (name for name in names if name in values[2][0]):
        highs, lows = ([one[name] for one in side] for side in values[1:])
        # A tensor of zeros has no scale: its error counts as it is.
        largest = max(float(np.abs(high).max(initial=0)) for high in highs) or 1.0
        off = max(
            float(np.abs(_difference(*pair)).max(initial=0))
            for pair in zip(lows, highs, strict=True)
        )
        finite = not any(
            _breaks(low, fp32[name]) for low, fp32 in zip(lows, values[0], strict=True)
        )
        errors.append(
            TensorError(
                tensor=name,
                layer=maker[name],
                rms=max(relative_error(*pair) for pair in zip(lows, highs, strict=True)),
                largest=off / largest,
                finite=finite,
            )
        )
    return TensorErrors(
        tensors=errors,
        of_tensors=len(names),
        born=list(dict.fromkeys(maker[name] for name in born)),
    )
