"""Dask's cluster as an executor: reached at its scheduler, or one of this machine's processes."""

import logging
import re
import shlex
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from distributed import Client, LocalCluster
from distributed.utils import silence_logging_cmgr

from precision_bisect.cluster.cluster_client import ClusterClient
from precision_bisect.cluster.cluster_evaluator import ClusterEvaluator
from precision_bisect.cluster.task_queue import SilencePlugin
from precision_bisect.errors import ExecutorError, UsageError, counted
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.executor import Executor, Placed, TrialTask
from precision_bisect.execution.slot import Limits
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.pinning import pin_unbuildable
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.options import Options
from precision_bisect.search.workers import Threads, Workers

LOCAL_CLUSTER = "local"
"""The address of a cluster of `options.workers` processes of this machine, to try it out."""
CONNECT_S = 5.0
WORKERS_S = 60.0
_CLOSE_S = 5.0


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
        with ExitStack() as held:
            held.enter_context(silence_logging_cmgr(logging.CRITICAL))
            own = options.executor_address == LOCAL_CLUSTER
            address = options.executor_address or ""
            if own:
                address = held.enter_context(_own(options.workers, work))
            client = held.enter_context(_connected(address))
            if own:
                client.register_plugin(SilencePlugin())
            _wait_for_workers(client, address, options.workers)
            site = ClusterClient(client, f"precision-bisect-{uuid.uuid4().hex[:12]}")
            held.callback(site.take_away, site.key)
            yield DaskExecutor(site)


@dataclass(frozen=True, slots=True)
class DaskExecutor:
    """Evaluates trials on a cluster's workers; see `Executor`."""

    site: ClusterClient

    def place(self, spec: EvaluatorSpec, model: Model, work: Path) -> Placed:
        """Let the workers choose the backend; the run has as many workers as there are now."""
        found, workers = self.site.survey(spec)
        return Placed(
            name=found.backend,
            why=found.why,
            backend=found.survey,
            model=pin_unbuildable(model, found.survey, spec.options.low),
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
            host="127.0.0.1",
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
        found = len(client.nthreads())
        raise ExecutorError(
            f"{address} has {found} of {counted(count, 'worker')} after {WORKERS_S:.0f} s",
            f"start workers with `dask worker {address} --nthreads 1`",
        ) from error
