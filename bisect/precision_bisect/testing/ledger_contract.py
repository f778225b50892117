"""What every ledger promises, as a test that anybody can run on theirs.

`check_ledger(reopen)` in a test of yours, where `reopen()` opens the same ledger again, as a run
does that is resumed after its process was killed. It needs nothing but this package.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from precision_bisect.plan import Plan
from precision_bisect.protocols import Ledger
from precision_bisect.testing.driving import require
from precision_bisect.trial import Kind, Outcome, Proposal, Trial, TrialStatus, Verdict

_PASSED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=0.5, message="é\n")
_FAILED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.FAIL, error=float("inf"))
_BROKEN = Outcome(status=TrialStatus.BUILD_FAILED, message="no implementation")


def check_ledger(reopen: Callable[[], AbstractContextManager[Ledger]]) -> None:
    """Check every promise on a ledger that is empty at first.

    Raises ContractError, an AssertionError, for the first promise that is broken.
    """
    plans = [Proposal(plan=Plan.of((i,))) for i in range(4)]
    told = dict(zip(plans, (_PASSED, _FAILED, _BROKEN), strict=False))
    with reopen() as ledger:
        require(not ledger.trials() and not ledger.orphans(), "it is not empty at first")
        for proposal, outcome in told.items():
            ledger.start(proposal)
            ledger.finish(proposal, outcome)
        # The first plan asked of the emulator is another trial.
        ledger.start(Proposal(plan=plans[0].plan, kind=Kind.PREDICT))
        ledger.start(plans[3])
        ledger.withdraw(plans[3])
    expected = [Trial(proposal=each, outcome=outcome) for each, outcome in told.items()]
    with reopen() as ledger:
        require(list(ledger.trials()) == expected, "trials do not come back as they were told")
        orphans = {Proposal(plan=plans[0].plan, kind=Kind.PREDICT).identity}
        require(set(ledger.orphans()) == orphans, f"orphans are {list(ledger.orphans())}")
        ledger.start(plans[0])
        ledger.finish(plans[0], _FAILED)
        require(list(ledger.trials()) == expected, "a finished trial changes")
        for proposal in (plans[1], plans[2]):
            ledger.reopen(proposal)
        require(list(ledger.trials()) == expected[:2], "reopened is not what has no verdict")
    with reopen() as ledger:
        require(plans[2].identity in ledger.orphans(), "a trial that is reopened is no orphan")
