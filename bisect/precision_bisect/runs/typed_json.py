"""Parsed JSON that nobody vouches for, as the dataclass that declares it."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from precision_bisect.errors import RunFolderError
from precision_bisect.runs import plain_json

T = TypeVar("T")
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
# Characters of a reason that are shown from either end: it quotes what a file says.
_SHOWN = 80


class Text:
    """Its objects are texts in files: `str` writes one, the constructor reads it."""

    def __init__(self, text: str, /) -> None:
        """Read a text."""


def typed(kind: type[T], content: Any) -> T:
    """Return parsed JSON as a dataclass of this kind.

    Fields with a default may be missing, and keys that are no fields are left out. Raises
    ValueError for what does not fit the types of the fields, with the place as a JSON path.
    """
    try:
        return msgspec.convert(content, kind, dec_hook=_of_text)
    except (msgspec.ValidationError, ValueError) as error:
        reason = str(error)
        excerpt = reason if len(reason) <= 2 * _SHOWN else f"{reason[:_SHOWN]}…{reason[-_SHOWN:]}"
        raise ValueError(excerpt[:1].lower() + excerpt[1:]) from error


def read_typed(kind: type[T], path: Path) -> T:
    """Return what a file of JSON says. Raises OSError as `plain_json.read`, and ValueError."""
    return typed(kind, plain_json.read(path))


def read_file(kind: type[T], path: Path) -> T:
    """Return what a file of a run folder says.

    Raises FileNotFoundError where there is none, and RunFolderError for what cannot be read.
    """
    try:
        return read_typed(kind, path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path}: {error.strerror}", "check the path, and its permissions"
        ) from error
    except ValueError as error:
        raise foreign_file(path) from error


def foreign_file(path: Path) -> RunFolderError:
    """Return the error for a file, or a folder, that is not as this version writes it."""
    return RunFolderError(
        f"{path} holds what this version cannot read", "use the version that ran the search"
    )


def _of_text(kind: type, content: Any) -> Any:
    """Return what a path, or a class of `Text`, makes of a text. Raises ValueError."""
    if not (issubclass(kind, (Path, Text)) and isinstance(content, str)):
        raise ValueError(f"expected `str`, got `{type(content).__name__}`")
    return kind(content)


def read_or_none(kind: type[T], path: Path) -> T | None:
    """Return what a file of JSON says, None where there is none, or it says something else."""
    try:
        return read_typed(kind, path)
    except (OSError, ValueError):
        return None
