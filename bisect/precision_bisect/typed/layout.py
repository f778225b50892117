"""Where a plan's low values are: which nodes run low, and which tensors are stored low.

Followers move with what feeds them, as far as nobody sees more rounding than the layers ask for:

* all that a follower moves is low, and constants among it are the same in the low type: low;
* all who read it in the end are low layers, which would round it anyway: low where some of what
  it moves is low or where it moves constants only, so that there is nothing to cast twice;
* else FP32.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import onnx

from precision_bisect.layer_table import Exclusion, LayerName
from precision_bisect.lowtypes import LowType
from precision_bisect.model.graph import attribute, captured, opset
from precision_bisect.model.load import Model
from precision_bisect.typed.constants import Constants
from precision_bisect.typed.forms import LowForm, NoLowForm, low_form

_ANY_TYPE = frozenset(("Shape", "Size"))
"""Operators that look at no value, so that they read a tensor in whatever type it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What one plan makes low: nodes by name with their forms, and the tensors they write low."""

    nodes: Mapping[str, LowForm]
    tensors: Set[str]


class Layout:
    """What is the same for all plans of a model.

    `forms` are the low forms of layers and followers that have one, `not_low` the candidates that
    have none, with the reason. `public` are the tensors that must be there in FP32 under their own
    name: graph outputs, and what subgraphs mention.
    """

    def __init__(self, model: Model, low: LowType) -> None:
        graph = model.proto.graph
        self._nodes = list(graph.node)
        self._low = low
        self.constants = Constants(model, low)
        self.forms: dict[str, LowForm] = {}
        self.not_low: dict[LayerName, str] = {}
        exclusions = {layer.name: layer.exclusion for layer in model.table.layers}
        movable = (None, Exclusion.FOLLOWER)
        version = opset(model.proto)
        for node in self._nodes:
            name = LayerName(node.name)
            if exclusions.get(name, Exclusion.CUSTOM) not in movable:
                continue
            try:
                self.forms[name] = low_form(node, version, low, model.elem_types)
            except NoLowForm as error:
                if exclusions[name] is None:
                    self.not_low[name] = str(error)
        self.layers = {layer.name for layer in model.table.candidates if layer.name in self.forms}
        self.public = {output.name for output in graph.output}
        for node in self._nodes:
            self.public |= captured(node)

    def place(self, low_layers: Set[str]) -> Placement:
        """Return what is low when exactly these candidates, all with a low form, run low."""
        demanded = self._demanded(low_layers)
        nodes: dict[str, LowForm] = {}
        tensors: set[str] = set()
        for node in self._nodes:
            form = self.forms.get(node.name)
            if form is None:
                continue
            if node.name in self.layers:
                low = node.name in low_layers
            else:
                low = self._follows_low(node, form, tensors, node.name in demanded)
            if low:
                nodes[node.name] = form
                tensors.update(node.output[i] for i in form.outputs)
        return Placement(nodes=nodes, tensors=tensors)

    def _follows_low(
        self, node: onnx.NodeProto, form: LowForm, tensors: Set[str], demanded: bool
    ) -> bool:
        moved = [node.input[i] for i in form.inputs]
        values = [name for name in moved if name not in self.constants.names]
        low = [name for name in values if name in tensors]
        if demanded:
            return bool(low) or not values
        return (
            bool(low)
            and len(low) == len(values)
            and self._fills_exactly(node)
            and all(self.constants.is_exact(name) for name in moved if name not in values)
        )

    def _fills_exactly(self, node: onnx.NodeProto) -> bool:
        """Tell whether the value that a Pad of opset 9 or 10 fills in is one of the low type."""
        fill = attribute(node, "value") if node.op_type == "Pad" else None
        if fill is None:
            return True
        value = np.array([fill.f], np.float32)
        return bool(np.array_equal(self._low.round(value), value, equal_nan=True))

    def _demanded(self, low_layers: Set[str]) -> set[str]:
        """Return the followers whose values come to low layers only, in the end."""
        elsewhere = set(self.public)
        demanded = set()
        for node in reversed(self._nodes):
            form = self.forms.get(node.name)
            low = node.name in low_layers
            if form is not None and node.name not in self.layers:
                low = not elsewhere.intersection(node.output)
                if low:
                    demanded.add(node.name)
            for i, name in enumerate(node.input):
                taken_low = low and form is not None and i in form.inputs
                if not taken_low and not self.reads_any_type(node):
                    elsewhere.add(name)
        return demanded

    @staticmethod
    def reads_any_type(node: onnx.NodeProto) -> bool:
        """Tell whether the node reads a tensor in whatever type it has."""
        return node.op_type in _ANY_TYPE and node.domain in ("", "ai.onnx")
