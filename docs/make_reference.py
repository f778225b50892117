"""Writes docs/reference.md from the command line's own help: python docs/make_reference.py."""

import os
from pathlib import Path

from precision_bisect.commandline.arguments.run_flags import run_parser
from precision_bisect.commandline.commands import COMMANDS

WIDTH = "100"
REFERENCE = Path(__file__).with_name("reference.md")
_HEAD = """\
# Reference

What each command says of itself with `--help`. This page is written by
`python docs/make_reference.py`, and a test fails where it differs from the commands.
"""


def reference() -> str:
    """Return the page."""
    os.environ["COLUMNS"] = WIDTH
    parsers = [run_parser(), *(make() for _, (make, _) in sorted(COMMANDS.items()))]
    texts = [
        f"\n## `{each.prog}`\n\n```\n{each.format_help().rstrip()}\n```\n" for each in parsers
    ]
    return _HEAD + "".join(texts)


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
