"""A small model, and what evaluates its plans in child processes."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from faults import subject
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.process_evaluator import Isolated, Logs
from precision_bisect.execution.slot import Limits, Slot
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.runs.monitoring.events import ignore


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a prepared folder, with all temporary files in it."""
    prepared = subject.prepare(tmp_path / "subject")
    monkeypatch.setattr(tempfile, "tempdir", str(prepared / "temp"))
    return prepared


@pytest.fixture
def spec(folder: Path, tmp_path: Path) -> EvaluatorSpec:
    """Return the spec of a run of the model."""
    work = tmp_path / "work"
    work.mkdir()
    return prepare(subject.options(folder, isolate="never"), ignore, work).spec


@pytest.fixture
def slot(spec: EvaluatorSpec, tmp_path: Path) -> Iterator[Slot]:
    """Yield a place for a child with the spec."""
    spec.save(tmp_path / "spec")
    slot = Slot(spec=tmp_path / "spec", folder=tmp_path / "slot")
    yield slot
    slot.end()


@pytest.fixture
def isolated(slot: Slot, tmp_path: Path) -> Iterator[Callable[[Limits], Isolated]]:
    """Yield what makes an evaluator over the one slot, and ends its child."""
    with ExitStack() as held:

        def make(limits: Limits) -> Isolated:
            logs = Logs(tmp_path / "logs")
            return held.enter_context(closing(Isolated(slots=[slot], limits=limits, logs=logs)))

        yield make
