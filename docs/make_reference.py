"""Writes docs/reference.md from the command line's own help: python docs/make_reference.py."""

import argparse
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path

from precision_bisect.commandline.arguments.parser import Parser
from precision_bisect.commandline.arguments.run_flags import run_parser
from precision_bisect.commandline.commands import COMMANDS

WIDTH = "100"
REFERENCE = Path(__file__).with_name("reference.md")
HELP = ("-h", "--help-all")
_HEAD = """\
# Reference

What each command says of itself with `--help-all`. This page is written by
`python docs/make_reference.py`, and a test fails where it differs from the commands.

Flags come first as the search has them. Those that another command takes with the same meaning are
only named there.
"""


def reference() -> str:
    """Return the page."""
    os.environ["COLUMNS"] = WIDTH
    search = run_parser()
    flags = {flag: action.help or "" for flag, action in search._option_string_actions.items()}
    sections = [_section(search, "")]
    sections += [_command(make(), flags) for _, (make, _) in sorted(COMMANDS.items())]
    return _HEAD + "".join(sections)


def _command(parser: Parser, flags: Mapping[str, str]) -> str:
    """Return a command's section, in which flags that mean the same in the search are named."""
    same = [
        action
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        and action.option_strings
        and flags.get(action.option_strings[-1]) == action.help
    ]
    names = [flag for action in same if (flag := action.option_strings[0]) not in HELP]
    for action in same:
        action.help = argparse.SUPPRESS
    if not names:
        return _section(parser, "")
    named = textwrap.fill(", ".join(names), int(WIDTH) - 2, break_on_hyphens=False)
    return _section(parser, f"\n\nas above:\n{textwrap.indent(named, '  ')}")


def _section(parser: Parser, more: str) -> str:
    return f"\n## `{parser.prog}`\n\n```\n{parser.format_help().rstrip()}{more}\n```\n"


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
