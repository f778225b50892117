"""Which kernel ran each layer, on which provider and types: from the session's own records.

There are two records. When the graph is partitioned, ONNX Runtime notes which provider takes which
node; most fusions come later. The profile of a run names the kernels that ran, with the types of
their tensors. A kernel keeps its node's name, or is called `<layer>/<fusion>Fusion/` after one of
the layers that it replaces, or has a name of its own.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_bisect.graphs.ort import CPU
from precision_bisect.layer_table import LayerName
from precision_bisect.precisions import HighName
from precision_bisect.trial import Honour, LayerHonour

if TYPE_CHECKING:
    import onnxruntime

TIMED = "_kernel_time"
_FUSED = re.compile(r"(.+)/\w+Fusion(?:/.*)?")
_NAMES: Mapping[HighName, str] = {"fp32": "float", "fp16": "float16", "bf16": "bfloat16"}
"""The types that layers are kept in, in the words of ONNX Runtime."""
_FLOATS = frozenset(_NAMES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaKernel:
    """One kernel that ran: its node's name and operator, its provider, and its float types.

    `types` are ONNX Runtime's names of the floating-point types that it read or wrote.
    """

    name: str
    op_type: str
    provider: str
    types: frozenset[str]


def placement(session: "onnxruntime.InferenceSession") -> Mapping[str, frozenset[str]]:
    """Return the providers that take the nodes of each name.

    A node without a name is part of an operator's body: if ONNX Runtime has no kernel for an
    operator, it puts the body that the ONNX standard defines in its place.
    """
    placed: dict[str, set[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            placed.setdefault(node.name, set()).add(subgraph.ep_name)
    return {name: frozenset(providers) for name, providers in placed.items()}


def read_profile(path: Path) -> list[CudaKernel]:
    """Return the kernels that ran, in order, from a profile that a session wrote."""
    events = json.loads(path.read_text(encoding="utf-8"))
    return [
        _kernel(event["name"].removesuffix(TIMED), event["args"])
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith(TIMED)
    ]


def _kernel(name: str, facts: Mapping[str, Any]) -> CudaKernel:
    shapes = (*facts.get("input_type_shape", ()), *facts.get("output_type_shape", ()))
    types = {kind for tensor in shapes for kind in tensor}
    return CudaKernel(
        name=name,
        op_type=facts["op_name"],
        provider=facts["provider"],
        types=frozenset(types & _FLOATS),
    )


class Trace:
    """What the kernels of a run tell about layers; `layers` has the names of all nodes."""

    def __init__(self, kernels: Sequence[CudaKernel], layers: Collection[str]) -> None:
        self._of: dict[str, list[CudaKernel]] = {}
        for kernel in kernels:
            self._of.setdefault(layer_called(kernel.name, layers), []).append(kernel)

    def on_cpu(self, names: Collection[LayerName]) -> list[LayerName]:
        """Return those of the layers that a kernel of the CPU provider computed."""
        return [name for name in names if any(k.provider == CPU for k in self._kernels(name))]

    def honour(self, name: LayerName, high: HighName) -> LayerHonour:
        """Return whether a kept layer was computed in the high type, or in FP32."""
        kernels = self._kernels(name)
        if not kernels:
            return _honour(
                name,
                Honour.NOT_OBSERVABLE,
                "no kernel has its name: ONNX Runtime fused it into another or folded it",
                found=False,
            )
        types = frozenset[str]().union(*(kernel.types for kernel in kernels))
        ran = f"ran as {_words(k.op_type for k in kernels)} on {_words(types)}"
        enough = {_NAMES["fp32"], _NAMES[high]}
        if types <= enough:
            return _honour(name, Honour.HONOURED, ran)
        # A fused kernel reads what its other layers read: its types may be theirs.
        if types.isdisjoint(enough) and all(kernel.name == name for kernel in kernels):
            return _honour(name, Honour.DEMOTED, ran)
        return _honour(name, Honour.NOT_OBSERVABLE, f"{ran}, which may compute in either")

    def _kernels(self, name: str) -> Sequence[CudaKernel]:
        return self._of.get(name, ())


def layer_called(kernel: str, layers: Collection[str]) -> str:
    """Return the name of the layer that a kernel is called after, or its own."""
    fused = _FUSED.fullmatch(kernel)
    # A model may have a node with such a name.
    return fused[1] if fused and kernel not in layers else kernel


def _honour(name: LayerName, honour: Honour, evidence: str, *, found: bool = True) -> LayerHonour:
    return LayerHonour(layer=name, honoured=honour, evidence=evidence, found=found)


def _words(names: Any) -> str:
    return ", ".join(sorted(set(names)))
