"""What a model says of its inputs and outputs, and the element types of all its tensors.

These are known as far as ONNX, or else ONNX Runtime, infers them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

import onnx
from numpy.typing import NDArray

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.graphs.graph import all_graphs, copied, inferred, opset, refill

ElemTypes = Mapping[str, int]

_KINDS = onnx.TensorProto.DataType.items()
_BY_ORT_NAME = {f"tensor({name.lower()})": kind for name, kind in _KINDS}
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
    so it is asked about what is left. Tensors that neither knows, and sequences, are absent.
    """
    graph = inferred(proto, data_prop=False)
    types: dict[str, int] = {}
    known: set[str] = set()
    for inner in all_graphs(graph):
        for tensor in inner.initializer:
            types.setdefault(tensor.name, tensor.data_type)
        for value in (*inner.value_info, *inner.input, *inner.output):
            # Known to be a sequence or an optional: it has no element type to ask for.
            if value.type.WhichOneof("value") is not None:
                known.add(value.name)
            if value.type.tensor_type.elem_type:
                types.setdefault(value.name, value.type.tensor_type.elem_type)
    outputs = [name for node in proto.graph.node for name in node.output if name]
    unknown = [name for name in outputs if name not in types and name not in known]
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
            for name, formal in zip(node.input, _formals(schema.inputs), strict=False)
            if name in types
        }
        for name, formal in zip(node.output, _formals(schema.outputs), strict=False):
            found = bound.get(formal.type_str, _BY_ORT_NAME.get(formal.type_str))
            if name and found is not None:
                types.setdefault(name, found)


def _formals(formals: Sequence[Any]) -> Iterator[Any]:
    """Return the formal parameters; the last one again and again if it stands for any number."""
    many = onnx.defs.OpSchema.FormalParameterOption.Variadic
    last = formals[-1:] if formals and formals[-1].option == many else ()
    homogeneous = [each for each in last if each.is_homogeneous]
    return chain(formals if homogeneous or not last else formals[:-1], cycle(homogeneous))


def _ask_runtime(
    proto: onnx.ModelProto, weights: Mapping[str, NDArray[Any]], names: list[str]
) -> ElemTypes:
    from precision_bisect.graphs.ort import output_types

    shown = copied(proto)
    refill(shown.graph.output, [onnx.ValueInfoProto(name=name) for name in names])
    try:
        found = output_types(shown, weights)
    except PrecisionBisectError:
        return {}
    return {name: _BY_ORT_NAME[kind] for name, kind in found.items() if kind in _BY_ORT_NAME}
