"""Where the values of a plan are: the type that each node computes in and each tensor has.

Followers move with what feeds them, unless that would round more than the layers ask for:

* of a 16-bit type if all that a follower moves is of that type, and constants among it are exact
  in it;
* of a 16-bit type if all its readers in the end compute in that type, and some of what it moves is
  of it or all of it is constant: the readers would round it anyway, and nothing is cast twice;
* else FP32.

A layer in INT8 or FP8 reads a value in whatever type it is stored.

All floats that a low node reads must be low, weights too: strongly typed engines want operands of
one type, even where ONNX would allow a mixture. Only settings (sizes, axes, ratios) stay FP32.
INT8 and FP8 are as in TensorRT's explicit quantization: activations are quantized with one scale
per tensor, weights are stored quantized with one scale per output channel. Bias and outputs stay
in the float type that the layer is stored in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import onnx

from precision_bisect.graphs.constant_values import TypedConstants
from precision_bisect.graphs.graph import attribute, captured, opset, settings_of
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED, LowType, QuantizedType
from precision_bisect.graphs.quantization.calibration import OPERANDS, quantizable
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.layer_table import ASSIGNED, Exclusion, LayerName, LayerTable, forms_of
from precision_bisect.machine.stopping import look_at_clock
from precision_bisect.precisions import Form, HighName, Pair, QuantizedName
from precision_bisect.settings.targets import parser_conditions

Assignment: TypeAlias = Mapping[LayerName, Form]
"""The form of each layer; one that is not there computes in FP32."""

# Operators that look at no value, so they read a tensor in whatever type it has.
_ANY_TYPE = frozenset(("Shape", "Size"))
_FLOAT = onnx.TensorProto.FLOAT
# Operators whose ONNX definition adds an FP32 constant to what they read.
_FP32_INSIDE = frozenset(("MeanVarianceNormalization",))
NOT_PARSED: Mapping[str, Sequence[str]] = parser_conditions()["refused"]
"""By type the operators that ONNX has in it and TensorRT's parser refuses in it.

Those in BF16 were also read for 10.0 to 10.10 in onnxOpImporters.cpp of
github.com/onnx/onnx-tensorrt.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowForm:
    """The positions of the inputs and of the outputs that are low when the node runs low."""

    inputs: frozenset[int]
    outputs: frozenset[int]


class NoLowForm(Exception):
    """The node cannot run low; the message says why, in one sentence."""


def low_form(
    node: onnx.NodeProto, opset: int, low: LowType, elem_types: Mapping[str, int]
) -> LowForm:
    """Return the low form of a standard ONNX node in a model of this opset.

    `elem_types` are the ONNX element types of the model's tensors with every float in FP32. Raises
    NoLowForm where ONNX knows none.
    """
    try:
        schema = _schema(node.op_type, opset)
    except onnx.defs.SchemaError as error:
        raise NoLowForm(f"onnx {onnx.__version__} does not know {node.op_type}") from error
    if node.op_type in _FP32_INSIDE:
        raise NoLowForm(f"ONNX defines {node.op_type} with an FP32 constant inside")
    wanted = f"tensor({onnx.TensorProto.DataType.Name(low.onnx_type).lower()})"
    settings = settings_of(node)
    inputs, variables = set(), set()
    for i, name in enumerate(node.input):
        if elem_types.get(name) != _FLOAT or i in settings:
            continue
        variable = _variable(schema.inputs, i)
        if wanted not in _allowed(schema, variable):
            what = schema.inputs[min(i, len(schema.inputs) - 1)].name
            raise NoLowForm(
                f"{node.op_type} takes no {low.name} as its input {what!r} at opset {opset}"
            )
        inputs.add(i)
        variables.add(variable)
    if node.op_type in NOT_PARSED[low.name]:
        raise NoLowForm(f"TensorRT's parser takes no {node.op_type} in {low.name}")
    # An output is low if its type variable is that of a low input.
    outputs = {
        i
        for i, name in enumerate(node.output)
        if elem_types.get(name) == _FLOAT and _variable(schema.outputs, i) in variables
    }
    if not outputs:
        raise NoLowForm(f"no low input decides the type of what {node.op_type} returns")
    return LowForm(inputs=frozenset(inputs), outputs=frozenset(outputs))


@lru_cache(maxsize=1024)
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(op_type, opset)


def _variable(formals: Sequence[onnx.defs.OpSchema.FormalParameter], position: int) -> str:
    """Return the type variable, or the type, of a parameter; the last one may stand for many."""
    return formals[min(position, len(formals) - 1)].type_str


def _allowed(schema: onnx.defs.OpSchema, variable: str) -> list[str]:
    for constraint in schema.type_constraints:
        if constraint.type_param_str == variable:
            return list(constraint.allowed_type_strs)
    return [variable]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedForm:
    """The positions of the inputs that are quantized: activations, and weights by channel."""

    activations: tuple[int, ...]
    weights: tuple[int, ...]


def quantized_form(node: onnx.NodeProto, low: QuantizedName, scales: Scales) -> QuantizedForm:
    """Return which inputs of a node are quantized. Raises NoLowForm where it cannot be."""
    if not quantizable(node):
        raise NoLowForm(f"no {low.upper()} kernel for {node.op_type}")
    names = {i: node.input[i] for i in OPERANDS}
    for name in names.values():
        if name not in scales.weights and name not in scales.activations:
            raise NoLowForm(f"its input {name!r} has no calibrated scale")
    weights = tuple(i for i, name in names.items() if name in scales.weights)
    return QuantizedForm(
        activations=tuple(i for i in OPERANDS if i not in weights), weights=weights
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Low:
    """A node in a 16-bit type, with the inputs and outputs that are of it."""

    kind: LowType
    form: LowForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A node in an 8-bit type, with the float type around it and the quantized inputs."""

    kind: QuantizedType
    stored: HighName
    form: QuantizedForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What one assignment of forms means for nodes and tensors.

    `nodes` compute in a 16-bit type, `quantized` in an 8-bit one; the latter are in `nodes`, too,
    if the float type around them has 16 bits. `tensors` are those stored in 16 bits.
    """

    nodes: Mapping[str, Low]
    quantized: Mapping[str, Quantized]
    tensors: Mapping[str, LowType]


def every_form(table: LayerTable, pair: Pair) -> tuple[Form, ...]:
    """Return the forms that layers may take, each once, in network order."""
    layers = forms_of(table, pair).values()
    layer_forms = (form for forms in layers for form in (forms.low, forms.high))
    return tuple(dict.fromkeys((pair.low_form, pair.high_form, *layer_forms)))


class Layout:
    """What is the same for all plans of a model.

    `forms` has the forms of layers and followers in each 16-bit type in use, by its name.
    `not_low` has the candidates that cannot run low, with the reason. `without_form` counts the
    forms that layers cannot have. `public` tensors must exist in FP32 under their own name: graph
    outputs, and those that subgraphs mention.
    """

    def __init__(self, model: Model, pair: Pair, scales: Scales) -> None:
        graph = model.proto.graph
        self._nodes = list(graph.node)
        self._high = pair.high_form
        self._wanted = every_form(model.table, pair)
        self.constants = TypedConstants(model)
        self.forms: dict[HighName, dict[str, LowForm]] = {
            form.stored: {} for form in self._wanted if form.stored in LOW_TYPES
        }
        self._quantized: dict[str, QuantizedForm] = {}
        self._reasons: dict[tuple[str, Form], str] = {}
        exclusions = {layer.name: layer.exclusion for layer in model.table.layers}
        self._layers = {name for name, exclusion in exclusions.items() if exclusion in ASSIGNED}
        # In network order: a follower takes the forms of what it reads.
        for node in self._nodes:
            exclusion = exclusions.get(LayerName(node.name), Exclusion.CUSTOM)
            if exclusion in ASSIGNED or exclusion is Exclusion.FOLLOWER:
                self._find_forms(node, model, scales)
        self.not_low: dict[LayerName, str] = {
            name: self._reasons[name, pair.low_form]
            for name in model.table.names
            if (name, pair.low_form) in self._reasons
        }
        self.without_form = sum(name in self._layers for name, _ in self._reasons)
        self.public = {output.name for output in graph.output}
        for node in self._nodes:
            self.public |= captured(node)

    def place(self, assignment: Assignment) -> Placement:
        """Return what is where when each layer has the form that is assigned to it.

        A layer that cannot have its form has the high one; if it cannot have that either, it is
        FP32. A layer that is not named is FP32.
        """
        nodes: dict[str, Low] = {}
        quantized: dict[str, Quantized] = {}
        for name, wanted in assignment.items():
            form = self._high if (name, wanted) in self._reasons else wanted
            if (name, form) in self._reasons:
                continue
            if form.quantized is not None:
                kind = QUANTIZED[form.quantized]
                quantized[name] = Quantized(
                    kind=kind, stored=form.stored, form=self._quantized[name]
                )
            if form.stored in LOW_TYPES:
                low = LOW_TYPES[form.stored]
                nodes[name] = Low(kind=low, form=self.forms[low.name][name])
        tensors = self._place_followers(nodes, quantized)
        return Placement(nodes=nodes, quantized=quantized, tensors=tensors)

    def _find_forms(self, node: onnx.NodeProto, model: Model, scales: Scales) -> None:
        look_at_clock()
        version = opset(model.proto)
        for form in self._wanted:
            try:
                if form.quantized is not None:
                    quantized = quantized_form(node, form.quantized, scales)
                    self._quantized[node.name] = quantized
                if form.stored in LOW_TYPES:
                    low = LOW_TYPES[form.stored]
                    self.forms[low.name][node.name] = low_form(
                        node, version, low, model.elem_types
                    )
            except NoLowForm as error:
                self._reasons[node.name, form] = str(error)

    def _place_followers(
        self, nodes: dict[str, Low], quantized: Mapping[str, Quantized]
    ) -> dict[str, LowType]:
        """Add the followers to `nodes`; return the tensors that are stored in 16 bits."""
        # Demand goes against the order of the network, what is stored along it: hence two passes.
        demanded: dict[str, LowType] = {}
        for kind in {low.kind.name: low.kind for low in nodes.values()}.values():
            demanded |= dict.fromkeys(self._demanded(kind, nodes, quantized), kind)
        tensors: dict[str, LowType] = {}
        for node in self._nodes:
            if node.name not in self._layers:
                low = self._follows(node, tensors, demanded.get(node.name))
                if low is not None:
                    nodes[node.name] = low
            if node.name in nodes:
                placed = nodes[node.name]
                tensors.update((node.output[i], placed.kind) for i in placed.form.outputs)
        return tensors

    def _follows(
        self, node: onnx.NodeProto, tensors: Mapping[str, LowType], demanded: LowType | None
    ) -> Low | None:
        """Return what a follower computes in; None for FP32 and for nodes that do not follow."""
        for kind in (LOW_TYPES[name] for name in self.forms):
            form = self.forms[kind.name].get(node.name)
            if form is None:
                continue
            moved = [node.input[i] for i in form.inputs]
            values = [name for name in moved if name not in self.constants.names]
            alike = [name for name in values if tensors.get(name) is kind]
            # Read only in this type in the end: rounding before or after the move is the same.
            if demanded is kind:
                follows = bool(alike) or not values
            else:
                others = [name for name in moved if name in self.constants.names]
                follows = (
                    bool(alike)
                    and len(alike) == len(values)
                    and _fills_exactly(node, kind)
                    and all(self.constants.is_exact(name, kind) for name in others)
                )
            if follows:
                return Low(kind=kind, form=form)
        return None

    def _demanded(
        self, kind: LowType, nodes: Mapping[str, Low], quantized: Mapping[str, Quantized]
    ) -> set[str]:
        """Return the followers whose values come only to layers of this type in the end."""
        # Backwards: a follower's readers are known before it.
        elsewhere = set(self.public)
        demanded = set()
        for node in reversed(self._nodes):
            form = self.forms[kind.name].get(node.name)
            low = node.name in nodes and nodes[node.name].kind is kind
            if form is not None and node.name not in self._layers:
                low = not elsewhere.intersection(node.output)
                if low:
                    demanded.add(node.name)
            as_stored = quantized[node.name].form.activations if node.name in quantized else ()
            for i, name in enumerate(node.input):
                taken_low = low and form is not None and i in form.inputs and i not in as_stored
                if not taken_low and not self.reads_any_type(node):
                    elsewhere.add(name)
        return demanded

    @staticmethod
    def reads_any_type(node: onnx.NodeProto) -> bool:
        """Tell whether the node reads a tensor in whatever type it has."""
        return node.op_type in _ANY_TYPE and node.domain in ("", "ai.onnx")


def _fills_exactly(node: onnx.NodeProto, low: LowType) -> bool:
    """Tell whether the low type holds the value that a Pad of opset 9 or 10 fills in."""
    fill = attribute(node, "value") if node.op_type == "Pad" else None
    if fill is None:
        return True
    value = np.array([fill.f], np.float32)
    return bool(np.array_equal(low.round(value), value, equal_nan=True))
