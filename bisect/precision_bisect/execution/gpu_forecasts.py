"""Forecasts on a GPU, in processes of their own; on the CPU once one has failed there."""

from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING

from precision_bisect.errors import PrecisionBisectError, shortened
from precision_bisect.search.workers import Evaluate
from precision_bisect.trial import Kind, Outcome, Proposal, TrialStatus

if TYPE_CHECKING:
    from precision_bisect.execution.process_evaluator import Isolated

# How a build may end if the GPU has no room for it.
_CROWDED = (TrialStatus.BUILD_FAILED, TrialStatus.RUN_FAILED, TrialStatus.CRASHED)


@dataclass(slots=True, kw_only=True)
class GpuForecasts:
    """Evaluates proposals: forecasts in the children of `on_gpu`, until one fails.

    From then on `on_cpu` evaluates forecasts, and the notes of its outcomes say why. All other
    proposals go to `builds`. While a latency is measured, no process that forecasts exists. A
    session of the emulator that only waited, in one process with the engines, made them slower by
    a third and more (an H200, ONNX Runtime 1.31.1). A build that fails beside such processes is
    tried once more without them. Several threads may call it.
    """

    builds: Evaluate
    on_gpu: "Isolated"
    on_cpu: Evaluate
    _lock: Lock = field(init=False, default_factory=Lock)
    _why: str = field(init=False, default="")
    _asked: int = field(init=False, default=0)
    _alive: bool = field(init=False, default=False)
    _closed: bool = field(init=False, default=False)

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal.

        Raises what its evaluators raise; of forecasts on the GPU only Stopped.
        """
        if proposal.kind is Kind.PREDICT:
            return self._forecast(proposal)
        if proposal.timed:
            self._make_room()
        outcome = self.builds(proposal)
        if outcome.status in _CROWDED and self._make_room():
            outcome = self.builds(proposal)
        return outcome

    def close(self) -> None:
        """End the processes that forecast; a failure from now on is not asked of the CPU."""
        self._closed = True
        self.on_gpu.close()

    def _make_room(self) -> bool:
        """End the processes that forecast, unless one is at work; tell whether there were any."""
        with self._lock:
            # One at work would end as a failure, and forecasts would move to the CPU for good.
            if self._asked or not self._alive:
                return False
            self._alive = False
            self.on_gpu.close()
            return True

    def _forecast(self, proposal: Proposal) -> Outcome:
        if not self._why:
            with self._lock:
                self._asked, self._alive = self._asked + 1, True
            try:
                outcome = self.on_gpu(proposal)
            except PrecisionBisectError as error:
                outcome = Outcome(status=TrialStatus.BUILD_FAILED, message=error.message)
            finally:
                with self._lock:
                    self._asked -= 1
            if outcome.status is TrialStatus.FINISHED or self._closed:
                return outcome
            self._note(outcome.message or outcome.status.value)
        # Once it has failed the GPU is not asked again: its failures come back, and cost a process
        # each.
        outcome = self.on_cpu(proposal)
        note = f"forecasts moved from the GPU to the CPU: {shortened(self._why)}"
        evidence = replace(outcome.evidence, notes=(*outcome.evidence.notes, note))
        return replace(outcome, evidence=evidence)

    def _note(self, why: str) -> None:
        """Note why forecasts move to the CPU; of several failures at once the first one counts."""
        with self._lock:
            if not self._why:
                self._why = why
