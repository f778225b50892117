"""The wheel, built once for all tests of it."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel once, as pip does in a container: of what `.dockerignore` lets in."""
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__")
    for line in (REPO / ".dockerignore").read_text().splitlines():
        path = REPO / line[1:]
        if line.startswith("!"):
            copy = partial(shutil.copytree, ignore=ignored) if path.is_dir() else shutil.copy
            copy(path, source / path.name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "-q",
        "-w",
        str(folder),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built
