"""The final screen: the answer, the layers by what they are, and the next step to take.

Layer names come from an untrusted file, so they are shown as literal text, never as markup or
control characters, and commands that contain paths are quoted for the shell.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from precision_bisect.errors import counted, printable
from precision_bisect.runs.results.result import Result
from precision_bisect_reports.culprit_groups import by_cause, groups_of
from precision_bisect_reports.next_steps import NextStep, next_steps
from precision_bisect_reports.page_model import Page, Tone, page_of
from precision_bisect_reports.rows import ALWAYS, DETAIL, EVIDENCE, MORE

WIDTH = 80
MOST_LINES = 25
_SPACED = 4
_LAYOUTS = (
    *((4, 3, _SPACED), (4, 3, DETAIL), (2, 3, DETAIL)),
    *((2, 3, MORE), (1, 3, MORE), (1, 0, MORE), (1, 3, EVIDENCE)),
    *((0, 1, MORE), (0, 3, EVIDENCE), (0, 0, EVIDENCE), (0, 3, ALWAYS), (0, 0, ALWAYS)),
)
"""How many patterns of layers are explained, how many more are named, and which parts the screen
has, until all of it fits."""
_COLOURS: Mapping[Tone, str] = {"good": "green", "open": "yellow", "bad": "red"}


def final_screen(
    result: Result,
    model: Path,
    width: int = WIDTH,
    command: Sequence[str] = (),
    most: float = MOST_LINES,
) -> Iterator[Text]:
    """Yield the lines of the final screen, at most `most` of at most `width` columns.

    `command` has the words of the command line that began the run, where it is known.

    What does not fit is left to the report, the least important first: warnings always fit in.
    Only words of commands may be longer than a line.
    """
    lines: list[Text] = []
    page, steps = page_of(result), list(next_steps(result, model, command))
    for *patterns, level in _LAYOUTS:
        lines = list(_screen(result, page, steps, width, patterns, level))
        if len(lines) <= most:
            break
    yield from lines


def _screen(
    result: Result,
    page: Page,
    steps: Sequence[NextStep],
    width: int,
    patterns: Sequence[int],
    level: int,
) -> Iterator[Text]:
    """Yield the lines of a screen: so many patterns of layers, and what is due at this level."""
    yield Text("")
    if result.refuted:
        yield from folded(Text(page.warnings[0], style="bold red"), width, 2)
    headline = Text(page.head, style=f"bold {_COLOURS[page.tone]}")
    if page.sentence:
        headline.append(f": {page.sentence}", style="default not bold")
    yield from folded(headline, width, 2)
    for warning in page.warnings[bool(result.refuted) :]:
        yield from folded(Text(f"  {warning}", style="bold yellow"), width, 4)
    if result.kept and not result.unanswered:
        yield from _layers(result, width, patterns)
        if level >= _SPACED:
            yield Text("")
    for row in page.rows:
        if row.level <= level:
            yield from folded(Text.assemble((f"  {row.label:<12}", "dim"), row.text), width, 14)
    yield Text("")
    for next_step in steps:
        if next_step.level <= level:
            yield from step(next_step.what, next_step.commands, width)


def _layers(result: Result, width: int, patterns: Sequence[int]) -> Iterator[Text]:
    """Yield the kept layers by their patterns, for each type of a ladder."""
    several = len(result.rungs) > 2
    for rung in result.rungs[:-1] if several else ():
        if rung.layers:
            yield Text(f"  must be {rung.precision.upper()}", style="bold")
            yield from _patterns(result, rung.layers, width, patterns)
    if not several:
        yield from _patterns(result, result.kept, width, patterns)


def _patterns(
    result: Result, layers: Sequence[str], width: int, patterns: Sequence[int]
) -> Iterator[Text]:
    groups = groups_of(result, layers)
    explained, named = patterns[0], sum(patterns)
    for group in groups[:explained]:
        yield from folded(Text(f"  {group.title}", style="bold"), width, 4)
        for text in filter(None, (group.why, group.where)):
            yield from folded(Text(f"    {text}"), width, 4)
    for group in groups[explained:named]:
        title = Text.assemble((f"  {group.title}", "bold"), _counted(result, group.layers))
        yield from folded(title, width, 4)
    rest = [name for group in groups[named:] for name in group.layers]
    if rest:
        count = counted(len(rest), "more layer" if named else "layer")
        count += _counted(result, rest)
        # Where there is no space for a pattern, one layer is named all the same.
        more = f"… and {count}" if named else f"{count}, such as {printable(rest[0])}"
        more = f"{more}, in the report"
        yield from folded(Text(f"  {more}"), width, 4)


def _counted(result: Result, layers: Sequence[str]) -> str:
    """Return the causes of some layers, in brackets, with counts; "" where none is known."""
    causes = by_cause(result, layers).removeprefix("1 " if len(layers) == 1 else "")
    return f" ({causes})" if causes else ""


_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
"""A word of a command, quoted parts and all."""


def folded(line: Text, width: int, hang: int) -> Iterator[Text]:
    """Yield the line in pieces of at most `width` columns, the later ones further in.

    They begin below the character at `hang`, which is no more than half the width. Words longer
    than a line are broken.
    """
    if line.cell_len <= width:
        yield line
        return
    head, body = line.divide([hang])
    indent = head.cell_len
    for piece in body.wrap(Console(width=width), width - indent, overflow="fold"):
        piece.rstrip()
        yield Text.assemble(head, piece)
        head = Text(" " * indent)


def step(what: str, commands: Sequence[str], width: int) -> Iterator[Text]:
    """Yield what to do, with its one command beside it where both fit into a line."""
    if len(commands) == 1 and len(what) + len(commands[0]) + 4 <= width:
        yield Text.assemble("  ", (f"{what}: ", "bold"), commands[0])
        return
    yield from folded(Text(f"  {what}{':' if commands else ''}", style="bold"), width, 4)
    for text in commands:
        yield from command(text, width)


def command(text: str, width: int) -> Iterator[Text]:
    """Yield a command that can be pasted, in lines of at most `width` columns where words allow.

    All but the last end in a backslash, so that a shell reads them as one.
    """
    line = " " * 4
    begun = False
    for word in _WORD.findall(text):
        if begun and len(line) + 1 + len(word) > width - 2:
            yield Text(f"{line} \\")
            line = " " * 6 + word
        else:
            line += f" {word}" if begun else word
        begun = True
    yield Text(line)
