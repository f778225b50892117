"""Kernels that ONNX Runtime makes of several layers, where a plan leaves them whole.

A kernel whose layers all run low rounds at its ends, and has FP32 inside. If one of them is kept,
the others are operators of their own, each of which rounds what it stores.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort_fusions import CPU_ONLY, SKIPPING, Kernel, fused_kernels
from precision_bisect.layer_table import Exclusion, LayerName

STORING = frozenset(
    (
        *SKIPPING,
        "EmbedLayerNormFusion",
        *("BiasGeluFusion", "FastGeluFusion", "SwiGluFusion", "AttentionFusion"),
        "MatMulAddFusion",
        *("GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion"),
    )
)
"""Optimizers whose kernels store, in the low type, what the operators before them would."""
_LAYER_NORM = frozenset(("LayerNormFusionL1", "LayerNormFusionL2"))
_UNTYPED = (Exclusion.FOLLOWER, Exclusion.CONSTANT, Exclusion.SHAPE, Exclusion.NOT_FLOAT)


def kernels_of_cuda(model: Model) -> Sequence[Kernel]:
    """Return what ONNX Runtime on CUDA computes with nothing stored in between.

    Behind all others come the cores of norms, from the square to the scale: they are one kernel
    where a plan keeps the mean or the bias. A kept scale is taken to break a norm, as it does
    behind a guard; before opset 17 ONNX Runtime fuses some in FP16 even so, and is better.
    """
    kernels = fused_kernels(model, CPU_ONLY | STORING)
    if not any(kernel.node.op_type == "LayerNormalization" for kernel in kernels):
        return kernels
    apart = fused_kernels(model, CPU_ONLY | STORING | _LAYER_NORM)
    own = {kernel.pieces for kernel in kernels}
    cores = (k for k in apart if k.node.op_type == "SimplifiedLayerNormalization")
    return [*kernels, *(core for core in cores if core.pieces not in own)]


@dataclass(slots=True)
class WholeKernels:
    """The kernels that a plan may leave whole.

    `members` has the candidates of each, as indices. A kernel is named by the number after those
    of all candidates: `interior` and `layers` have it by the tensors and layers inside, of two
    kernels the last. `endings` have the operator by the layer that gives its result.
    """

    members: list[NDArray[np.int64]] = field(default_factory=list)
    interior: dict[str, int] = field(default_factory=dict)
    layers: dict[LayerName, int] = field(default_factory=dict)
    endings: dict[LayerName, onnx.NodeProto] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Model, kernels: Sequence[Kernel], switched: Collection[LayerName]
    ) -> "WholeKernels":
        """Take the kernels all of whose layers are `switched`: they run low, or are kept."""
        whole = cls()
        index = {name: i for i, name in enumerate(model.table.names)}
        excluded = {layer.name: layer.exclusion for layer in model.table.layers}
        nodes = {node.name: node for node in model.proto.graph.node}
        for kernel in kernels:
            pieces = map(LayerName, kernel.pieces)
            typed = [piece for piece in pieces if excluded.get(piece) not in _UNTYPED]
            if len(typed) > 1 and all(layer in switched for layer in typed):
                whole._add(kernel, typed, index, nodes)
        return whole

    def _add(
        self,
        kernel: Kernel,
        typed: Sequence[LayerName],
        index: Mapping[LayerName, int],
        nodes: Mapping[str, onnx.NodeProto],
    ) -> None:
        number = len(index) + len(self.members)
        self.members.append(np.array([index[layer] for layer in typed], np.int64))
        outer = {*kernel.node.output}
        self.layers.update(dict.fromkeys(typed, number))
        for piece in kernel.pieces:
            self.interior.update(dict.fromkeys({*nodes[piece].output} - outer, number))
            if not outer.isdisjoint(nodes[piece].output):
                self.endings[LayerName(piece)] = kernel.node
