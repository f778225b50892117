"""Texts of flags, read: sizes, shapes, limits, ranges, workers, files."""

import errno
import hashlib
import math
import re
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from precision_bisect.errors import UsageError

_RANGE_HINT = "write --range INPUT=0:999, the lower end first"
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([MG])i?B?", re.IGNORECASE)
_GPU = re.compile(r"\d+|(?:GPU|MIG)-[0-9A-Za-z/-]+")
_GPUS = "gpu:"


def parse_limits(texts: Sequence[str], flag: str) -> dict[str, float]:
    """Parse `1e-2` or `logits=1e-2,boxes=1e-1` (and both mixed), comma separated or repeated.

    The key "" is the default. Raises UsageError, naming `flag`, for what is no number.
    """
    limits: dict[str, float] = {}
    for text in texts:
        # A decimal comma would be two limits, each of them far from what was meant.
        if re.fullmatch(r"\d+,\d+(e[-+]?\d+)?", text, re.IGNORECASE):
            number = text.replace(",", ".")
            raise UsageError(f"{flag} cannot read {text!r}", f"write {flag} {number}")
    for item in (part for text in texts for part in text.split(",")):
        name, named, number = item.rpartition("=")
        try:
            limit = float(number if name or not named else "")
        except ValueError as error:
            raise UsageError(
                f"{flag} cannot read {item!r}",
                f"write {flag} 1e-2 or {flag} OUTPUT=1e-2,OTHER=1e-1",
            ) from error
        if name in limits:
            raise UsageError(f"{flag} is given twice for {name or 'all outputs'}", "keep one")
        limits[name] = limit
    return limits


def limits(texts: Sequence[str], flag: str) -> dict[str, float] | float:
    """Return the limits that the texts of a flag say. Raises UsageError."""
    limits_by_output = parse_limits(texts, flag)
    return limits_by_output[""] if set(limits_by_output) == {""} else limits_by_output


def parse_shapes(texts: Iterable[str], flag: str = "--input-shapes") -> dict[str, tuple[int, ...]]:
    """Parse `name:AxBxC` items, comma separated as in trtexec; a scalar is `name:`.

    Names may hold colons. Raises UsageError for anything else.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for item in (part for text in texts for part in text.split(",")):
        name, colon, dims = item.rpartition(":")
        try:
            shape = tuple(int(dim) for dim in dims.split("x")) if dims else ()
        except ValueError:
            shape = (0,)
        if not colon or not name or any(dim < 1 for dim in shape):
            raise UsageError(f"cannot read the shape {item!r}", f"write {flag} NAME:1x3x224x224")
        shapes[name] = shape
    return shapes


def parse_ranges(texts: Iterable[str], flag: str = "--range") -> dict[str, tuple[float, float]]:
    """Parse `t=0:999` items, comma separated or repeated. Raises UsageError for anything else."""
    ranges: dict[str, tuple[float, float]] = {}
    for item in (part for text in texts for part in text.split(",")):
        name, _, ends = item.rpartition("=")
        try:
            low, high = map(float, ends.split(":"))
        except ValueError as error:
            raise UsageError(f"{flag} cannot read {item!r}", _RANGE_HINT) from error
        if not name:
            raise UsageError(f"{flag} {item!r} names no input", _RANGE_HINT)
        if name in ranges:
            raise UsageError(f"{flag} is given twice for {name!r}", "keep one")
        ranges[name] = low, high
    return ranges


def check_ranges(ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise UsageError for ends that are no range."""
    for name, ends in ranges.items():
        try:
            low, high = map(float, ends)
        except (TypeError, ValueError):
            low = high = math.nan
        if not -math.inf < low < high < math.inf:
            raise UsageError(f"--range cannot have {ends!r} for {name!r}", _RANGE_HINT)


def parse_workers(text: str, flag: str = "--workers") -> tuple[int, tuple[str, ...]]:
    """Return the number of workers and the GPU of each, none where they share one.

    Raises UsageError for what is neither a number nor `gpu:` and a list.
    """
    if text.startswith(_GPUS):
        gpus = tuple(gpu.strip() for gpu in text[len(_GPUS) :].split(","))
        if all(_GPU.fullmatch(gpu) for gpu in gpus):
            return len(gpus), gpus
    elif re.fullmatch(r"-?\d{1,18}", text):
        return int(text), ()
    raise UsageError(
        f"{flag} {text} is no number of workers", f"write {flag} 4, or {flag} gpu:0,1,2,3"
    )


def mebibytes(text: str) -> float:
    """Return a size above zero as MiB. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"{text!r} is no size", "write it as 8G or 512M")
    return float(match[1]) * (1024 if match[2] in "gG" else 1)


def share(text: str) -> float:
    """Return a share that is written as 5% or 0.05. Raises ArgumentTypeError."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no share, such as 5%") from error


def named_path(text: str) -> Path:
    """Return a path that a text names. Raises ArgumentTypeError for none: Path would say "."."""
    if not text:
        raise ArgumentTypeError("an empty path names nothing")
    return Path(text)


def patterns(texts: Iterable[str], flag: str) -> tuple[str, ...]:
    """Return the patterns of a flag, each once. Raises UsageError for an empty one."""
    unique = tuple(dict.fromkeys(texts))
    if "" in unique:
        raise UsageError(f"{flag} is empty", "give a value, or leave it out")
    return unique


def libraries(texts: Sequence[str], flag: str) -> tuple[Path, ...]:
    """Return libraries, each once, by paths that hold in any folder. Raises UsageError."""
    if "" in texts:
        raise UsageError(f"{flag} names no library", "give its path, or leave it out")
    return tuple(dict.fromkeys(Path(text).absolute() for text in texts))


def script(text: str) -> str:
    """Return a script and its function by a path that holds in any folder."""
    path, function = script_and_function(text)
    if path == Path():
        raise ArgumentTypeError("an empty path names nothing")
    return f"{path.absolute()}:{function}"


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Return the seconds that `90`, `90s`, `15m` or `8h` stand for. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise UsageError(f"cannot read the time {text!r}", "write 90, 90s, 15m or 8h")
    return float(match[1]) * _UNITS[match[2]]


PLUGINS = "--plugins"
CUSTOM_OPS = "--ort-custom-ops"
CONFIG_SCRIPT = "--trt-config-postprocess-script"
_FUNCTION = "postprocess_config"
# How the libraries of Linux, Windows and macOS begin.
_MAGIC = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_ELF_SHARED = 3


def check_libraries(paths: Iterable[Path], flag: str) -> None:
    """Raise UsageError for a file of these that is missing, or that is no shared library."""
    for path in paths:
        try:
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "it is no plain file")
            with path.open("rb") as stream:
                head = stream.read(18)
        except (OSError, ValueError) as error:  # a null character
            why = getattr(error, "strerror", error)
            raise UsageError(f"{flag} cannot read {path}: {why}", "check the path") from error
        kind = int.from_bytes(head[16:18], "big" if head[5:6] == b"\2" else "little")
        if not head.startswith(_MAGIC) or (head.startswith(b"\x7fELF") and kind != _ELF_SHARED):
            raise UsageError(f"{flag} {path} is no shared library", "give the .so, .dll or .dylib")


def script_and_function(script: str) -> tuple[Path, str]:
    """Return the parts of SCRIPT.py[:FUNCTION]; the function is Polygraphy's if none is named."""
    path, colon, name = script.rpartition(":")
    return (Path(path), name) if colon and name.isidentifier() else (Path(script), _FUNCTION)


def check_script(script: str) -> None:
    """Raise UsageError where the file of SCRIPT.py[:FUNCTION] is missing."""
    path, _ = script_and_function(script)
    if not path.is_file():
        raise UsageError(f"{CONFIG_SCRIPT}: there is no file {path}", "check the path")


def digests(paths: Sequence[Path], what: str) -> dict[str, str]:
    """Return what verdicts depend on where they depend on these files, by name and place."""
    return {
        f"{what} {path.name}, {number}": hashlib.sha256(path.read_bytes()).hexdigest()
        for number, path in enumerate(paths, 1)
    }
