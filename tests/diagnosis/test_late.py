"""What explains an answer once the time of a run is spent."""

from pathlib import Path

import pytest

import tiny
from precision_bisect.options import Options
from precision_bisect.pipeline.evaluators import reopened
from precision_bisect.pipeline.explanation import Answer, Explained, explained
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.runs.results.result import AnswerSection
from precision_bisect.search.budget import Budget

PROOF = Certificate(minimal=False, checked=(), unchecked=(), mode="none")


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """Return what a run of the small model needs."""
    options = Options(
        model=tiny.write_model(tmp_path / "tiny.onnx"),
        inputs=tiny.samples(),
        tol=1e-2,
        out=tmp_path / "run",
        threads=1,
    )
    work = tmp_path / "work"
    work.mkdir()
    return prepare(options, ignore, work)


def found(prepared: Prepared, *, late: bool) -> Explained:
    """Explain two kept layers, and a culprit that is not kept."""
    record = AnswerSection(
        kept=tiny.KEPT[:2], certificate=PROOF, error=None, noise_floor=None, honoured=None
    )
    answer = Answer(record=record, trials=(), culprits=tiny.KEPT[1:3], late=late)
    with reopened(prepared, prepared.work / f"{late}.sqlite", Budget(), ignore) as driver:
        return driver.run(explained(prepared, driver, answer))


@pytest.mark.parametrize("late", [False, True])
def test_culprits_that_are_not_kept_stand_apart(prepared: Prepared, late: bool) -> None:
    """Causes are the same, late or not."""
    told = found(prepared, late=late)
    assert tiny.KEPT[:2] == [each.layer for each in told.findings.layers]
    assert tiny.KEPT[2:3] == [each.layer for each in told.culprits]
    assert {"overflow"} == {each.cause for each in (*told.findings.layers, *told.culprits)}


def test_late_nothing_is_emulated(prepared: Prepared) -> None:
    """No layer is run alone, and no advice tried."""
    in_time, late = (found(prepared, late=each).findings for each in (False, True))
    assert all(each.hurts for each in in_time.layers)
    assert not any(each.hurts for each in late.layers)
    assert in_time.advice
    assert not late.advice
