"""What the user knows of layers: their types, by `--keep` and `--low-only`, and where to start.

Layers with a type by order are no candidates, so no plan of any search can have them otherwise.
The sources of `--start` are untrusted. They are of this model or of one that was exported like it:
what counts are the names.

A pattern that is a name, an operator type or a module as it stands means just that. Any other is a
regular expression of Python, matched at the start of names, as ModelOpt AutoCast does with
`--nodes_to_exclude` (modelopt/onnx/autocast/nodeclassifier.py), or to whole operator types.

Python's `re` can take exponential time, and cannot be told to stop. So expressions are matched in
a process of their own, which may take `MATCH_S` for all of them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from precision_bisect.errors import InputError, UsageError, counted, first_of, shortened
from precision_bisect.exports.autocast import write_autocast
from precision_bisect.exports.export import NotWritable
from precision_bisect.exports.trtexec_names import parse_layer_precisions, select
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.pinning import pin_formless, refuse_nothing_low
from precision_bisect.layer_table import Layer, LayerName, LayerTable, modules_around
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.machine.process_ends import how_ended
from precision_bisect.options import Options
from precision_bisect.precisions import QUANTIZED_NAMES
from precision_bisect.runs.results.saved import read_result, result_file

MATCH_S = 10.0
"""Seconds. A bound: 100 patterns on 5,000 names take under 1."""
# Characters of names that are compared with one that is misspelt: that takes the square of it.
_LONGEST = 200
_LISTED = "`precision-bisect layers MODEL` lists them"
_MATCHER = """
import json, re, sys
asked = json.load(sys.stdin)
for text in asked["patterns"]:
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        print(json.dumps(str(error)), flush=True)
        continue
    names = [i for i, name in enumerate(asked["names"]) if pattern.match(name)]
    types = [op_type for op_type in asked["types"] if pattern.fullmatch(op_type)]
    print(json.dumps([names, types]), flush=True)
"""


def layers_of(patterns: Sequence[str], table: LayerTable, flag: str) -> frozenset[LayerName]:
    """Return the candidates that patterns of a flag name.

    Raises UsageError for a pattern that names none, or that cannot be read.
    """
    every = table.layers
    places_by_pattern = {
        pattern: [i for i, layer in enumerate(every) if _is(layer, pattern)]
        for pattern in patterns
    }
    # What is no layer's name may be a pattern, or an operator.
    open_ = [pattern for pattern, those in places_by_pattern.items() if not those]
    names, types = [layer.name for layer in every], [layer.op_type for layer in every]
    for pattern, (named, of_types) in zip(open_, matches(open_, names, types, flag), strict=True):
        places_by_pattern[pattern] = sorted(
            {*named, *(i for i, op_type in enumerate(types) if op_type in of_types)}
        )
    for pattern, those in places_by_pattern.items():
        _refuse_useless(pattern, [every[i] for i in those], every, flag)
    return frozenset(
        every[i].name
        for those in places_by_pattern.values()
        for i in those
        if every[i].exclusion is None
    )


def matches(
    patterns: Sequence[str], names: Sequence[str], types: Sequence[str], flag: str
) -> list[tuple[Sequence[int], Sequence[str]]]:
    """Return for each expression the places of the names, and the types, that it matches.

    Raises UsageError for one that is no expression, or that takes too long or too much memory.
    """
    if not patterns:
        return []
    request = {"patterns": list(patterns), "names": list(names), "types": sorted({*types})}
    trouble = "cannot be matched"
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCHER],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=MATCH_S,
            check=False,
        )
        written = ran.stdout
        trouble += f": its process {how_ended(ran.returncode, ran.stderr)}"
    except subprocess.TimeoutExpired as error:
        written = error.stdout or b""
        trouble = f"takes more than {MATCH_S:g} s to match the layers' names"
    # One line each; the last may be cut off.
    answers = [json.loads(line) for line in written.split(b"\n")[:-1]]
    if len(answers) < len(patterns):
        raise UsageError(
            f"{flag} {shortened(patterns[len(answers)])!r} {trouble}",
            "write it without a repeat inside a repeat",
        )
    for pattern, answer in zip(patterns, answers, strict=True):
        if isinstance(answer, str):
            raise UsageError(
                f"{flag} {shortened(pattern)!r} is no regular expression: {answer}",
                "write a layer's name, an operator type, a module, or an expression of Python",
            )
    return [(named, of_types) for named, of_types in answers]


def _is(layer: Layer, pattern: str) -> bool:
    """Tell whether a pattern is the layer's name, its operator type, or a module around it."""
    named = pattern in (layer.name, layer.op_type, *modules_around(layer.module))
    return named or layer.name.startswith(f"{pattern}/")


def _refuse_useless(
    pattern: str, named: Sequence[Layer], every: Sequence[Layer], flag: str
) -> None:
    """Raise UsageError for a pattern that names nothing, or only what nobody decides on."""
    if any(layer.exclusion is None for layer in named):
        return
    what = f"{flag} {shortened(pattern)!r}"
    if named:
        first = named[0]
        raise UsageError(
            f"{what} names no layer that is decided on; {first.name!r}: {first.exclusion}", _LISTED
        )
    words = {word for layer in every for word in (layer.name, layer.op_type, layer.module)}
    short = sorted(word for word in words if 0 < len(word) <= _LONGEST)
    near = get_close_matches(pattern[:_LONGEST], short, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else _LISTED
    raise UsageError(f"{what} matches no layer", hint)


# Bytes of a list that is read. A bound: 5,000 layers take less than a hundredth.
_LARGEST = 2**26
_TRTEXEC = "--layerPrecisions="
_TYPES = frozenset(("fp32", "fp16", "bf16", "int8", "fp8"))
_SHOWN = 3
_HINT = (
    "give the folder of a run, a mixed .onnx, an AutoCast exclude list, or a trtexec "
    "layerPrecisions string or file"
)


class Known(NamedTuple):
    """The model in which layers have the type asked for, the plan to start from, and remarks."""

    model: Model
    start: frozenset[LayerName] = frozenset()
    remarks: Sequence[str] = ()


def with_known(options: Options, model: Model) -> Known:
    """Return what the options say of the model's layers.

    Raises NothingLow where no layer has a form in the lowest type, and as `with_asked` and
    `start_of` do.
    """
    lowest = options.pairs[0]
    pinned = pin_formless(model, lowest)
    listed = "list them with `precision-bisect layers`"
    hint = "leave that type out of the ladder" if options.ladder else listed
    refuse_nothing_low(pinned, lowest.low, hint)
    model, remarks = with_asked(options, model)
    start, more = start_of(options, model)
    return Known(model, start, [*remarks, *more])


def with_asked(options: Options, model: Model) -> tuple[Model, list[str]]:
    """Return the model in which the layers that flags name have their type, and remarks.

    A layer without a form in that type is left as any other, which is remarked. Raises UsageError
    for patterns that name nothing, the same layer, or only such layers, and where no candidate is
    left.
    """
    if not (options.keep or options.low_only):
        return model, []
    kept = layers_of(options.keep, model.table, "--keep")
    low = layers_of(options.low_only, model.table, "--low-only")
    if both := sorted(kept & low):
        raise UsageError(
            f"--keep and --low-only both name {first_of(list(map(repr, both)))}",
            "name each in one of them",
        )
    lowest, highest = options.pairs[0], options.pairs[-1]
    pinned = pin_formless(model, lowest).table
    formless = {layer.name: layer for layer in pinned.layers if layer.exclusion is not None}
    remarks = _cannot(low, formless, lowest.low)
    fp32 = {name for name, layer in formless.items() if layer.fixed is not None}
    forms = dict.fromkeys(low - formless.keys(), lowest.low_form)
    forms |= dict.fromkeys(kept - fp32, highest.high_form)
    table = model.table.asking(forms)
    # A ladder decides on its higher rungs what has no form on the lowest.
    decided = table.candidates if options.ladder else set(pinned.names) - forms.keys()
    if not decided:
        raise UsageError(
            f"--keep and --low-only leave no layer of {model.path} to decide on", "name fewer"
        )
    return replace(model, table=table), remarks


def _cannot(
    low: Collection[LayerName], formless: Mapping[LayerName, Layer], kind: str
) -> list[str]:
    """Return a remark on the layers of --low-only that have no low form.

    Raises UsageError where all of them have none.
    """
    names = [name for name in formless if name in low]
    if not names:
        return []
    why = formless[names[0]].detail
    remark = f"--low-only: {first_of(names)} cannot run in {kind.upper()}: {why}"
    if len(names) == len(low):
        raise UsageError(remark, "name others")
    return [remark]


def start_of(options: Options, model: Model) -> tuple[frozenset[LayerName], Sequence[str]]:
    """Return the candidates that `--start` names, and a remark on names that are not there.

    Raises UsageError and InputError for what is none of the sources, and where it keeps no layer
    of the model, and what the source's own reader raises.
    """
    if options.start is None:
        return frozenset(), ()
    text = str(options.start)
    named, strange = _named(text, options, model)
    candidates = named.intersection(model.table.names)
    source = f"--start {shortened(text, 60)}"
    unknown = [
        *strange,
        *sorted(named.difference(layer.name for layer in model.table.with_bodies)),
    ]
    # A start that keeps nothing is a mistake in the file or of the model: say so before hours of
    # search.
    if not candidates:
        what = "names no layer that is decided on" if named or unknown else "keeps no layer"
        examples = f", such as {shortened(unknown[0])!r}" if unknown else ""
        raise UsageError(f"{source} {what} in {model.path}{examples}", _HINT)
    examples = ", ".join(repr(shortened(name)) for name in unknown[:_SHOWN])
    count = counted(len(unknown), "layer")
    remark = f"{source} names {count} that {model.path.name} does not have: {examples}"
    return candidates, [remark] if unknown else ()


def _named(
    source: str, options: Options, model: Model
) -> tuple[frozenset[LayerName], Sequence[str]]:
    """Return the names of high layers in a source, and those of its patterns that match none."""
    path = Path(source)
    if os.path.isdir(path) or path.suffix == ".json":  # noqa: PTH112 - never raises
        return _of_run(path), ()
    if path.suffix == ".onnx":
        return _of_mixed(path, options), ()
    names = [layer.name for layer in model.table.with_bodies]
    if not os.path.isfile(path):  # noqa: PTH113 - never raises
        if not _is_trtexec(source):
            raise UsageError(f"--start {shortened(source)} is no file or folder", _HINT)
        return _of_trtexec(source, names)
    text = _read(path)
    return _of_trtexec(text, names) if _is_trtexec(text) else _of_autocast(text, names)


def _of_run(path: Path) -> frozenset[LayerName]:
    """Return what a run keeps, by order, too; of one that was cut short, its best plan."""
    result = read_result(result_file(path), _HINT)
    by_order = (entry.layer for entry in result.asked if entry.precision == result.high)
    return frozenset(map(LayerName, (*result.kept, *by_order)))


def _of_mixed(path: Path, options: Options) -> frozenset[LayerName]:
    """Return the layers that compute in FP32 in a model that is typed by Casts."""
    if options.low in QUANTIZED_NAMES:
        raise UsageError(
            f"--start {path} tells FP32 from 16-bit layers, and the low type is {options.low}",
            "start from the folder of a run",
        )
    mixed = load_model(path)
    if not mixed.in_low:
        raise UsageError(f"--start {path} has no 16-bit layer, so it is no mixed model", _HINT)
    return frozenset(mixed.table.names).difference(map(LayerName, mixed.in_low))


def _read(path: Path) -> str:
    """Return the text of a file. Raises InputError."""
    try:
        if plain_size(path) > _LARGEST:
            raise InputError(f"--start {path} is larger than {_LARGEST >> 20} MiB", _HINT)
        return path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", _HINT) from error
    except ValueError as error:
        raise InputError(f"--start {path} is no text", _HINT) from error


def _is_trtexec(text: str) -> bool:
    """Tell whether a text is `layer:type,…`, with or without its flag."""
    items = _without_flag(text).split(",")
    return all(item.rpartition(":")[2] in _TYPES for item in items)


def _without_flag(text: str) -> str:
    return text.strip().removeprefix(_TRTEXEC).strip('"')


def _of_trtexec(
    text: str, names: Sequence[LayerName]
) -> tuple[frozenset[LayerName], Sequence[str]]:
    """Return the names that a layerPrecisions string leaves in FP32, and those that match none."""
    try:
        precisions = parse_layer_precisions(_without_flag(text))
    except NotWritable as error:
        raise InputError(f"--start: {error}", _HINT) from error
    chosen, all_names = select(precisions, names), frozenset(names)
    high = frozenset(LayerName(name) for name, kind in chosen.items() if kind == "fp32")
    strange = [
        name
        for name, kind in precisions.items()
        if kind == "fp32"
        and name not in all_names
        and not ("*" in name and select({name: kind}, names))
    ]
    return high, strange


def _of_autocast(
    text: str, names: Sequence[LayerName]
) -> tuple[frozenset[LayerName], Sequence[str]]:
    """Return the nodes that an exclude list keeps, and its lines that match none."""
    lines = list(dict.fromkeys(filter(None, map(str.strip, text.splitlines()))))
    if not lines:
        raise UsageError("--start has an empty list", _HINT)
    # Lines of our own mean one name each; expressions take a process.
    exact = dict(zip(write_autocast(names).splitlines(), names, strict=True))
    others = [line for line in lines if line not in exact]
    nodes = {exact[line] for line in lines if line in exact}
    strange = []
    for line, (places, _) in zip(others, matches(others, names, (), "--start"), strict=True):
        nodes.update(names[i] for i in places)
        if not places:
            strange.append(line)
    return frozenset(nodes), strange
