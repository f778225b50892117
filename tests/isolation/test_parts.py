"""The parts of isolation that need no child: specs, deaths, logs."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults import subject
from precision_bisect.errors import ModelError, RunFolderError
from precision_bisect.execution.child import TAIL_BYTES, oom_kills, raised_outcome, terminated
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.process_evaluator import Logs
from precision_bisect.judging.comparators.steadiness import Shared
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.plan import Plan
from precision_bisect.plugins import COMPARATORS, installed
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.trial import Outcome, Proposal, TrialStatus

LOST = Outcome(status=TrialStatus.CRASHED, message="it died")
PROPOSAL = Proposal(plan=Plan.of((0, 1)), reason="to see")


def again(spec: EvaluatorSpec, path: Path) -> EvaluatorSpec:
    """Return the spec as another process reads it."""
    spec.save(path)
    found: EvaluatorSpec = pickle.loads(path.read_bytes())
    return found


@pytest.mark.parametrize(
    "about", [*({"metric": metric} for metric in installed(COMPARATORS)), {"check": None}]
)
def test_a_spec_judges_the_same_after_a_journey(
    folder: Path, tmp_path: Path, about: dict[str, Any]
) -> None:
    """Every comparator, and one that leaves a part of the tolerance, can be sent."""
    asked = about if "check" in about else {"check": None, **about}
    options = subject.options(folder, isolate="never", tol=0.4, **asked)
    spec = prepare(options, ignore, tmp_path).spec
    sent = again(spec, tmp_path / "spec")
    assert spec.comparator.settings() == sent.comparator.settings()
    for plan in (Plan.of(()), Plan.all_high(len(subject.STEPS))):
        proposal = Proposal(plan=plan)
        assert spec.evaluator(tmp_path)(proposal) == sent.evaluator(tmp_path)(proposal)


def test_a_spec_takes_a_script_and_a_share_along(spec: EvaluatorSpec, tmp_path: Path) -> None:
    """A rung of a ladder judges by a part of a script's tolerance."""
    shared = Shared(comparator=spec.comparator, share=0.25)
    sent = again(replace(spec, comparator=shared), tmp_path / "spec")
    assert shared.settings() == sent.comparator.settings()
    assert subject.TOLERANCE / 4 == sent.comparator.tolerance
    assert sent.evaluator(tmp_path)(PROPOSAL).failed


def test_a_spec_of_another_model_makes_nothing(spec: EvaluatorSpec, tmp_path: Path) -> None:
    """The file has changed since the run began."""
    model = spec.options.model
    model.write_bytes(model.read_bytes().replace(b"n0_Tanh", b"n0_Than"))
    with pytest.raises(ModelError, match="has changed since the run began"):
        spec.evaluator(tmp_path)


def test_a_spec_without_room_says_where(spec: EvaluatorSpec, tmp_path: Path) -> None:
    """It is written for a moment, into the folder for temporary files."""
    with pytest.raises(RunFolderError) as error:
        spec.save(tmp_path / "no" / "spec")
    assert "point TMPDIR" in error.value.one_line()


@pytest.mark.parametrize(
    ("said", "status", "message"),
    [
        ("{SIGSEGV(-11)}", "crashed", "its process ended by SIGSEGV (Segmentation fault)"),
        (
            "{SIGKILL(-9)}",
            "crashed",
            "its process ended by SIGKILL (Killed), perhaps out of memory",
        ),
        ("{UNKNOWN(-77)}", "crashed", "its process ended by signal 77"),
        ("{EXIT(7)}", "crashed", "its process ended with exit code 7"),
        ("", "crashed", "its process ended without an answer"),
    ],
)
def test_a_death_is_put_into_words(said: str, status: str, message: str) -> None:
    """By the exit codes in brackets that the pool reports."""
    death = terminated(f"The exit codes of the workers are {said}", oom_kills())
    assert (status, message, True) == (death.outcome.status, str(death), death.retry)


def test_a_kill_while_the_system_ran_out_of_memory_is_told_apart() -> None:
    """Of a signal that no process sends itself, and only if the system has killed something."""
    before = oom_kills() - 1
    killed, crashed = (terminated(f"({code})", before) for code in (-9, -11))
    assert TrialStatus.OUT_OF_MEMORY is killed.outcome.status
    assert "while the system ran out of memory" in killed.outcome.message
    assert TrialStatus.CRASHED is crashed.outcome.status


@given(st.text(), st.integers(-200, 300))
def test_whatever_the_pool_reports_is_a_death(said: str, code: int) -> None:
    """It has one line and no verdict."""
    death = terminated(f"{said.replace('(', '')}({code})", 0)
    assert death.outcome.verdict is None
    assert 1 == len(death.outcome.message.splitlines())


def test_an_exception_is_an_outcome() -> None:
    """Lack of memory is told apart; an exception without words is named."""
    assert TrialStatus.OUT_OF_MEMORY is raised_outcome(MemoryError()).status
    assert "out of memory: MemoryError" == raised_outcome(MemoryError()).message
    assert (TrialStatus.RAISED, "a") == (
        raised_outcome(ValueError("a\nb")).status,
        raised_outcome(ValueError("a\nb")).message,
    )


def test_only_the_end_of_a_long_log_is_kept(tmp_path: Path) -> None:
    """After two lines that say which trial it is of."""
    log = tmp_path / "log.txt"
    log.write_bytes(b"first" + b"x" * TAIL_BYTES + b"last")
    outcome = Logs(tmp_path / "logs").keep(log, PROPOSAL, LOST)
    assert "it died; what it printed is in logs/000001-crashed.log" == outcome.message
    heading, trial, empty, kept = (
        (tmp_path / "logs" / "000001-crashed.log").read_text().split("\n")
    )
    assert ("crashed: it died", "") == (heading, empty)
    assert "search, judge, judged samples, plan 3: to see" == trial
    assert TAIL_BYTES == len(kept) and kept.endswith("xlast")


def test_logs_are_numbered_on(tmp_path: Path) -> None:
    """Of a run that goes on, too, and past a number that is taken by another kind."""
    log, logs = tmp_path / "log.txt", tmp_path / "logs"
    log.write_text("said")
    logs.mkdir()
    (logs / "000007-timed_out.log").touch()
    Logs(logs).keep(log, PROPOSAL, LOST)
    assert "said" in (logs / "000008-crashed.log").read_text()


@pytest.mark.parametrize("trouble", ["no log", "empty log", "no folder"])
def test_a_log_that_cannot_be_kept_costs_only_itself(tmp_path: Path, trouble: str) -> None:
    """The outcome is as it was, and nothing is left."""
    log, logs = tmp_path / "log.txt", tmp_path / "logs"
    if trouble != "no log":
        log.write_bytes(b"\0" * 9 if trouble == "empty log" else b"said")
    if trouble == "no folder":
        logs.write_text("in the way")
    assert LOST == Logs(logs).keep(log, PROPOSAL, LOST)
    assert not logs.is_dir()
