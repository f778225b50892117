"""Searches for faults to happen to."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from faults import subject
from faults.harness import Run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what searches in a folder of its own, with its temporary files there."""
    folder = subject.prepare(tmp_path / "faulty")
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temp"))
    return Run(folder)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Any, ...]]:
    """Return the trials of a search that nothing disturbs."""
    folder = subject.prepare(tmp_path_factory.mktemp("whole") / "subject")
    assert subject.KEPT == subject.search(folder, isolate="never").kept
    return subject.rows(folder)
