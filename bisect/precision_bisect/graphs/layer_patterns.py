"""Patterns of layers, and who answers to them.

A pattern that is a name, an operator type or a module as it stands means just that. Any other is a
regular expression of Python, matched at the start of names, as ModelOpt AutoCast does with
`--nodes_to_exclude` (modelopt/onnx/autocast/nodeclassifier.py), or to whole operator types.

Python's `re` can take exponential time, and cannot be told to stop. So expressions are matched in
a process of their own, which may take `MATCH_S` for all of them.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from precision_bisect.errors import UsageError, shortened
from precision_bisect.layer_table import Layer, LayerName, LayerTable, modules_around

MATCH_S = 10.0
"""Seconds. A bound: 100 patterns on 5,000 names take under 1."""
_LONGEST = 200
"""Characters of names that are compared with one that is misspelt: that takes the square of it."""
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
    found = {
        pattern: [i for i, each in enumerate(every) if _is(each, pattern)] for pattern in patterns
    }
    open_ = [pattern for pattern, those in found.items() if not those]
    names, types = [each.name for each in every], [each.op_type for each in every]
    for pattern, (named, of_types) in zip(open_, matches(open_, names, types, flag), strict=True):
        found[pattern] = sorted({*named, *(i for i, each in enumerate(types) if each in of_types)})
    for pattern, those in found.items():
        _refuse_useless(pattern, [every[i] for i in those], every, flag)
    return frozenset(
        every[i].name for those in found.values() for i in those if every[i].exclusion is None
    )


def matches(
    patterns: Sequence[str], names: Sequence[str], types: Sequence[str], flag: str
) -> list[tuple[Sequence[int], Sequence[str]]]:
    """Return for each expression the places of the names, and the types, that it matches.

    Raises UsageError for one that is no expression, or that takes too long or too much memory.
    """
    if not patterns:
        return []
    asked = {"patterns": list(patterns), "names": list(names), "types": sorted({*types})}
    trouble = "cannot be matched"
    try:
        written = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCHER],
            input=json.dumps(asked).encode(),
            capture_output=True,
            timeout=MATCH_S,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        written = error.stdout or b""
        trouble = f"takes more than {MATCH_S:g} s to match the layers' names"
    # One line each; the last may be cut off.
    told = [json.loads(line) for line in written.split(b"\n")[:-1]]
    if len(told) < len(patterns):
        raise UsageError(
            f"{flag} {shortened(patterns[len(told)])!r} {trouble}",
            "write it without a repeat inside a repeat",
        )
    for pattern, each in zip(patterns, told, strict=True):
        if isinstance(each, str):
            raise UsageError(
                f"{flag} {shortened(pattern)!r} is no regular expression: {each}",
                "write a layer's name, an operator type, a module, or an expression of Python",
            )
    return [(named, of_types) for named, of_types in told]


def _is(layer: Layer, pattern: str) -> bool:
    """Tell whether a pattern is the layer's name, its operator type, or a module around it."""
    named = pattern in (layer.name, layer.op_type, *modules_around(layer.module))
    return named or layer.name.startswith(f"{pattern}/")


def _refuse_useless(
    pattern: str, named: Sequence[Layer], every: Sequence[Layer], flag: str
) -> None:
    """Raise UsageError for a pattern that names nothing, or only what nobody decides on."""
    if any(each.exclusion is None for each in named):
        return
    said = f"{flag} {shortened(pattern)!r}"
    if named:
        first = named[0]
        raise UsageError(
            f"{said} names no layer that is decided on; {first.name!r}: {first.exclusion}", _LISTED
        )
    words = {word for each in every for word in (each.name, each.op_type, each.module)}
    short = sorted(word for word in words if 0 < len(word) <= _LONGEST)
    near = get_close_matches(pattern[:_LONGEST], short, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else _LISTED
    raise UsageError(f"{said} matches no layer", hint)
