"""`trtexec.sh`: the commands that build the engine of a plan, for each kind of TensorRT.

Everything that comes from the model or its path is quoted for the shell.
"""

import os
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, get_args

from precision_bisect.backends.tensorrt.profiles import ShapeRange
from precision_bisect.backends.trtexec.trtexec_flags import common_flags, open_inputs
from precision_bisect.errors import UsageError, printable
from precision_bisect.exports.export import Export, NotWritable, engine_ranges, once
from precision_bisect.exports.trtexec_names import (
    OUTPUT_TYPES,
    PRECISIONS,
    layer_output_types,
    layer_precisions,
    trtexec_nodes,
)
from precision_bisect.graphs.graph import operators, opset
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.types import shape_inputs
from precision_bisect.runs.results.deployment import TrtexecMode
from precision_bisect.runs.runfolder import FP32_MODEL, MIXED_MODEL, TRTEXEC_ENGINE

_HEAD = """\
#!/bin/sh
# {model}: {summary}.
#
#   sh trtexec.sh strong10   TensorRT 10{strong}: {mixed}, strongly typed
#   sh trtexec.sh strong11   TensorRT 11: {mixed}
#   sh trtexec.sh rtx        TensorRT-RTX: {mixed}, by its tool tensorrt_rtx
#   sh trtexec.sh weak       TensorRT 8.6 to 10.x{named}: {weak}, precisions by layer name
#
# Written by precision-bisect. Each saves {engine} beside this script, or --saveEngine=FILE.
# Further flags are handed on.
# TRTEXEC=/path/to/trtexec says where the tool is, ONNX_MODEL=/path/to/model.onnx where weak finds
# the model.
#
# Whichever of strong10, strong11 and rtx is called, a tool whose --help has --stronglyTyped gets
# it. 8.6, which cannot type strongly, is refused there, and 11 is at weak.
#
# weak lets the other layers run low; TensorRT takes FP32 for those where that is faster. It names
# TensorRT's layers, which are called after the ONNX nodes, also inside If, Loop and Scan. Layers
# that the parser adds to move a node's values have other names; polygraphy_constraints.py finds
# them.
{remarks}
set -eu
case $0 in */*) here=${{0%/*}} ;; *) here=. ;; esac
model={path}
model=${{ONNX_MODEL:-$model}}

fail() {{
    printf '%s\\n' "$2" >&2
    exit "$1"
}}

{knows}
need() {{
    tool=${{TRTEXEC:-$1}}
    command -v "$tool" > /dev/null 2>&1 ||
        fail 1 "no $tool; say TRTEXEC=/path/to/$1, which TensorRT has as an archive, not from pip"
    {read_options}
}}

# strong TOOL FLAG: the flag is what an unknown tool gets; one that does not know it ends there.
strong() {{
    need "$1"
    typed=$2
    if knows --stronglyTyped; then
        typed=--stronglyTyped
    elif knows --layerPrecisions; then
        fail 1 "$tool$version has no strong typing, so it cannot build this mode: take weak"
    elif knows --onnx; then
        typed=
    fi
}}

# weak FLAG...: what it is to be told.
weak() {{
    need trtexec
    for flag do
        if knows --onnx && ! knows "$flag"; then
            fail 1 "$tool$version has no $flag, which weak needs: take strong10, strong11 or rtx"
        fi
    done
}}

mode=${{1-}}
if [ $# -gt 0 ]; then shift; fi
engine=--saveEngine=$here/{engine}
for flag do
    case $flag in --saveEngine=*) engine= ;; esac
done
if [ -n "$engine" ]; then set -- "$engine" "$@"; fi
case $mode in
"""
_FOOT = """\
*)
    fail 2 "usage: sh $0 strong10|strong11|rtx|weak [flags of trtexec]"
    ;;
esac
"""


_FLAG = "--decomposableAttentions"
_DECOMPOSED = f"""\
# An Attention without a fused kernel, as in FP32, needs this flag of TensorRT 10.14 and later.
    if knows {_FLAG}; then set -- '{_FLAG}=*' "$@"; fi
    """
READ_OPTIONS = """\
options=$("$tool" --help 2>&1 < /dev/null) || :
    # Its first line: RUNNING TensorRT.trtexec [TensorRT v101300] ...
    case $options in
    *'[TensorRT v'*']'*) version=${options#*'[TensorRT v'} version=" (TensorRT v${version%%]*})" ;;
    *) version= ;;
    esac"""
"""Has the shell note what the tool lists as its options, and its version."""
KNOWS = """\
knows() {
    case $options in *"$1"*) return 0 ;; *) return 1 ;; esac
}
"""
"""A function of the shell that tells whether the tool lists an option."""
# Operators that TensorRT 8.6 does not take, each with the first version of 10 or 11 that does. Up
# to 10.10 the importers in onnxOpImporters.cpp (builtin_op_importers.cpp in 8.6) of
# github.com/onnx/onnx-tensorrt, compared by release; from 10.11 on CHANGELOG.md of
# github.com/NVIDIA/TensorRT, as of 11.1.
_SINCE = {
    **dict.fromkeys(("CastLike", "Gelu", "Hardmax", "Mish"), (10, 0)),
    "DeformConv": (10, 1),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (10, 4)),
    "STFT": (10, 5),
    "Attention": (10, 14),
    **dict.fromkeys(("RMSNormalization", "RotaryEmbedding", "TensorScatter"), (10, 15)),
    "Swish": (11, 0),
}
_GROUP_NORM_OPSET = 21
# The first version that takes GroupNormalization as of that opset (CHANGELOG.md).
_GROUP_NORM_SINCE = (10, 9)
# The first version whose GRU may be FP16: before, one minus a gate has an FP32 one.
_LOW_GRU_SINCE = (10, 2)


Version: TypeAlias = tuple[int, int]


def write_trtexec(export: Export) -> str:
    """Return the script, to lie in the export's folder.

    A command that cannot be written is a message instead, and exit code 1. Raises NotWritable for
    input names that trtexec cannot read.
    """
    branches = []
    for mode, body in _bodies(export).items():
        if isinstance(body, NotWritable):
            body = f"fail 1 {shlex.quote(printable(str(body)))}"
        branches.append(f"{mode})\n    {body}\n    ;;\n")
    return _head(export, export.folder) + "".join(branches) + _FOOT


def without_command(export: Export) -> dict[TrtexecMode, str]:
    """Return the ways of the script that have no command, each with the reason."""
    try:
        bodies = _bodies(export)
    except NotWritable as reason:
        return dict.fromkeys(get_args(TrtexecMode), str(reason))
    return {mode: str(body) for mode, body in bodies.items() if isinstance(body, NotWritable)}


@once
def _bodies(export: Export) -> dict[TrtexecMode, str | NotWritable]:
    """Return the commands of each way, or why it has none. Raises NotWritable for all of them."""
    common = build_flags(export)
    bodies: dict[TrtexecMode, str | NotWritable] = {}
    for mode in get_args(TrtexecMode):
        try:
            bodies[mode] = _commands(mode, common, export)
        except NotWritable as reason:
            bodies[mode] = reason
    return bodies


_STRONG: Mapping[TrtexecMode, str] = {
    "strong10": "strong trtexec --stronglyTyped",
    # 11 takes the flag, too, and does nothing about it.
    "strong11": "strong trtexec --stronglyTyped",
    "rtx": "strong tensorrt_rtx ''",
}
_MODEL = '"$model"'
_MODEL_EXISTS = '[ -f "$model" ] || fail 1 "no file $model; say ONNX_MODEL=/path/to/model.onnx"'


def _commands(mode: TrtexecMode, common: Sequence[str], export: Export) -> str:
    """Return the commands of one way; `common` has the flags of all. Raises NotWritable."""
    plugins = [] if mode == "rtx" else _plugins(export)
    if mode == "weak":
        try:
            by_name = list(weak_flags(export))
        except NotWritable as reason:
            raise NotWritable(f"no command by layer names: {reason}") from reason
        # A plan that names no layer needs the types alone.
        needs = dict.fromkeys(flag.partition("=")[0] for flag in by_name)
        check, flags = shlex.join(["weak", *needs]), [*by_name, *common, *plugins]
    else:
        check, flags = _STRONG[mode], [*common, *plugins]
    if mode == "weak" and not export.quantized:
        return f"{_MODEL_EXISTS}\n    {_command(check, _MODEL, flags, export)}"
    if export.no_mixed is not None:
        raise NotWritable(f"there is no {MIXED_MODEL}: {export.no_mixed}")
    return _command(check, '"$here"/' + shlex.quote(MIXED_MODEL), flags, export)


def _head(export: Export, folder: Path) -> str:
    remarks = []
    if versions := since(export):
        remarks.append("\n".join(f"# {line}" for line in textwrap.wrap(versions, 97)))
    # Remarks stand in the script, as it is copied to machines that this screen never reaches.
    if "bf16" in export.below_fp32:
        remarks.append("# BF16 by layer name needs TensorRT 10.")
    if "fp8" in export.builder_types:
        remarks.append("# FP8 needs a GPU of compute capability 8.9 or higher.")
    if export.settings.config_script is not None:
        remarks.append(
            "# A script changed the builder's configuration; trtexec runs none: add its flags."
        )
    if _ranges(export) is None:
        remarks.append(
            "# The model has dynamic inputs: add --minShapes, --optShapes and --maxShapes, or "
            "trtexec\n# takes 1 for each."
        )
    unquantized = FP32_MODEL if export.needs_fp32_form else "the model itself"
    return _HEAD.format(
        model=printable(export.model.path.name),
        summary=export.summary(),
        strong=lowest(export, (10, 0), typed=True),
        named=lowest(export, (8, 6), typed=False),
        weak=MIXED_MODEL if export.quantized else unquantized,
        mixed=MIXED_MODEL,
        remarks="".join(f"#\n{remark}\n" for remark in remarks),
        path=_located(export.by_name, folder),
        knows=KNOWS,
        read_options=READ_OPTIONS,
        engine=TRTEXEC_ENGINE,
    )


def _located(model: Path, folder: Path) -> str:
    """Return the model's path for the shell, from the script where they are near.

    Near is one folder up at most, so that both can move together. Links are followed, as the
    shell does.
    """
    place = model.parent.resolve() / model.name
    relative = os.path.relpath(place, folder.resolve())
    near = Path(relative).parts[:2] != ("..", "..")
    return f"$here/{shlex.quote(relative)}" if near else shlex.quote(str(place))


def weak_flags(export: Export) -> Iterator[str]:
    """Yield the flags of weak typing: the low types, then precisions by layer name.

    Raises NotWritable.
    """
    yield from (f"--{name}" for name in export.builder_types)
    if not trtexec_nodes(export):
        return
    precisions, types = layer_precisions(export), layer_output_types(export)
    yield "--precisionConstraints=obey"
    yield PRECISIONS + precisions
    if types:
        yield OUTPUT_TYPES + types


def _plugins(export: Export) -> list[str]:
    return [f"--staticPlugins={path.absolute()}" for path in export.settings.plugins]


def build_flags(export: Export, called: Mapping[str, str] = {}) -> Sequence[str]:
    """Return the flags that every build has; inputs may be `called` otherwise in the file.

    Raises NotWritable for shapes that cannot work, and for input names that trtexec cannot read.
    """
    try:
        return list(common_flags(export.settings, _ranges(export) or {}, called))
    except UsageError as error:
        raise NotWritable(error.message) from error


def _ranges(export: Export) -> dict[str, ShapeRange] | None:
    """Return the range of every dynamic input: the user's, else that of the run's samples.

    It is None where nothing says which shapes one of them takes. trtexec takes a missing flag
    from the other two, but not a missing input of a flag, and no flag for a model without dynamic
    inputs. Raises NotWritable for shapes that cannot work.
    """
    inputs, opt_shapes = export.model.inputs, export.settings.opt_shapes
    dynamic = open_inputs(inputs, shape_inputs(export.model.proto.graph, inputs))
    if not {*export.shapes, *opt_shapes}.issuperset(dynamic):
        return None
    return engine_ranges(export.model, export.settings, export.shapes)


def _command(check: str, onnx: str, flags: Sequence[str], export: Export) -> str:
    """Return what checks the tool and calls it."""
    typed = [] if check.startswith("weak") else ["$typed"]
    words = [f"--onnx={onnx}", *typed, *map(shlex.quote, flags), '"$@"']
    return f"{check}\n    {decomposing(export)}" + " \\\n        ".join(['exec "$tool"', *words])


def decomposing(export: Export) -> str:
    """Return what adds, in a script, the flag that an Attention needs; "" where there is none."""
    return _DECOMPOSED if "Attention" in operators(export.model.proto.graph) else ""


def lowest(export: Export, base: Version, *, typed: bool) -> str:
    """Return the version that takes the model, where that is above `base`, else "".

    `typed` tells whether the types are those of the typed model; otherwise all are FP32.
    """
    major, minor = max((base, *_needed(export, typed=typed).values()))
    return f", {major}.{minor} or later" if (major, minor) > base else ""


def since(export: Export) -> str:
    """Return from which version on TensorRT takes each newer operator, in a sentence, or ""."""
    needed = sorted(_needed(export, typed=True).items(), key=lambda item: (item[1], item[0]))
    versions = [f"{what} from {major}.{minor}" for what, (major, minor) in needed]
    return f"TensorRT takes {', '.join(versions)} on." if versions else ""


def _needed(export: Export, *, typed: bool) -> dict[str, Version]:
    proto = export.model.proto
    used = operators(proto.graph)
    versions = {op_type: version for op_type, version in _SINCE.items() if op_type in used}
    if "GroupNormalization" in used and opset(proto) >= _GROUP_NORM_OPSET:
        versions[f"GroupNormalization of opset {_GROUP_NORM_OPSET}"] = _GROUP_NORM_SINCE
    low = (
        layer.op_type
        for layer in export.model.table.layers
        if export.precisions.get(layer.name) in LOW_TYPES
    )
    if typed and "GRU" in low:
        versions["GRU below FP32"] = _LOW_GRU_SINCE
    return versions
