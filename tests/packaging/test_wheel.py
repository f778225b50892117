"""The wheel holds the three packages and nothing else; a container is built from its sources."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
ROOTS = ("bisect", "strategies", "reports")


def test_exactly_the_sources_are_packed(wheel: Path) -> None:
    """Every file of the packages is in the wheel under its own name, and no other file."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(REPO / root).as_posix()
        for root in ROOTS
        for path in (REPO / root).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.name != "README.md"
    }
    assert sources == packed


def test_the_wheel_runs_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked somewhere else, the wheel's own copy finds its strategies by entry point."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = (
        "import precision_bisect, sys; from precision_bisect.plugins import load_strategy;"
        "print(precision_bisect.__file__, load_strategy('guided').name)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
    )
    place, name = ran.stdout.split()
    assert Path(place).is_relative_to(tmp_path)
    assert "guided" == name


@pytest.mark.nightly
def test_what_is_released_is_that_wheel_by_way_of_the_sdist(wheel: Path, tmp_path: Path) -> None:
    """The wheel built of the sdist is that of the sources, byte for byte; twine takes both."""
    tools, dist = tmp_path / "tools", tmp_path / "dist"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tools), "build", "twine"]
    subprocess.run(pip, check=True, capture_output=True)
    python, path = [sys.executable, "-m"], {**os.environ, "PYTHONPATH": str(tools)}
    build = [*python, "build", "-o", str(dist), str(REPO)]
    subprocess.run(build, check=True, capture_output=True, env=path)
    (released,) = dist.glob("*.whl")
    assert wheel.read_bytes() == released.read_bytes()
    check = [*python, "twine", "check", "--strict", *map(str, dist.iterdir())]
    checked = subprocess.run(check, capture_output=True, text=True, env=path)
    assert 0 == checked.returncode, checked.stdout
