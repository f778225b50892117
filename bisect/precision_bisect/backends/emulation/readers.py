"""Who reads which tensor, and in what form."""

from collections import Counter

import onnx

from precision_bisect.graphs.classify import is_follower
from precision_bisect.graphs.graph import captured, settings_of
from precision_bisect.graphs.load import Model


def stored_names(model: Model) -> set[str]:
    """Return the tensors that the switched graph holds as stored, under their own name.

    They are those that a node reads which is no candidate, and those that several layers read: a
    low layer's value is then rounded once, not for each reader.
    """
    graph = model.proto.graph
    candidates = set(model.table.names)
    names = {output.name for output in graph.output}
    reads: Counter[str] = Counter()
    for node in graph.node:
        names |= captured(node)
        if node.name in candidates:
            names.update(node.input[i] for i in settings_of(node))
            reads.update(set(node.input))
        else:
            names.update(node.input)
    return names | {name for name, times in reads.items() if times > 1}


def rounded_for(model: Model) -> dict[str, str]:
    """Return the tensors that only one layer reads, in part through followers, with that layer.

    Rounding commutes with moving. So such a value is rounded for its reader before the followers,
    where the layer that computes it is rounded anyway, and the reader takes it as it comes. This
    holds for outputs of layers that followers read, and for what these followers make of nothing
    else.
    """
    graph = model.proto.graph
    candidates = set(model.table.names)
    sole = _sole_readers(model)
    rounded: dict[str, str] = {}
    for node in graph.node:
        floats = [n for n in node.input if model.elem_types.get(n) == onnx.TensorProto.FLOAT]
        moved = is_follower(node) and bool(floats) and all(n in rounded for n in floats)
        if moved or node.name in candidates:
            rounded.update((name, sole[name]) for name in node.output if name in sole)
    return rounded


def _sole_readers(model: Model) -> dict[str, str]:
    """Return the tensors whose values reach only one layer, with that layer."""
    graph = model.proto.graph
    candidates = set(model.table.names)
    elsewhere = {output.name for output in graph.output}
    readers: dict[str, set[str]] = {}
    # Backwards: the readers of a follower's output are known before the follower.
    for node in reversed(graph.node):
        elsewhere |= captured(node)
        if node.name in candidates:
            ends = {node.name}
            elsewhere.update(node.input[i] for i in settings_of(node))
        else:
            follows = is_follower(node) and not elsewhere.intersection(node.output)
            ends = {end for name in node.output for end in readers.get(name, ()) if follows}
            elsewhere.update(() if follows else node.input)
        for name in node.input:
            readers.setdefault(name, set()).update(ends)
    return {
        name: next(iter(ends))
        for name, ends in readers.items()
        if len(ends) == 1 and name not in elsewhere
    }
