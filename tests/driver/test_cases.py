"""Trials of other cases: in the ledger and in the effort like all, and no part of the search."""

from pathlib import Path

import pytest

from precision_bisect.errors import ModelError
from precision_bisect.plan import Plan
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.search.workers import Evaluate
from precision_bisect.trial import Outcome, Phase, Proposal, TrialStatus, Verdict
from simulated import SIZE, Simulated, driver_of

EVERYTHING = Proposal(plan=Plan.all_high(SIZE), reason="every layer high")
ELSEWHERE = Proposal(plan=Plan.of(()), phase=Phase.EXPLANATION, case='input "a\n%s\'": ends')
PASSED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=1e-3)


def never() -> Evaluate:
    raise AssertionError("an outcome that the ledger has is evaluated again")


def test_a_case_is_recorded_and_decides_nothing(tmp_path: Path) -> None:
    """A smaller plan passes in another case: the answer is not that plan, the effort has it.

    The resumed run makes no evaluator for it, whatever the case is called.
    """
    driver, ledger = driver_of(tmp_path, Simulated(lambda *_: 0.0), budget=Budget(max_trials=1))
    driver.cases.add(ELSEWHERE.case, lambda: lambda _: PASSED)
    with ledger:
        everything, elsewhere = driver.consider_all([EVERYTHING, ELSEWHERE])
        assert everything.passed and elsewhere.passed
        assert [EVERYTHING] == [trial.proposal for trial in driver.trials]
        best = driver.best()
        assert best is not None and EVERYTHING == best.proposal
        assert (
            2 == len(driver.every_trial)
            and driver.outcome_of(ELSEWHERE.plan, ELSEWHERE.samples) is None
        )
        with pytest.raises(BudgetSpent):
            driver.consider_all([Proposal(plan=Plan.of(()))])
    again, ledger = driver_of(tmp_path, Simulated(lambda *_: 0.0))
    again.cases.add(ELSEWHERE.case, never)
    with ledger:
        assert again.consider_all([ELSEWHERE])[0].passed
        assert (1, 2) == (len(again.trials), len(again.every_trial))
    recorded = read_ledger(tmp_path / "ledger.sqlite")
    assert ["", ELSEWHERE.case] == [trial.proposal.case for trial in recorded.trials]
    assert [EVERYTHING.identity] == [trial.proposal.identity for trial in recorded.own]


def test_a_case_that_cannot_be_made_is_an_outcome(tmp_path: Path) -> None:
    """The run's answer stands, and says what was wrong; the next run does not try it again."""

    def refuse() -> Evaluate:
        raise ModelError("no such operator", "export it again")

    for make in (refuse, never):
        driver, ledger = driver_of(tmp_path, Simulated(lambda *_: 0.0))
        driver.cases.add(ELSEWHERE.case, make)
        with ledger:
            (outcome,) = driver.consider_all([ELSEWHERE])
        assert (TrialStatus.RUN_FAILED, None) == (outcome.status, outcome.verdict)
        assert "no such operator" in outcome.message


def test_one_case_at_a_time_takes_memory(tmp_path: Path) -> None:
    """What a case has taken is freed before the next one is made, and made once while it lasts."""
    driver, ledger = driver_of(tmp_path, Simulated(lambda *_: 0.0))
    held: list[str] = []

    class Held:
        def __init__(self, case: str) -> None:
            assert not held
            held.append(case)
            made.append(case)

        def __del__(self) -> None:
            held.pop()

        def __call__(self, _: Proposal) -> Outcome:
            return PASSED

    made: list[str] = []
    driver.cases.add("first", lambda: Held("first"))
    driver.cases.add("second", lambda: Held("second"))
    with ledger:
        for case in ("first", "second"):
            for size in range(2):
                driver.consider_all([Proposal(plan=Plan.of(range(size)), case=case)])
    assert ["first", "second"] == made
    driver.cases.clear()
    assert not held
