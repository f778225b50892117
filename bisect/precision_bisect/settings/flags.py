"""Flags, each declared once with its field: what it is called, takes, allows, and says of itself.

The command line, its help, the reference, batch files and Python's checks all read these. No
library makes a parser of ours: with one dataclass of 13 flags --help took 141 ms of a processor
with tyro 1.0, 123 with jsonargparse 4.53, 177 with cyclopts 5.5, and 42 with argparse, of which 10
are Python's; none has errors of one line, and completion needs a parser of argparse.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from precision_bisect.errors import UsageError

_FLAGS = "flags"
_UNIT = re.compile(r"_(s|ms|mib)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag; its type and choices are those of its field unless it says otherwise.

    Without a `name` it has its field's, without the unit, and beside it maybe a `short` one. Where
    it has a `brief` text, it is an everyday flag, of which --help says that. What plug-ins extend
    is a function, called once a parser is made: `help` and `choices`. `read` makes the value from
    a text, `gather` from the texts of a flag that is repeated, and the flag's name; both may raise
    UsageError. Of a value of several parts `fills` names the field of each. A flag with a `const`
    takes no text. A value is not below `least`, not above `most`, and above zero if `positive`.
    """

    help: str | Callable[[], str]
    group: str
    name: str = ""
    short: str = ""
    brief: str = ""
    metavar: str | None = None
    choices: Callable[[], Iterable[str]] | None = None
    read: Callable[[str], object] | None = None
    gather: Callable[[Sequence[str], str], object] | None = None
    fills: tuple[str, ...] = ()
    const: object = None
    least: float | None = None
    most: float | None = None
    positive: bool = False


def flag(
    group: str, default: object, text: str | Callable[[], str], *also: Flag, **details: Any
) -> Any:
    """Return a dataclass field with its flag, and `also` other flags that set it.

    A default that is a class, such as dict, is called for each object. In the text {} stands for
    the default.
    """
    flags = {_FLAGS: (Flag(help=text, group=group, **details), *also)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=flags)
    return field(default=default, metadata=flags)


def flags_of(setting: Field[Any]) -> tuple[Flag, ...]:
    """Return the flags that set a field."""
    flags: tuple[Flag, ...] = setting.metadata.get(_FLAGS, ())
    return flags


def flag_name(name: str) -> str:
    """Return the flag of a field that gives it no other name."""
    return f"--{_UNIT.sub('', name).replace('_', '-')}"


def kinds(setting: Field[Any]) -> list[Any]:
    """Return what a value of a field may be: classes, or one Literal; None is left out."""
    union = get_origin(setting.type) in (Union, UnionType)
    every = get_args(setting.type) if union else (setting.type,)
    return [kind for kind in every if kind is not NoneType]


def choices_of(setting: Field[Any]) -> tuple[str, ...]:
    """Return what a field of a Literal type may be, nothing for another type."""
    return next((get_args(kind) for kind in kinds(setting) if get_origin(kind) is Literal), ())


def given(parsed: object, settings: type) -> dict[str, Any]:
    """Return the fields of a dataclass that parsed flags set, by name. Raises UsageError."""
    values: dict[str, Any] = {}
    for setting in fields(settings):
        if not flags_of(setting) or not hasattr(parsed, setting.name):
            continue
        value, first = getattr(parsed, setting.name), flags_of(setting)[0]
        if first.gather is not None:
            value = first.gather(value, first.name or flag_name(setting.name))
        if first.fills:
            values.update(zip(first.fills, value, strict=True))
        else:
            values[setting.name] = value
    return values


def objects(settings: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions and classes that Python gave instead of names, by their fields."""
    values = {setting.name: getattr(settings, setting.name) for setting in fields(settings)}
    return {name: value for name, value in values.items() if callable(value)}


def check(settings: Any) -> None:
    """Raise UsageError for a value of another type than its field's, or beyond its limits."""
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if value is None and NoneType in get_args(setting.type):
            continue
        for message, hint in _objections(setting, value):
            raise UsageError(message, hint)


def _objections(setting: Field[Any], value: Any) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a value, and what to do."""
    wanted = tuple(kind for kind in kinds(setting) if get_origin(kind) is not Callable)
    # What may be named or be an object of Python.
    named = len(wanted) < len(kinds(setting))
    if named and callable(value):
        return
    if (allowed := choices_of(setting)) and value not in allowed:
        yield f"{setting.name} cannot be {value!r}", f"choose {', '.join(allowed)}"
    if all(kind in (int, float, str, bool, Path) or is_dataclass(kind) for kind in wanted):
        classes = (*wanted, int) if float in wanted else wanted
        if not isinstance(value, classes) or (isinstance(value, bool) and bool not in wanted):
            a_value = f"a value of type {wanted[0].__name__}"
            what = "a name, or a function or class" if named else a_value
            yield f"{setting.name} cannot be {value!r}", f"give {what}"
    for which in flags_of(setting)[:1]:
        if which.least is None and which.most is None and not which.positive:
            continue
        text = f"{which.name or flag_name(setting.name)} {value}"
        if which.least is not None and value < which.least:
            yield f"{text} is below {which.least:g}", f"give {which.least:g} or more"
        if which.most is not None and value > which.most:
            yield f"{text} is above {which.most:g}", f"give {which.most:g} or less"
        if which.positive and not value > 0:
            yield f"{text} is not above zero", "give more"
