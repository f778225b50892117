"""What every command's arguments share."""

import argparse
import sys
from collections.abc import Collection, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, NoReturn

from precision_bisect.arguments.usage_hints import usage_hint
from precision_bisect.errors import UsageError
from precision_bisect.settings.flags import Flag, choices_of, flag_name, flags_of, kinds


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
        self._everyday = {*everyday, "help", "help_all"}
        self._short = (short_usage, short_epilog)
        if everyday:
            self.add_argument("-h", "--help", action=_ShortHelp, help="show the everyday flags")
            self.add_argument("--help-all", action="help", help="show all flags and exit codes")

    def add_flags(self, settings: type, *wanted: str, spare: bool = True) -> None:
        """Add the flags of fields of a dataclass, wanted by their names or by their groups.

        Those that are `spare` leave nothing in the namespace where they are not given, so that
        defaults stand in the dataclass alone.
        """
        for each in fields(settings):
            for flag in flags_of(each):
                if each.name in wanted or flag.group in wanted:
                    default = argparse.SUPPRESS if spare else each.default
                    self._titled(flag.group).add_argument(
                        flag.name or flag_name(each.name),
                        dest=each.name,
                        default=default,
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
        if self._mixed and "--" not in arguments:
            return self.parse_intermixed_args(arguments)
        return self.parse_args(arguments)

    def error(self, message: str) -> NoReturn:
        hint = usage_hint(message, self._option_string_actions)
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
        return {**told, "choices": choices}
    return {**told, "type": flag.read or kind}
