"""What a model says of its inputs and outputs, which give shapes, and the types of its tensors.

These are known as far as ONNX, or else ONNX Runtime, infers them.

ONNX Runtime's CPU provider computes FP16-typed operators in FP32 without saying so, so nothing
there can judge a graph with such types. Widening makes it explicit (see `fp32_form`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.graphs.graph import (
    HALF_TYPES,
    all_graphs,
    copied,
    inferred,
    opset,
    refill,
    subgraphs,
)
from precision_bisect.graphs.weights import Weights

ElemTypes = Mapping[str, int]

_KINDS = onnx.TensorProto.DataType.items()
BY_ORT_NAME = {f"tensor({name.lower()})": kind for name, kind in _KINDS}
"""Element types by what ONNX Runtime and schemas of operators call a tensor of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A model input or output: its name, numpy type name, and shape.

    A dimension is an int, the name of a symbolic one, or None where the file says nothing.
    `shape` is None for a tensor of unknown rank, `dtype` None for a type numpy does not have.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None


def infer_elem_types(proto: onnx.ModelProto, weights: Mapping[str, NDArray[Any]]) -> ElemTypes:
    """Return ONNX element types by tensor name, also of tensors inside subgraphs.

    ONNX's own inference stops at operators of other domains. ONNX Runtime knows its own operators,
    so it is asked about what is left. Tensors that neither knows, and sequences, are absent, as
    are those of different types that two bodies call the same.
    """
    graph = inferred(proto, data_prop=False)
    types: dict[str, int] = {}
    declared: set[str] = set()
    doubtful: set[str] = set()
    for inner in all_graphs(graph):
        values = (*inner.value_info, *inner.input, *inner.output)
        # Known to be a sequence or an optional: it has no element type to ask for.
        declared |= {value.name for value in values if value.type.WhichOneof("value") is not None}
        typed = [(value.name, value.type.tensor_type.elem_type) for value in values]
        typed += [(tensor.name, tensor.data_type) for tensor in inner.initializer]
        for name, kind in typed:
            if kind and types.setdefault(name, kind) != kind and inner is not graph:
                doubtful.add(name)
    types = {name: kind for name, kind in types.items() if name not in doubtful}
    outputs = [name for node in proto.graph.node for name in node.output if name]
    unknown = [name for name in outputs if name not in types and name not in declared]
    if unknown:
        types |= _ask_runtime(proto, weights, unknown)
        _spread(proto, types)
    return types


def _spread(proto: onnx.ModelProto, types: dict[str, int]) -> None:
    """Add the types that signatures of standard operators tell behind an unknown operator.

    An operand of a known type, such as a weight, gives its type to all that must have the same
    one.
    """
    version = opset(proto)
    for node in proto.graph.node:
        if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, version):
            continue
        schema = onnx.defs.get_schema(node.op_type, version)
        bound = {
            formal.type_str: types[name]
            for name, formal in zip(node.input, formals(schema.inputs), strict=False)
            if name in types
        }
        for name, formal in zip(node.output, formals(schema.outputs), strict=False):
            kind = bound.get(formal.type_str, BY_ORT_NAME.get(formal.type_str))
            if name and kind is not None:
                # What inference has told is not overruled.
                types.setdefault(name, kind)


def formals(every: Sequence[Any]) -> Iterator[Any]:
    """Return the formal parameters; the last one again and again if it stands for any number."""
    many = onnx.defs.OpSchema.FormalParameterOption.Variadic
    last = every[-1:] if every and every[-1].option == many else ()
    homogeneous = [formal for formal in last if formal.is_homogeneous]
    return chain(every if homogeneous or not last else every[:-1], cycle(homogeneous))


def _ask_runtime(
    proto: onnx.ModelProto, weights: Mapping[str, NDArray[Any]], names: list[str]
) -> ElemTypes:
    from precision_bisect.graphs.ort import output_types

    probe = copied(proto)
    refill(probe.graph.output, [onnx.ValueInfoProto(name=name) for name in names])
    try:
        ort_types = output_types(probe, weights)
    except PrecisionBisectError:
        return {}
    return {name: BY_ORT_NAME[kind] for name, kind in ort_types.items() if kind in BY_ORT_NAME}


_FLOAT = onnx.TensorProto.FLOAT
# Attributes of the standard's operators that name an element type.
_TYPE_ATTRIBUTES = frozenset(
    (
        *("to", "dtype", "output_dtype", "output_datatype"),
        *("stash_type", "precision", "softmax_precision"),
    )
)


def round_trip(source: str, out: str, low_type: int) -> list[onnx.NodeProto]:
    """Return the two Casts that round `source` to `low_type` and give it back as FP32.

    ONNX Runtime removes no explicit round trip at any optimisation level; `self_test` checks it.
    """
    low = f"{out}/16bit"
    return [_cast(source, low, low_type), _cast(low, out, onnx.TensorProto.FLOAT)]


def _cast(source: str, out: str, kind: int) -> onnx.NodeProto:
    # Not by ONNX's helper, which takes three times as long: there is one for each edge of a model.
    node = onnx.NodeProto(op_type="Cast", input=[source], output=[out])
    node.attribute.add(name="to", type=onnx.AttributeProto.INT, i=kind)
    return node


def rounded_where_declared(
    node: onnx.NodeProto, declared: dict[str, int], marker: str
) -> list[onnx.NodeProto]:
    """Return a copy of the node whose outputs are rounded to the types that the file declares.

    Nodes inside its subgraphs are treated in the same way.
    """
    copy = copied(node)
    for inner in subgraphs(copy):
        nodes = [n for old in inner.node for n in rounded_where_declared(old, declared, marker)]
        refill(inner.node, nodes)
    rounded = []
    for i, name in enumerate(node.output):
        if name in declared:
            copy.output[i] = f"{marker}/{name}"
            rounded += round_trip(copy.output[i], name, declared[name])
    return [copy, *rounded]


def declared_low(elem_types: Mapping[str, int]) -> dict[str, int]:
    """Return the tensors of a 16-bit float type, with that type."""
    return {name: kind for name, kind in elem_types.items() if kind in HALF_TYPES}


def in_fp32(proto: onnx.ModelProto, weights: Weights) -> tuple[onnx.ModelProto, Weights]:
    """Return copies with FLOAT for every FLOAT16 and BFLOAT16; other weights are shared."""
    model, weights = copied(proto), dict(weights)
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.data_type in HALF_TYPES and tensor.name in weights:
                tensor.data_type = _FLOAT
                weights[tensor.name] = weights[tensor.name].astype(np.float32)
            else:
                _widen_tensor(tensor)
        for value in (*graph.input, *graph.output):
            _widen_type(value.type)
        # Types between inputs and outputs are inferred anew from the widened ones.
        del graph.value_info[:]
        for node in graph.node:
            for attribute in node.attribute:
                _widen_attribute(attribute)
        for sparse in graph.sparse_initializer:
            _widen_tensor(sparse.values)
    return model, weights


def _widen_attribute(attribute: onnx.AttributeProto) -> None:
    for tensor in attribute.tensors:
        _widen_tensor(tensor)
    if attribute.HasField("t"):
        _widen_tensor(attribute.t)
    if attribute.HasField("sparse_tensor"):
        _widen_tensor(attribute.sparse_tensor.values)
    if attribute.HasField("tp"):
        _widen_type(attribute.tp)
    if attribute.name in _TYPE_ATTRIBUTES and attribute.i in HALF_TYPES:
        attribute.i = _FLOAT


def _widen_type(kind: onnx.TypeProto) -> None:
    """Widen a type, also one inside a sequence or an optional."""
    what = kind.WhichOneof("value")
    if what in ("sequence_type", "optional_type"):
        _widen_type(getattr(kind, what).elem_type)
    elif what == "tensor_type" and kind.tensor_type.elem_type in HALF_TYPES:
        kind.tensor_type.elem_type = _FLOAT


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in HALF_TYPES:
        values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


# Operators with the positions of inputs whose values decide shapes (TensorRT-RTX 1.7.1).
_OF_SHAPES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "TopK", "OneHot", "Split", "CumSum"), (1,)),
    **{"ConstantOfShape": (0,), "Range": (0, 1, 2), "Resize": (2, 3), "Upsample": (1,)},
    **{"Slice": (1, 2, 3, 4), "Pad": (1, 3)},
}
_FORGET_VALUES = frozenset(("Shape", "Size"))


def shape_inputs(graph: onnx.GraphProto, inputs: Sequence[TensorSpec]) -> frozenset[str]:
    """Return the names of the integer inputs whose values decide shapes.

    Only those with a known number of values count: TensorRT takes no others.
    """
    decisive = _decisive(graph)
    return frozenset(spec.name for spec in inputs if spec.name in decisive and _counted(spec))


def value_count(spec: TensorSpec) -> int:
    """Return how many values an input holds that gives a shape."""
    size = spec.shape[0] if spec.shape else 1
    return size if isinstance(size, int) else 0


def _counted(spec: TensorSpec) -> bool:
    flat = spec.shape is not None and len(spec.shape) <= 1
    return spec.dtype in ("int32", "int64") and flat and value_count(spec) > 0


def _decisive(graph: onnx.GraphProto) -> set[str]:
    """Return every tensor whose values reach an input that decides a shape."""
    nodes = [node for inner in all_graphs(graph) for node in inner.node]
    makers = {name: node for node in nodes for name in node.output if name}
    pending = [
        node.input[position]
        for node in nodes
        if node.domain in ("", "ai.onnx")
        for position in _OF_SHAPES.get(node.op_type, ())
        if position < len(node.input)
    ]
    tensors: set[str] = set()
    while pending:
        name = pending.pop()
        if name in tensors:
            continue
        tensors.add(name)
        maker = makers.get(name)
        # The shape of a tensor does not depend on its values, so the way ends at a Shape.
        if maker is not None and maker.op_type not in _FORGET_VALUES:
            pending += [source for source in maker.input if source]
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class IllTyped:
    """A node, with two tensors whose types differ, or one whose type its operator does not take.

    `tensors` has their ONNX element types by name.
    """

    node: str
    op_type: str
    tensors: Mapping[str, int]

    def __str__(self) -> str:
        kinds = (
            f"{name!r} in {onnx.TensorProto.DataType.Name(kind)}"
            for name, kind in self.tensors.items()
        )
        return f"node {self.node!r} ({self.op_type}) has {' and '.join(kinds)}"


def ill_typed_nodes(proto: onnx.ModelProto, types: ElemTypes) -> Iterator[IllTyped]:
    """Yield the nodes of standard operators that are ill-typed, inner ones too, in order.

    Exporters under autocast write them: a LayerNormalization of FP16 values with an FP32 scale, a
    Conv with FP32 weights. ONNX's plain checker does not look, engines refuse the file.
    `types` are those of a file as it is. Where they are not known nothing is said.
    """
    version = opset(proto)
    for graph in all_graphs(proto.graph):
        for node in graph.node:
            if node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type, version):
                fault = _fault(node, onnx.defs.get_schema(node.op_type, version), types)
                if fault is not None:
                    yield fault


def _fault(node: onnx.NodeProto, schema: Any, types: ElemTypes) -> IllTyped | None:
    allowed = {
        constraint.type_param_str: {BY_ORT_NAME.get(kind) for kind in constraint.allowed_type_strs}
        for constraint in schema.type_constraints
    }
    first: dict[str, str] = {}
    sides = (node.input, schema.inputs), (node.output, schema.outputs)
    for name, formal in (pair for n, s in sides for pair in zip(n, formals(s), strict=False)):
        if name not in types:
            continue
        kinds = allowed.get(formal.type_str, {BY_ORT_NAME.get(formal.type_str)})
        other = first.setdefault(formal.type_str, name)
        if types[other] != types[name] or types[name] not in kinds:
            tensors = dict.fromkeys((other, name) if types[other] != types[name] else (name,))
            return IllTyped(
                node=node.name,
                op_type=node.op_type,
                tensors={tensor: types[tensor] for tensor in tensors},
            )
    return None
