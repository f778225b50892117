"""Finds everything that an exporter wrote in pieces in one model."""

from precision_bisect.fusing.activations import activations
from precision_bisect.fusing.found import Decomposed
from precision_bisect.fusing.norms import norms
from precision_bisect.model.load import Model
from precision_bisect.model.node_views import View


def find_decomposed(model: Model) -> list[Decomposed]:
    """Return every norm, Softmax and Gelu in pieces, in network order of their last nodes."""
    view = View(model)
    order = {out: i for i, node in enumerate(view.nodes) for out in node.output}
    return sorted((*norms(view), *activations(view)), key=lambda each: order[each.output])
