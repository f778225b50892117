"""The final screen: the answer, the layers by what they are, and the next step to take.

Layer names come from an untrusted file, so they are shown as literal text, never as markup or
control characters, and commands that contain paths are quoted for the shell.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from precision_bisect.errors import counted, printable
from precision_bisect.runs.results.result import Result
from precision_bisect_reports.culprit_groups import by_cause, groups_of
from precision_bisect_reports.next_steps import next_steps
from precision_bisect_reports.page_model import Page, Tone, page_of
from precision_bisect_reports.rows import ALWAYS, DETAIL, FULL, NEWS, Form

WIDTH = 80
MOST_LINES = 25
# Lines of one fact on a screen that is cut, one more of what is always due: the report and -v have
# the rest.
_MOST_PROSE = 3
_MOST_HEADLINE = 6
# Lines of kept layers, the first that leaves room for what is always due and for the steps.
_MOST_KEPT = (7, 5, 3, 2)
# How many patterns of layers are explained, and how many more are named, until they fit.
_PATTERNS = ((4, 3), (2, 3), (1, 3), (1, 0), (0, 3), (0, 1), (0, 0))
_COLOURS: Mapping[Tone, str] = {"good": "green", "open": "yellow", "bad": "red"}


class _Block(NamedTuple):
    """Lines that are shown or left out together, by how much they matter."""

    level: int
    lines: Sequence[Text]


def final_screen(
    result: Result,
    model: Path,
    width: int = WIDTH,
    command: Sequence[str] = (),
    most: float = MOST_LINES,
) -> Iterator[Text]:
    """Yield the lines of the final screen, at most `most` of at most `width` columns.

    `command` has the words of the command line that began the run, where it is known.

    What does not fit is left to the report and to -v, the least important first. A list of kept
    layers becomes patterns, then a count. Only words of commands may be longer than a line.
    """
    page, cut = page_of(result), most < math.inf
    top = [Text(""), *_top(page, width, cut=cut)]
    steps = [
        _Block(next_step.level, list(step(next_step.what, next_step.commands, width)))
        for next_step in next_steps(result, model, command)
    ]
    room = most - len(top) - 1
    blocks = steps
    for most_kept in _MOST_KEPT:
        blocks = [*steps, *_facts(result, page, width, most_kept, cut=cut)]
        always = [block for block in blocks if block.level == ALWAYS]
        due = [*always, *(block for block in steps if block.level == NEWS)]
        if sum(len(lines) for _, lines in due) <= room:
            break
    shown = _fitting(blocks, room)
    yield from top
    yield from _lines(shown[len(steps) :])
    yield Text("")
    yield from _lines(shown[: len(steps)])


def _lines(blocks: Iterable[_Block]) -> Iterator[Text]:
    return chain.from_iterable(block.lines for block in blocks)


def _fitting(blocks: Sequence[_Block], room: float) -> Sequence[_Block]:
    """Return the blocks, without the lines of those that do not fit into so many.

    What matters more comes first, and of what matters as much the first. What is always due is
    there; of what matters less than a block that was left out nothing is.
    """
    shown = [block._replace(lines=()) for block in blocks]
    last = DETAIL if room < math.inf else FULL
    for place in sorted(range(len(blocks)), key=lambda place: blocks[place].level):
        level, lines = blocks[place]
        if level > last:
            break
        if level == ALWAYS or len(lines) <= room:
            shown[place] = blocks[place]
            room -= len(lines)
        else:
            last = level
    return shown


def _top(page: Page, width: int, *, cut: bool) -> Iterator[Text]:
    """Yield how the run ended, with the answer, and the gravest caveat."""
    headline = Text(page.head, style=f"bold {_COLOURS[page.tone]}")
    if page.sentence:
        headline.append(f": {page.sentence}", style="default not bold")
    lines = list(_first_of(folded(headline, width, 2), _MOST_HEADLINE, cut=cut))
    style = "bold red" if page.refuted else "bold yellow"
    hang = 0 if page.refuted else 2
    banner = Text(" " * hang + page.banner, style=style)
    warning = list(_first_of(folded(banner, width, hang + 2), _MOST_PROSE, cut=cut))
    warning = warning if page.banner else []
    yield from (*warning, *lines) if page.refuted else (*lines, *warning)


def _facts(
    result: Result, page: Page, width: int, most_kept: int, *, cut: bool
) -> Iterator[_Block]:
    """Yield the facts of a page, tables as one block, and the kept layers in their place.

    A table that is wider than the screen is left to the report.
    """
    for (form, level), rows in groupby(page.rows, key=lambda row: (row.form, row.level)):
        lines = [Text.assemble((f"  {row.label:<12}", "dim"), row.text) for row in rows]
        if form is Form.KEPT:
            yield _Block(level, _kept(result, width, most_kept, cut=cut))
        elif form is Form.TABLE:
            if max(line.cell_len for line in lines) <= width:
                yield _Block(level, lines)
        else:
            for line in lines:
                most = _MOST_PROSE + (level == ALWAYS)
                fact = list(_first_of(folded(line, width, 14), most, cut=cut))
                yield _Block(level, fact)


def _first_of(lines: Iterable[Text], most: int, *, cut: bool) -> Iterator[Text]:
    """Yield the lines, on a screen that is cut the first ones of more than `most`."""
    every = list(lines)
    if not cut or len(every) <= most:
        yield from every
        return
    *first, last = every[:most]
    yield from first
    yield Text.assemble(last[: max(0, last.plain.rfind(" "))], " …")


def _kept(result: Result, width: int, most: int, *, cut: bool) -> Sequence[Text]:
    """Return the kept layers by their patterns, as many as fit, for each type of a ladder."""
    several = len(result.rungs) > 2
    lists = [
        (f"  must be {rung.precision.upper()}", rung.layers)
        for rung in (result.rungs[:-1] if several else ())
        if rung.layers
    ]
    lines: list[Text] = []
    for patterns in _PATTERNS if cut else [(len(result.kept), 0)]:
        lines = []
        for title, layers in lists or [("", result.kept)]:
            lines += [Text(title, style="bold")] * bool(title)
            lines += _patterns(result, layers, width, patterns)
        if len(lines) <= most:
            break
    return lines


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
        # Of several places one is named all the same.
        such = f", such as {printable(group.places[0])}" if group.places else ""
        head = (f"  {group.title}", "bold")
        title = Text.assemble(head, such, _counted(result, group.layers))
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


# A word of a command, quoted parts and all.
_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")


def folded(line: Text, width: int, hang: int) -> Iterator[Text]:
    """Yield the line in pieces of at most `width` columns, the later ones further in.

    They begin below the character at `hang`, which is no more than half the width. No word is
    broken: of one that is longer than a line its middle is left out.
    """
    if line.cell_len <= width:
        yield line
        return
    head, body = line.divide([hang])
    indent = head.cell_len
    for piece in _shortened(body, width - indent).wrap(Console(width=width), width - indent):
        piece.rstrip()
        yield Text.assemble(head, piece)
        head = Text(" " * indent)


def _shortened(line: Text, width: int) -> Text:
    """Return a line without the middle of words that are longer than this."""
    pieces, end = [], 0
    for match in re.finditer(r"\S+", line.plain):
        word = match.group()
        if cell_len(word) > width:
            first = len(set_cell_size(word, width // 2).rstrip())
            last = len(set_cell_size(word[::-1], width - width // 2 - 1).rstrip())
            pieces += [line[end : match.start() + first], Text("…")]
            end = match.end() - last
    return Text.assemble(*pieces, line[end:]) if pieces else line


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
