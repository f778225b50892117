"""Dask's cluster as an executor: reached at its scheduler, or one of this machine's processes."""

import logging
import re
import shlex
import time
import uuid
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import Client, KilledWorker, LocalCluster
from distributed.utils import silence_logging_cmgr

from precision_bisect.cluster.cluster_client import PATIENCE_S, ClusterClient
from precision_bisect.cluster.task_queue import Delivery, SilencePlugin, evaluate_task, receive
from precision_bisect.errors import ExecutorError, PrecisionBisectError, UsageError, counted
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.executor import Executor, Placed, TrialTask
from precision_bisect.execution.slot import Limits
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.pinning import pin_unbuildable
from precision_bisect.machine.stopping import look_at_clock
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.options import Options
from precision_bisect.search.workers import Threads, Workers
from precision_bisect.trial import Outcome, Proposal, TrialStatus

LOCAL_CLUSTER = "local"
"""The address of a cluster of `options.workers` processes of this machine, to try it out."""
CONNECT_S = 30.0
"""As long as Dask itself waits: a scheduler with much to do answers late."""
WORKERS_S = 60.0
_CLOSE_S = 5.0
# How often is looked whether there still are workers.
_TICK_S = 1.0


class DaskPlugin:
    """See `ExecutorPlugin`."""

    def check(self, options: Options) -> None:
        """Raise UsageError for what is no address, and for flags about this machine."""
        address = options.executor_address or ""
        if address != LOCAL_CLUSTER and not re.fullmatch(r"[a-z]+://.+", address):
            raise UsageError(
                f"{shlex.quote(address)} is no address of a Dask scheduler",
                f"write it as tcp://scheduler:8786, or {LOCAL_CLUSTER}",
            )
        if options.gpus:
            raise UsageError(
                "--workers gpu: names GPUs of this machine, and trials run on a --cluster",
                "start one Dask worker for each GPU, with CUDA_VISIBLE_DEVICES",
            )
        if options.isolate == "never":
            raise UsageError(
                "on a --cluster, trials run in child processes", "leave out --isolate never"
            )

    @contextmanager
    def opened(self, options: Options, work: Path) -> Iterator[Executor]:
        """Yield the executor once the cluster has `options.workers` workers."""
        with ExitStack() as stack:
            stack.enter_context(silence_logging_cmgr(logging.CRITICAL))
            own = options.executor_address == LOCAL_CLUSTER
            address = options.executor_address or ""
            if own:
                address = stack.enter_context(_own(options.workers, work))
            client = stack.enter_context(_connected(address))
            if own:
                client.register_plugin(SilencePlugin())
            _wait_for_workers(client, address, options.workers)
            site = ClusterClient(client, f"precision-bisect-{uuid.uuid4().hex[:12]}")
            stack.callback(site.take_away, site.key)
            yield DaskExecutor(site)


@dataclass(frozen=True, slots=True)
class DaskExecutor:
    """Evaluates trials on a cluster's workers; see `Executor`."""

    site: ClusterClient

    def place(self, spec: EvaluatorSpec, model: Model, work: Path) -> Placed:
        """Let the workers choose the backend; the run has as many workers as there are now."""
        remote, workers = self.site.survey(spec)
        return Placed(
            name=remote.backend,
            why=remote.why,
            backend=remote.survey,
            model=pin_unbuildable(model, remote.survey, spec.options.low),
            workers=workers,
        )

    @contextmanager
    def workers(self, task: TrialTask, work: Path) -> Iterator[Workers]:
        """Yield threads, each of which waits for a worker of the cluster."""
        limits = Limits.of(task.spec.options)
        with self.site.trials(task.spec, limits, task.least) as (trials, count):
            evaluate = ClusterEvaluator(
                site=self.site,
                executor=self.site.client.get_executor(pure=False),
                trials=trials,
                folder=task.folder,
            )
            yield Workers(evaluate=evaluate, executor=Threads(), count=count)


DASK = DaskPlugin()


@contextmanager
def _own(workers: int, work: Path) -> Iterator[str]:
    """Yield the scheduler's address of a cluster of processes of this machine."""
    try:
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            # Whoever reaches a scheduler can run code with it: nobody but this machine does.
            host="127.0.0.1",
            # Dask would pause and kill workers; a build's memory is bounded by its own process.
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
            local_directory=str(work / "dask"),
            scheduler_kwargs={"local_directory": str(work / "dask")},
        )
    except Exception as error:
        raise ExecutorError(
            f"--cluster {LOCAL_CLUSTER} cannot be started: {first_line(error)}",
            "leave it out: --workers alone evaluates on this machine, too",
        ) from error
    try:
        yield str(cluster.scheduler_address)
    finally:
        with suppress(Exception):
            cluster.close(timeout=_CLOSE_S)


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False, name="precision-bisect")
    except Exception as error:
        raise ExecutorError(
            f"no Dask scheduler answers at {address}: {first_line(error)}",
            "start one with `dask scheduler`, and check the address",
        ) from error
    try:
        yield client
    finally:
        with suppress(Exception):
            client.close(timeout=_CLOSE_S)


def _wait_for_workers(client: Client, address: str, count: int) -> None:
    try:
        client.wait_for_workers(count, timeout=WORKERS_S)
    except TimeoutError as error:
        present = len(client.nthreads())
        raise ExecutorError(
            f"{address} has {present} of {counted(count, 'worker')} after {WORKERS_S:.0f} s",
            f"start workers with `dask worker {address} --nthreads 1`",
        ) from error


@dataclass(slots=True, kw_only=True)
class ClusterEvaluator:
    """Evaluates proposals on the workers of a cluster, any number at a time.

    `executor` is that of Dask's client, `trials` the name of the plugin that evaluates there. What
    comes back beside outcomes goes into the run folder, `folder`.
    """

    site: ClusterClient
    executor: futures.Executor
    trials: str
    folder: Path
    _choosy: bool = field(init=False, default=False)

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal; workers that die of it again and again are an outcome.

        Raises ExecutorError where the cluster is lost or has no worker for too long, Stopped where
        the run's time is over, and the other PrecisionBisectErrors that end a run.
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
                raise self.site.trouble(f"has no worker that can be used: {answer}")
            time.sleep(_TICK_S)

    def _answer(self, proposal: Proposal) -> Delivery | str:
        try:
            future = self.executor.submit(evaluate_task, self.trials, proposal, **self._where())
            empty_since: float | None = None
            # Without a limit the wait would not see that the last worker is gone.
            while not futures.wait([future], timeout=_TICK_S).done:
                look_at_clock()
                empty_since = self.site.watch(empty_since)
            return future.result()
        except (KilledWorker, PrecisionBisectError):
            raise
        except futures.CancelledError as error:
            raise self.site.lost() from error
        except Exception as error:
            if self.site.closed:
                raise self.site.lost() from error
            return f"{type(error).__name__}: {first_line(error)}"

    def _where(self) -> dict[str, Any]:
        """Return which workers to prefer, once there was one that is no use."""
        if not self._choosy or not (workers := self.site.ready(self.trials)):
            return {}
        return {"workers": workers, "allow_other_workers": True}
