"""What a run's verdicts depend on, and how two runs differ in it."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from precision_bisect.errors import first_of
from precision_bisect.protocols import Sample


def digest_samples(samples: Sequence[Sample]) -> str:
    """Return the SHA-256 of names, types, shapes and values, in order."""
    digest = hashlib.sha256()
    for sample in samples:
        for name in sorted(sample):
            array = sample[name]
            digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field in which two fingerprints differ, nested ones by path; None where it is absent."""

    key: str
    before: Any
    after: Any


def differing_fields(recorded: Mapping[str, Any], present: Mapping[str, Any]) -> list[Difference]:
    """Return the fields in which the two fingerprints differ, by name."""
    before, now = dict(_fields(recorded)), dict(_fields(present))
    return [
        Difference(key=key, before=before.get(key), after=now.get(key))
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]


def _fields(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _fields(inner, f"{path}{key}.")
        else:
            yield f"{path}{key}", inner


MOST_TOLD = 3
# Longest value that a difference quotes.
_SHOWN = 60
_INPUTS = {"inputs", "samples", "shapes"}
# What is said of fields whose values tell nobody anything, by the first part of their keys.
_OTHER = {
    **dict.fromkeys(("model", "layers"), "another model"),
    **dict.fromkeys(_INPUTS, "other inputs"),
    "code": "another build of precision-bisect or of a plug-in",
    "reference": "another --reference",
    "asked": "other layers by --keep and --low-only",
    "start": "another --start",
    "fixed": "another answer of the rungs before",
}
# The flags of settings that are called otherwise.
_FLAGS = {
    "workspace_mib": "workspace",
    "optimization_level": "builder-optimization-level",
    "ort_options": "ort-option",
    "script": "script of --loop",
}
_COPIES = ("--copies", "--copies-failing")
# The options of what judges, which are told as they were given.
_JUDGING = ("tol", "atol", "rtol", "metric", "quantile", "check")
_JUDGED_BY = {*_JUDGING, "classes", "tolerance", "outputs"}
_HASH = re.compile(r"[0-9a-f]{64}")

_Told: TypeAlias = Mapping[str, Any]


def difference_words(recorded: _Told, present: _Told, before: _Told, now: _Told) -> str:
    """Return in which flags, files and versions two fingerprints differ, "" for none.

    At most `MOST_TOLD` are named, models and inputs first. `before` and `now` are the options.
    """
    differences = differing_fields(recorded, present)
    heads = {difference.key.partition(".")[0] for difference in differences}
    # Images that are read otherwise are other inputs, too.
    others = {_OTHER.get(head) for head in heads - (_INPUTS if "images" in heads else set())}
    phrases = [phrase for phrase in dict.fromkeys(_OTHER.values()) if phrase in others]
    if "comparator" in heads:
        pairs = ((name, before.get(name), now.get(name)) for name in _JUDGING)
        phrases += [_was(f"--{name}", old, new) for name, old, new in pairs if old != new]
    phrases += [phrase for difference in differences for phrase in _phrase(difference)]
    if differences and not phrases:
        phrases = ["other limits"]
    return first_of(phrases, MOST_TOLD)


def _phrase(difference: Difference) -> Iterator[str]:
    """Yield what one field comes to, nothing where that is said elsewhere."""
    head, _, rest = difference.key.partition(".")
    # A flag that is off is as good as absent.
    if head in _OTHER or (rest == "each_step" and not (difference.before or difference.after)):
        return
    if (
        head == "copies"
        and isinstance(difference.before, list)
        and isinstance(difference.after, list)
    ):
        pairs = zip(_COPIES, difference.before, difference.after, strict=False)
        yield from (_was(flag, old, new) for flag, old, new in pairs if old != new)
    elif difference.key == "loop.feeds":
        yield "other --feed"
    elif head in ("machine", "versions"):
        yield _was(rest or head, difference.before, difference.after)
    else:
        nested = head in ("comparator", "engine", "images", "loop")
        name, _, of = (rest if nested else head).partition(".")
        if head != "comparator" or name not in _JUDGED_BY:
            flag = _FLAGS.get(name, name.replace("_", "-"))
            yield _was(f"--{flag} {of}".rstrip(), difference.before, difference.after)


def _was(what: str, before: Any, after: Any) -> str:
    if _HASH.fullmatch(str(before)) or _HASH.fullmatch(str(after)):
        return f"other {what.removeprefix('--')}"
    return f"{what} was {_show(before)}, now {_show(after)}"


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        value = ",".join(f"{name}={_show(limit)}".lstrip("=") for name, limit in value.items())
    text = "not given" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
