"""An evaluator that has every proposal evaluated by some worker of a cluster."""

import time
from concurrent.futures import CancelledError, Executor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import KilledWorker

from precision_bisect.cluster.cluster_client import PATIENCE_S, ClusterClient
from precision_bisect.cluster.delivery import Delivery, NotReady, receive
from precision_bisect.cluster.task_queue import evaluate_task
from precision_bisect.errors import PrecisionBisectError, counted
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.trial import Outcome, Proposal, TrialStatus

_TICK_S = 1.0
"""How often is looked whether there still are workers."""


@dataclass(slots=True, kw_only=True)
class ClusterEvaluator:
    """Evaluates proposals on the workers of a cluster, any number at a time.

    `executor` is that of Dask's client, `trials` the name of the plugin that evaluates there. What
    comes back beside outcomes goes into the run folder, `folder`.
    """

    site: ClusterClient
    executor: Executor
    trials: str
    folder: Path
    _choosy: bool = field(init=False, default=False)

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal; workers that die of it again and again are an outcome.

        Raises ExecutorError where the cluster is lost or has no worker for too long, and the
        PrecisionBisectErrors that end a run.
        """
        try:
            return receive(self._delivered(proposal), proposal, self.folder)
        except KilledWorker as error:
            died = error.allowed_failures + 1
            workers = counted(died, "worker")
            return Outcome(
                status=TrialStatus.CRASHED, message=f"{workers} of the cluster died of it"
            )

    def _delivered(self, proposal: Proposal) -> Delivery:
        """Return what a worker delivers; one that joined and is no use is passed over."""
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._answer(proposal)
            if isinstance(answer, Delivery):
                return answer
            self._choosy = True
            if time.monotonic() > until:
                raise self.site.trouble(f"has no worker that can be used: {answer.why}")
            time.sleep(_TICK_S)

    def _answer(self, proposal: Proposal) -> Delivery | NotReady:
        try:
            future = self.executor.submit(evaluate_task, self.trials, proposal, **self._where())
            empty_since: float | None = None
            while not wait([future], timeout=_TICK_S).done:
                empty_since = self.site.watch(empty_since)
            return future.result()
        except (KilledWorker, PrecisionBisectError):
            raise
        except CancelledError as error:
            raise self.site.lost() from error
        except Exception as error:
            if self.site.closed:
                raise self.site.lost() from error
            return NotReady(why=f"{type(error).__name__}: {first_line(error)}")

    def _where(self) -> dict[str, Any]:
        """Return which workers to prefer, once there was one that is no use."""
        if not self._choosy or not (workers := self.site.ready(self.trials)):
            return {}
        return {"workers": workers, "allow_other_workers": True}
