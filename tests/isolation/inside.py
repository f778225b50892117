"""Functions for a child to run."""

import os
import subprocess
import time
from pathlib import Path
from typing import NoReturn

from precision_bisect.errors import ModelError


def environment(name: str, work: Path) -> tuple[str | None, Path]:
    """Return a variable of the environment, and the folder that the child was given."""
    return os.environ.get(name), work


def fail(work: Path) -> NoReturn:
    """Raise an error for the user."""
    raise ModelError(f"no model in {work.name}", "look elsewhere")


def sleep_for_ever(begun: Path) -> None:
    """Start a process that sleeps, say so, and sleep."""
    company = subprocess.Popen(["sleep", "600"])
    told = begun.with_suffix(".part")
    told.write_text(f"{os.getpid()} {company.pid}")
    told.rename(begun)
    time.sleep(600)


def print_much(mebibytes: int) -> int:
    """Print so many MiB, and end with what a backend would not."""
    for _ in range(mebibytes):
        os.write(2, b"much is said\n" * (2**20 // 13))
    os.write(2, b"the last words\n")
    os.abort()
