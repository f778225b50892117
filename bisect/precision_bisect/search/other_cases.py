"""Trials of other cases than the run's own: another target, other samples, a changed model.

They are evaluated in this process, in the driver's thread, one after the other.
"""

from collections.abc import Callable

from precision_bisect.errors import RunFolderError, in_words
from precision_bisect.search.workers import Evaluate
from precision_bisect.trial import CaseName, Outcome, Proposal, TrialStatus


class Cases:
    """Evaluates trials by what the case of each was added with.

    An evaluator is made when a trial first needs it, so that outcomes which the ledger has open no
    session. It is dropped once another case is asked for: one at a time takes memory.
    """

    def __init__(self) -> None:
        self._make: dict[CaseName, Callable[[], Evaluate]] = {}
        self._latest: tuple[CaseName, Evaluate] | None = None

    def add(self, case: CaseName, make: Callable[[], Evaluate]) -> None:
        """Have trials of a case evaluated by what `make` returns."""
        self._make[case] = make

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal; whatever fails is an outcome, since the run's answer stands.

        Raises RunFolderError, and Stopped where the run is to end.
        """
        try:
            return self._evaluator(proposal.case)(proposal)
        except RunFolderError:
            raise
        except Exception as error:  # whatever is wrong in here, the answer stands
            return Outcome(status=TrialStatus.RUN_FAILED, message=in_words(error))

    def clear(self) -> None:
        """Forget all cases, and free what they have taken."""
        self._latest = None
        self._make.clear()

    def _evaluator(self, case: CaseName) -> Evaluate:
        if self._latest is None or self._latest[0] != case:
            # Freed first: two at a time would take twice the memory.
            self._latest = None
            self._latest = case, self._make[case]()
        return self._latest[1]
