"""The house: which room may use which, what lies at its root, and how names are given."""

import ast
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
CORE = REPO / "bisect/precision_bisect"
PACKAGES = {
    "precision_bisect": CORE,
    "precision_bisect_strategies": REPO / "strategies/precision_bisect_strategies",
    "precision_bisect_reports": REPO / "reports/precision_bisect_reports",
}

ORDER = (
    "errors precisions plan trial plan_costs layer_table protocols plugins",
    "machine settings options runs graphs judging search",
    "backends exports explaining execution cluster",
    "pipeline api torch commandline __main__",
    "testing",
)
"""Nouns at the root and rooms, from the lowest to the highest: each imports only lower ones."""
ROOMS = [room for line in ORDER for room in line.split()]

MOST_AT_ROOT = 12
MOST_LINES = 400
LEAST_LINES = 30
"""A smaller module with one importer belongs into it."""


def modules(package: str) -> dict[str, Path]:
    """Return the file of each module of a package, by its dotted name."""
    root = PACKAGES[package]
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


EVERY = {name: path for package in PACKAGES for name, path in modules(package).items()}
OURS = {name: path for name, path in EVERY.items() if path.is_relative_to(CORE)}


def imported(path: Path) -> set[str]:
    """Return the modules of this project that a file names in its imports, wherever they stand."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= EVERY.keys() else {node.module}
    return found & EVERY.keys()


@cache
def imports() -> dict[str, set[str]]:
    """Return what each module imports, read when it is asked for first."""
    return {name: imported(path) for name, path in EVERY.items()}


def room(module: str) -> str:
    """Return the room of a module of the core, or the module itself where it lies at the root."""
    return module.split(".")[1]


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("precision_bisect", set()),
        ("precision_bisect_strategies", {"precision_bisect"}),
        ("precision_bisect_reports", {"precision_bisect"}),
    ],
)
def test_packages_import_one_way(package: str, others: set[str]) -> None:
    """Strategies and reports know the core, which knows neither."""
    seen = {name.split(".")[0] for module in modules(package) for name in imports()[module]} - {
        package
    }
    assert seen <= others


def test_every_room_has_its_place() -> None:
    """The order names every room, and nothing else."""
    assert sorted(ROOMS) == sorted({room(name) for name in OURS if "." in name})


def test_no_arrow_points_upwards() -> None:
    """A room imports only rooms below it."""
    upwards = [
        f"{module} -> {used}"
        for module in OURS
        for used in imports()[module]
        if "." in module and "." in used
        if ROOMS.index(room(used)) > ROOMS.index(room(module))
    ]
    assert upwards == []


def test_nobody_knows_the_plug_in() -> None:
    """The cluster is found by its entry point alone: no other room imports it."""
    users = {room(name) for name in OURS for used in imports()[name] if "_bisect.cluster" in used}
    assert {"cluster"} == users


def test_no_circles() -> None:
    """No module imports itself in a roundabout way."""
    TopologicalSorter(imports()).prepare()


def test_the_root_holds_nouns() -> None:
    """Few modules lie at the root of the core."""
    assert len(list(CORE.glob("*.py"))) <= MOST_AT_ROOT


def test_a_file_name_occurs_once() -> None:
    """A name says in which room its module is."""
    names = Counter(path.name for path in EVERY.values() if path.name != "__init__.py")
    assert [name for name, times in names.items() if times > 1] == []


def test_modules_have_a_size() -> None:
    """No module is too long to read, and none is too small to be one."""
    importers = Counter(used for uses in imports().values() for used in uses)
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in EVERY.items()
        if path.name not in ("__init__.py", "__main__.py")
    }
    assert [name for name, count in lines.items() if count > MOST_LINES] == []
    small = [name for name, count in lines.items() if count < LEAST_LINES and importers[name] == 1]
    assert small == []
