"""Files that trtexec writes: outputs, times and logs. They come from elsewhere: untrusted."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import printable, shortened
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.protocols import Sample
from precision_bisect.runs import plain_json

_NOT_FINITE = re.compile(r"(?<=[\[,\s])(-?)(nan|inf)(?=[\],\s])")
"""What C++ prints where JSON has no word; in quotes it is a name."""
DIGITS = re.compile(r"\s*\d{1,15}\s*", re.ASCII)
_WHY = re.compile(r"\[E\] *(.+)")
_LOG_END = 2**16


def read_outputs(path: Path, specs: Sequence[TensorSpec], called: Mapping[str, str]) -> Sample:
    """Return the outputs that trtexec wrote, by the names and in the types of the model.

    `called` has their names in the file. It writes six digits of a float. Raises OSError,
    ValueError.
    """
    entries = _json(path)
    named = {
        e["name"]: e for e in entries if isinstance(e, dict) and isinstance(e.get("name"), str)
    }
    return {spec.name: _array(named.get(called[spec.name]), spec, path.name) for spec in specs}


def _array(entry: Any, spec: TensorSpec, file: str) -> NDArray[Any]:
    values = entry.get("values") if isinstance(entry, dict) else None
    sizes = entry.get("dimensions") if isinstance(entry, dict) else None
    if not isinstance(values, list) or not isinstance(sizes, str):
        raise ValueError(f"{file} is damaged: an output is missing")
    if not all(type(value) in (int, float, bool) for value in values):
        raise ValueError(f"{file} is damaged: a value is no number")
    shape = [int(size) for size in sizes.split("x") if DIGITS.fullmatch(size)]
    if math.prod(shape) != len(values):
        raise ValueError(f"{file} is damaged: {len(values)} values of the shape {sizes!r}")
    with np.errstate(all="ignore"):
        try:
            array = np.array(values).astype(spec.dtype)
        except OverflowError as error:
            raise ValueError(f"{file} is damaged: {error}") from error
    # trtexec may call a scalar 1.
    return array.reshape(() if spec.shape == () and len(values) == 1 else shape)


def read_times(path: Path) -> list[float]:
    """Return the milliseconds of each inference on the GPU. Raises OSError, ValueError."""
    values = [e.get("computeMs") for e in _json(path) if isinstance(e, dict)]
    times = [time for time in values if isinstance(time, int | float) and 0 <= time < math.inf]
    if not times:
        raise ValueError(f"{path.name} has no times")
    return times


def _json(path: Path) -> list[Any]:
    """Return the list that trtexec wrote. Raises OSError, ValueError."""
    text = _NOT_FINITE.sub(_word, read_text(path))
    try:
        content = plain_json.parse(text)
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error
    if not isinstance(content, list):
        raise ValueError(f"{path.name} is damaged: it holds no list")
    return content


def _word(match: re.Match[str]) -> str:
    """Return Python's word for what is not finite; its NaN has no sign."""
    return "NaN" if match[2] == "nan" else f"{match[1]}Infinity"


def read_text(path: Path) -> str:
    """Return the text of a file that a target wrote. Raises OSError, ValueError."""
    if plain_size(path) > plain_json.LARGEST_FILE:
        raise ValueError(f"{path.name} is too large")
    return path.read_text(encoding="utf-8", errors="replace")


def first_trouble(log: Path) -> str:
    """Return the first error of a log, "" where it has none."""
    try:
        plain_size(log)
        with log.open("rb") as stream:
            message = first_error(stream.read(_LOG_END))
    except OSError:
        return ", and no log"
    return f": {message}" if message else f", see {log.name}"


def first_error(log: bytes) -> str:
    """Return the first error that trtexec logs, on one line; "" for none."""
    match = _WHY.search(log[:_LOG_END].decode("utf-8", errors="replace"))
    return shortened(printable(match[1])) if match else ""
