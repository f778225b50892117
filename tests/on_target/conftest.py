"""A finished run, and its folder as it came back from a target."""

from pathlib import Path

import numpy as np
import pytest

import tiny
from fake_board import judge, searched, tool
from precision_bisect.commandline.main import main


@pytest.fixture(scope="session")
def exchanged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of 20 layers that needs four, and its folder as it came back."""
    home = tmp_path_factory.mktemp("exchanged")
    xs = [np.linspace(-1 - n, 2, 8, dtype=np.float32).reshape(1, 8) for n in range(2)]
    run = searched(home, tiny.write_model(home / "model.onnx"), *({"x": x} for x in xs))
    folder = home / "board"
    assert 0 == main(["target", str(run), "--write", str(folder)])
    ran = judge(folder, tool(home / "bin"))
    assert (0, "") == (ran.returncode, ran.stderr)
    return run, folder
