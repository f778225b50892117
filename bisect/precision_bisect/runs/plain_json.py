"""JSON of a run folder, and for people: what is written shows nothing that hides or moves text.

What is read back is untrusted, so it is bounded in size and in depth before anything walks it.
"""

import errno
import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from precision_bisect.machine.plain_files import plain_size

DEEPEST = 64
"""Levels of nesting that are read; what a run writes has fewer than ten."""
LARGEST_FILE = 2**28
"""Bytes; the largest that a run writes, of thousands of layers, are a twentieth."""
# Of a whole number, so that it has a float.
_MOST_DIGITS = 300

# DEL, C1 controls, and what has no width or turns the direction of text (category Cf).
_HIDDEN = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


def plain(value: Any) -> Any:
    """Return the value as what JSON can hold.

    Dataclasses become objects, members of enumerations their values, and figures that are not
    finite the texts of `NotFinite`.
    """
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    # Behind the enumerations, as members of these are of both kinds.
    if isinstance(value, int | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def dumps(value: Any, **options: Any) -> str:
    """Return the value as JSON text, see `plain`: letters as they are, hidden ones escaped."""
    return escaped(json.dumps(plain(value), ensure_ascii=False, allow_nan=False, **options))


def to_bytes(values: Any, *, indent: int | None = None) -> bytes:
    """Return JSON in UTF-8, and a line break.

    Paths may hold bytes that are no Unicode; they are escaped as JSON escapes a lone surrogate.
    """
    text = dumps(values, indent=indent)
    return text.encode("utf-8", errors="backslashreplace") + b"\n"


def escaped(text: str) -> str:
    """Return JSON text that says the same without hidden characters."""
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def parse(text: str) -> Any:
    """Return what JSON text says.

    Raises ValueError for other text, where it is too deep, or a number has too many digits.
    """
    try:
        content = json.loads(text, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level = [content]
    for _ in range(DEEPEST):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return content
    raise ValueError("it is nested too deeply")


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)


def read(path: Path) -> Any:
    """Return what a file of JSON says; nobody is waited for who writes into a pipe.

    Bytes that are no UTF-8 come back as lone surrogates, as paths do. Raises OSError where the
    file cannot be read, and ValueError as `parse` does.
    """
    if plain_size(path) > LARGEST_FILE:
        raise OSError(errno.EFBIG, "it is too large", str(path))
    return parse(path.read_text(encoding="utf-8", errors="surrogateescape"))


def read_object(path: Path) -> dict[str, Any]:
    """Return the object that a file of JSON holds. Raises as `read`, ValueError for no object."""
    content = read(path)
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


def _inside(value: Any) -> list[Any]:
    """Return the values that an object or a list holds."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
