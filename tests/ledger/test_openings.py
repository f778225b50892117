"""What a ledger remembers over openings, as a run has it that is resumed."""

from functools import partial
from pathlib import Path

from precision_bisect.plan import Plan
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.trial import Kind, Outcome, Proposal, Trial, TrialStatus, Verdict

PASSED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=0.5, message="é\n")
FAILED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.FAIL, error=float("inf"))
BROKEN = Outcome(status=TrialStatus.BUILD_FAILED, message="no implementation")


def test_trials_are_remembered(tmp_path: Path) -> None:
    """Finished trials stay as they were told; what was only started, or reopened, is an orphan."""
    reopen = partial(open_ledger, tmp_path / "ledger.sqlite", {"model": "m"}, resume=True)
    plans = [Proposal(plan=Plan.of((i,))) for i in range(4)]
    told = dict(zip(plans, (PASSED, FAILED, BROKEN), strict=False))
    with reopen() as ledger:
        assert not ledger.trials() and not ledger.orphans()
        for proposal, outcome in told.items():
            ledger.start(proposal)
            ledger.finish(proposal, outcome)
        # The first plan asked of the emulator is another trial.
        ledger.start(Proposal(plan=plans[0].plan, kind=Kind.PREDICT))
        ledger.start(plans[3])
        ledger.withdraw(plans[3])
    expected = [Trial(proposal=each, outcome=outcome) for each, outcome in told.items()]
    with reopen() as ledger:
        assert expected == list(ledger.trials())
        orphans = {Proposal(plan=plans[0].plan, kind=Kind.PREDICT).identity}
        assert orphans == set(ledger.orphans())
        ledger.start(plans[0])
        ledger.finish(plans[0], FAILED)
        assert expected == list(ledger.trials())
        for proposal in (plans[1], plans[2]):
            ledger.reopen(proposal)
        assert expected[:2] == list(ledger.trials())
    with reopen() as ledger:
        assert plans[2].identity in ledger.orphans()
