"""An evaluator over child processes: the same verdicts, and rules for those that are lost."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from effort import examples
from faults import subject
from patience import LIMIT_S, late_by
from precision_bisect.errors import UsageError
from precision_bisect.execution.child import TAIL_BYTES
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.process_evaluator import Isolated, Logs
from precision_bisect.execution.slot import Limits, Slot
from precision_bisect.plan import Plan
from precision_bisect.search.workers import forecasting
from precision_bisect.trial import Kind, Phase, Proposal, TrialStatus, Verdict

Make = Callable[[Limits], Isolated]

LIMITS = Limits(time_s=LIMIT_S, memory_mib=600)
LAYERS = len(subject.STEPS)
HIGH = Proposal(plan=Plan.all_high(LAYERS))


def begun(folder: Path) -> list[int]:
    """Return the process of each evaluation that has begun."""
    return [pid for what, _, pid in subject.noted(folder) if what == "begun"]


def faulty(folder: Path, fault: str) -> None:
    """Have every evaluation from now on meet a fault."""
    subject.order(folder, {"do": fault, "since": 1})


@given(kept=st.sets(st.integers(0, LAYERS - 1)), kind=st.sampled_from(list(Kind)))
@examples(
    25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_child_says_what_this_process_says(
    spec: EvaluatorSpec, isolated: Make, tmp_path: Path, kept: set[int], kind: Kind
) -> None:
    """Status, verdict, error and message of any plan are the same."""
    proposal = Proposal(plan=Plan.of(kept), kind=kind)
    assert spec.evaluator(tmp_path)(proposal) == isolated(Limits())(proposal)


@pytest.mark.parametrize(
    ("fault", "phase", "status", "attempts"),
    [
        ("SIGSEGV", Phase.SEARCH, TrialStatus.CRASHED, 2),
        ("SIGSEGV", Phase.PREFLIGHT, TrialStatus.CRASHED, 3),
        ("exit 7", Phase.RECHECK, TrialStatus.CRASHED, 3),
        ("no pickle", Phase.CERTIFICATE, TrialStatus.CORRUPTED, 2),
        ("hang", Phase.PREFLIGHT, TrialStatus.TIMED_OUT, 1),
        ("grow", Phase.RECHECK, TrialStatus.OUT_OF_MEMORY, 1),
        ("MemoryError", Phase.PREFLIGHT, TrialStatus.OUT_OF_MEMORY, 1),
        ("raise", Phase.PREFLIGHT, TrialStatus.RAISED, 1),
    ],
)
def test_only_a_lost_process_is_tried_again(
    folder: Path,
    isolated: Make,
    fault: str,
    phase: Phase,
    status: TrialStatus,
    attempts: int,
) -> None:
    """Once more, twice more where the ending hangs on it; time and memory are the plan's own."""
    faulty(folder, fault)
    with late_by(lambda: subject.hanging(folder)):
        outcome = isolated(LIMITS)(Proposal(plan=HIGH.plan, phase=phase))
    assert (status, None) == (outcome.status, outcome.verdict)
    assert attempts == len(begun(folder)) == len(set(begun(folder)))


@pytest.mark.parametrize(
    ("fault", "renewed"),
    [("fail to build", False), ("fail to run", True), ("raise", True), ("MemoryError", True)],
)
def test_a_child_in_doubt_is_replaced(
    folder: Path, isolated: Make, fault: str, renewed: bool
) -> None:
    """After a run that failed a CUDA context may be beyond use; a build that failed is normal."""
    evaluate = isolated(LIMITS)
    subject.order(folder, {"do": fault, "call": 2})
    statuses = [evaluate(HIGH).verdict for _ in range(4)]
    assert [Verdict.PASS, None, Verdict.PASS, Verdict.PASS] == statuses
    first, second, third, last = begun(folder)
    assert (True, renewed, True) == (first == second, second != third, third == last)


@pytest.mark.parametrize(("faults", "verdicts"), [(1, [True, True]), (2, [None, True])])
def test_a_build_in_which_cuda_failed_is_tried_once_more_in_another_child(
    folder: Path, isolated: Make, faults: int, verdicts: list[bool | None]
) -> None:
    """An earlier trial may have broken the context; a plan that breaks it itself fails."""
    evaluate = isolated(LIMITS)
    subject.order(folder, *({"do": "fail by CUDA", "call": 1 + n} for n in range(faults)))
    assert verdicts == [evaluate(HIGH).passed or None for _ in range(2)]
    assert faults + 1 == len(set(begun(folder)))


def test_predictions_stay_here_where_something_predicts(
    spec: EvaluatorSpec, slot: Slot, tmp_path: Path
) -> None:
    """An emulator beside an engine needs no child."""
    here, logs = spec.evaluator(tmp_path), Logs(tmp_path / "logs")
    evaluate = forecasting(Isolated(slots=[slot], limits=LIMITS, logs=logs), here)
    assert evaluate(Proposal(plan=HIGH.plan, kind=Kind.PREDICT)).passed
    assert slot.pid is None


def test_what_was_printed_is_kept_of_trials_without_verdict(
    folder: Path, isolated: Make, tmp_path: Path
) -> None:
    """Its end, in a file that the message names; of a verdict nothing is kept."""
    evaluate, logs = isolated(LIMITS), tmp_path / "logs"
    assert evaluate(HIGH).passed
    assert not logs.exists()
    faulty(folder, "chatter and die")
    outcome = evaluate(Proposal(plan=HIGH.plan, phase=Phase.CERTIFICATE, reason="why not"))
    (path,) = logs.iterdir()
    assert "000001-crashed.log" == path.name
    assert outcome.message.endswith("; what it printed is in logs/000001-crashed.log")
    said = path.read_text()
    assert said.startswith(
        "crashed: its process ended by SIGABRT (Aborted) in a call of script.py"
    )
    assert (
        "\ncertificate, judge, " in said
        and "why not" in said
        and "Fatal Python error: Aborted" in said
    )
    assert TAIL_BYTES <= path.stat().st_size <= TAIL_BYTES + 1000
    evaluate(HIGH)
    assert {"000001-crashed.log", "000002-crashed.log"} == {each.name for each in logs.iterdir()}


def test_an_error_of_the_users_script_ends_the_run(folder: Path, isolated: Make) -> None:
    """It is no outcome: the script is wrong for every plan."""
    (folder / "orders.json").write_text("no JSON")
    with pytest.raises(UsageError, match="error failed: "):
        isolated(LIMITS)(HIGH)


@pytest.mark.parametrize(
    ("line", "status"),
    [("import os; os.abort()", TrialStatus.CRASHED), ("raise MemoryError", None)],
)
def test_a_child_that_cannot_begin_is_an_outcome(
    folder: Path, isolated: Make, line: str, status: TrialStatus | None
) -> None:
    """Whatever it dies of while it loads what it needs; what the user can mend ends the run."""
    subject.break_start(folder, line)
    evaluate = isolated(LIMITS)
    if status is None:
        with pytest.raises(UsageError, match="does not run"):
            evaluate(HIGH)
    else:
        assert status is evaluate(HIGH).status
    assert [] == begun(folder)
