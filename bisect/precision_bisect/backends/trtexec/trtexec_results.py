"""What trtexec writes: outputs, times, layers and logs. It comes from elsewhere: untrusted.

All of it is read here, whichever way it came, and none of it without a bound.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.backends.backend_plugin import Message
from precision_bisect.backends.inspection.engine_layers import EngineLayer, parse_json
from precision_bisect.backends.tensorrt.log import first_error
from precision_bisect.errors import printable, shortened
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.machine.gpu import full
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.protocols import Sample
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.on_target import UNKNOWN, BuildTrouble, FailedBuild

# What C++ prints where JSON has no word; in quotes it is a name.
_NOT_FINITE = re.compile(r"(?<=[\[,\s])(-?)(nan|inf)(?=[\],\s])")
_UNSAFE = re.compile(r"[^A-Za-z0-9._,-]", re.ASCII)
# What trtexec calls the file of a tensor; types that numpy lacks it writes as FP32.
_SHOWN = re.compile(r"\d{4,9}_(.*?)(?:_to_float)?\.npy", re.ASCII)
DIGITS = re.compile(r"\s*\d{1,15}\s*", re.ASCII)
LOG_END = 2**16
"""Bytes at either end of a log that are read: facts stand at the beginning, errors anywhere."""
# The beginning of a message, with its severity and whether the library says it, not the tool.
_RECORD = re.compile(r"^(?:(?:\[[\d/:-]{1,30}\] )?\[([A-Z])\] *(\[TRT\])?|&&&& )", re.M)
FACTS = {
    "trtexec": re.compile(r"\[TensorRT v(\d+)\]"),
    "device": re.compile(r"Selected Device: *(.+)"),
    "compute_capability": re.compile(r"Compute Capability: *(.+)"),
}
"""What a log tells that results depend on."""


# What a log says in such a case, the most telling first; versions agree on these words.
_TROUBLES = {
    BuildTrouble.NOT_OBEYED: re.compile(r"obeys the requested constraints"),
    BuildTrouble.UNKNOWN_OPTION: re.compile(r"\[E\] Unknown option: "),
    BuildTrouble.NOT_PARSED: re.compile(r"\[E\].*(?:While parsing node|Failed to parse)"),
    BuildTrouble.NO_KERNEL: re.compile(r"Could not find any implementation"),
}
_ENDED = re.compile(r"^&&&& (?:PASSED|FAILED)|\[E\]", re.M)


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


def read_shown(folder: Path, layers: Sequence[EngineLayer]) -> Mapping[str, NDArray[Any]]:
    """Return the floats that `--saveAllDebugTensors=numpy` wrote, by their names in the engine.

    Files are called by number and name, with `_` for all but letters, digits and `._-,`; names
    that look alike so, and long ones, which trtexec cuts, are left out. Of a tensor that was
    written several times the first counts. Raises OSError, ValueError.
    """
    names = [tensor.name for layer in layers for tensor in layer.outputs]
    count = Counter(_UNSAFE.sub("_", name) for name in names)
    called = {safe: name for name in names if count[safe := _UNSAFE.sub("_", name)] == 1}
    shown: dict[str, NDArray[Any]] = {}
    for path in sorted(folder.glob("*.npy")):
        match = _SHOWN.fullmatch(path.name)
        name = called.get(match[1], "") if match else ""
        if not name or name in shown:
            continue
        plain_size(path)
        # A map is no larger than the file, whatever its header says.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.dtype in (np.float16, np.float32):
            shown[name] = np.array(array)
    return shown


def read_layers(path: Path) -> Sequence[EngineLayer]:
    """Return the layers of an engine, at least one. Raises OSError, ValueError."""
    layers = parse_json(read_text(path))
    if not layers:
        raise ValueError(f"{path.name} is damaged: it lists no layers")
    return layers


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


def read_facts(log: Path) -> Mapping[str, str]:
    """Return version and GPU as a log tells them, each "unknown" where it does not."""
    text = _ends(log)
    matches = {fact: pattern.search(text) for fact, pattern in FACTS.items()}
    return {fact: shortened(printable(m[1])) if m else UNKNOWN for fact, m in matches.items()}


def joined_facts(logs: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """Return the facts of several logs; those in which they differ are told side by side."""
    facts = {fact: {log[fact] for log in logs} for fact in FACTS}
    return {
        fact: " and ".join(sorted(values - {UNKNOWN} or {UNKNOWN}))
        for fact, values in facts.items()
    }


def failed_build(log: Path) -> FailedBuild | None:
    """Return why the build of a log failed; None where there is no log."""
    why = trouble(log)
    if not why:
        return None
    text = _ends(log)
    kinds = (kind for kind, pattern in _TROUBLES.items() if pattern.search(text))
    if (kind := next(kinds, None)) is None and full(why):
        kind = BuildTrouble.OUT_OF_MEMORY
    if kind is None and "&&&& RUNNING" in text and not _ENDED.search(text):
        kind = BuildTrouble.CUT_OFF
    return FailedBuild(trouble=kind or BuildTrouble.OTHER, text=why)


def trouble(log: Path) -> str:
    """Return the first error of a log, else its last line, "" for none."""
    text = _ends(log)
    starts = [*_RECORD.finditer(text), None]
    by_library: dict[bool, list[Message]] = {True: [], False: []}
    for start, end in pairwise(starts):
        if start is not None and start[1] == "E":
            content = text[start.end() : end.start() if end else None].strip()
            by_library[bool(start[2])].append(Message("ERROR", content))
    last = text.strip().rpartition("\n")[2]
    return first_error(by_library[True] or by_library[False]) or shortened(printable(last))


def _ends(log: Path) -> str:
    """Return the beginning and the end of a log, the whole of a short one, "" of what is none."""
    try:
        size = plain_size(log)
        with log.open("rb") as stream:
            content = stream.read(LOG_END)
            stream.seek(max(size - LOG_END, len(content)))
            content += stream.read(LOG_END)
    except OSError:
        return ""
    return content.decode("utf-8", errors="replace")
