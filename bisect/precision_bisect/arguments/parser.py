"""What every command's arguments share."""

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from precision_bisect.arguments.usage_hints import choice_meant, unknown_meant
from precision_bisect.errors import UsageError
from precision_bisect.options import DEFAULT_HIGH, DEFAULT_LOW
from precision_bisect.precisions import HIGH_NAMES, LOW_NAMES
from precision_bisect.run_folder.runfolder import runs_here
from precision_bisect.settings.targets import TARGET_CHOICES


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
        self.run: argparse.Action | None = None
        self._everyday = {*everyday, "help", "help_all"}
        self._short = (short_usage, short_epilog)
        if everyday:
            self.add_argument("-h", "--help", action=_ShortHelp, help="show the everyday flags")
            self.add_argument("--help-all", action="help", help="show all flags and exit codes")

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
        mixed = self._mixed and "--" not in arguments
        parse = self.parse_known_intermixed_args if mixed else self.parse_known_args
        parsed, unknown = parse(arguments)
        if unknown:
            hint = unknown_meant(unknown, self._option_string_actions)
            self._refuse(f"unrecognized arguments: {' '.join(unknown)}", hint)
        if self.run is not None and parsed.run is None:
            self._refuse("the following arguments are required: RUN", runs_here())
        return parsed

    def add_run(self, what: str) -> None:
        """Add RUN. Where none is given, the error says which there are."""
        self.run = self.add_argument("run", type=folder, metavar="RUN", help=what)
        # argparse would refuse it in its own words, before `read` sees it.
        self.run.required = False

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


def add_threads(group: argparse._ArgumentGroup) -> None:
    """Add `--threads`."""
    group.add_argument(
        "--threads",
        type=int,
        default=0,
        metavar="N",
        help="of ONNX Runtime; 0: what the layers are large enough for, at most 8 and the cores "
        "that this process may use (0)",
    )


def add_verbose(group: argparse._ActionsContainer, what: str) -> None:
    """Add `-v`."""
    group.add_argument("-v", "--verbose", action="store_true", help=what)


def add_pair(group: argparse._ActionsContainer) -> None:
    """Add `--low` and `--high`, the pair of types of one search."""
    group.add_argument("--low", choices=LOW_NAMES, default=DEFAULT_LOW, help="the low type (fp16)")
    group.add_argument(
        "--high", choices=HIGH_NAMES, default=DEFAULT_HIGH, help="the high type (fp32)"
    )


def add_target(group: argparse._ActionsContainer) -> None:
    """Add `--target`."""
    group.add_argument(
        "--target",
        choices=TARGET_CHOICES,
        default="auto",
        help="the engine that the emulator predicts; all: a plan must pass on each (auto: what is "
        "installed here, else tensorrt)",
    )


def folder(text: str) -> Path:
    """Return the path of a folder that may not exist yet."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path names no folder")
    return Path(text)
