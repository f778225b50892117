"""What a run's verdicts depend on, and how two runs differ in it."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from precision_bisect.protocols import Sample

_SHOWN = 60
"""Longest value that a difference quotes; hashes and long settings are cut."""


def digest_samples(samples: Sequence[Sample]) -> str:
    """Return the SHA-256 of names, types, shapes and values, in order."""
    digest = hashlib.sha256()
    for sample in samples:
        for name in sorted(sample):
            array = sample[name]
            digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def differences(recorded: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """Return one phrase per field in which the two fingerprints differ, nested ones by path."""
    before, now = dict(_fields(recorded)), dict(_fields(present))
    return [
        f"{key} was {_show(before.get(key))}, now is {_show(now.get(key))}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]


def _fields(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _fields(inner, f"{path}{key}.")
        else:
            yield f"{path}{key}", inner


def _show(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
