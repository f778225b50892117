"""What TensorRT's warnings say about a build, in a few short lines, and which layers they mean.

The texts are those of TensorRT 8.4 to 11 and of TensorRT-RTX; unknown texts are not shown. Names
come with a warning, or in the message next to it that only a verbose log shows.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from precision_bisect.backends.backend_plugin import Message
from precision_bisect.backends.tensorrt.log import (
    AFFECTED,
    IMPORTED,
    LOUD,
    UNLISTED,
    printable_line,
)
from precision_bisect.errors import counted, printable
from precision_bisect.trial import Listed

MOST_NOTES = 12
"""Remarks of one build, at most; a bound for readers."""
MOST_OF_A_REMARK = 512
"""Names for one remark, at most: the ledger holds those of all trials of a run."""

_AFFECTED = re.compile(r"^\s*- ?(\d+) weights? (?:are|is) affected by this issue: (.*)", re.M)
_OLD_WEIGHT = re.compile(
    r"Weights \[name=(.*?)\] had the following issues when converted to (\w+)"
)
_CLAMPED = re.compile(r"One or more weights outside the range of \w+ was clamped")
_NORMS = re.compile(r"(Detected layernorm nodes in \w+): (.*)")
# Remarks worth quoting as they are, as far as the pattern reaches.
_QUOTED = tuple(
    re.compile(pattern)
    for pattern in (
        r"Running layernorm after self-attention .*?may cause overflow\.",
        r"No implementation.* obeys the requested constraints",
        r"(?m:^).*a non-conforming implementation was chosen than was requested",
        r"No valid obedient candidate choices for node .*? that meet the preferred precision",
        r"Could not find any implementation for node [^\n]*",
        r"No low-precision conv kernel available for this strongly-typed .*",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """Remarks of the builder, each once and on one line, with the names that it listed.

    There are at most `MOST_NOTES`; the last one counts the rest.
    """

    notes: Sequence[str] = ()
    listed: Sequence[Listed] = ()


def builder_remarks(messages: Sequence[Message], unmarked: Sequence[str] = ()) -> Remarks:
    """Return what the builder remarked in the messages of one build.

    `unmarked` are the kept layers that it could not be told of.
    """
    heard = _Heard()
    if unmarked:
        heard.quoted[
            f"TensorRT has no layer to mark for {counted(len(unmarked), 'kept layer')}"
        ] = [printable(name) for name in unmarked]
    for before, message in zip((Message("", ""), *messages), messages, strict=False):
        heard.hear(before, message)
    notes = [*dict.fromkeys(heard.notes())]
    if len(notes) > MOST_NOTES:
        rest = len(notes) - MOST_NOTES + 1
        notes = [*notes[: MOST_NOTES - 1], f"and {rest} more remarks of the builder"]
    # Sorted, since TensorRT's order differs between builds.
    listed = [
        Listed(note=note, names=tuple(sorted({*names})[:MOST_OF_A_REMARK]))
        for note, names in heard.listed()
        if names and note in notes
    ]
    return Remarks(notes=tuple(notes), listed=tuple(listed))


@dataclass(slots=True)
class _Heard:
    """What was heard so far: quotations, and the count of weights by kind, with their names."""

    quoted: dict[str, list[str]] = field(default_factory=dict)
    weights: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[str]] = field(default_factory=dict)
    last_kind: str = ""

    def hear(self, before: Message, message: Message) -> None:
        """Take in a message; names may be in the message before it, or the other way round."""
        text = message.text
        for count, kind in _AFFECTED.findall(text):
            self.last_kind = printable_line(kind)
            self.weights[self.last_kind] += int(count)
        if text.lstrip().startswith(AFFECTED):
            self._name(self.last_kind, text.partition(AFFECTED)[2])
        if old := _OLD_WEIGHT.search(text):
            kind = f"Issues when converted to {old[2]}."
            self.weights[kind] += 1
            self._name(kind, old[1])
        if norms := _NORMS.search(text):
            self._quote(norms[1], norms[2])
        elif UNLISTED.fullmatch(text):
            self._quote(text.strip().rstrip("."), "")
        elif UNLISTED.fullmatch(before.text) and message.severity not in LOUD:
            self._quote(before.text.strip().rstrip("."), text)
        if clamped := _CLAMPED.search(text):
            is_import = before.text.startswith(IMPORTED)
            self._quote(clamped[0], before.text.removeprefix(IMPORTED) if is_import else "")
        # The same words in a verbose message tell of a tactic that was tried, not of the engine.
        for pattern in _QUOTED if message.severity in LOUD else ():
            if quoted := pattern.search(text):
                self._quote(quoted[0], "")

    def notes(self) -> Iterator[str]:
        """Yield the remarks."""
        yield from self.quoted
        yield from (_counted(kind, count) for kind, count in self.weights.items())

    def listed(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each remark with its names."""
        yield from self.quoted.items()
        for kind, count in self.weights.items():
            yield _counted(kind, count), self.named.get(kind, [])

    def _quote(self, text: str, names: str) -> None:
        self.quoted.setdefault(printable_line(text), []).extend(_split(names))

    def _name(self, kind: str, names: str) -> None:
        self.named.setdefault(kind, []).extend(_split(names))


def _counted(kind: str, count: int) -> str:
    return f"weights, {count} affected: {kind}"


def _split(names: str) -> list[str]:
    """Return the names of a list; a fused layer's name may come in pieces, one for each layer."""
    return [printable(name.strip()) for name in names.split(",") if name.strip()]
