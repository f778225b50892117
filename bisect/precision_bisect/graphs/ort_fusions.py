"""Which operators of a graph ONNX Runtime's optimizer makes one kernel of, by its own word.

It optimises the FP32 graph on the CPU and writes what is left. A node there that computes a tensor
of the graph does the work of all operators between its own inputs and that tensor. The same pieces
are fused in a typed graph only where all of them have one type.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import write_optimised
from precision_bisect.graphs.weights import LARGE_BYTES, total_bytes

Group = tuple[str, ...]
"""The names of operators that one kernel computes, in network order."""


def fused_groups(model: Model) -> Sequence[Group]:
    """Return the groups of two or more operators that ONNX Runtime fuses.

    None where it does not load the model, and for large weights, which it would write out.
    """
    if total_bytes(model.weights) > LARGE_BYTES:
        return ()
    with suppress(PrecisionBisectError, OSError), TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        write_optimised(model.proto, model.weights, path)
        return grouped(model.proto.graph, onnx.load(path, load_external_data=False).graph)
    return ()


def grouped(graph: onnx.GraphProto, optimised: onnx.GraphProto) -> list[Group]:
    """Return which nodes of a graph each node of its optimised form stands for, if several.

    What is computed twice there, or has other tensors, is in no group.
    """
    producers = {name: node for node in graph.node for name in node.output if name}
    places = {id(node): place for place, node in enumerate(graph.node)}
    made = {name for node in optimised.node for name in node.output}
    groups, taken = [], set[int]()
    for node in optimised.node:
        inside, waiting = set[int](), [name for name in node.output if name in producers]
        ends = (made | set(node.input)).difference(node.output)
        while waiting:
            producer = producers[waiting.pop()]
            place = places[id(producer)]
            if place not in inside:
                inside.add(place)
                waiting += [n for n in producer.input if n in producers and n not in ends]
        if len(inside) > 1 and not inside & taken:
            taken |= inside
            groups.append(tuple(graph.node[place].name for place in sorted(inside)))
    return groups
