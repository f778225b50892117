"""Which layers TensorRT-RTX makes of each ONNX operator in FP16, and which kernels of these.

    python benchmarks/engines/rtx_steps.py

It writes the table that the emulator reads, `settings/parser_steps.json`. Every operator of the
standard is parsed alone, strongly typed, in each of its forms of opsets 11 to 28: ONNX's own test
cases, and the models of `MORE`. Of the layers those are written down that compute floats from the
inputs, with the type of what they store; not those that only move values. Where a half lies
between two of them, an engine is built for compute capability 8.6, which needs no GPU, and its
kernels are named. What a row means for the emulator is its word `inside`:

* whole: one layer, or steps that are exact (absolute values, maxima, comparisons).
* float: several layers, with FP32 between them.
* steps: several that round, with halves between them, in kernels that name them one by one.
* fused: the same from the parser, of which the builder makes one operation, or the epilogue of a
  product. Where it depends on the attributes, each form has its word.
* recurrence: a loop, whose state the emulator rounds at each step (`recurrences`).
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tensorrt_rtx as trt
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from operator_cases import node_cases
from rtx import LOG

TABLE = Path(__file__).parents[2] / "bisect/precision_bisect/settings/parser_steps.json"
FIRST, LAST = 11, 28
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
HALF = TensorProto.FLOAT16
IMAGE, ROWS = "2,8,16,16", "64,256"


def _text(shape: str, result: str, **others: str) -> str:
    """Return a model in ONNX's text form that reads x of a shape, and others of theirs."""
    inputs = ", ".join(f"float[{dims}] {name}" for name, dims in {"x": shape, **others}.items())
    return f"({inputs}) => (float y) {{ y = {result} }}"


MORE: Mapping[str, tuple[int, str]] = {
    "LogSoftmax": (13, _text(ROWS, "LogSoftmax(x)")),
    "Mean": (13, _text(ROWS, "Mean(x,a,b)", a=ROWS, b=ROWS)),
    "Sum": (13, _text(ROWS, "Sum(x,a,b)", a=ROWS, b=ROWS)),
    "ReduceSumSquare": (13, _text(ROWS, "ReduceSumSquare<axes = [1]>(x)")),
    "ReduceLogSumExp": (13, _text(ROWS, "ReduceLogSumExp<axes = [1]>(x)")),
    "Mish": (18, _text(ROWS, "Mish(x)")),
    "HardSwish": (14, _text(ROWS, "HardSwish(x)")),
    "Swish": (24, _text(ROWS, "Swish(x)")),
    "Swish by 1.7": (24, _text(ROWS, "Swish<alpha = 1.7>(x)")),
    "Mod": (13, _text(ROWS, "Mod<fmod = 1>(x,a)", a=ROWS)),
    "Gemm": (13, _text(ROWS, "Gemm<alpha = 0.5, beta = 2.0>(x,w,b)", w="256,128", b="128")),
    "BatchNormalization": (
        15,
        _text(IMAGE, "BatchNormalization(x,s,b,m,v)", **dict.fromkeys("sbmv", "8")),
    ),
    "Trilu": (14, _text("64,64", "Trilu(x)")),
    "GlobalLpPool": (13, _text(IMAGE, "GlobalLpPool(x)")),
    "LayerNormalization": (17, _text(ROWS, "LayerNormalization(x,s,b)", s="256", b="256")),
    "RMSNormalization": (23, _text(ROWS, "RMSNormalization(x,s)", s="256")),
    "Attention": (23, _text("2,4,128,64", "Attention(x,k,v)", k="2,4,128,64", v="2,4,128,64")),
    "Einsum": (
        13,
        _text("64,32", 'Einsum<equation = "ab,bc,cd->ad">(x,a,b)', a="32,16", b="16,8"),
    ),
}
"""Shapes that real kernels take; ONNX's own cases are too small for that. Operators of which ONNX
has no case in FP32."""
MOVES = frozenset(
    (
        *("CONSTANT", "SHUFFLE", "SQUEEZE", "UNSQUEEZE", "SLICE", "CONCATENATION", "IDENTITY"),
        *("GATHER", "SHAPE", "SELECT", "TOPK", "ONE_HOT", "SCATTER", "REVERSE_SEQUENCE", "FILL"),
        *("ITERATOR", "RECURRENCE", "LOOP_OUTPUT", "TRIP_LIMIT", "KV_CACHE_UPDATE"),
        *("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT", "ATTENTION_INPUT"),
    )
)
EXACT = frozenset(
    f"{kind}.{name}"
    for kind, names in {
        "UNARY": ("ABS", "NEG", "FLOOR", "CEIL", "ROUND", "SIGN", "ISINF", "ISNAN", "NOT"),
        "ELEMENTWISE": ("MAX", "MIN", "GREATER", "LESS", "EQUAL", "OR", "AND"),
        "REDUCE": ("MAX", "MIN"),
        "ACTIVATION": ("RELU", "CLIP", "THRESHOLDED_RELU"),
        "POOLING": ("MAX",),
    }.items()
    for name in names
)
"""Layers whose result FP16 holds if it holds what they read."""
KINDS = {
    "ELEMENTWISE": (trt.IElementWiseLayer, "op"),
    "UNARY": (trt.IUnaryLayer, "op"),
    "REDUCE": (trt.IReduceLayer, "op"),
    "ACTIVATION": (trt.IActivationLayer, "type"),
    "POOLING": (trt.IPoolingLayer, "type"),
}
_KERNEL = re.compile(r"(?m)^Name: (?:__myl_)?(\w+?)(?:_myl\d+_\d+)?,")
_WORD = re.compile(r"[A-Z][a-z0-9]*")
_MOVING = frozenset(("Move", "Resh", "Tran", "Slic", "Conc", "Cast", "Repl"))
_PRODUCT = frozenset(("Fc", "Conv", "Deco", "Corr"))


@dataclass(frozen=True)
class Case:
    """One operator alone in a model, in FP16; of a real size or as small as ONNX's cases are."""

    op_type: str
    opset: int
    model: onnx.ModelProto
    real: bool


def written_cases() -> Iterator[Case]:
    """Yield the models of `MORE`, at all opsets that have a form of the operator."""
    for label, (version, text) in MORE.items():
        head = f'<ir_version: 8, opset_import: ["": {version}]> g '
        model = onnx.parser.parse_model(head + text)
        yield from _in_half(label.partition(" ")[0], model, {})


def standard_cases() -> Iterator[Case]:
    """Yield ONNX's own cases of one node, likewise."""
    for case in node_cases():
        node = case.model.graph.node[0]
        if node.domain or not case.plain:
            continue
        names = [value.name for value in case.model.graph.input]
        arrays = dict(zip(names, map(np.asarray, case.values), strict=True))
        yield from _in_half(node.op_type, case.model, arrays)


def _in_half(
    op_type: str, source: onnx.ModelProto, values: Mapping[str, np.ndarray[Any, Any]]
) -> Iterator[Case]:
    """Yield the model in FP16, with floats as inputs and as constants, by opset.

    Integers and booleans are constants, as parsers want them.
    """
    version = source.opset_import[0].version
    opsets = sorted({version, *_versions(op_type)} - {*range(FIRST)})
    for constant, opset in product((False, True), opsets):
        model = onnx.ModelProto()
        model.CopyFrom(source)
        del model.opset_import[:]
        model.opset_import.append(helper.make_opsetid("", opset))
        model.ir_version = 8 if opset < 19 else 11
        graph = model.graph
        inputs = [value for value in graph.input if _of_floats(value)]
        if not inputs:
            return
        for value in list(graph.input):
            if value not in inputs or (constant and value != inputs[0]):
                _hold(graph, value, values.get(value.name))
        for value in (*graph.input, *graph.output):
            if _of_floats(value):
                value.type.tensor_type.elem_type = HALF
        if not values:
            for value in graph.output:
                value.type.tensor_type.ClearField("shape")
        for each in graph.node[0].attribute:
            if each.name in ("to", "dtype", "output_dtype") and each.i in FLOATS:
                each.i = HALF
        if opset != version and not _moved(model, opset):
            continue
        try:
            # Shapes of outputs are inferred where the text has none.
            model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
            onnx.checker.check_model(model)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        yield Case(op_type, opset, model, not values)


def _hold(
    graph: onnx.GraphProto, value: onnx.ValueInfoProto, given: np.ndarray[Any, Any] | None
) -> None:
    """Make an input a constant, of ones where no values are given."""
    shape = [each.dim_value for each in value.type.tensor_type.shape.dim]
    array = np.ones(shape) if given is None else given
    with np.errstate(over="ignore"):
        array = array.astype(np.float16 if _of_floats(value) else array.dtype)
    graph.initializer.append(numpy_helper.from_array(array, value.name))
    graph.input.remove(value)


def _versions(op_type: str) -> Iterator[int]:
    """Yield the opset of each form of an operator in the range, 11 for what is older."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.name == op_type and not schema.domain and schema.since_version <= LAST:
            yield max(schema.since_version, FIRST)


def _moved(model: onnx.ModelProto, opset: int) -> bool:
    """Turn constants into attributes of the same name where an older form has these."""
    node, graph = model.graph.node[0], model.graph
    schema = onnx.defs.get_schema(node.op_type, opset)
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


@dataclass(frozen=True)
class Parsed:
    """The layers that compute floats of a network's inputs: kind, and type of what it stores."""

    layers: tuple[tuple[str, str], ...]
    loops: bool
    network: Any
    keep: tuple[Any, ...]

    @property
    def rounding(self) -> list[str]:
        """The types that layers store which round."""
        return [kind for name, kind in self.layers if name != "CAST" and name not in EXACT]

    @property
    def between(self) -> set[str]:
        """The types of what lies between layers that round."""
        return set(self.rounding[:-1])


def parse(model: onnx.ModelProto) -> Parsed | str:
    """Return the layers, or what the parser says."""
    builder = trt.Builder(LOG)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, LOG)
    if not parser.parse(model.SerializeToString()):
        return str(parser.get_error(0).desc()).splitlines()[0]
    reached = {network.get_input(i).name for i in range(network.num_inputs)}
    found, loops = [], False
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        tensors = [layer.get_input(k) for k in range(layer.num_inputs)]
        # A loop's own layers read what comes later, and all of them compute.
        if not any(tensor is not None and tensor.name in reached for tensor in tensors):
            continue
        outputs = [layer.get_output(k) for k in range(layer.num_outputs)]
        reached.update(tensor.name for tensor in outputs)
        kind = layer.type.name
        loops |= kind == "RECURRENCE"
        floats = {t.dtype.name for t in outputs if t.dtype.name in ("HALF", "FLOAT")}
        if kind in MOVES or not floats:
            continue
        if kind in KINDS:
            layer.__class__, attribute = KINDS[kind]
            kind = f"{kind}.{getattr(layer, attribute).name}"
        found.append((kind, max(floats).lower()))
    return Parsed(tuple(found), loops, network, (builder, parser))


def kernels(parsed: Parsed) -> list[str]:
    """Return the names of the kernels of an engine, without what is only moved; [] for none."""
    builder = parsed.keep[0]
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    LOG.messages.clear()
    if builder.build_serialized_network(parsed.network, config) is None:
        return []
    text = next((each for each in LOG.messages if each.startswith("Layers:")), "")
    names = _KERNEL.findall(text.removeprefix("Layers:\n").partition("\n\n")[0])
    return [name for name in names if not _MOVING.issuperset(_WORD.findall(name)) or "_" in name]


def inside(parsed: Parsed, names: list[str]) -> str:
    """Return what a form means for the emulator; see the module."""
    if parsed.loops:
        return "recurrence"
    if len(parsed.rounding) < 2:
        return "whole"
    if "half" not in parsed.between:
        return "float"
    # A scale behind a norm in FP32 rounds what the norm gives, and nothing that grows or vanishes.
    if "float" in parsed.between:
        return "float"
    words = [[w for w in _WORD.findall(name) if w not in _MOVING] for name in names]
    if any(_PRODUCT.intersection(each) or len(each) == 1 for each in words) or any(
        "_gemm" in name for name in names
    ):
        return "fused"
    return "steps"


def table() -> dict[str, Any]:
    """Return the whole table."""
    forms: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {}
    tried: set[str] = set()
    for case in chain(written_cases(), standard_cases()):
        tried.add(case.op_type)
        parsed = parse(case.model)
        if isinstance(parsed, str):
            continue
        layers = tuple(f"{name} {kind}" for name, kind in parsed.layers)
        rows = forms.setdefault(case.op_type, {})
        known = next((row for key, row in rows.items() if key[1:] == layers), None)
        if known is None or case.real:
            several = "half" in parsed.between and not parsed.loops
            names = kernels(parsed) if several else []
            word = inside(parsed, names)
            row = {"inside": word, "layers": list(layers), "opsets": set()}
            known = rows.setdefault((word, *layers), row | ({"kernels": names} if names else {}))
        known["opsets"].add(case.opset)
    return {
        "tensorrt_rtx": trt.__version__,
        "onnx": onnx.__version__,
        "operators": {
            op_type: [{**row, "opsets": sorted(row["opsets"])} for row in rows.values()]
            for op_type, rows in sorted(forms.items())
        },
        "not_parsed": sorted(tried - forms.keys()),
    }


def written(whole: Mapping[str, Any]) -> str:
    """Return the table as JSON, one form of an operator in a line."""
    lines = [
        f'  "{op_type}": [\n   ' + ",\n   ".join(map(json.dumps, rows)) + "\n  ]"
        for op_type, rows in whole["operators"].items()
    ]
    head = {name: value for name, value in whole.items() if name != "operators"}
    fields = [f' "{name}": {json.dumps(value)}' for name, value in head.items()]
    fields.append(' "operators": {\n' + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(fields) + "\n}\n"


if __name__ == "__main__":
    whole = table()
    TABLE.write_text(written(whole))
    print(len(whole["operators"]), "parsed,", len(whole["not_parsed"]), "not; written to", TABLE)
