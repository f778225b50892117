"""What a builder says of the layers of its engine, in one form for every library.

The texts differ: TensorRT-RTX logs one line per layer, TensorRT's inspector returns JSON of
several schemas. Both name in *metadata* the ONNX nodes that a layer comes from. That list is a
lower bound: some kernels list only a part of what they compute, and layers that a builder adds
list nothing.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

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
_SCALE = r"__mye\d+.*_(?:alpha|beta)"
"""The factors of a product's result and of what is added to it."""
_CONSTANT = re.compile(
    rf"(?:{_SCALE}|__mye\d+.*(?:dconst|_const)|.*(?:_constant| filterWeights)[A-Z][A-Za-z0-9]*)"
    r"(?:_myl\d+)?",
    re.S,
)
_SCALE_ALONE = re.compile(rf"{_SCALE}(?:_myl\d+)?", re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTensor:
    """A tensor that an engine layer reads, writes or holds.

    `dtype` as `normal_type` gives it. `dims` has -1 where a dimension is only known at run time.
    `format` is the library's own word for the memory layout.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    format: str = ""

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
