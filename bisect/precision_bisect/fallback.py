"""Forecasts on a GPU, in processes of their own, and on the CPU once that has failed."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.trial import Kind, Outcome, Proposal, TrialStatus
from precision_bisect.workers import Evaluate

if TYPE_CHECKING:
    from precision_bisect.isolation.evaluator import Isolated


@dataclass(slots=True, kw_only=True)
class GpuForecasts:
    """Evaluates proposals: forecasts in the children of `on_gpu`, until one fails.

    From then on `on_cpu` evaluates forecasts, which says why in the notes of its outcomes. All
    else is for `builds`. Where a latency is measured, no process that forecasts exists: in one
    process with the engines, a session of the emulator that only waited made them slower by a
    third and more (an H200, ONNX Runtime 1.31.1). Several threads may call it.
    """

    builds: Evaluate
    on_gpu: "Isolated"
    on_cpu: Evaluate
    _why: str = field(init=False, default="")

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal. Raises what its evaluators raise, a GPU's forecasts excepted."""
        if proposal.kind is not Kind.PREDICT:
            if proposal.timed:
                self.on_gpu.close()
            return self.builds(proposal)
        if not self._why:
            outcome, why = self._attempt(proposal)
            if outcome is not None:
                return outcome
            self._why = f"forecasts moved from the GPU to the CPU: {why}"
        outcome = self.on_cpu(proposal)
        evidence = replace(outcome.evidence, notes=(*outcome.evidence.notes, self._why))
        return replace(outcome, evidence=evidence)

    def close(self) -> None:
        """End the processes that forecast."""
        self.on_gpu.close()

    def _attempt(self, proposal: Proposal) -> tuple[Outcome | None, str]:
        """Return the outcome of a GPU's forecast, None and the reason where there is none."""
        try:
            outcome = self.on_gpu(proposal)
        except PrecisionBisectError as error:
            return None, error.message
        if outcome.status is TrialStatus.FINISHED:
            return outcome, ""
        return None, outcome.message or outcome.status.value
