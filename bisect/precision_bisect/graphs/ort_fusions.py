"""Which operators of a graph ONNX Runtime's optimizer makes one kernel of, by its own word.

It optimises the FP32 graph on the CPU and writes what is left. A node there that computes a tensor
of the graph does the work of all operators between its own inputs and that tensor. The same pieces
are fused in a typed graph only where all of them have one type.

The FP32 graph has to stand for the typed one: on the CPU most operators have no kernel in FP16,
and the optimizer fuses only nodes that a provider has taken, but for LayerNormalization and Gelu
of newer opsets. What it does for the CPU alone is left out by name where CUDA is meant. What it
does for CUDA alone, as BiasSoftmax, is not seen.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import helper

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.graphs.graph import copied, opset, refill
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import write_optimised
from precision_bisect.graphs.weights import total_bytes

Group = tuple[str, ...]
"""The names of operators that one kernel computes, in network order."""
CPU_ONLY = frozenset(("ConvActivationFusion", "ConvAddActivationFusion", "GemmActivationFusion"))
"""Optimizers that do nothing for FP16 on CUDA (core/optimizer/graph_transformer_utils.cc)."""
SKIPPING = frozenset(("SkipLayerNormFusion", "BiasSkipLayerNormFusion"))
"""Optimizers that fuse a norm with the addition before it."""
_LAYER_NORM, _LAYER_NORM_SINCE = "LayerNormalization", 17
# Weights above which matrices are left out of what the optimizer reads and writes. A limit on
# memory and disk.
_WRITTEN_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class Kernel:
    """An operator that ONNX Runtime makes of several `pieces`."""

    node: onnx.NodeProto
    pieces: Group


def fused_groups(model: Model) -> Sequence[Group]:
    """Return the groups of two or more operators that ONNX Runtime fuses for FP16 on CUDA.

    None where it does not load the model.
    """
    if fused_groups not in model.held:
        # Not the kernels: their nodes hold the optimised graph with its weights.
        pieces = [kernel.pieces for kernel in fused_kernels(model, CPU_ONLY)]
        model.held[fused_groups] = pieces
    groups: Sequence[Group] = model.held[fused_groups]
    return groups


def fused_kernels(model: Model, disabled: Collection[str] = ()) -> Sequence[Kernel]:
    """Return the same as kernels, without what the `disabled` optimizers fuse."""
    proto, weights = model.proto, model.weights
    if total_bytes(weights) > _WRITTEN_BYTES:
        # Shapes suffice for most fusions; the values would be written out.
        proto, weights = _without_matrices(model), {}
    with suppress(PrecisionBisectError, OSError), TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        write_optimised(proto, weights, path, disabled)
        return _kernels(model.proto.graph, onnx.load(path, load_external_data=False).graph)
    return ()


def norms_of_one_type(model: Model) -> Sequence[Kernel]:
    """Return the norms whose fused operator takes one type.

    It is LayerNormalization of ONNX, from opset 17 on, and what ONNX Runtime fuses with an
    addition. A norm may be one node already.
    """
    nodes = model.proto.graph.node
    if not any(node.op_type in (_LAYER_NORM, "ReduceMean") for node in nodes):
        return ()
    norms = [
        kernel
        for kernel in fused_kernels(model, SKIPPING)
        if kernel.node.op_type in (_LAYER_NORM, "SimplifiedLayerNormalization")
    ]
    norms += [Kernel(node, (node.name,)) for node in nodes if node.op_type == _LAYER_NORM]
    if opset(model.proto) >= _LAYER_NORM_SINCE:
        return norms
    # Below opset 17 the norm alone takes two types, and only with the addition does it not.
    skipping = [k.pieces for k in fused_kernels(model) if k.node.op_type.startswith("Skip")]
    added = frozenset[str]().union(*skipping)
    return [kernel for kernel in norms if not added.isdisjoint(kernel.pieces)]


def _without_matrices(model: Model) -> onnx.ModelProto:
    """Return the graph with inputs in place of weights outside it that are no vectors."""
    proto = copied(model.proto)
    for name, array in model.weights.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        # Fusions look at the values of scalars and vectors; of matrices the shape is enough.
        if array.ndim > 1:
            proto.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    lifted = {value.name for value in proto.graph.input}
    tensors = [
        onnx.numpy_helper.from_array(model.weights[tensor.name], tensor.name)
        if tensor.name in model.weights
        else tensor
        for tensor in proto.graph.initializer
        if tensor.name not in lifted
    ]
    refill(proto.graph.initializer, tensors)
    return proto


def _kernels(graph: onnx.GraphProto, optimised: onnx.GraphProto) -> list[Kernel]:
    """Return which nodes of a graph each node of its optimised form stands for, if several.

    What is computed twice there, has other tensors, or reads others is in no kernel.
    """
    producers = {name: node for node in graph.node for name in node.output if name}
    places = {id(node): place for place, node in enumerate(graph.node)}
    made = {name for node in optimised.node for name in node.output}
    computed = made.union(value.name for value in graph.input)
    kernels, taken = [], set[int]()
    for node in optimised.node:
        inside, waiting = set[int](), [name for name in node.output if name in producers]
        ends = (made | set(node.input)).difference(node.output)
        read = set[str]()
        while waiting:
            producer = producers[waiting.pop()]
            place = places[id(producer)]
            if place not in inside:
                inside.add(place)
                read |= computed.intersection(producer.input).difference(node.output)
                waiting += [n for n in producer.input if n in producers and n not in ends]
        # A piece computed for two kernels would count twice, and one that reads more would hide an
        # edge.
        if len(inside) > 1 and not inside & taken and read <= set(node.input):
            taken |= inside
            pieces = tuple(graph.node[place].name for place in sorted(inside))
            kernels.append(Kernel(node, pieces))
    return kernels
