"""The strings by which trtexec (TensorRT 8.6 to 10.x) is told of the layers that stay high.

trtexec sets what a name says on TensorRT's layer of exactly that name, whatever the layer is
(NVIDIA/TensorRT, samples/common/sampleEngines.cpp, 10.x). It splits the string at commas before it
looks at quotes, so some names cannot be written as they are; those become a pattern with one `*`.
Patterns may collide, and trtexec's order among them is unspecified. So every string is parsed
again here by trtexec's rules, applied to all names of the model. It is given out only if it
selects exactly the plan. Patterns need TensorRT 10; to 8.6 they are plain names that match
nothing.

Grammar: NVIDIA/TensorRT, samples/common/sampleOptions.cpp and sampleUtils.h (10.16). The string
has no effect without `--precisionConstraints=obey`.
"""

import re
from collections.abc import Iterable, Mapping

import onnx

from precision_bisect.exports.export import Export, NotWritable, nodes_in_tensorrt, once
from precision_bisect.graphs.graph import all_graphs, attribute
from precision_bisect.layer_table import Exclusion, Layer
from precision_bisect.runs.runfolder import POLYGRAPHY_SCRIPT

PRECISIONS = "--layerPrecisions="
OUTPUT_TYPES = "--layerOutputTypes="
# Operators whose own name TensorRT's parser gives to a layer of integers, or to none.
_NAMED_ELSEWHERE = frozenset(("EyeLike", "Hardmax", "Shrink", "Trilu", "Upsample"))
# Operators that TensorRT's parser builds partly of layers with neither name nor metadata.
_NAMELESS_INSIDE = frozenset(("GRU", "GlobalLpPool", "LSTM", "Mod", "RNN"))
# Operators of which several layers compute; only one has the node's name. As tensorrt_rtx 1.7.1
# parses them. The others have names that depend on the version: a running number behind the node's
# name, or none of the model's.
_SEVERAL = frozenset(
    (
        *("Celu", "GreaterOrEqual", "HardSwish", "LessOrEqual", "LogSoftmax", "LpNormalization"),
        *("LpPool", "Mean", "MeanVarianceNormalization", "Mish", "NonMaxSuppression"),
        *("RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReduceSumSquare", "STFT", "Swish", "BlackmanWindow", "HammingWindow", "HannWindow"),
    )
)
# Those of which that is so where they have one of these attributes.
_SEVERAL_WITH = {
    "IsInf": ("detect_negative", "detect_positive"),
    "RotaryEmbedding": ("num_heads",),
}
# Those of which that is so with more than two inputs.
_OF_TWO = frozenset(("Max", "Min", "Sum"))
# A name as the parser makes it up for a further layer of a node.
_MADE_UP = re.compile(r"(.*)_\d+", re.DOTALL)
# Nodes on whose layers a type would be an error, or that have no layer of their name.
_NEVER_TOLD = (Exclusion.SHAPE, Exclusion.CONTROL_FLOW, Exclusion.NOT_TENSOR)
LONGEST_ARGUMENT = 128 * 1024 - 1
"""Linux' limit on a single argument, in bytes."""
UNWRITABLE = frozenset(",'")
"""Characters that no exact name may have."""


def write_layer_precisions(wanted: Mapping[str, str], others: Iterable[str]) -> str:
    """Return the string that gives exactly these layers the precision that `wanted` has for each.

    `others` are all further names that trtexec could match: layers and initializers. Raises
    NotWritable when there is no such string.
    """
    if not wanted:
        raise NotWritable("no layer is kept")
    universe = [*wanted, *others]
    spec = ",".join(f"{_written(name)}:{precision}" for name, precision in wanted.items())
    if len(PRECISIONS.encode()) + len(spec.encode()) > LONGEST_ARGUMENT:
        raise NotWritable("the string is longer than Linux allows for one argument (128 KiB)")
    # Patterns and quotes follow trtexec's own parsing: only reading it back shows what it selects.
    selected = select(parse_layer_precisions(spec), universe)
    wrong = [name for name in selected if name not in wanted]
    missed = [name for name, precision in wanted.items() if selected.get(name) != precision]
    if wrong:
        raise NotWritable(f"the string would also select {wrong[0]!r}")
    if missed:
        raise NotWritable(f"no trtexec string selects {missed[0]!r}")
    return spec


def _written(name: str) -> str:
    """Return the name, or a pattern for it where trtexec could not read the name."""
    if not name or not name.isprintable():
        raise NotWritable(f"the name {name!r} is empty or has control characters")
    places = [i for i, character in enumerate(name) if character in UNWRITABLE]
    if not places:
        return name
    stars = [i for i, character in enumerate(name) if character == "*"]
    first, last = min(places + stars), max(places + stars)
    return f"{name[:first]}*{name[last + 1 :]}"


def parse_layer_precisions(spec: str) -> Mapping[str, str]:
    """Parse a string as trtexec 10.x does. Raises NotWritable where trtexec would refuse it."""
    precisions = {}
    for item in spec.split(","):
        quotes = item.count("'")
        if quotes not in (0, 2):
            raise NotWritable(f"trtexec expects no or two quotes in {item!r}")
        if quotes:
            before, inside, after = item.split("'")
            name, precision = before + inside, after[1:]
        else:
            # Names may hold colons, types none.
            name, colon, precision = item.rpartition(":")
            if not colon:
                raise NotWritable(f"trtexec finds no type in {item!r}")
        precisions[name] = precision
    return precisions


def select(precisions: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the precision that trtexec gives to each name that the string selects.

    An exact key wins; among patterns that match, trtexec's choice is unspecified, so two that
    disagree select "?".
    """
    patterns = {key: value for key, value in precisions.items() if "*" in key}
    selected = {}
    for name in names:
        if name in precisions:
            selected[name] = precisions[name]
            continue
        values = {value for key, value in patterns.items() if _matches(key, name)}
        if values:
            selected[name] = values.pop() if len(values) == 1 else "?"
    return selected


def _matches(pattern: str, name: str) -> bool:
    """Match `prefix*suffix`; a further `*` is a literal character."""
    prefix, _, suffix = pattern.partition("*")
    return (
        len(name) >= len(prefix) + len(suffix)
        and name.startswith(prefix)
        and name.endswith(suffix)
    )


@once
def layer_precisions(export: Export) -> str:
    """Return the value of `--layerPrecisions`: the type of each node above the lowest.

    It selects these nodes and no other. Raises NotWritable where there is no such value.
    """
    wanted = trtexec_nodes(export)
    weights = export.weight_names
    layers, several = export.model.table.with_bodies, _several(export)
    for name in wanted:
        if name in weights:
            raise NotWritable(f"something else in the model is called {name!r}, too")
        if (made_up := _MADE_UP.fullmatch(name)) and made_up[1] in several:
            raise NotWritable(f"TensorRT may call a layer of {made_up[1]!r} {name!r}, too")
        # TensorRT's parser makes layers of its own around quantization, which no list here has.
        if export.quantized and not UNWRITABLE.isdisjoint(name):
            raise NotWritable(
                f"{name!r} needs a pattern, which could match what quantization adds to the model"
            )
    others = weights | {layer.name for layer in layers}
    return write_layer_precisions(wanted, others - wanted.keys())


def layer_output_types(export: Export) -> str:
    """Return the value of `--layerOutputTypes`: the type of the outputs of the same nodes.

    The one type counts for all outputs of a layer, so layers that put out integers, too, are left
    out: TopK's indices are INT32 or INT64 by TensorRT's version. Names are exact: with a wildcard
    trtexec 10.0 to 10.16 sets another type than the one that is written. Empty where no layer is
    left. Raises NotWritable for names that trtexec cannot read.
    """
    outputs = {str(layer.name): layer.outputs for layer in export.model.table.with_bodies}
    wanted = {
        name: kind
        for name, kind in trtexec_nodes(export).items()
        if {export.model.elem_types.get(out) for out in outputs[name]} == {onnx.TensorProto.FLOAT}
    }
    # A name that needs a pattern is none to TensorRT 8.6: it would run low without a word.
    for name in trtexec_nodes(export):
        if not UNWRITABLE.isdisjoint(name):
            raise NotWritable(f"{OUTPUT_TYPES[:-1]} cannot hold the name {name!r}")
    spec = ",".join(f"{name}:{kind}" for name, kind in wanted.items())
    if len((OUTPUT_TYPES + spec).encode()) > LONGEST_ARGUMENT:
        raise NotWritable("the string is longer than Linux allows for one argument (128 KiB)")
    return spec


@once
def trtexec_nodes(export: Export) -> dict[str, str]:
    """Return the type of each node of which trtexec is told, if any. Raises NotWritable."""
    precisions: dict[str, str] = {}
    nodes, several = nodes_in_tensorrt(export), _several(export)
    for layer in export.model.table.with_bodies:
        if layer.name not in nodes or layer.exclusion in _NEVER_TOLD:
            continue
        trouble = _trouble(layer)
        if layer.name in several:
            trouble = "of several layers, of which one has its name"
        # What constants make may run low; all else would not be what was judged.
        if trouble and (layer.exclusion is not Exclusion.CONSTANT or layer.name in several):
            raise NotWritable(
                f"TensorRT builds {layer.name!r} ({layer.op_type}) {trouble}; "
                f"{POLYGRAPHY_SCRIPT} finds them all"
            )
        if not trouble:
            precisions[layer.name] = nodes[layer.name][0]
    return precisions


def _trouble(layer: Layer) -> str:
    """Return why the layer's name does not lead to what computes it, "" where it does."""
    if layer.op_type in _NAMED_ELSEWHERE:
        return "of several layers, and the one of that name computes no floats"
    return "of layers without a name" if layer.op_type in _NAMELESS_INSIDE else ""


@once
def _several(export: Export) -> set[str]:
    """Return the nodes, bodies included, that TensorRT's parser makes several such layers of."""
    graphs = list(all_graphs(export.model.proto.graph))
    constants = set(export.weight_names)
    for graph in graphs:
        constants.update(n.output[0] for n in graph.node if n.op_type == "Constant")
    return {node.name for graph in graphs for node in graph.node if _becomes(node, constants)}


def _becomes(node: onnx.NodeProto, constants: set[str]) -> bool:
    """Tell whether several layers compute the node."""
    if node.domain not in ("", "ai.onnx"):
        return False
    read = [name for name in node.input if name]
    if node.op_type == "Clip":
        fixed = bool(node.input[1:2] and node.input[1]) and constants.issuperset(read[1:])
        return not fixed and not any(attribute(node, name) for name in ("min", "max"))
    if node.op_type == "Gemm":
        scales = (attribute(node, name) for name in ("alpha", "beta"))
        return len(read) > 2 or any(scale and scale.f != 1 for scale in scales)
    named = any(attribute(node, name) for name in _SEVERAL_WITH.get(node.op_type, ()))
    return node.op_type in _SEVERAL or named or (node.op_type in _OF_TWO and len(read) > 2)
