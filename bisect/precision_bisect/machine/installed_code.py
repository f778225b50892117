"""What code is installed: a version says nothing of a checkout, or of a file that was changed."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path

from precision_bisect.plugins import installed

# Reports decide nothing.
_OURS = ("precision_bisect", "precision_bisect_strategies")


@cache
def code_digest(used: frozenset[tuple[str, str]] = frozenset()) -> str:
    """Return the SHA-256 of our sources, and of the plug-ins used: each its group and its name."""
    digest = hashlib.sha256()
    entries = (installed(group).get(name) for group, name in used)
    dists = {entry.module.partition(".")[0]: entry.dist for entry in entries if entry is not None}
    others = {package: dists[package] for package in sorted(dists.keys() - set(_OURS))}
    for place, files in (
        *((package, _sources(package)) for package in (*_OURS, *others)),
        *((package, _files(others[package])) for package in others),
    ):
        for name, content in files:
            digest.update(f"{place}\0{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _sources(package: str) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of a package, wherever it is installed, by their paths in it."""
    spec = None
    with suppress(ImportError, ValueError):  # a module that was made by hand has none
        spec = find_spec(package)
    if spec is None:
        return
    for folder in map(Path, spec.submodule_search_locations or ()):
        for path in sorted(folder.rglob("*.py")):
            yield path.relative_to(folder).as_posix(), path.read_bytes()
    if not spec.submodule_search_locations and spec.has_location:
        yield package, Path(str(spec.origin)).read_bytes()


def _files(distribution: Distribution | None) -> Iterator[tuple[str, bytes]]:
    """Yield what was installed with a distribution, by the hashes that pip has recorded."""
    for file in sorted((distribution and distribution.files) or (), key=str):
        if file.hash is not None and ".dist-info" not in file.parts[0]:
            yield str(file), file.hash.value.encode()
