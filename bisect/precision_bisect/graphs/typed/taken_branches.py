"""`--take-branches`: the model with the branches that all samples take in place of their Ifs.

A search sees an If as one unit. If inputs decide alike for every sample, as a sampling rate does,
the layers of the taken branch become layers of the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from precision_bisect.errors import counted
from precision_bisect.graphs.fp32_outputs import timed_outputs
from precision_bisect.graphs.graph import (
    Names,
    all_graphs,
    attribute,
    copied,
    refill,
    rename_tensors,
)
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import check
from precision_bisect.graphs.typed.model_files import save_rewritten
from precision_bisect.layer_table import LayerName
from precision_bisect.protocols import Sample
from precision_bisect.runs.runfolder import TAKEN_MODEL

_BRANCHES = {True: "then_branch", False: "else_branch"}


def take_branches(model: Model, samples: Sequence[Sample], work: Path) -> tuple[Model, str]:
    """Return the model with the branches in place that every sample takes, and a remark.

    Where no If can go that is the model itself, and "". That goes for Ifs with FP32 layers inside,
    also for those inside taken branches. The new model's file lies below the folder `work`. Raises
    InputError where the model cannot be run on the samples, ModelError where the new one cannot be
    written.
    """
    ifs: list[LayerName] = []
    both: list[LayerName] = []
    # A taken branch may hold Ifs of its own.
    while True:
        wanted = [
            layer.name
            for layer in model.table.layers
            if layer.inside and layer.op_type == "If" and layer.name not in both
        ]
        ways = _ways(model, wanted, samples)
        both += [name for name in wanted if name not in ways]
        if not ways:
            return model, _remark(ifs) if ifs else ""
        ifs += ways
        # Each round has its own folder: the model of the last one is mapped while it is read.
        model = _written(model, ways, work / f"taken-{len(ifs)}")


def _remark(ifs: Sequence[LayerName]) -> str:
    count = f"{len(ifs)} Ifs ({ifs[0]}, …)" if len(ifs) > 1 else ifs[0]
    return (
        f"the branches that every sample takes stand in place of {count}: the answer and "
        "the exports are for inputs that take the same ones"
    )


def layers_inside(model: Model) -> str:
    """Return which nodes hold FP32 layers that no search sees, and how many; "" for none."""
    units = [layer for layer in model.table.layers if layer.inside]
    descriptions = [f"{layer.op_type} {layer.name!r} holds {layer.inside}" for layer in units[:3]]
    more = [f"{counted(len(units) - 3, 'more node')} with some"] if len(units) > 3 else []
    return ", ".join([*descriptions, *more])


def _ways(
    model: Model, names: Sequence[LayerName], samples: Sequence[Sample]
) -> Mapping[LayerName, bool]:
    """Return the way that each of these Ifs goes, without those that go both."""
    if not names:
        return {}
    proto = copied(model.proto)
    del proto.graph.output[:]
    conditions = {node.name: node.input[0] for node in proto.graph.node if node.name in names}
    free = Names(proto.graph)
    condition_outputs = {
        name: free(f"precision_bisect/condition/{i}") for i, name in enumerate(names)
    }
    for name, out in condition_outputs.items():
        # An Identity, since a graph input or a constant may not be an output itself.
        proto.graph.node.append(helper.make_node("Identity", [conditions[name]], [out]))
        proto.graph.output.append(helper.make_tensor_value_info(out, onnx.TensorProto.BOOL, None))
    answers, _ = timed_outputs(check(proto, model.weights), samples, 0)
    ways_by_name = {
        name: {bool(np.all(answer[out])) for answer in answers}
        for name, out in condition_outputs.items()
    }
    return {name: ways.pop() for name, ways in ways_by_name.items() if len(ways) == 1}


def _written(model: Model, ways: Mapping[LayerName, bool], work: Path) -> Model:
    """Return the model with these branches in place, from a file in the new folder `work`."""
    proto = copied(model.proto)
    in_low = dict(model.in_low)
    for name, way in ways.items():
        for old, new in _put_in_place(proto.graph, name, _BRANCHES[way]):
            stored = in_low.pop(old.name, None)
            if stored is not None:
                outputs = dict(zip(old.output, new.output, strict=True))
                in_low[new.name] = stored._replace(
                    tensor=outputs.get(stored.tensor, stored.tensor)
                )
    # Names of nodes inside the branch that was not taken are free again.
    for gone in _node_names(model.proto) - _node_names(proto):
        in_low.pop(gone, None)
    path = work / TAKEN_MODEL
    weights = model.weights
    like = replace(model, in_low=in_low)
    return save_rewritten(proto, weights, path, "the model without its Ifs", like=like)


def _node_names(proto: onnx.ModelProto) -> set[str]:
    return {node.name for graph in all_graphs(proto.graph) for node in graph.node}


def _put_in_place(
    graph: onnx.GraphProto, name: str, which: str
) -> Sequence[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """Put a branch of the If of this name in its place; return its nodes, before and after."""
    place = next(i for i, node in enumerate(graph.node) if node.name == name)
    conditional = copied(graph.node[place])
    before, after = list(graph.node[:place]), list(graph.node[place + 1 :])
    body = attribute(conditional, which)
    assert body is not None
    branch = body.g
    # A branch's output takes the name of the If's, so that readers need no change.
    ends = {out.name: outer for out, outer in zip(branch.output, conditional.output, strict=True)}
    # Bodies inside the branch keep their names, so no new name may be one of those.
    nested = [onnx.NodeProto(attribute=node.attribute) for node in branch.node]
    others = onnx.GraphProto(input=graph.input, output=graph.output, initializer=graph.initializer)
    others.node.extend([*before, *after, *nested])
    free = Names(others)
    inner_names = [tensor.name for tensor in branch.initializer]
    inner_names += [out for node in branch.node for out in node.output if out]
    renamed = {inner: ends.get(inner) or free(inner) for inner in inner_names}
    old_nodes = [onnx.NodeProto(name=n.name, output=n.output) for n in branch.node]
    rename_tensors(branch, renamed)
    nodes = list(branch.node)
    for node in nodes:
        node.name = node.name and free(node.name)
    renamed_nodes = list(zip(old_nodes, nodes, strict=True))
    # An output that the branch merely passes on has no maker to rename.
    nodes += [
        helper.make_node("Identity", [renamed.get(out.name, out.name)], [outer], name=free(outer))
        for out, outer in zip(branch.output, conditional.output, strict=True)
        if outer and renamed.get(out.name) != outer
    ]
    for tensor in branch.initializer:
        tensor.name = renamed[tensor.name]
        graph.initializer.append(tensor)
    refill(graph.node, [*before, *nodes, *after])
    return renamed_nodes
