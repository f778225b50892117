"""From a model and a plan to a strongly typed graph: the types say what the plan says.

A low layer reads and writes the low type, a kept one FP32. Casts stand only where a value crosses
from one to the other, one per tensor and direction, shared by all who read it; weights cross in
the file instead, as a low copy. What the graph computes is what the emulator predicts, up to the
order and the precision of sums inside an operator.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

from precision_bisect.errors import ModelError, RefusedError
from precision_bisect.layer_table import LayerName
from precision_bisect.lowtypes import BF16, LowType
from precision_bisect.model.convert import at_least_opset
from precision_bisect.model.load import Model
from precision_bisect.model.names import Names
from precision_bisect.plan import Plan
from precision_bisect.typed.constants import OutOfRange
from precision_bisect.typed.graph import TypedGraph, TypedWeight
from precision_bisect.typed.layout import Layout
from precision_bisect.typed.writing import Writing

__all__ = ["OutOfRange", "TypedGraph", "TypedWeight", "TypedWriter"]

_BF16_OPSET = 22
"""The first opset at which convolutions, pooling and the like take bfloat16."""


class TypedWriter:
    """Writes plans of one model into typed graphs.

    `not_low` are the candidates that have no low form, each with the reason in one sentence; they
    stay FP32 whatever a plan says. Raises RefusedError for a model that computes in 16-bit floats
    already, ModelError when the low type needs a newer opset and onnx cannot convert the model.
    """

    def __init__(self, model: Model, low: LowType) -> None:
        self._low = low
        self._model = at_least_opset(model, low.lowest_opset)
        self._layout = Layout(self._model, low)
        self._refuse_computed_low()
        if self._layout.not_low and low is BF16:
            self._take_newer_opset()
        self._names = Names(self._model.proto.graph)
        self.not_low: Mapping[LayerName, str] = self._layout.not_low

    def _refuse_computed_low(self) -> None:
        """Raise RefusedError for 16-bit tensors other than weights, which FP32 holds as well.

        What a node converts to 16 bits is computed, be it from a weight.
        """
        constants, low_tensors = self._layout.constants, self._model.low_tensors
        for name, kind in low_tensors.items():
            weight = constants.source(name)
            if constants.array(weight) is None or low_tensors.get(weight) != kind:
                raise RefusedError(
                    f"{name!r} has a 16-bit float type already, which a typed graph would lose",
                    "give the FP32 model, before it was converted",
                )

    def _take_newer_opset(self) -> None:
        """Convert the model where that gives more of its layers a low form."""
        try:
            model = at_least_opset(self._model, _BF16_OPSET)
        except ModelError:
            return
        layout = Layout(model, self._low)
        if len(layout.not_low) < len(self._layout.not_low):
            self._model, self._layout = model, layout

    @cached_property
    def out_of_range(self) -> Sequence[OutOfRange]:
        """The weights of candidates and followers that leave the low type's range, in order."""
        layout = self._layout
        read = (
            node.input[i]
            for node in self._model.proto.graph.node
            if node.name in layout.forms
            for i in sorted(layout.forms[node.name].inputs)
        )
        return tuple(layout.constants.out_of_range(read))

    def write(self, plan: Plan, guard_islands: bool = True) -> TypedGraph:
        """Return the typed graph of a plan.

        With `guard_islands` zero is added to an FP32 input of each kept layer that builders would
        otherwise turn back into a low one, or fail to build: see `islands`.
        """
        kept = {self._model.table.names[i] for i in plan.kept}
        placement = self._layout.place(self._layout.layers - kept)
        writing = Writing(self._model, self._low, self._layout, self._names, placement)
        return writing.write(guard_islands)
