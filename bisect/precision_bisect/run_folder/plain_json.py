"""JSON read back from a run folder: untrusted, so bounded in depth before anything walks it."""

import errno
import json
from pathlib import Path
from typing import Any

from precision_bisect.machine.plain_files import plain_size

DEEPEST = 64
"""Levels of nesting that are read; what a run writes has fewer than ten."""
LARGEST = 2**28
"""Bytes; the largest that a run writes, of thousands of layers, are a twentieth."""


def parse(text: str) -> Any:
    """Return what JSON text says. Raises ValueError for other text, or where it is too deep."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level = [found]
    for _ in range(DEEPEST):
        level = [each for value in level for each in _inside(value)]
        if not level:
            return found
    raise ValueError("it is nested too deeply")


def read(path: Path) -> Any:
    """Return what a file of JSON says; nobody is waited for who writes into a pipe.

    Bytes that are no UTF-8 come back as lone surrogates, as paths do. Raises OSError where the
    file cannot be read, and ValueError as `parse` does.
    """
    if plain_size(path) > LARGEST:
        raise OSError(errno.EFBIG, "it is too large", str(path))
    return parse(path.read_text(encoding="utf-8", errors="surrogateescape"))


def read_object(path: Path) -> dict[str, Any]:
    """Return the object that a file of JSON holds. Raises as `read`, ValueError for no object."""
    found = read(path)
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    return found


def _inside(value: Any) -> list[Any]:
    """Return the values that an object or a list holds."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
