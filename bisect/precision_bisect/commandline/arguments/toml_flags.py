"""Flags of the main command as TOML: of a job of a batch, and of the runs in a folder."""

import argparse
import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from precision_bisect.errors import UsageError
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.runs.plain_json import LARGEST_FILE
from precision_bisect.settings.only_by_flag import ONLY_BY_FLAG, reaches_out

CONFIG, PYPROJECT = "precision-bisect.toml", "pyproject.toml"
NO_CONFIG = "none"
_TOOL = "precision-bisect"
# Letters of a key that a longer, unknown one may begin with.
_SHORT = 3
# Options that say what is written over.
_WRITING = ("out", "overwrite", "junit")
# Options that exclude each other: given on the command line, one takes the place of others.
_INSTEAD_OF = {
    "check": ("metric",),
    "metric": ("check",),
    "inputs": ("input_shapes",),
    "input_shapes": ("inputs",),
    "resume": ("overwrite",),
    "overwrite": ("resume",),
    "ladder": ("low", "high"),
    "low": ("ladder",),
    "high": ("ladder",),
}
_OF_THE_COMMAND_LINE = ("config", "help", "help-all", "version")


def read_toml(path: Path, what: str, hint: str) -> Mapping[str, Any]:
    """Return what a TOML file holds. Raises UsageError, which says `what` the file is to be."""
    try:
        if plain_size(path) > LARGEST_FILE:
            raise UsageError(f"{path} is too large for a {what}", "split it")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, or no TOML
        why = f": {error}" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise UsageError(f"{path} is no {what}, which is TOML{why}", hint) from error


def flag_keys(where: str, table: object) -> dict[str, Any]:
    """Return a table by the flags' own spelling. Raises UsageError."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} is no table", "write keys and values, as tol = 0.01")
    keys = {key.replace("_", "-"): value for key, value in table.items()}
    if len(keys) < len(table):
        raise UsageError(f"{where} has a key twice, with a dash and an underscore", "drop one")
    return keys


def flag_arguments(parser: argparse.ArgumentParser, key: str, value: object) -> list[str]:
    """Return the arguments that one key stands for. Raises UsageError."""
    flags = parser._option_string_actions  # argparse has no public list of its flags
    if f"--{key}" not in flags:
        names = [flag.removeprefix("--") for flag in flags if flag.startswith("--")]
        # `tolerance` is nearer to other keys than to `tol`, as difflib counts it.
        begun = [name for name in names if len(name) >= _SHORT and key.startswith(name)]
        close = begun or get_close_matches(key, names, n=1)
        hint = f"did you mean {close[0]}?" if close else "see precision-bisect --help for the keys"
        raise UsageError(f"unknown key {key!r}", hint)
    bare = flags[f"--{key}"].nargs == 0
    if isinstance(value, bool) and bare:
        return [f"--{key}"] * value or [f"--no-{key}"] * (f"--no-{key}" in flags)
    values = value if isinstance(value, list) else [value]
    if any(isinstance(item, str) and "\0" in item for item in values):
        raise UsageError(f"{key} has a null character", "take it out")
    for item in values:
        if bare or isinstance(item, bool) or not isinstance(item, str | int | float):
            wanted = "true or false" if bare else "a text or a number, or a list of them"
            raise UsageError(f"{key} is {item!r}", f"it takes {wanted}")
    return [f"--{key}={item}" for item in values]


def configured(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> list[str]:
    """Return the arguments that the configuration file adds: those that were not given.

    Nor is what excludes one that was given.

    Raises UsageError, which names the file, for what cannot be a flag.
    """
    path = parsed.config or next(filter(_holds_config, map(Path, (CONFIG, PYPROJECT))), None)
    if path is None or path == Path(NO_CONFIG):
        return []
    table = read_toml(path, "configuration file", "see --config in precision-bisect --help-all")
    if path.name == PYPROJECT:
        table = _table_of_tool(table)
        if not table:
            raise UsageError(
                f"{path} has no [tool.{_TOOL}]", "add the table, or name another file"
            )
    flags, arguments = parser._option_string_actions, []
    # A flag on the command line speaks against the file's for the same thing.
    replaced = {other for given in vars(parsed) for other in _INSTEAD_OF.get(given, ())}
    for key, value in flag_keys(str(path), table).items():
        if key in _OF_THE_COMMAND_LINE:
            raise UsageError(f"{path}: {key} is no key of it", "give it on the command line")
        try:
            words = flag_arguments(parser, key, value)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", error.hint) from error
        dest = flags[f"--{key}"].dest
        alien = dest in _WRITING or (dest in ONLY_BY_FLAG and reaches_out(dest, value))
        # A file that lies in the folder may have come with somebody's model: it must not run code.
        if parsed.config is None and alien:
            raise UsageError(
                f"{path}: {key} names what is run, reached or written, and was only found here",
                f"give --config {path} to trust it, or --config {NO_CONFIG}",
            )
        given = hasattr(parsed, dest) and getattr(parsed, dest) != parser.get_default(dest)
        if not given and dest not in replaced:
            arguments += words
    return arguments


def _holds_config(path: Path) -> bool:
    if not os.path.isfile(path):  # noqa: PTH113 - never raises
        return False
    if path.name == CONFIG:
        return True
    try:
        return bool(_table_of_tool(tomllib.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError):
        return False  # somebody else's file


def _table_of_tool(project: Mapping[str, Any]) -> Any:
    tools = project.get("tool")
    return tools.get(_TOOL, {}) if isinstance(tools, dict) else {}
