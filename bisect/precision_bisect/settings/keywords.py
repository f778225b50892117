"""Errors and warnings name flags; to callers from Python they name the keywords instead."""

import re
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import NamedTuple

from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.flags import choices_of, flag_name, flags_of, kinds

_FLAG = re.compile(
    r"(?<![\w-])(--[a-z][a-z0-9-]*)(?: ([a-z][\w-]*|-?\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w/%]|[.:]\w))?"
)
"""A flag, and the word or number behind it, which may be its value."""


class _Keyword(NamedTuple):
    """What sets the field of a flag, and what it may be: one of `choices`, or a number.

    `value` is that of a flag without text, "" for another.
    """

    name: str
    value: str
    choices: Sequence[str]
    number: bool


def in_keywords(text: str, options: type) -> str:
    """Return a sentence with the keywords of `options` in place of their flags.

    Flags that no field has, such as those of other tools, stay as they are.
    """
    known = _keywords(options)

    def keyword(found: re.Match[str]) -> str:
        flag, word = found.groups()
        if flag not in known:
            return found[0]
        name, value, choices, number = known[flag]
        if value:
            return f"{name}={value}{f' {word}' if word else ''}"
        if word and (word in choices or word.lstrip("-")[0].isdigit()):
            return f"{name}={word if number else repr(word)}"
        return f"{name} {word}" if word else name

    return _FLAG.sub(keyword, text)


@cache
def _keywords(options: type) -> dict[str, _Keyword]:
    """Return the keyword of each flag; those of engines are fields of the keyword `engine`."""
    found = {}
    for settings, prefix in ((options, ""), (EngineSettings, "engine.")):
        for each in fields(settings):
            for flag in flags_of(each):
                value = True if bool in kinds(each) else flag.const
                found[flag.name or flag_name(each.name)] = _Keyword(
                    name=f"{prefix}{each.name}",
                    value="" if value is None else repr(value),
                    choices=tuple(flag.choices()) if flag.choices else choices_of(each),
                    number=not {int, float}.isdisjoint(kinds(each)),
                )
    return found
