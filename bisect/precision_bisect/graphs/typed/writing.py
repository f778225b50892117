"""One assignment written into one graph, node by node, as TensorRT parses and builds it."""

from collections.abc import Sequence, Set

import numpy as np
import onnx

from precision_bisect.graphs.constant_values import TypedConstants
from precision_bisect.graphs.graph import HALF_TYPES, Names, attribute, copied, refill
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LowType
from precision_bisect.graphs.ort_fusions import Kernel
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.added import PREFIX, Added
from precision_bisect.graphs.typed.high_nodes import FLOATS
from precision_bisect.graphs.typed.layout import Layout, Placement, Quantized
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.graphs.weights import drop_unused
from precision_bisect.layer_table import Exclusion, LayerName
from precision_bisect.precisions import HighName

_DEMOTED = frozenset(("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose"))
_NOT_BUILT = frozenset(("LSTM", "GRU", "RNN"))
# Query, key and value of an Attention: each that comes from low layers needs a guard.
_ATTENDED = frozenset((0, 1, 2))
# Operators that builders remove for certain constants or shapes, as a product with one.
_MAY_BE_IDENTITY = frozenset(
    (
        *("Mul", "Div", "Pow", "Sum", "Mean", "Max", "Min", "AveragePool", "LpPool", "MaxPool"),
        *(
            "GlobalAveragePool",
            "GlobalMaxPool",
            "Resize",
            "Upsample",
            "CumSum",
            "Cast",
            "CastLike",
        ),
    )
)
# Positions of the initial states.
_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}
_BIAS = 2
# The axis of a recurrence's input.
_BATCH = 1


def islands(
    model: Model,
    placement: Placement,
    constants: TypedConstants,
    handed_low: Set[str] = frozenset(),
) -> dict[LayerName, tuple[int, ...]]:
    """Return the FP32 layers that need guards, each with the positions of the inputs to guard.

    A guard is the maximum of an FP32 input from low layers and itself. TensorRT-RTX 1.7.1 turns
    Cast to FP32, matrix product or convolution, Cast to the low type into one low kernel. It
    rounds the weights and says nothing. It also cannot build a recurrent layer right behind a
    Cast. An Attention there becomes a low kernel, or its build fails or crashes. A guard prevents
    all that, and gives every value as it is, NaN too, however an engine compares. Simplifiers
    leave it alone, where they remove an addition of zero and a product with one.

    The value of such an input comes from low layers, from a Cast of the file's own, or from an
    input of the graph that is `handed_low`. Between them may be nodes that only move values, or
    may turn out to do nothing. It does not matter whether another FP32 layer reads the result:
    some of those are folded into this layer and do not protect it.
    """
    # What is FP64 in the file may move values only: a guard too many costs little.
    passing = (Exclusion.FOLLOWER, Exclusion.DOUBLE)
    followers = {layer.name for layer in model.table.layers if layer.exclusion in passing}
    rounded = {*placement.tensors, *handed_low}
    guard_positions = {}
    for node in model.proto.graph.node:
        if node.name in placement.nodes or node.name in placement.quantized:
            continue
        if node.op_type == "Cast" and model.elem_types.get(node.input[0]) in HALF_TYPES:
            rounded.update(node.output)
        data = [
            i
            for i, name in enumerate(node.input)
            if name not in constants.names and model.elem_types.get(name) in FLOATS
        ]
        from_low = [i for i in data if node.input[i] in rounded]
        if not from_low:
            continue
        # A node that a builder or simplifier may remove leaves the next layer behind the Cast.
        if node.name in followers or (data == from_low[:1] and _may_go(node, constants)):
            rounded.update(node.output)
        elif node.op_type in _DEMOTED | _NOT_BUILT:
            guard_positions[LayerName(node.name)] = tuple(from_low[:1])
        elif node.op_type == "Attention" and (attended := _ATTENDED.intersection(from_low)):
            guard_positions[LayerName(node.name)] = tuple(sorted(attended))
    return guard_positions


def spread_norms(
    model: Model, placement: Placement, constants: TypedConstants, norms: Sequence[Kernel]
) -> set[str]:
    """Return the operators of those norms whose data, scale and bias are not of one type.

    ONNX Runtime's fusions of norms look through Casts, so the fused operator would read several
    types, and a session with default options does not open. A guard behind a Cast ends that.
    """
    nodes = {node.name: node for node in model.proto.graph.node}
    spread: set[str] = set()
    for norm in norms:
        ends = {*norm.node.input} - {""}
        low = (placement.nodes.get(p) for p in norm.pieces if not ends.isdisjoint(nodes[p].input))
        kinds = {None if each is None else each.kind for each in low}
        kinds |= {placement.tensors.get(name) for name in ends - constants.names}
        if len(kinds) > 1:
            spread.update(norm.pieces)
    return spread


def _may_go(node: onnx.NodeProto, constants: TypedConstants) -> bool:
    """Tell whether builders may remove a node, or simplifiers: they do so where a term is zero."""
    if node.op_type in _MAY_BE_IDENTITY or node.op_type.startswith("Reduce"):
        return True
    terms = (constants.array(name) for name in node.input if name in constants.names)
    return node.op_type in ("Add", "Sub") and any(
        term is not None and not np.any(term) for term in terms
    )


class Writing:
    """Writes one assignment, given by its placement; use once."""

    def __init__(
        self, model: Model, scales: Scales, layout: Layout, names: Names, placement: Placement
    ) -> None:
        self._model = model
        self._layout = layout
        self._names = names
        self._placement = placement
        self._added = Added(model, layout.constants, scales, names)
        self._nodes = self._added.nodes

    def write(
        self, guard_islands: bool, handed_low: Set[str], norms: Sequence[Kernel]
    ) -> TypedGraph:
        """Return the graph, with guards behind the Casts that `spread_norms` read."""
        constants = self._layout.constants
        guards = (
            islands(self._model, self._placement, constants, handed_low) if guard_islands else {}
        )
        spread = spread_norms(self._model, self._placement, constants, norms)
        for node in self._model.proto.graph.node:
            self._write(node, guards.get(LayerName(node.name), ()), node.name in spread)
        proto = copied(self._model.proto)
        graph = proto.graph
        refill(graph.node, self._without_unread_constants())
        graph.initializer.extend(self._added.initializers.values())
        drop_unused(graph, {})
        self._retype(graph)
        stubs = {tensor.name for tensor in graph.initializer}
        return TypedGraph(
            proto=proto,
            weights={name: w for name, w in self._added.weights.items() if name in stubs},
        )

    def _write(self, node: onnx.NodeProto, guards: Sequence[int], spread: bool) -> None:
        """Append the node, with what it needs before it, and what its readers need after it."""
        low = self._placement.nodes.get(node.name)
        copy = copied(node)
        # All inputs before the node itself: reading may append Casts.
        for i, name in enumerate(node.input):
            copy.input[i] = self._read(node, i, name)
            if spread:
                copy.input[i] = self._added.sealed(copy.input[i])
        if low is not None:
            floats = node.name not in self._placement.quantized
            spell_out(self._added, node, low.kind, copy, floats)
        for i in guards:
            copy.input[i] = self._added.guard(f"{node.name}/{i}", copy.input[i])
        self._nodes.append(copy)
        for i, name in enumerate(node.output):
            if low is not None and i in low.form.outputs:
                copy.output[i] = self._stored(name)
                # Subgraphs and callers read this tensor by its name, in FP32.
                if name in self._layout.public:
                    self._added.append_cast(name, copy.output[i], name, None)

    def _read(self, node: onnx.NodeProto, i: int, name: str) -> str:
        """Return the name under which a node reads its input `i`."""
        low = self._placement.nodes.get(node.name)
        quantized = self._placement.quantized.get(node.name)
        if quantized is not None and i in quantized.form.weights:
            return self._added.dequantized_weight(name, quantized.kind, quantized.stored)
        if quantized is not None and i in quantized.form.activations:
            return self._added.dequantized_activation(
                name, self._to_quantize(name, quantized), quantized.kind, quantized.stored
            )
        if low is not None and i in low.form.inputs:
            return self._in_low(name, low.kind)
        if self._layout.reads_any_type(node):
            return self._stored(name)
        return self._in_fp32(name)

    def _to_quantize(self, name: str, quantized: Quantized) -> tuple[str, HighName]:
        """Return the name of a tensor in a type that holds its scale exactly, with that type."""
        kind = self._placement.tensors.get(name)
        if kind is not None and kind.name == quantized.stored:
            return self._stored(name), kind.name
        return self._in_fp32(name), "fp32"

    def _stored(self, name: str) -> str:
        """Return the name of a tensor in the type in which it is stored."""
        renamed = name in self._placement.tensors and name in self._layout.public
        return self._names(f"{PREFIX}/low/{name}") if renamed else name

    def _in_fp32(self, name: str) -> str:
        """Return the name of a tensor in its own type: FP32 if it could be low."""
        if name not in self._placement.tensors or name in self._layout.public:
            return name
        return self._added.cast(name, name, None)

    def _in_low(self, name: str, low: LowType) -> str:
        """Return the name of a float tensor in a 16-bit type."""
        stored = self._placement.tensors.get(name)
        if stored is low:
            return self._stored(name)
        constant = self._added.low_constant(name, low) if stored is None else None
        return self._added.cast(name, self._stored(name), low) if constant is None else constant

    def _without_unread_constants(self) -> list[onnx.NodeProto]:
        """Return the nodes without constants that nobody reads now that low copies exist."""
        constant = {
            layer.name
            for layer in self._model.table.layers
            if layer.exclusion is Exclusion.CONSTANT
        }
        read = set(self._layout.public)
        kept = []
        # Backwards, as a constant may be read only by another constant that goes.
        for node in reversed(self._nodes):
            if node.name not in constant or read.intersection(node.output):
                kept.append(node)
                read.update(node.input)
        return kept[::-1]

    def _retype(self, graph: onnx.GraphProto) -> None:
        """Update the types of tensors that the file declares; forget tensors that are gone."""
        outputs = {name for node in graph.node for name in node.output}
        value_infos = []
        for value in graph.value_info:
            kind = self._placement.tensors.get(value.name)
            if kind is not None and value.name not in self._layout.public:
                value.type.tensor_type.elem_type = kind.onnx_type
            if value.name in outputs:
                value_infos.append(value)
        refill(graph.value_info, value_infos)


def spell_out(
    added: Added, node: onnx.NodeProto, low: LowType, written: onnx.NodeProto, folds: bool
) -> None:
    """Change `written`, which is to be the low form of `node`; add what it reads.

    Every parser of TensorRT 10 is to take it. That of 10.0 to 10.10 brings FP32 constants to some
    operators, whatever type they have (Gemm, GRU, LSTM and RNN in onnxOpImporters.cpp of
    github.com/onnx/onnx-tensorrt): for factors of a Gemm other than one, and for states of a
    recurrence that are not given. Strong typing refuses that. So weights take the factors in, and
    states are zeros of the low type. TensorRT-RTX 1.7.1 takes both.

    `folds` tells whether weights are constants of the low type, not quantized ones.
    """
    if node.domain not in ("", "ai.onnx"):
        return
    if node.op_type == "Gemm":
        _without_factors(added, node, low, written, folds)
    for position in _STATES.get(node.op_type, ()):
        _with_state(added, node, low, written, position)


def _without_factors(
    added: Added, node: onnx.NodeProto, low: LowType, written: onnx.NodeProto, folds: bool
) -> None:
    biased = len(node.input) > _BIAS and node.input[_BIAS]
    # The product's factor goes to a weight, or else to what is multiplied first.
    for name, positions in (("alpha", (1, 0)), ("beta", (_BIAS,) if biased else ())):
        factor = attribute(node, name)
        if factor is None or factor.f == 1 or not positions:
            continue
        # The first that is a constant, else the last, by a node before.
        candidates = (
            (i, added.low_constant(node.input[i], low, factor.f)) for i in positions if folds
        )
        i, scaled = next((pair for pair in candidates if pair[1]), (positions[-1], None))
        product = f"{node.name}/{i}"
        written.input[i] = scaled or added.product(product, written.input[i], low, factor.f)
    kept = [setting for setting in written.attribute if setting.name not in ("alpha", "beta")]
    refill(written.attribute, kept)


def _with_state(
    added: Added, node: onnx.NodeProto, low: LowType, written: onnx.NodeProto, position: int
) -> None:
    size, direction, layout = (attribute(node, n) for n in ("hidden_size", "direction", "layout"))
    initial_state = position < len(node.input) and node.input[position]
    # Without its size ONNX takes that of the weights; another layout no TensorRT takes.
    if initial_state or size is None or (layout is not None and layout.i):
        return
    ways = 2 if direction is not None and direction.s == b"bidirectional" else 1
    written.input.extend([""] * (position + 1 - len(written.input)))
    written.input[position] = added.zero_state(written.input[0], low, (ways, _BATCH, size.i))
