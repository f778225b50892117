"""The repository layout is part of the contract: three import roots, no shadowing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
ROOTS = {
    "bisect": "precision_bisect",
    "strategies": "precision_bisect_strategies",
    "reports": "precision_bisect_reports",
}


@pytest.mark.parametrize("root", ROOTS)
def test_root_is_not_a_package(root: str) -> None:
    assert not list((REPO / root).glob("*.py"))


@pytest.mark.parametrize(("root", "package"), ROOTS.items())
def test_root_holds_exactly_one_typed_package(root: str, package: str) -> None:
    folders = {p.name for p in (REPO / root).iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert {package} == folders
    assert (REPO / root / package / "__init__.py").is_file()
    assert (REPO / root / package / "py.typed").is_file()


def test_no_test_folder_can_become_the_stdlib_bisect() -> None:
    assert not list((REPO / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("stdlib_user", ["random", "tempfile", "statistics", "bisect"])
def test_stdlib_survives_running_from_the_repo_root(stdlib_user: str) -> None:
    code = f"import {stdlib_user}, bisect; assert bisect.bisect_left([1, 3], 2) == 1"
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True)
