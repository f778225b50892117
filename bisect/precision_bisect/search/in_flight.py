"""Trials in flight: their intent is recorded, their outcome is not yet.

Evaluations run wherever the executor runs them; the ledger is used in the caller's thread only,
since an SQLite connection belongs to the thread that opened it.
"""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace

from precision_bisect.errors import RunFolderError
from precision_bisect.machine.stopping import Stopped, look_at_clock, time_is_over
from precision_bisect.protocols import Ledger
from precision_bisect.search.other_cases import Cases
from precision_bisect.search.workers import InPlace, Workers
from precision_bisect.trial import Identity, Kind, Outcome, Proposal, Trial

# Seconds between two looks for a signal. Python runs signal handlers in the main thread between
# bytecodes, and a wait on a lock is not interrupted by a signal that came just before it. A limit
# on the delay of Ctrl-C.
_TICK_S = 0.5


@dataclass(slots=True)
class _Flight:
    """One trial in flight; `wall_s` is its share of the run's time so far, in seconds."""

    proposal: Proposal
    future: "Future[Outcome] | None" = None
    wall_s: float = 0.0


class InFlight:
    """Starts trials on the workers, those of other `cases` here, and records how they end."""

    def __init__(self, ledger: Ledger, workers: Workers, cases: Cases) -> None:
        self._ledger = ledger
        self._workers = workers
        self._cases = Workers(evaluate=cases, executor=InPlace())
        self._broken_off = ledger.orphans()
        self._flying: dict[Identity, _Flight] = {}
        self._shared_until = 0.0

    def __len__(self) -> int:
        return len(self._flying)

    def may_start(self, proposal: Proposal) -> bool:
        """Tell whether a proposal may join the trials in flight.

        A latency is measured with nothing beside it. A trial during which an earlier process ended
        is tried alone, so that no other trial is blamed if it ends this one, too. A repeat waits
        for the first run of its plan.
        """
        flying = [flight.proposal for flight in self._flying.values()]
        if any(self._alone(other) for other in flying) or (flying and self._alone(proposal)):
            return False
        first = replace(proposal, kind=Kind.JUDGE)
        waits = proposal.kind is Kind.REPEAT and first.identity in self._flying
        return len(flying) < self._workers.count and not waits

    def launch(self, proposal: Proposal, started: Callable[[], None]) -> None:
        """Record the intent, call `started`, and have the proposal evaluated."""
        self._share_time()
        flight = _Flight(proposal)
        try:
            self._flying[proposal.identity] = flight
            # The intent is durable before anything is built: if the build ends the process, the
            # next session knows which trial did.
            self._ledger.start(proposal)
            started()
            workers = self._cases if proposal.case else self._workers
            flight.future = workers.executor.submit(workers.evaluate, proposal)
        except BaseException:
            self._withdraw(flight)
            raise

    def land(self, ended: Callable[[Trial], None]) -> None:
        """Wait until a trial ends; record all that have, calling `ended` with each.

        Raises what an evaluation raised, which is no outcome: its trial is withdrawn. Raises
        Stopped where the time is over and none ends.
        """
        flying = [flight.future for flight in self._flying.values() if flight.future]
        # `wait` returns on a timeout with nothing done, and the loop gives Ctrl-C its chance.
        while flying and not wait(flying, _TICK_S, return_when=FIRST_COMPLETED).done:
            # No signal tells of it where a search runs in another thread than the main one.
            look_at_clock()
        self._share_time()
        # A copy, since `_record` removes from the mapping.
        for flight in tuple(self._flying.values()):
            if flight.future is not None and flight.future.done():
                ended(self._record(flight, flight.future))

    def finish(self, ended: Callable[[Trial], None]) -> None:
        """Land everything, past what evaluations raise, until the time is over.

        What has not ended by then may never end.
        """
        while self._flying and not time_is_over():
            with suppress(Exception, Stopped):
                self.land(ended)

    def give_up(self) -> None:
        """Withdraw the trials in flight; they may go on, but nobody waits for their outcomes."""
        for flight in tuple(self._flying.values()):
            self._withdraw(flight)

    def _alone(self, proposal: Proposal) -> bool:
        return proposal.timed or proposal.identity in self._broken_off

    def _record(self, flight: _Flight, future: "Future[Outcome]") -> Trial:
        try:
            outcome = replace(future.result(), wall_s=flight.wall_s)
            self._ledger.finish(flight.proposal, outcome)
        # An evaluation that raises is no outcome of the plan. A ledger that cannot be written ends
        # the run. In both cases a resumed run tries this trial again.
        except (Exception, Stopped):
            self._withdraw(flight)
            raise
        del self._flying[flight.proposal.identity]
        return Trial(proposal=flight.proposal, outcome=outcome)

    def _withdraw(self, flight: _Flight) -> None:
        self._flying.pop(flight.proposal.identity, None)
        with suppress(RunFolderError):
            self._ledger.withdraw(flight.proposal)

    def _share_time(self) -> None:
        """Split the time since the last call evenly among the trials in flight.

        So the seconds of all trials add up to the time that the run took, however many ran side by
        side.
        """
        now = time.perf_counter()
        for flight in self._flying.values():
            flight.wall_s += (now - self._shared_until) / len(self._flying)
        self._shared_until = now
