"""JSON of a run folder, and for people: what is written shows nothing that hides or moves text.

What is read back is untrusted, so it is bounded in size and in depth before anything walks it.
"""

import errno
import json
import re
from pathlib import Path
from typing import Any

from precision_bisect.machine.plain_files import plain_size

DEEPEST = 64
"""Levels of nesting that are read; what a run writes has fewer than ten."""
LARGEST = 2**28
"""Bytes; the largest that a run writes, of thousands of layers, are a twentieth."""


_HIDDEN = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""DEL, C1 controls, and what has no width or turns the direction of text (category Cf)."""


def dumps(value: Any, **options: Any) -> str:
    """Return JSON text as `json.dumps` does: letters as they are, hidden characters escaped."""
    return escaped(json.dumps(value, ensure_ascii=False, **options))


def escaped(text: str) -> str:
    """Return JSON text that says the same without hidden characters."""
    return _HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


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
