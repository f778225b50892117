"""Finds everything that an exporter wrote in pieces in one model."""

from precision_bisect.graphs.fusing.activations import activations
from precision_bisect.graphs.fusing.found import Decomposed
from precision_bisect.graphs.fusing.norms import norms
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View


def find_decomposed(model: Model) -> list[Decomposed]:
    """Return every norm, Softmax and Gelu in pieces, in network order of their last nodes."""
    view = View(model)
    order = {out: i for i, node in enumerate(view.nodes) for out in node.output}
    return sorted((*norms(view), *activations(view)), key=lambda each: order[each.output])
