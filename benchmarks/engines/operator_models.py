"""Models of one ONNX operator each, of which the tables of engines and tools are made.

They come from ONNX's own test cases, and from texts where ONNX has no case, none in FP32, or only
sizes that no real kernel takes.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from models import parse
from operator_cases import MORE, NodeCase, node_cases
from precision_bisect.graphs.graph import opset

FIRST, LAST = 11, 28
"""Opsets whose forms of an operator are tried."""
CHANGED = 22
"""The opset since which an operator has to have changed to be built in all forms of a plan."""
LOWEST_OPSET = 9
"""The first that the tool reads."""
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
FLOAT, HALF, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
KINDS: Mapping[str, int] = {"FP32": FLOAT, "FP16": HALF, "BF16": BFLOAT16}
NODE = "node"
Array = NDArray[Any]
IMAGE, ROWS, HEADS = "2,8,16,16", "64,256", "2,4,128,64"


def text_model(shape: str, result: str, **others: str) -> str:
    """Return a model in ONNX's text form that reads x of a shape, and others of theirs."""
    inputs = ", ".join(f"float[{dims}] {name}" for name, dims in {"x": shape, **others}.items())
    return f"({inputs}) => (float y) {{ y = {result} }}"


REAL_SIZES: Mapping[str, tuple[int, str]] = {
    "LogSoftmax": (13, text_model(ROWS, "LogSoftmax(x)")),
    "Mean": (13, text_model(ROWS, "Mean(x,a,b)", a=ROWS, b=ROWS)),
    "Sum": (13, text_model(ROWS, "Sum(x,a,b)", a=ROWS, b=ROWS)),
    "ReduceSumSquare": (13, text_model(ROWS, "ReduceSumSquare<axes = [1]>(x)")),
    "ReduceLogSumExp": (13, text_model(ROWS, "ReduceLogSumExp<axes = [1]>(x)")),
    "Mish": (18, text_model(ROWS, "Mish(x)")),
    "HardSwish": (14, text_model(ROWS, "HardSwish(x)")),
    "Swish": (24, text_model(ROWS, "Swish(x)")),
    "Swish by 1.7": (24, text_model(ROWS, "Swish<alpha = 1.7>(x)")),
    "Mod": (13, text_model(ROWS, "Mod<fmod = 1>(x,a)", a=ROWS)),
    "Gemm": (13, text_model(ROWS, "Gemm<alpha = 0.5, beta = 2.0>(x,w,b)", w="256,128", b="128")),
    "BatchNormalization": (
        15,
        text_model(IMAGE, "BatchNormalization(x,s,b,m,v)", **dict.fromkeys("sbmv", "8")),
    ),
    "Trilu": (14, text_model("64,64", "Trilu(x)")),
    "GlobalLpPool": (13, text_model(IMAGE, "GlobalLpPool(x)")),
    "LayerNormalization": (17, text_model(ROWS, "LayerNormalization(x,s,b)", s="256", b="256")),
    "RMSNormalization": (23, text_model(ROWS, "RMSNormalization(x,s)", s="256")),
    "Attention": (
        23,
        text_model("2,4,128,64", "Attention(x,k,v)", k="2,4,128,64", v="2,4,128,64"),
    ),
    "Einsum": (
        13,
        text_model("64,32", 'Einsum<equation = "ab,bc,cd->ad">(x,a,b)', a="32,16", b="16,8"),
    ),
}
"""Shapes that real kernels take; ONNX's own cases are too small for that. Operators of which ONNX
has no case in FP32."""
EXTRA: Mapping[str, str] = {
    **MORE,
    "LpPool": "(float[1,2,4,4] x) => (float[1,2,n,m] y)"
    " { y = LpPool <kernel_shape = [2, 2], p = 2> (x) }",
    "Loop": "(float[4] x) => (float[4] y) <int64 n = {3}, bool c = {1}> { y = Loop(n, c, x)"
    " <body = b (int64 i, bool k, float[4] s) => (bool kk, float[4] t)"
    " { kk = Identity(k) t = Neg(s) }> }",
    "Cast": "(float[2,4] x) => (int32[2,4] y) { y = Cast <to = 6> (x) }",
}
"""Cases of operators of which ONNX has none that the parser takes, or none in FP32."""


@dataclass(frozen=True)
class Case:
    """One operator alone in a model, of a real size or as small as ONNX's cases are."""

    op_type: str
    opset: int
    model: onnx.ModelProto
    real: bool


def written_cases(kind: int = HALF) -> Iterator[Case]:
    """Yield the models of `REAL_SIZES` in a float type, at all opsets with a form of their own."""
    for label, (version, text) in REAL_SIZES.items():
        head = f'<ir_version: 8, opset_import: ["": {version}]> g '
        model = onnx.parser.parse_model(head + text)
        yield from _in_forms(label.partition(" ")[0], model, {}, kind)


def standard_cases(kind: int = HALF) -> Iterator[Case]:
    """Yield ONNX's own cases of one node, likewise."""
    for case in node_cases():
        node = case.model.graph.node[0]
        if node.domain or not case.plain:
            continue
        names = [value.name for value in case.model.graph.input]
        arrays = dict(zip(names, map(np.asarray, case.values), strict=True))
        yield from _in_forms(node.op_type, case.model, arrays, kind)


def all_cases(kind: int = HALF) -> Iterator[Case]:
    """Yield both."""
    return chain(written_cases(kind), standard_cases(kind))


def in_type(source: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """Return a model of one node with its floats in one type, constants too."""
    model = onnx.ModelProto.FromString(source.SerializeToString())
    graph = model.graph
    for value in (*graph.input, *graph.output):
        if _of_floats(value):
            value.type.tensor_type.elem_type = kind
    for each in graph.node[0].attribute:
        if each.name in ("to", "dtype", "output_dtype") and each.i in FLOATS:
            each.i = kind
    for tensor in graph.initializer:
        if tensor.data_type in (*FLOATS, HALF):
            array = as_kind(numpy_helper.to_array(tensor), kind)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def as_kind(array: Array, kind: int) -> Array:
    """Return floats in the type that a kind of ONNX has in numpy, others as they are."""
    with np.errstate(over="ignore"):
        wanted = helper.tensor_dtype_to_np_dtype(kind)
        return array.astype(wanted) if array.dtype.kind == "f" else array


def is_valid(model: onnx.ModelProto) -> bool:
    """Tell whether ONNX takes the types of a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def is_standard(model: onnx.ModelProto) -> bool:
    """Tell whether ONNX has a model's only node in the types of what it reads."""
    node = model.graph.node[0]
    schema = onnx.defs.get_schema(node.op_type, opset(model))
    allowed = {
        each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints
    }
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for i, name in enumerate(node.input):
        if name in types:
            formal = schema.inputs[min(i, len(schema.inputs) - 1)].type_str
            kind = f"tensor({TensorProto.DataType.Name(types[name]).lower()})"
            if kind not in allowed.get(formal, {formal}):
                return False
    return True


def _in_forms(
    op_type: str, source: onnx.ModelProto, values: Mapping[str, Array], kind: int
) -> Iterator[Case]:
    """Yield the model in a type, with floats as inputs and as constants, by opset.

    Integers and booleans are constants, as parsers want them.
    """
    version = source.opset_import[0].version
    opsets = sorted({version, *_versions(op_type)} - {*range(FIRST)})
    for constant, form in product((False, True), opsets):
        model = in_type(source, kind)
        del model.opset_import[:]
        model.opset_import.append(helper.make_opsetid("", form))
        model.ir_version = 8 if form < 19 else 11
        graph = model.graph
        inputs = [value for value in graph.input if value.type.tensor_type.elem_type == kind]
        if not inputs:
            return
        for value in list(graph.input):
            if value not in inputs or (constant and value != inputs[0]):
                _hold(graph, value, values.get(value.name), kind)
        if not values:
            for value in graph.output:
                value.type.tensor_type.ClearField("shape")
        if form != version and not _moved(model, form):
            continue
        try:
            # Shapes of outputs are inferred where the text has none.
            model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
            onnx.checker.check_model(model)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        yield Case(op_type, form, model, not values)


def _hold(
    graph: onnx.GraphProto, value: onnx.ValueInfoProto, values: Array | None, kind: int
) -> None:
    """Make an input a constant, of ones where no values are given."""
    shape = [each.dim_value for each in value.type.tensor_type.shape.dim]
    array = np.ones(shape) if values is None else values
    wanted = value.type.tensor_type.elem_type
    array = as_kind(array, kind) if wanted == kind else array
    graph.initializer.append(numpy_helper.from_array(array, value.name))
    graph.input.remove(value)


def _versions(op_type: str) -> Iterator[int]:
    """Yield the opset of each form of an operator in the range, 11 for what is older."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.name == op_type and not schema.domain and schema.since_version <= LAST:
            yield max(schema.since_version, FIRST)


def _moved(model: onnx.ModelProto, form: int) -> bool:
    """Turn constants into attributes of the same name where an older form has these."""
    node, graph = model.graph.node[0], model.graph
    schema = onnx.defs.get_schema(node.op_type, form)
    newest = onnx.defs.get_schema(node.op_type, LAST)
    held = {tensor.name: tensor for tensor in graph.initializer}
    for i in reversed(range(len(node.input))):
        formal = newest.inputs[min(i, len(newest.inputs) - 1)].name
        if formal in schema.attributes and formal not in newest.attributes:
            if node.input[i] in held:
                values = numpy_helper.to_array(held[node.input[i]])
                if values.size:
                    node.attribute.append(helper.make_attribute(formal, values.tolist()))
                graph.initializer.remove(held[node.input[i]])
            del node.input[i]
    return all(each.name in schema.attributes for each in node.attribute)


def _of_floats(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in (*FLOATS, HALF)


@cache
def cases_by_operator() -> Mapping[str, list[NodeCase]]:
    """Return ONNX's cases of one node that reads or gives FP32, by operator."""
    found: dict[str, list[NodeCase]] = defaultdict(list)
    seen = set()
    for case in node_cases():
        graph, node = case.model.graph, case.model.graph.node[0]
        ends = (*graph.input, *graph.output)
        if TensorProto.FLOAT not in {end.type.tensor_type.elem_type for end in ends}:
            continue
        key = (node.op_type, frozenset(a.name for a in node.attribute), len(node.input))
        if (
            case.plain
            and not node.domain
            and key not in seen
            and opset(case.model) >= LOWEST_OPSET
        ):
            seen.add(key)
            found[node.op_type].append(case)
    newest = onnx.defs.onnx_opset_version()
    for operator, text in EXTRA.items():
        model = parse(text, opset=newest, ir=onnx.IR_VERSION)
        found[operator].append(NodeCase("written here", model, ()))
    return found


def newer_operators() -> dict[str, int]:
    """Return the operators that changed at that opset or later, with their newest version."""
    schemas = (schema for schema in onnx.defs.get_all_schemas() if not schema.domain)
    return {s.name: s.since_version for s in schemas if s.since_version >= CHANGED}


def with_constants(
    case: onnx.ModelProto, values: Sequence[Any], whole: bool
) -> tuple[onnx.ModelProto, int]:
    """Return the case with constants for all inputs but FP32 ones, or the first of those."""
    model = onnx.ModelProto.FromString(case.SerializeToString())
    graph = model.graph
    graph.node[0].name = NODE
    floats = [v.name for v in graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT]
    fed = floats if whole else floats[:1]
    for value, array in zip(list(graph.input), values, strict=False):
        if value.name not in fed:
            graph.initializer.append(numpy_helper.from_array(np.asarray(array), value.name))
            graph.input.remove(value)
    return model, len(fed)


def between(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a Neg before each FP32 input, and behind each FP32 output."""
    found = onnx.ModelProto.FromString(model.SerializeToString())
    graph = found.graph
    node = graph.node[0]
    before, after = [], []
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            name = f"fed_{value.name}"
            before.append(helper.make_node("Neg", [value.name], [name], name=f"before_{name}"))
            node.input[:] = [name if each == value.name else each for each in node.input]
    for value in graph.output:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            name = f"raw_{value.name}"
            after.append(helper.make_node("Neg", [name], [value.name], name=f"after_{name}"))
            node.output[:] = [name if each == value.name else each for each in node.output]
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in (*before, node, *after)]
    del graph.node[:]
    graph.node.extend(nodes)
    return found
