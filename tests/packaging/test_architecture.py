"""Import direction is one-way: strategies -> core <- reports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
ALLOWED = {
    "bisect/precision_bisect": {"precision_bisect"},
    "strategies/precision_bisect_strategies": {"precision_bisect_strategies", "precision_bisect"},
    "reports/precision_bisect_reports": {"precision_bisect_reports", "precision_bisect"},
}
OURS = {"precision_bisect", "precision_bisect_strategies", "precision_bisect_reports"}


def imported_packages(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    names += [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize(("folder", "allowed"), ALLOWED.items())
def test_import_direction(folder: str, allowed: set[str]) -> None:
    for path in sorted((REPO / folder).rglob("*.py")):
        assert (imported_packages(path) & OURS) <= allowed, path
