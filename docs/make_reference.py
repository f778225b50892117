"""Writes docs/reference.md from the command line's own help: python docs/make_reference.py."""

import argparse
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from precision_bisect.commandline.arguments.parser import Parser
from precision_bisect.commandline.arguments.run_flags import run_parser
from precision_bisect.commandline.commands import COMMANDS

WIDTH = 100
TABLE_WIDTH = 82
"""What the site shows of a line of code, without scrolling, at 1280 pixels."""
FLAG_WIDTH = 24
DEFAULT_WIDTH = 8
REFERENCE = Path(__file__).with_name("reference.md")
EVERYWHERE = frozenset(("-h", "--help-all", "--json", "--version"))
"""Flags that every command takes, but for the last."""
_HEAD = """\
# Reference

What `--help-all` says of each flag: how it is typed, its default, its meaning. Of flags that are
the search's, too, other commands name the groups. All take `--help`, `--help-all` and `--json`.

## `precision-bisect MODEL`
"""


def reference() -> str:
    """Return the page."""
    search = run_parser()
    groups = {
        str(group.title): [*filter(_is_shown, group._group_actions)]
        for group in search._action_groups
        if group.title not in ("options", "positional arguments")
    }
    sections = [_HEAD]
    sections += [f"\n### {title}\n\n{_table(flags)}" for title, flags in groups.items()]
    sections.append(_exit_codes(search))
    sections += [_command(make(), groups) for _, (make, _) in sorted(COMMANDS.items())]
    return "".join(sections)


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and EVERYWHERE.isdisjoint(action.option_strings)


def _command(parser: Parser, groups: Mapping[str, Sequence[argparse.Action]]) -> str:
    """Return a command's section, in which flags that mean the same in the search are named."""
    needed = [action for action in parser._actions if not action.option_strings]
    flags = [action for action in parser._actions if action not in needed and _is_shown(action)]
    texts = {_name(action): action.help for action in flags}
    named, same = [], set[str]()
    for title, actions in groups.items():
        taken = [each for each in actions if texts.get(_name(each)) == each.help]
        left_out = [each for each in actions if each not in taken]
        same |= {*map(_name, taken)}
        if len(taken) > len(left_out):
            named.append(f"*{title}*" + (f" but {_names(left_out)}" if left_out else ""))
        elif taken:
            named.append(_names(taken))
    typed = " ".join([parser.prog, *map(_typed, needed)])
    parts = [f"\n## `{typed}`\n\n{_filled(parser.description or '')}\n"]
    if own := [action for action in flags if _name(action) not in same]:
        parts.append(f"\n{_table(own)}")
    if named:
        parts.append("\n" + _filled(f"Of the search: {'; '.join(named)}.") + "\n")
    return "".join((*parts, _exit_codes(parser)))


def _exit_codes(parser: Parser) -> str:
    """Return the end of a parser's help: what its exit codes mean, in lines or as a list."""
    about = re.search(r"(exit codes.*?):(.*?)(?:\n\n|\Z)", parser.epilog or "", re.DOTALL)
    if about is None:
        return ""
    title, codes = about[1].capitalize(), textwrap.dedent(about[2].strip("\n"))
    if "\n" in codes:
        return f"\n{title}:\n\n```\n{codes}\n```\n"
    entries = (entry.partition(" ") for entry in re.split(r";\s+(?=\d)", codes.strip()))
    listed = (_filled(f"- {code}: {meaning}", "  ") for code, _, meaning in entries)
    return f"\n{title}:\n\n" + "".join(f"{entry}\n" for entry in listed)


def _name(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


def _names(actions: Sequence[argparse.Action]) -> str:
    return ", ".join(f"`{_name(action)}`" for action in actions)


def _typed(action: argparse.Action) -> str:
    """Return a command's argument as it is typed."""
    name = action.metavar or action.dest.upper()
    return {"?": f"[{name}]", "*": f"[{name} ...]"}.get(str(action.nargs), str(name))


def _filled(text: str, indent: str = "") -> str:
    """Return a paragraph in lines, all but the first further in."""
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _table(flags: Iterable[argparse.Action]) -> str:
    return "```\n" + "".join(f"{line}\n" for flag in flags for line in _rows(flag)) + "```\n"


def _rows(action: argparse.Action) -> Iterator[str]:
    """Yield the lines of a flag in three columns: what is typed, the default, the meaning."""
    names = ", ".join(action.option_strings)
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    typed = f"{names} {action.metavar or choices}".rstrip()
    text = (action.help or "").replace("%%", "%")
    parts = re.fullmatch(r"(.*) \((\S+)\)", text)
    meaning, default = parts.groups() if parts else (text, "")
    indent = FLAG_WIDTH + DEFAULT_WIDTH
    lines = textwrap.wrap(meaning, TABLE_WIDTH - indent, break_on_hyphens=False)
    if len(typed) >= FLAG_WIDTH - 1 or len(default) >= DEFAULT_WIDTH:
        yield f"{typed:{FLAG_WIDTH - 2}}  {default}".rstrip()
        typed = default = ""
    for line in lines:
        yield f"{typed:{FLAG_WIDTH}}{default:{DEFAULT_WIDTH}}{line}".rstrip()
        typed = default = ""


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
