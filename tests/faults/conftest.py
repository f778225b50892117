"""Searches for faults to happen to, and what those came to, in figures at the end."""

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many faults there were and what they cost, as the tests have recorded it."""
    totals: dict[str, list[int]] = {}
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "faults":
                what, *figures = value
                sums = totals.setdefault(what, [0] * len(figures))
                totals[what] = [a + b for a, b in zip(sums, figures, strict=True)]
    for what, (faults, lost, repeated, wrong) in totals.items():
        terminalreporter.write_line(
            f"faults of {what}: {faults}, trials lost: {lost}, repeated: {repeated}, "
            f"wrong answers: {wrong}"
        )
