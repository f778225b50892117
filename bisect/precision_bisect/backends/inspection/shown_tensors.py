"""Tensors that an engine shows of itself, and which tensors of the model they may be.

TensorRT 10.12 and later, and TensorRT-RTX, emit what no kernel has fused away. The names are the
builder's own. They mislead: on TensorRT-RTX 1.7.1 `X.1_5_myl0` is what the kernel that makes X
reads. So a tensor is known by the nodes of the kernel that writes it, and by its values.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.inspection.engine_layers import EngineLayer
from precision_bisect.errors import RefusedError
from precision_bisect.graphs.typed.added import is_added
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend, BackendFailure, Sample

_SAME: Mapping[str, str] = {}
LIKE_FP32 = 0.05
"""Most error of a tensor of the engine with every layer high, relative to the FP32 tensor that it
is taken for, as root mean square: TF32 and other orders of sums stay below, others do not."""
LIKE_LOW = 0.5
"""The same of an engine with low layers. Beyond it a finite tensor is taken for another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTensor:
    """A tensor that an engine has emitted, by the engine's own name.

    `nodes` are those of the kernel that wrote it, `tensors` of the model what it may be: as many
    elements, written by the kernel and read elsewhere.
    """

    name: str
    nodes: tuple[str, ...]
    tensors: tuple[str, ...]
    values: NDArray[Any]


@runtime_checkable
class ShowsTensors(Protocol):
    """A backend whose engines show tensors from inside, and compute as they do otherwise."""

    def show(self, plan: Plan, feeds: Sequence[Sample]) -> Sequence[Sequence[ShownTensor]]:
        """Return what an engine of a plan shows of each feed. Raises BackendFailure.

        Raises RefusedError where the library, or this machine, cannot show any.
        """
        ...


def shown_by(
    backend: Backend, plan: Plan, feeds: Sequence[Sample]
) -> Sequence[Sequence[ShownTensor]]:
    """Return what a backend's engine of a plan shows of each feed.

    Raises RefusedError where it shows nothing, or cannot be built or run.
    """
    if not isinstance(backend, ShowsTensors):
        raise RefusedError(
            f"--backend {backend.name} does not show the tensors of its engines",
            "leave out --rank-by",
        )
    try:
        return backend.show(plan, feeds)
    except BackendFailure as failed:
        raise RefusedError(failed.outcome.message, "leave out --rank-by") from failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the kernel that writes a tensor of an engine computes, as in `ShownTensor`."""

    nodes: tuple[str, ...]
    tensors: tuple[str, ...]


def written_by_kernels(
    layers: Sequence[EngineLayer], graph: onnx.GraphProto, own_names: Mapping[str, str] = _SAME
) -> Mapping[str, Written]:
    """Return by name what wrote each tensor of an engine; `graph` is the typed one it is of.

    Casts of ours stand for what they cast. Tensors have the names of the model, `own_names` of
    those that are called otherwise in the graph.
    """
    nodes = {node.name: node for node in graph.node}
    cast = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Cast" and is_added(node.name)
    }
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.name)
    ends = {value.name for value in graph.output}
    written: dict[str, Written] = {}
    for layer in layers:
        own = [name.split(" | ")[0] for name in layer.nodes]
        inside = set(own)
        tensors: dict[str, None] = {}
        for node in (nodes[name] for name in own if name in nodes):
            for name in node.output:
                # What is read inside the kernel alone is never written to memory.
                if name in ends or not readers.get(name, set()) <= inside:
                    source = _source(name, cast)
                    tensors[own_names.get(source, source)] = None
        for tensor in layer.outputs:
            computing = tuple(name for name in own if not is_added(name))
            written[tensor.name] = Written(nodes=computing, tensors=tuple(tensors))
    return written


def _source(name: str, cast: Mapping[str, str]) -> str:
    while name in cast:
        name = cast[name]
    return name


def as_shown(
    arrays: Mapping[str, NDArray[Any]], written: Mapping[str, Written], outputs: Sample
) -> list[ShownTensor]:
    """Return tensors of an engine with what wrote them, and its outputs, which are not emitted."""
    nothing = Written(nodes=(), tensors=())
    sources = {name: written.get(name, nothing) for name in arrays}
    return [
        ShownTensor(
            name=name, nodes=sources[name].nodes, tensors=sources[name].tensors, values=array
        )
        for name, array in arrays.items()
    ] + [
        ShownTensor(name=name, nodes=(), tensors=(name,), values=array)
        for name, array in outputs.items()
        if array.dtype.kind == "f"
    ]


def recognised(
    shown: Sequence[ShownTensor],
    exact: Mapping[str, NDArray[Any]],
    among: Collection[str],
    largest_error: float,
) -> dict[str, NDArray[np.float32]]:
    """Return those `among` the model's tensors that an engine has shown, with its values.

    Each is the candidate that is nearest to its FP32 values, `exact`, and no farther off than
    `largest_error`. What is not finite is compared where it is; alone where nothing is finite.
    """
    nearest: dict[str, tuple[float, NDArray[np.float32]]] = {}
    for tensor in shown:
        fitting = [
            name
            for name in tensor.tensors
            if name in among and exact[name].size == tensor.values.size
        ]
        if not fitting:
            continue
        values = np.asarray(tensor.values, np.float32).reshape(-1)
        errors = {name: relative_error(values, exact[name].reshape(-1)) for name in fitting}
        name = min(errors, key=lambda name: errors[name])
        # Nothing finite to compare, but one candidate: there is no other that it could be.
        if errors[name] > largest_error and not (np.isinf(errors[name]) and len(fitting) == 1):
            continue
        if name not in nearest or errors[name] < nearest[name][0]:
            nearest[name] = errors[name], values.reshape(exact[name].shape)
    return {name: values for name, (_, values) in nearest.items()}


def relative_error(values: NDArray[Any], exact: NDArray[Any]) -> float:
    """Return the root mean square of the error relative to that of `exact`, where both are finite.

    It is infinite where nothing is, though `exact` has something finite.
    """
    both = np.isfinite(values) & np.isfinite(exact)
    if not both.any():
        return float("inf") if np.isfinite(exact).any() else 0.0
    with np.errstate(over="ignore"):
        error = np.square(values[both].astype(np.float64) - exact[both]).sum()
        size = np.square(exact[both].astype(np.float64)).sum()
    return float(np.sqrt(error / size)) if size else float(np.sqrt(error))
