"""What a run's verdicts depend on, and how two runs differ in it."""

import hashlib
from collections.abc import Mapping, Sequence
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
    """Return one phrase per field in which the two fingerprints differ."""
    return [
        f"{key} was {_show(recorded.get(key))}, now is {_show(present.get(key))}"
        for key in sorted({*recorded, *present})
        if recorded.get(key) != present.get(key)
    ]


def _show(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
