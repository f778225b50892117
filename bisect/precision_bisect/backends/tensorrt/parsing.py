"""Asking the parser which layers it refuses low, so that a search can go on without them.

Parsing takes far less than a build.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import onnx

from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.log import collected, parser_error
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the parser refuses: the name of a node of the file, and why, on one line."""

    node: str
    text: str


def refused_low(
    flavour: Flavour,
    names: Sequence[LayerName],
    write: Callable[[Plan], TypedGraph],
    folder: TypedFolder,
) -> dict[LayerName, str]:
    """Return the candidates that the parser refuses low, in network order, with its own words.

    `names` are the candidates, `write` makes the typed graph of a plan, `folder` is where it goes.
    The all-low graph is parsed; the layers that its errors name are kept high, and it is parsed
    again, until nothing new is named. A parser may stop at its first error, which takes one round
    per refused layer. A layer that is refused even when it is kept is left out: its precision is
    not the reason, and every build will say so.
    """
    pinned: dict[LayerName, str] = {}
    while True:
        plan = Plan.of(index for index, name in enumerate(names) if name in pinned)
        source = folder.save(write(plan), "parsed.onnx")
        graph = onnx.load(source, load_external_data=False).graph
        blamed = {
            layer: refusal.text
            for refusal in refusals(flavour, source)
            for layer in to_blame(graph, refusal.node, set(names))
        }
        if blamed.keys() <= pinned.keys():
            return {name: pinned[name] for name in names if name in pinned.keys() - blamed}
        pinned = {**blamed, **pinned}


def refusals(flavour: Flavour, source: Path) -> Sequence[Refusal]:
    """Parse a typed ONNX file and return the parser's objections to it."""
    trt = flavour.module
    with collected(flavour):
        from polygraphy.backend.trt import CreateNetwork, get_trt_logger

        strong = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
        _, network = CreateNetwork(strongly_typed=strong)()
        logger = get_trt_logger()
        trt.init_libnvinfer_plugins(logger, "")
        parser = trt.OnnxParser(network, logger)
        parser.parse_from_file(str(source))
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        return [
            Refusal(node=error.node_name(), text=parser_error(error.func(), error.desc()))
            for error in errors
        ]


def to_blame(graph: onnx.GraphProto, node_name: str, candidates: Set[str]) -> list[LayerName]:
    """Return the candidates that an error at a node comes from.

    That is the node itself or, for a follower or a Cast, the nearest candidates that feed it.
    """
    nodes = {node.name: node for node in graph.node}
    makers = {output: node.name for node in graph.node for output in node.output}
    blamed: dict[LayerName, None] = {}
    pending, seen = [node_name], {node_name}
    while pending:
        name = pending.pop()
        if name in candidates:
            blamed[LayerName(name)] = None
        elif name in nodes:
            before = {makers[tensor] for tensor in nodes[name].input if tensor in makers} - seen
            seen |= before
            pending += sorted(before)
    return list(blamed)
