"""What every command's arguments share."""

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from precision_bisect.commandline.arguments.usage_hints import (
    choice_meant,
    others_meant,
    unknown_meant,
)
from precision_bisect.errors import UsageError
from precision_bisect.settings.flags import Flag, choices_of, flag_name, flags_of, kinds
from precision_bisect.settings.reading import named_path


class Parser(argparse.ArgumentParser):
    """The parser of a command, or of the main job, which has no name.

    Flags are written out in full. Wrong usage is an error of this package: one line, exit code 2.
    Where there are `everyday` arguments, by their names in the namespace, `--help` shows those and
    `--help-all` the rest, too, with the epilog.
    """

    def __init__(
        self,
        command: str = "",
        *,
        mixed: bool = False,
        everyday: Collection[str] = (),
        short_usage: str | None = None,
        short_epilog: str = "",
        **settings: Any,
    ) -> None:
        prog = f"precision-bisect {command}".rstrip()
        super().__init__(prog=prog, allow_abbrev=False, add_help=not everyday, **settings)
        self._mixed = mixed
        self._needed: dict[str, tuple[str, Callable[[], str]]] = {}
        self._everyday = {*everyday, "help", "help_all"}
        self._short = (short_usage, short_epilog)
        if everyday:
            self.add_argument("-h", "--help", action=_ShortHelp, help="show the everyday flags")
        text = "show all flags and exit codes" if everyday else argparse.SUPPRESS
        self.add_argument("--help-all", action="help", help=text)

    def add_flags(self, settings: type, *wanted: str, spare: bool = True) -> None:
        """Add the flags of fields of a dataclass, wanted by their names or by their groups.

        They come in the order wanted, and of a group those of the dataclass itself before those
        that it inherits. Those that are `spare` leave nothing in the namespace where they are not
        given, so that defaults stand in the dataclass alone.
        """
        bases = filter(is_dataclass, settings.__bases__)
        inherited = {each.name for base in bases for each in fields(base)}
        own_first = sorted(fields(settings), key=lambda each: each.name in inherited)
        for want, each in product(wanted, own_first):
            flags = [flag for flag in flags_of(each) if want in (each.name, flag.group)]
            if not flags:
                continue
            place = self._titled(flags[0].group)
            if len(flags) > 1:  # of which the last would win silently
                place = place.add_mutually_exclusive_group()
            for flag in flags:
                place.add_argument(
                    flag.name or flag_name(each.name),
                    dest=each.name,
                    default=argparse.SUPPRESS if spare else each.default,
                    **_taken(each, flag),
                )

    def _titled(self, title: str) -> argparse._ArgumentGroup:
        found = (each for each in self._action_groups if each.title == title)
        return next(found, None) or self.add_argument_group(title)

    def format_short_help(self) -> str:
        """Return the help of the everyday arguments."""
        others = [
            each
            for each in self._actions
            if each.dest not in self._everyday and each.dest != argparse.SUPPRESS
        ]
        held = [(each, each.help) for each in others]
        told = (self.usage, self.epilog)
        try:
            for each in others:
                each.help = argparse.SUPPRESS
            self.usage, self.epilog = self._short
            return self.format_help()
        finally:
            self.usage, self.epilog = told
            for each, text in held:
                each.help = text

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments. Raises UsageError.

        Of a parser that is `mixed`, options may stand between arguments of one sort; but not where
        `--` says where options end, which argparse would forget.
        """
        flags = self._option_string_actions
        words, meant = others_meant(arguments, flags)
        if words:
            self._refuse(f"unrecognized arguments: {' '.join(words)}", meant)
        mixed = self._mixed and "--" not in arguments
        parse = self.parse_known_intermixed_args if mixed else self.parse_known_args
        parsed, unknown = parse(arguments)
        if unknown:
            hint = unknown_meant(unknown, flags)
            self._refuse(f"unrecognized arguments: {' '.join(unknown)}", hint)
        missing = [each for each in self._needed if getattr(parsed, each) is None]
        if missing:
            names = ", ".join(self._needed[each][0] for each in missing)
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


def _taken(each: Field[Any], flag: Flag) -> dict[str, Any]:
    """Return what argparse is told of a flag: its text, and what it takes."""
    text = flag.help if isinstance(flag.help, str) else flag.help()
    if "{}" in text and each.default is not MISSING:
        text = text.replace("{}", str(each.default))
    told: dict[str, Any] = {"help": text.replace("%", "%%")}
    kind, *_ = kinds(each)
    if flag.const is not None:
        return {**told, "action": "store_const", "const": flag.const}
    if kind is bool:
        return {**told, "action": argparse.BooleanOptionalAction if each.default else "store_true"}
    told["metavar"] = flag.metavar
    if flag.gather is not None:
        return {**told, "action": "append"}
    if choices := tuple(flag.choices()) if flag.choices else choices_of(each):
        return {**told, "choices": choices, "type": flag.read or str}
    return {**told, "type": flag.read or (named_path if kind is Path else kind)}
