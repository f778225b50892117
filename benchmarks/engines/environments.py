"""Pinned packages in environments of their own, for tools that the tests do not install."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
CACHE = BENCHMARKS.parent / ".cache"
MADE = "made.txt"
"""In an environment that is complete: its packages."""


def python(name: str, packages: Sequence[str]) -> Path:
    """Return the Python of an environment, made anew where it has other packages.

    Raises CalledProcessError where pip cannot.
    """
    here = CACHE / name
    made = here / MADE
    if not made.is_file() or made.read_text() != "\n".join(packages):
        shutil.rmtree(here, ignore_errors=True)
        venv.create(here, with_pip=True)
        pip = [str(here / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *packages], check=True)
        made.write_text("\n".join(packages))
    return here / "bin" / "python"


def run_module(
    interpreter: Path | None, module: str, *words: str, site: Path | None = None
) -> str:
    """Run a module of these benchmarks in an environment, or in this one; return what it prints.

    In this one packages of the folder `site` come first. Raises CalledProcessError where it fails.
    """
    command = [str(interpreter or sys.executable), "-m", module, *words]
    places = [str(BENCHMARKS)]
    if interpreter is None:
        places = [*([str(site)] if site else []), *places, os.environ.get("PYTHONPATH", "")]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    ran = subprocess.run(command, env=paths, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout
