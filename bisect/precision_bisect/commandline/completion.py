"""Completion of what is typed in a shell, by argcomplete.

The shell calls the program with the line in the environment. argcomplete knows one parser for a
program; here the word after the program may name a command, which has a parser of its own.
"""

import os
from argparse import ArgumentParser
from collections.abc import Callable, Sequence

from precision_bisect.commandline.arguments.run_flags import run_parser
from precision_bisect.commandline.commands import COMMANDS
from precision_bisect.plugins import STRATEGIES, installed


def answer() -> None:
    """Print what may follow, and end the process; say nothing without argcomplete."""
    try:
        from argcomplete import autocomplete
    except ImportError:
        os._exit(1)
    autocomplete(_parser())


def _parser() -> ArgumentParser:
    """Return the parser of the command that the line names, and have argcomplete begin there."""
    from argcomplete.lexers import split_line

    line = os.environ["COMP_LINE"]
    # Shells count bytes, argcomplete characters.
    point = len(os.fsencode(line)[: int(os.environ["COMP_POINT"])].decode(errors="ignore"))
    words: Sequence[str] = split_line(line, point)[3]
    program = int(os.environ["_ARGCOMPLETE"]) - 1
    first = words[program + 1] if len(words) > program + 1 else ""
    if first in COMMANDS or first == "run":
        os.environ["_ARGCOMPLETE"] = str(program + 2)
    return COMMANDS[first][0]() if first in COMMANDS else _main_parser(with_commands=not first)


def _main_parser(*, with_commands: bool) -> ArgumentParser:
    """Return the parser of the main job, which knows what may stand for a model or a strategy."""
    parser = run_parser()
    completers: dict[str, Callable[..., Sequence[str]]] = {"strategy": _strategies}
    if with_commands:
        completers["model"] = _models_and_commands
    for action in parser._actions:  # argparse has no public list of them
        if action.dest in completers:
            setattr(action, "completer", completers[action.dest])  # noqa: B010 - argcomplete's way
    return parser


def _models_and_commands(prefix: str, **_: object) -> Sequence[str]:
    from argcomplete.completers import FilesCompleter

    return [*(name for name in COMMANDS if name.startswith(prefix)), *FilesCompleter()(prefix)]


def _strategies(prefix: str, **_: object) -> Sequence[str]:
    return [name for name in installed(STRATEGIES) if name.startswith(prefix)]
