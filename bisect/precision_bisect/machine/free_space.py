"""Free space on the disks that a run writes to, and memory that was freed."""

import ctypes
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LEAST_BYTES = 64 * 2**20
"""A ledger, a result and a report fit into this many times over."""
ENGINE = 2
MODELS_PER_BUILD = {"onnxruntime": 1}
"""How many times the model a build needs, by backend: the typed graph, whose FP32 weights may stay
where they are, and the `ENGINE` of those that write one."""


@dataclass(frozen=True, slots=True)
class Space:
    """Tells when too little space is free in one of the folders; `least` in bytes."""

    folders: Sequence[Path]
    least: int

    def shortage(self) -> str:
        """Return one sentence about the first folder with too little space; "" if all have it."""
        for folder in self.folders:
            try:
                free = shutil.disk_usage(folder).free
            except OSError as error:
                return f"cannot tell how much space is free in {folder}: {error.strerror}"
            if free < self.least:
                return (
                    f"{free / 2**20:.0f} MiB are free in {folder}, and a trial needs "
                    f"{self.least / 2**20:.0f}"
                )
        return ""


def trim() -> None:
    """Give freed memory back to the system, if the C library is one that keeps it (glibc).

    It is worth it after something large: a session over gigabytes of weights has freed half as
    much again that nothing of that size asks for, and one over thousands of nodes 50 MB.
    """
    try:
        release = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library has no such function
        return
    release(0)
