"""What all arguments of commands share, and what a command line that is refused may mean."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from precision_bisect.commandline.arguments.foreign_flags import answers_to
from precision_bisect.errors import UsageError
from precision_bisect.options import DEFAULT_LOW
from precision_bisect.precisions import LOW_NAMES, type_name
from precision_bisect.settings.flags import Flag, choices_of, flag_name, flags_of, kinds
from precision_bisect.settings.reading import named_path

NEAR = 0.8
"""Words are alike from this share of common letters on, as difflib counts it."""
SHORT = 4
"""Longer words are alike, too, where one is the beginning of the other."""


def unknown_meant(arguments: Sequence[str], flags: Mapping[str, argparse.Action]) -> str:
    """Return what arguments beyond the known ones may mean: a low type, samples, a flag.

    "" where nothing is known.
    """
    words = [word for argument in arguments for word in argument.split("=")]
    types = [name for name in map(type_name, words) if name in LOW_NAMES]
    if types and "--low" in flags:
        return f"write --low {types[0]} ({DEFAULT_LOW} is the default)"
    paths = [word for word in words if os.path.lexists(word) and not word.endswith(".onnx")]
    # Beside a flag that is not known a path is its value.
    if paths and "--inputs" in flags and not any(word.startswith("--") for word in words):
        path = shlex.quote(paths[0]) if len(paths) == 1 else "PATH"
        return f"give samples by --inputs {path}, one file, one folder, or a pattern in quotes"
    near = (
        match for word in words if word.startswith("--") for match in close_matches(word, flags)
    )
    return _did_you_mean(list(near))


def choice_meant(word: str, choices: Iterable[str]) -> str:
    """Return which choice a word is near to, or leaves letters out of, as trt of tensorrt."""
    every = list(choices)
    near = close_matches(word, every) or [
        choice for choice in every if _skips_letters(word, choice)
    ]
    return _did_you_mean(near)


def _skips_letters(word: str, choice: str) -> bool:
    rest = iter(choice)
    return len(word) > 1 and word[0] == choice[0] and all(letter in rest for letter in word)


def _did_you_mean(suggestions: Sequence[str]) -> str:
    return f"did you mean {suggestions[0]}?" if suggestions else ""


def close_matches(word: str, choices: Iterable[str]) -> list[str]:
    """Return the known word that one which is not known may mean, none where all are far off."""
    from difflib import get_close_matches

    every = list(choices)
    begun = [choice for choice in every if len(choice) > SHORT and word.startswith(choice)]
    return begun or get_close_matches(word, every, 1, NEAR)


# Where the texts of everyday flags begin.
_BRIEF_COLUMN = 28


class Parser(argparse.ArgumentParser):
    """The parser of a command, or of the main job, which has no name.

    Flags are written out in full. Wrong usage is an error of this package: one line, exit code 2.
    With a `short_usage`, `--help` shows the everyday flags: those of a short text, and those that
    are named as `everyday`. `--help-all` shows the rest, too, with the epilog.
    """

    def __init__(
        self,
        command: str = "",
        *,
        mixed: bool = False,
        short_usage: str = "",
        short_epilog: str = "--help-all shows every flag and the exit codes.",
        everyday: Collection[str] = (),
        **settings: Any,
    ) -> None:
        prog = f"precision-bisect {command}".rstrip()
        super().__init__(prog=prog, allow_abbrev=False, add_help=not short_usage, **settings)
        self._mixed = mixed
        self._needed: dict[str, tuple[str, Callable[[], str]]] = {}
        self._briefs: dict[str, str] = {}
        self._short = (short_usage, short_epilog)
        self._everyday = everyday
        if short_usage:
            self.add_argument("-h", "--help", action=_ShortHelp, help="show the everyday flags")
        text = "show all flags and exit codes" if short_usage else argparse.SUPPRESS
        self.add_argument("--help-all", action="help", help=text)

    def add_flags(self, settings: type, *wanted: str, spare: bool = True) -> None:
        """Add the flags of fields of a dataclass, wanted by their names or by their groups.

        They come in the order wanted, and of a group those of the dataclass itself before those
        that it inherits. Those that are `spare` leave nothing in the namespace where they are not
        given, so that defaults stand in the dataclass alone.
        """
        bases = filter(is_dataclass, settings.__bases__)
        inherited = {field.name for base in bases for field in fields(base)}
        own_first = sorted(fields(settings), key=lambda field: field.name in inherited)
        for want, field in product(wanted, own_first):
            flags = [flag for flag in flags_of(field) if want in (field.name, flag.group)]
            if not flags:
                continue
            place = self._titled(flags[0].group)
            if len(flags) > 1:  # of which the last would win silently
                place = place.add_mutually_exclusive_group()
            for flag in flags:
                if flag.brief:
                    self._briefs[field.name] = flag.brief
                name, default = flag.name or flag_name(field.name), field.default
                about: dict[str, Any] = {"dest": field.name}
                about["default"] = argparse.SUPPRESS if spare else default
                taken = _taken(field, flag)
                place.add_argument(*filter(None, (flag.short,)), name, **about, **taken)
                if taken.get("action") == "store_true":
                    # Against a configuration file, which may turn it on: not worth a line of help.
                    opposite = f"--no-{name.removeprefix('--')}"
                    about["help"] = argparse.SUPPRESS
                    place.add_argument(opposite, action="store_false", **about)

    def _titled(self, title: str) -> argparse._ArgumentGroup:
        groups = (group for group in self._action_groups if group.title == title)
        return next(groups, None) or self.add_argument_group(title)

    def format_short_help(self) -> str:
        """Return a line for each everyday argument."""
        # What a formatter takes beside `prog` is of the class, which argparse's types leave out.
        formatter: argparse.HelpFormatter = self.formatter_class(  # type: ignore[call-arg]
            prog=self.prog, max_help_position=_BRIEF_COLUMN
        )
        usage, epilog = self._short
        formatter.add_usage(usage, [], [])
        formatter.add_text(self.description)
        formatter.start_section("everyday flags")
        for action in self._actions:
            brief = self._briefs.get(action.dest, "")
            wanted = brief or action.dest in self._needed or action.dest in self._everyday
            if wanted and action.help != argparse.SUPPRESS:
                shown = copy(action)
                shown.help = brief or action.help
                name = "".join(action.option_strings[-1:])
                if name and action.nargs != 0:
                    value = name.rpartition("-")[2].upper()
                    fits = action.metavar and len(f"{name} {action.metavar}") < _BRIEF_COLUMN - 3
                    shown.metavar = action.metavar if fits else value
                formatter.add_argument(shown)
        formatter.end_section()
        formatter.add_text(epilog)
        return formatter.format_help()

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments. Raises UsageError.

        Of a parser that is `mixed`, options may stand between arguments of one sort; but not where
        `--` says where options end, which argparse would forget.
        """
        flags = self._option_string_actions
        words, advice = answers_to(arguments, flags)
        if words:
            self._refuse(f"unrecognized arguments: {' '.join(words)}", advice)
        mixed = self._mixed and "--" not in arguments
        parse = self.parse_known_intermixed_args if mixed else self.parse_known_args
        parsed, unknown = parse(arguments)
        if unknown:
            hint = unknown_meant(unknown, flags)
            self._refuse(f"unrecognized arguments: {' '.join(unknown)}", hint)
        missing = [name for name in self._needed if getattr(parsed, name) is None]
        if missing:
            names = ", ".join(self._needed[name][0] for name in missing)
            hint = self._needed[missing[0]][1]()
            self._refuse(f"the following arguments are required: {names}", hint)
        return parsed

    def add_needed(
        self, name: str, what: str, metavar: str | None = None, hint: Callable[[], str] = str
    ) -> None:
        """Add a path that has to be given; the hint is for where it is not."""
        added = self.add_argument(name, type=named_path, metavar=metavar, help=what)
        # argparse would refuse that before `read` sees which flags are not known.
        added.required = False
        self._needed[name] = metavar or name, hint

    def error(self, message: str) -> NoReturn:
        self._refuse(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            choices = map(str, action.choices or ())
            self._refuse(str(error), choice_meant(str(value).lower(), choices))

    def _refuse(self, message: str, hint: str = "") -> NoReturn:
        raise UsageError(message, hint or f"see {self.prog} --help")


class _ShortHelp(argparse.Action):
    """Prints the everyday arguments and ends the program."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=settings.get("help"))
        self.default = argparse.SUPPRESS

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        assert isinstance(parser, Parser)
        sys.stdout.write(parser.format_short_help())
        parser.exit()


def _taken(field: Field[Any], flag: Flag) -> dict[str, Any]:
    """Return what argparse is told of a flag: its text, and what it takes."""
    text = flag.help if isinstance(flag.help, str) else flag.help()
    if "{}" in text and field.default is not MISSING:
        text = text.replace("{}", str(field.default))
    # argparse formats help texts with %.
    keywords: dict[str, Any] = {"help": text.replace("%", "%%")}
    kind, *_ = kinds(field)
    if flag.const is not None:
        return {**keywords, "action": "store_const", "const": flag.const}
    if kind is bool:
        return {
            **keywords,
            "action": "store_true" if field.default is False else argparse.BooleanOptionalAction,
        }
    keywords["metavar"] = flag.metavar
    if flag.gather is not None:
        return {**keywords, "action": "append"}
    if choices := tuple(flag.choices()) if flag.choices else choices_of(field):
        return {**keywords, "choices": choices, "type": flag.read or str}
    return {**keywords, "type": flag.read or (named_path if kind is Path else kind)}
