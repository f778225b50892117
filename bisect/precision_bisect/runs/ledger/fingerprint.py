"""What a run's verdicts depend on, and how two runs differ in it."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
