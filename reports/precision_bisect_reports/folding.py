"""Text that fits a number of columns: words are folded, commands broken as a shell allows."""

import re
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

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
    for each in commands:
        yield from command(each, width)


def command(text: str, width: int, indent: int = 4) -> Iterator[Text]:
    """Yield a command that can be pasted, in lines of at most `width` columns where words allow.

    All but the last end in a backslash, so that a shell reads them as one.
    """
    line = " " * indent
    begun = False
    for word in _WORD.findall(text):
        if begun and len(line) + 1 + len(word) > width - 2:
            yield Text(f"{line} \\")
            line = " " * (indent + 2) + word
        else:
            line += f" {word}" if begun else word
        begun = True
    yield Text(line)
