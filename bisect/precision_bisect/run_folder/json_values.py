"""Parsed JSON that nobody vouches for, turned into checked values.

A reader takes one JSON value and returns what it stands for, or raises Unfit. Readers of lists,
tables and records are made of readers of their parts.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Reader: TypeAlias = Callable[[Any], T]

_NOT_FINITE = ("inf", "-inf", "nan")


class Unfit(Exception):
    """A value of another kind than was expected; `where` is the path of keys that lead to it."""

    def __init__(self, value: object, where: str = "") -> None:
        super().__init__(where)
        self.value = value
        self.where = where


def text(value: Any) -> str:
    """Read a text."""
    return _of(str, value)


def flag(value: Any) -> bool:
    """Read true or false."""
    return _of(bool, value)


def count(value: Any) -> int:
    """Read a whole number from 0 on."""
    if isinstance(value, bool) or _of(int, value) < 0:
        raise Unfit(value)
    return int(value)


def number(value: Any) -> float:
    """Read a figure; those that are not finite are texts in JSON."""
    if value in _NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit(value)
    try:
        return float(value)
    except OverflowError as error:
        raise Unfit(value) from error


def anything(value: Any) -> Any:
    """Read whatever it is."""
    return value


def chosen(*allowed: str) -> Reader[Any]:
    """Read one of these texts."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise Unfit(value)
        return text(value)

    return read


def maybe(reader: Reader[T]) -> Reader[T | None]:
    """Read null, or what the reader reads."""
    return lambda value: None if value is None else reader(value)


def many(reader: Reader[T]) -> Reader[list[T]]:
    """Read a list."""
    return lambda value: [reader(each) for each in _of(list, value)]


def table(reader: Reader[T]) -> Reader[dict[str, T]]:
    """Read an object with any keys."""
    return lambda value: {key: reader(each) for key, each in _of(dict, value).items()}


def row(**readers: Reader[Any]) -> Reader[dict[str, Any]]:
    """Read an object that has all of these keys; others are left out."""

    def read(value: Any) -> dict[str, Any]:
        missing = next((key for key in readers if key not in _of(dict, value)), None)
        if missing is not None:
            raise Unfit(None, missing)
        return _known(value, readers)

    return read


def record(make: Callable[..., T], **readers: Reader[Any]) -> Reader[T]:
    """Read an object as the fields of a dataclass; those with a default may be missing."""
    needed = [
        each.name
        for each in fields(make)  # type: ignore[arg-type] # it is a dataclass
        if each.default is MISSING and each.default_factory is MISSING
    ]

    def read(value: Any) -> T:
        missing = next((key for key in needed if key not in _of(dict, value)), None)
        if missing is not None:
            raise Unfit(None, missing)
        return make(**_known(value, readers))

    return read


def _known(value: Any, readers: Mapping[str, Reader[Any]]) -> dict[str, Any]:
    """Read those of these keys that an object has."""
    found = {}
    for key, reader in readers.items():
        if key in _of(dict, value):
            try:
                found[key] = reader(value[key])
            except Unfit as error:
                raise Unfit(error.value, ".".join(filter(None, (key, error.where)))) from error
    return found


def _of(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise Unfit(value)
    return value
