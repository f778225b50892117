"""Reaching a cluster: Dask's scheduler at an address, or a cluster of this machine's own."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from precision_bisect.cluster.cluster_client import ClusterClient
from precision_bisect.errors import ClusterError, PluginError
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.options import LOCAL_CLUSTER, Options

if TYPE_CHECKING:
    from distributed import Client

CONNECT_S = 5.0
WORKERS_S = 60.0
_CLOSE_S = 5.0


@contextmanager
def reached(options: Options, work: Path) -> Iterator[ClusterClient | None]:
    """Yield the options' cluster, None where they name none, and leave it.

    `work` is a folder for files. Raises PluginError where Dask is not installed, ClusterError
    where no scheduler answers or there are fewer workers than `options.workers`.
    """
    if options.cluster is None:
        yield None
        return
    try:
        from distributed.utils import silence_logging_cmgr
    except ImportError as error:
        raise PluginError(
            f"--cluster needs Dask: {first_line(error)}",
            "pip install distributed, here and on the workers",
        ) from error
    with ExitStack() as held:
        held.enter_context(silence_logging_cmgr(logging.CRITICAL))
        address = options.cluster
        if address == LOCAL_CLUSTER:
            address = held.enter_context(_own(options.workers, work))
        client = held.enter_context(_connected(address))
        if options.cluster == LOCAL_CLUSTER:
            from precision_bisect.cluster.task_queue import SilencePlugin

            client.register_plugin(SilencePlugin())
        _wait_for_workers(client, address, options.workers)
        site = ClusterClient(client, f"precision-bisect-{uuid.uuid4().hex[:12]}")
        held.callback(site.take_away, site.key)
        yield site


@contextmanager
def _own(workers: int, work: Path) -> Iterator[str]:
    """Yield the scheduler's address of a cluster of processes of this machine."""
    from distributed import LocalCluster

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
        raise ClusterError(f"--cluster local cannot be started: {first_line(error)}") from error
    try:
        yield str(cluster.scheduler_address)
    finally:
        with suppress(Exception):
            cluster.close(timeout=_CLOSE_S)


@contextmanager
def _connected(address: str) -> "Iterator[Client]":
    from distributed import Client

    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False, name="precision-bisect")
    except Exception as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address}: {first_line(error)}",
            "start one with `dask scheduler`, and check the address",
        ) from error
    try:
        yield client
    finally:
        with suppress(Exception):
            client.close(timeout=_CLOSE_S)


def _wait_for_workers(client: "Client", address: str, count: int) -> None:
    try:
        client.wait_for_workers(count, timeout=WORKERS_S)
    except TimeoutError as error:
        found = len(client.nthreads())
        raise ClusterError(
            f"{address} has {found} of {count} workers after {WORKERS_S:.0f} s",
            f"start workers with `dask worker {address} --nthreads 1`",
        ) from error
