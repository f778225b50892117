"""Which layers TensorRT-RTX makes of each ONNX operator in FP16, and which kernels of these.

    cd benchmarks; python -m engines.rtx_steps

It writes the table that the emulator reads, `settings/parser_steps.json`. Every operator of the
standard is parsed alone, strongly typed, in each of its forms of opsets 11 to 28: ONNX's own test
cases, and models of real sizes. Of the layers those are written down that compute floats from the
inputs, with the type of what they store; not those that only move values. Where a half lies
between two of them, an engine is built for compute capability 8.6, which needs no GPU, and its
kernels are named. What a row means for the emulator is its word `inside`:

* whole: one layer, or steps that are exact (absolute values, maxima, comparisons).
* float: several layers, with FP32 between them.
* steps: several that round, with halves between them, in kernels that name them one by one.
* fused: the same from the parser, of which the builder makes one operation, or the epilogue of a
  product. Where it depends on the attributes, each form has its word.
* recurrence: a loop, whose state the emulator rounds at each step (`recurrences`).

`no_importer` names the operators that the parser does not know or has by plug-ins alone,
`no_form` the values of attributes for which it refuses a node that it takes without them.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import tensorrt_rtx as trt

from engines.operator_models import all_cases

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from rtx import LOG

TABLE = Path(__file__).parents[2] / "bisect/precision_bisect/settings/parser_steps.json"
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
SIZES = frozenset(("axis", "group", "hidden_size", "num_groups", "p", "seed", "time_axis"))
"""Attributes that are no choice of a form."""
PLAIN = (onnx.AttributeProto.INT, onnx.AttributeProto.STRING)
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
        floats = {t.dtype.name for t in outputs if t.dtype.name in ("HALF", "FLOAT", "BF16")}
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


def lacks_importer(words: str) -> bool:
    """Tell whether a parser says no more of an operator than that it has no importer of it."""
    return words == "false" or "lugin" in words


def unknown() -> set[str]:
    """Return the operators of the standard that the parser does not know in any type."""
    builder = trt.Builder(LOG)
    parser = trt.OnnxParser(builder.create_network(0), LOG)
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    return {name for name in names if not parser.supports_operator(name)}


def refused_forms(cases: Mapping[str, Sequence[tuple[onnx.ModelProto, bool]]]) -> dict[str, Any]:
    """Return values of attributes by operator and name: each alone makes the parser refuse it.

    The cases of an operator are models, each with whether it is parsed.
    """
    forms: dict[str, dict[str, list[Any]]] = defaultdict(dict)
    for op_type, models in sorted(cases.items()):
        taken = [model for model, parsed in models if parsed]
        seen = {key for model in taken for key in _settings(model, op_type)}
        # A node without the attribute has it so.
        attributes = onnx.defs.get_schema(op_type).attributes.items()
        seen.update(
            (name, _value(schema.default_value))
            for name, schema in attributes
            if schema.default_value.type in PLAIN
        )
        asked = {
            key for model, parsed in models if not parsed for key in _settings(model, op_type)
        }
        for name, value in sorted(asked - seen):
            tried = [with_setting(model, op_type, name, value) for model in taken]
            valid = [model for model in tried if _is_valid(model)]
            if valid and all(isinstance(parse(model), str) for model in valid):
                forms[op_type].setdefault(name, []).append(value)
    return forms


def _settings(model: onnx.ModelProto, op_type: str) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are one integer or a word, of the operator's nodes."""
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == op_type else ():
            if attribute.type in PLAIN and attribute.name not in SIZES:
                yield attribute.name, _value(attribute)


def _value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def with_setting(model: onnx.ModelProto, op_type: str, name: str, value: Any) -> onnx.ModelProto:
    """Return the model with an attribute set in the operator's nodes."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for node in copy.graph.node:
        if node.op_type == op_type:
            others = [attribute for attribute in node.attribute if attribute.name != name]
            del node.attribute[:]
            node.attribute.extend([*others, onnx.helper.make_attribute(name, value)])
    return copy


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # onnx raises classes of its own
        return False
    return True


def table() -> dict[str, Any]:
    """Return the whole table."""
    forms: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {}
    refused: dict[str, set[str]] = defaultdict(set)
    cases: dict[str, list[tuple[onnx.ModelProto, bool]]] = defaultdict(list)
    for case in all_cases():
        parsed = parse(case.model)
        cases[case.op_type].append((case.model, not isinstance(parsed, str)))
        if isinstance(parsed, str):
            refused[case.op_type].add(parsed)
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
        "not_parsed": sorted(refused.keys() - forms.keys()),
        "no_importer": sorted(
            unknown().union(
                op_type
                for op_type, words in refused.items()
                if op_type not in forms and all(map(lacks_importer, words))
            )
        ),
        "no_form": refused_forms(cases),
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
