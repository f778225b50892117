"""What all arguments of commands share, and what a command line that is refused may mean."""

import argparse
import itertools
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from precision_bisect.errors import UsageError
from precision_bisect.options import DEFAULT_LOW
from precision_bisect.precisions import LOW_NAMES, type_name
from precision_bisect.settings.flags import Flag, choices_of, flag_name, flags_of, kinds
from precision_bisect.settings.reading import named_path

NEAR = 0.8
"""Words are alike from this share of common letters on, as difflib counts it."""
SHORT = 4
"""Longer words are alike, too, where one is the beginning of the other."""
_TYPING = "--typing weak, which constrains kept layers by itself"
_OTHERS: Mapping[str, str] = {
    "--onnx": "the model without a flag",
    "--loadInputs": "--inputs NAME:FILE.bin",
    "--load-inputs": "--inputs FILE.json",
    "--data-loader-script": "--inputs SCRIPT.py with load_data()",
    "--val-range": "--range NAME=0:999",
    "--shapes": "--input-shapes NAME:1x3x224x224",
    **{f"--{end}Shapes": f"--{end}-shapes NAME:1x3x224x224" for end in ("min", "opt", "max")},
    **dict.fromkeys(("--stronglyTyped", "--strongly-typed"), "--typing strong"),
    **dict.fromkeys(("--precisionConstraints", "--precision-constraints"), _TYPING),
    **dict.fromkeys(("--layerPrecisions", "--layer-precisions"), _TYPING),
    **dict.fromkeys(("--saveEngine", "--save-engine"), "--keep-engines"),
    **dict.fromkeys(("-o", "--output"), "--out DIR"),
    **dict.fromkeys(("--memPoolSize", "--pool-limit"), "--workspace MIB"),
    "--builderOptimizationLevel": "--builder-optimization-level N",
    **dict.fromkeys(("--staticPlugins", "--dynamicPlugins"), "--plugins LIB.so"),
    "--trt": "--backend tensorrt",
    "--onnxrt": "--backend onnxruntime",
}
"""What flags of trtexec and Polygraphy are called here."""
_TRT = "--trt-"


def others_meant(
    arguments: Sequence[str], flags: Mapping[str, argparse.Action]
) -> tuple[Sequence[str], str]:
    """Return the arguments that are flags of trtexec or Polygraphy, and what to write instead.

    Nothing is returned where the command has no flags of these meanings.
    """
    found: dict[str, str] = {}
    for each in itertools.takewhile("--".__ne__, arguments):
        word = each.partition("=")[0]
        meant = "" if word in flags else _other(word, flags)
        if meant and (not meant.startswith("-") or meant.split()[0] in flags):
            found[each] = meant
    return list(found), f"write {', '.join(dict.fromkeys(found.values()))}" if found else ""


def _other(word: str, flags: Mapping[str, argparse.Action]) -> str:
    if word.startswith(_TRT):
        return next(iter(close_matches(f"--{word.removeprefix(_TRT)}", flags)), "")
    if type_name(word.lstrip("-")) in LOW_NAMES and word.startswith("--"):
        name = type_name(word.lstrip("-"))
        return f"--low {name} ({DEFAULT_LOW} is the default)"
    return _OTHERS.get(word, "")


def unknown_meant(arguments: Sequence[str], flags: Mapping[str, argparse.Action]) -> str:
    """Return what arguments beyond the known ones may mean: a low type, samples, a flag.

    "" where nothing is known.
    """
    words = [word for each in arguments for word in each.split("=")]
    types = [each for each in map(type_name, words) if each in LOW_NAMES]
    if types and "--low" in flags:
        return f"write --low {types[0]} ({DEFAULT_LOW} is the default)"
    paths = [word for word in words if os.path.lexists(word) and not word.endswith(".onnx")]
    # Beside a flag that is not known a path is its value.
    if paths and "--inputs" in flags and not any(word.startswith("--") for word in words):
        given = shlex.quote(paths[0]) if len(paths) == 1 else "PATH"
        return f"give samples by --inputs {given}, one file or one folder"
    near = (each for word in words if word.startswith("--") for each in close_matches(word, flags))
    return _did_you_mean(list(near))


def choice_meant(word: str, choices: Iterable[str]) -> str:
    """Return which choice a word is near to, or leaves letters out of, as trt of tensorrt."""
    every = list(choices)
    near = close_matches(word, every) or [each for each in every if _skips_letters(word, each)]
    return _did_you_mean(near)


def _skips_letters(word: str, choice: str) -> bool:
    rest = iter(choice)
    return len(word) > 1 and word[0] == choice[0] and all(letter in rest for letter in word)


def _did_you_mean(meant: Sequence[str]) -> str:
    return f"did you mean {meant[0]}?" if meant else ""


def close_matches(word: str, known: Iterable[str]) -> list[str]:
    """Return the known word that one which is not known may mean, none where all are far off."""
    from difflib import get_close_matches

    every = list(known)
    begun = [each for each in every if len(each) > SHORT and word.startswith(each)]
    return begun or get_close_matches(word, every, 1, NEAR)


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
