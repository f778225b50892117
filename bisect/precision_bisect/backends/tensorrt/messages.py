"""What TensorRT's messages say about a build, in a few short lines.

The texts are those of TensorRT 8.4 to 11 and of TensorRT-RTX; what is not known here is not shown.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from precision_bisect.backends.tensorrt.log import Message
from precision_bisect.errors import printable

MOST_NOTES = 12
_LONGEST = 300
"""In characters."""

_AFFECTED = re.compile(r"^\s*- ?(\d+) weights? (?:are|is) affected by this issue: (.*)", re.M)
_OLD_WEIGHT = re.compile(r"Weights \[name=.*?\] had the following issues when converted to (\w+)")
_QUOTED = tuple(
    re.compile(pattern)
    for pattern in (
        r"Running layernorm after self-attention .*?may cause overflow\.",
        r"Detected layernorm nodes in \w+: .*",
        r"One or more weights outside the range of .*",
        r".*No implementation.* obeys the requested constraints",
        r".*a non-conforming implementation was chosen than was requested",
        r"No valid obedient candidate choices for node .*? that meet the preferred precision",
        r"Could not find any implementation for node [^\n]*",
        r"No low-precision conv kernel available for this strongly-typed .*",
    )
)
"""Remarks worth quoting as they stand, as far as the pattern reaches."""

_SCAFFOLD = re.compile(r"--- (?:Begin|End) node ---|While parsing node number|cudaError 35\b")
"""Lines round an error that are none: the importer's frame, and that there is no driver."""
_API_ERROR = re.compile(r"Error Code \d+: [\w ]+ \((.*)\)\s*$", re.S)
_PLACE = re.compile(r"\s*In \w+ at \S+:\d+")
_IMPORTER = re.compile(r"In function (\w+):\s*\[\d+\]\s*(.*)", re.S)
_CONDITION = re.compile(r"Assertion failed: .*?: (?=\S)")
_PARSED = re.compile(
    r"^(?:Node name: (.+)|name: \"(.+)\")|While parsing node number \d+ (\[.*\])", re.M
)
"""The importer's frame names the node, or at least its operator and output."""


def notes(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return remarks of the builder, each once and on one line, at most `MOST_NOTES`."""
    found = list(dict.fromkeys(_notes(messages)))
    if len(found) > MOST_NOTES:
        left = len(found) - MOST_NOTES + 1
        found = [*found[: MOST_NOTES - 1], f"and {left} more remarks of the builder"]
    return tuple(found)


def first_error(messages: Sequence[Message]) -> str:
    """Return TensorRT's own first error on one line, without its source positions; "" for none."""
    errors = [message.text for message in messages if "ERROR" in message.severity]
    for text in errors:
        if not _SCAFFOLD.search(text) and not _IMPORTER.search(text):
            return clean(text)
    importer = next((match for text in errors if (match := _IMPORTER.search(text))), None)
    if importer is not None:
        frames = [part for text in errors for match in _PARSED.findall(text) for part in match]
        place = next((part for part in reversed(frames) if part), "parser")
        return _one_line(f"{place}: {_checked(importer[1], importer[2])}")
    return clean(errors[0]) if errors else ""


def parser_error(function: str, description: str) -> str:
    """Return what the parser says against a node, on one line.

    `function` is the parser's own that found it, which alone says something where the description
    is a failed check of the parser's.
    """
    for line in description.splitlines():
        if _API_ERROR.search(line) and not _SCAFFOLD.search(line):
            return clean(line)
    return _one_line(_checked(function, description))


def clean(text: str) -> str:
    """Return the core of one error of TensorRT on one line."""
    core = _API_ERROR.search(text)
    return _one_line(_PLACE.sub("", core[1] if core else text))


def _checked(function: str, description: str) -> str:
    """Return what a failed check of the parser says, without the condition where it has words."""
    return f"{function}: {_CONDITION.sub('', description)}"


def _notes(messages: Iterable[Message]) -> Iterator[str]:
    counted: Counter[str] = Counter()
    for message in messages:
        for count, kind in _AFFECTED.findall(message.text):
            counted[_one_line(kind)] += int(count)
        if old := _OLD_WEIGHT.search(message.text):
            counted[f"Issues when converted to {old[1]}."] += 1
        for pattern in _QUOTED:
            if quoted := pattern.search(message.text):
                yield _one_line(quoted[0])
    for kind, count in counted.items():
        yield f"weights, {count} affected: {kind}"


def _one_line(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
