"""The options of Python: their names in sentences about flags, and texts as flags take them."""

import re
from collections.abc import Mapping
from dataclasses import Field, fields
from functools import cache
from typing import Any

from precision_bisect.errors import UsageError
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.flags import Flag, choices_of, flag_name, flags_of, kinds


def by_units(options: Mapping[str, Any], settings: type) -> dict[str, Any]:
    """Return options by their fields, which may have been given as texts under their flag's name.

    Raises UsageError for a text that says no such figure, and for one that is given twice.
    """
    read: dict[str, Any] = dict(options)
    for setting in fields(settings):
        name = flag_name(setting.name).removeprefix("--").replace("-", "_")
        for flag in flags_of(setting)[:1]:
            # Names without a unit are their own field.
            if name == setting.name or name not in read:
                continue
            if setting.name in read:
                raise UsageError(f"{name} and {setting.name} are one", "give one of them")
            value = read.pop(name)
            try:
                of_text = flag.read or float
                read[setting.name] = of_text(value) if isinstance(value, str) else value
            except ValueError as error:
                raise UsageError(f"{name} cannot be {value!r}", "give a number") from error
    return read


# A flag, and the word or number behind it, which may be its value.
_FLAG = re.compile(
    r"(?<![\w-])(--[a-z][a-z0-9-]*)(?: ([a-z][\w-]*|-?\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w/%]|[.:]\w))?"
)


def in_keywords(text: str, options: type) -> str:
    """Return a sentence with the keywords of `options` in place of their flags.

    Those of engines are fields of the keyword `engine`. Flags that no field has, such as those of
    other tools, stay as they are.
    """
    keywords = _keywords(options)

    def keyword(match: re.Match[str]) -> str:
        name, word = match.groups()
        if name not in keywords:
            return match[0]
        keyword, setting, flag = keywords[name]
        if flag.const is not None or bool in kinds(setting):
            return f"{keyword}={flag.const or True!r}{f' {word}' if word else ''}"
        choices = flag.choices() if flag.choices else choices_of(setting)
        if word and (word in choices or word.lstrip("-")[0].isdigit()):
            number = not {int, float}.isdisjoint(kinds(setting))
            return f"{keyword}={word if number else repr(word)}"
        return f"{keyword} {word}" if word else keyword

    return _FLAG.sub(keyword, text)


@cache
def _keywords(options: type) -> Mapping[str, tuple[str, Field[Any], Flag]]:
    """Return the keyword of each flag, the field that it sets, and the flag itself."""
    return {
        flag.name or flag_name(setting.name): (f"{prefix}{setting.name}", setting, flag)
        for settings, prefix in ((options, ""), (EngineSettings, "engine."))
        for setting in fields(settings)
        for flag in flags_of(setting)
    }
