"""What a builder says of the layers of its engine, in one form for every library.

The texts differ: TensorRT-RTX logs one line per layer, TensorRT's inspector returns JSON of
several schemas. Both name in *metadata* the ONNX nodes that a layer comes from. That list is a
lower bound: some kernels list only a part of what they compute, and layers that a builder adds
list nothing.

Engines built without detailed profiling list only names. Names of tensors and nodes stand
unescaped in the log, and models are untrusted: fields are found by their fixed keys, one after the
other, and what cannot be read is left out.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

BELOW_FP32 = frozenset(("fp16", "bf16", "fp8", "fp4", "int8"))
"""The types below FP32 in which engines compute floats of the graph."""

_TYPES = {
    "float": "fp32",
    "fp32": "fp32",
    "tf32": "fp32",
    "f32": "fp32",
    "half": "fp16",
    "fp16": "fp16",
    "f16": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "fp8": "fp8",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "fp4": "fp4",
    "int4": "int4",
    "int8": "int8",
    "i8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "i32": "int32",
    "int64": "int64",
    "bool": "bool",
}
_WORD = re.compile(r"[A-Za-z0-9]+")
_ENTRY = re.compile(r"(?:\A|\][\x1e\x1f ]?)\[ONNX Layer: ")
_BORDER = re.compile(r"\][\x1e\x1f ]?\[ONNX Layer: ")
# The factors of a product's result and of what is added to it.
_SCALE = r"__mye\d+.*_(?:alpha|beta)"
_CONSTANT = re.compile(
    rf"(?:{_SCALE}|__mye\d+.*(?:dconst|_const)|.*(?:_constant| filterWeights)[A-Z][A-Za-z0-9]*)"
    r"(?:_myl\d+)?",
    re.S,
)
_SCALE_ALONE = re.compile(rf"{_SCALE}(?:_myl\d+)?", re.S)
_PROFILE = re.compile(r" \[profile \d+\]\Z")
_TYPE_KEYS = ("Datatype", "DataType", "Format/Datatype")
_HEADER = "Layers:\n"
_ENDS = ("\n\nI/O Tensors:", "\n\nBindings:")
_LINE = re.compile(r"\n(?=Name: )")
_KIND = re.compile(r"\w*")
# Digits are bounded: the text is untrusted, and Python refuses to convert thousands of them.
_DIMENSIONS = re.compile(r", Dimensions: \[((?:-?\d{1,18}(?:,-?\d{1,18})*)?)\]")
_DATATYPE = re.compile(r"Datatype: (.*?)(?:, Format: | \}|\Z)", re.S)
_HELD = re.compile(r', (\w+): \{"Type": "(\w+)", "Count": (\d{1,18})\}')


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTensor:
    """A tensor that an engine layer reads, writes or holds.

    `dtype` as `normal_type` gives it. `dims` has -1 where a dimension is only known at run time.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements, negative or 0 where that is not known."""
        return math.prod(self.dims)

    @property
    def scales(self) -> bool:
        """Whether it is a product's alpha or beta, which is FP32 in products of any type."""
        return _SCALE_ALONE.fullmatch(self.name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayer:
    """One layer of an engine.

    `constants` are the weights that it holds. `nodes` are the ONNX nodes that its metadata lists,
    each as the library writes it; a node of a subgraph carries the path of its parents behind it
    (`relu | then (then_branch) | if (If)`). All but `name` may be empty.
    """

    name: str
    kind: str = ""
    inputs: tuple[EngineTensor, ...] = ()
    outputs: tuple[EngineTensor, ...] = ()
    constants: tuple[EngineTensor, ...] = ()
    tactic: str = ""
    nodes: tuple[str, ...] = ()


def normal_type(text: str) -> str:
    """Return the type that a library's word for a type or format names, "" if it names none.

    `Half`, `Float` and `Row major linear FP32` give `fp16`, `fp32` and `fp32`.
    """
    return next((_TYPES[w] for w in map(str.lower, _WORD.findall(text)) if w in _TYPES), "")


def sort_out(
    inputs: Iterable[EngineTensor],
) -> tuple[tuple[EngineTensor, ...], tuple[EngineTensor, ...]]:
    """Return the inputs that are computed, and those that are constants.

    TensorRT 10 lists both as inputs. Names tell them apart, such as `__mye595_dconst`,
    `bias_constantHalf` and `conv filterWeightsHalf`.
    """
    computed: list[EngineTensor] = []
    constants: list[EngineTensor] = []
    for tensor in inputs:
        (constants if _CONSTANT.fullmatch(tensor.name) else computed).append(tensor)
    return tuple(computed), tuple(constants)


def onnx_nodes(metadata: str) -> tuple[str, ...]:
    """Return the names of the ONNX nodes in a layer's metadata, in its order.

    Entries look like `[ONNX Layer: name]` and are separated by U+001E, U+001F or nothing. Names
    may hold brackets, so a name that imitates the border between two entries is cut in two.
    """
    borders = list(_ENTRY.finditer(metadata))
    ends = [border.start() for border in borders[1:]] + [metadata.rfind("]")]
    # Without an entry there is nothing for the last end to go with.
    pairs = zip(borders, ends, strict=False)
    return tuple(metadata[border.end() : end] for border, end in pairs if end > border.end())


def imitates_border(name: str) -> bool:
    """Tell whether `onnx_nodes` would cut this node name in two."""
    return _BORDER.search(name) is not None


def parse_json(text: str) -> list[EngineLayer]:
    """Return the engine layers that an inspector's JSON lists; [] where it lists none.

    8.6 and 10.x join type and layout in `Format/Datatype`. They give types of weights in fields
    such as `Weights` and `ConvBias`, and list the weights of kernels as inputs. 11.x splits type
    and layout into `Datatype` and `Format`, and lists `Constants` (NVIDIA's page on migrating
    IEngineInspector usage from 10.x to 11.x).

    A layer occurs once per optimization profile. Fields of unexpected types count as absent.
    """
    try:
        # Metadata holds raw control characters, which strict JSON forbids.
        parsed = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return []
    layers = parsed.get("Layers") if isinstance(parsed, dict) else None
    return list(_json_layers(layers)) if isinstance(layers, list) else []


def _json_layers(entries: list[Any]) -> Iterator[EngineLayer]:
    for entry in entries:
        # Without detailed profiling an entry is only a name.
        if isinstance(entry, str):
            yield EngineLayer(name=_PROFILE.sub("", entry))
        elif isinstance(entry, dict):
            inputs, constants = sort_out(_json_tensors(entry.get("Inputs")))
            yield EngineLayer(
                name=_PROFILE.sub("", _text(entry, "Name")),
                kind=_text(entry, "LayerType"),
                inputs=inputs,
                outputs=tuple(_json_tensors(entry.get("Outputs"))),
                constants=(
                    *constants,
                    *_json_tensors(entry.get("Constants")),
                    *_json_weights(entry),
                ),
                tactic=_text(entry, "TacticName"),
                nodes=onnx_nodes(_text(entry, "Metadata")),
            )


def _json_tensors(entries: Any) -> Iterator[EngineTensor]:
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        dims = entry.get("Dimensions")
        yield EngineTensor(
            name=_text(entry, "Name"),
            dtype=normal_type(_text(entry, *_TYPE_KEYS)),
            dims=tuple(d for d in dims if isinstance(d, int)) if isinstance(dims, list) else (),
        )


def _json_weights(layer: dict[str, Any]) -> Iterator[EngineTensor]:
    for key, entry in layer.items():
        if isinstance(entry, dict) and "Type" in entry:
            count = entry.get("Count")
            yield EngineTensor(
                name=key,
                dtype=normal_type(_text(entry, "Type")),
                dims=(count,) if isinstance(count, int) else (),
            )


def _text(entry: dict[str, Any], *keys: str) -> str:
    """Return the first of the fields that is there as text, else ""."""
    return next((entry[key] for key in keys if isinstance(entry.get(key), str)), "")


def parse_layers(text: str) -> list[EngineLayer]:
    """Return the engine layers that a message lists, in its order; [] for any other text.

    With detailed profiling and a verbose logger, TensorRT 10 and later and TensorRT-RTX log it
    while they build, without a GPU, too. It begins with `Layers:` and has a line per layer.
    TensorRT 10 writes types and layouts as one phrase, weights as `Weights: {"Type": "Half", …}`,
    and constants among the inputs; later libraries list constants by themselves.
    """
    _, header, body = text.partition(_HEADER)
    if not header:
        return []
    end = next((end for end in _ENDS if end in body), "")
    # The last end counts: a name may hold the words of an end.
    lines = _LINE.split(body.rpartition(end)[0] if end else body)
    return [layer for line in lines if (layer := _text_layer(line.strip("\n"))) is not None]


def _text_layer(line: str) -> EngineLayer | None:
    head, stream, tail = line.partition(", StreamId: ")
    name, typed, rest = head.removeprefix("Name: ").partition(", LayerType: ")
    # Names may hold any of these words: a line counts only if it has them all in order.
    if not stream or not typed or not line.startswith("Name: "):
        return None
    kind = _KIND.match(rest)
    tensors, _, tactic = rest.partition(", TacticName: ")
    before, _, outputs = tensors.partition("], Outputs: [")
    read, _, listed = before.partition("], Constants: [")
    inputs, constants = sort_out(_text_tensors(read))
    return EngineLayer(
        name=name,
        kind=kind.group() if kind else "",
        inputs=inputs,
        outputs=tuple(_text_tensors(outputs)),
        constants=(*constants, *_text_tensors(listed), *_held(outputs)),
        tactic=tactic.partition(", TacticValue: ")[0],
        nodes=onnx_nodes(tail.partition(", Metadata: ")[2]),
    )


def _text_tensors(section: str) -> Iterator[EngineTensor]:
    for entry in section.split("{ Name: ")[1:]:
        name = entry.partition(", Location: ")[0].partition(", Dimensions: [")[0]
        dims = _DIMENSIONS.search(entry, len(name))
        dtype = _DATATYPE.search(entry, dims.end()) if dims else None
        if dims is None or dtype is None:
            continue
        yield EngineTensor(
            name=name,
            dtype=normal_type(dtype.group(1)),
            dims=tuple(int(d) for d in dims.group(1).split(",") if d),
        )


def _held(section: str) -> Iterator[EngineTensor]:
    """Yield the weights that stand among the parameters, behind the outputs."""
    for name, dtype, count in _HELD.findall(section.rpartition(" }]")[2]):
        yield EngineTensor(name=name, dtype=normal_type(dtype), dims=(int(count),))
