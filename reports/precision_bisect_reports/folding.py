"""Lines that are too long for the screen, continued below with a hanging indent."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text


def folded(line: Text, width: int | None, hang: int) -> Iterator[Text]:
    """Yield the line in pieces of at most `width` columns, the later ones further in.

    They begin below the character at `hang`, which is no more than half the width. Words longer
    than a line are cut. Without a width the line stays as it is.
    """
    if width is None or line.cell_len <= width:
        yield line
        return
    head, body = line.divide([hang])
    indent = head.cell_len
    for piece in body.wrap(Console(width=width), width - indent, overflow="fold"):
        piece.rstrip()
        yield Text.assemble(head, piece)
        head = Text(" " * indent)
