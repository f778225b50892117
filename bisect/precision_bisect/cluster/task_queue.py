"""What a run has on each worker of a cluster: plugins of Dask's workers, and the task of a trial.

Dask sets the plugins up on every worker, also on one that joins later, in the order in which they
were registered. Trials run in a child process of the worker, so what they do to their process
costs that child.
"""

import asyncio
import multiprocessing
import pickle
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from distributed import SchedulerPlugin, Worker, WorkerPlugin, get_worker

from precision_bisect.cluster.shipped_model import (
    RemoteBackend,
    RemoteSpec,
    ShippedModel,
    describe_backend,
    facts,
    unpack,
)
from precision_bisect.errors import ExecutorError, PluginError
from precision_bisect.execution.child import tail
from precision_bisect.execution.process_evaluator import Isolated, Logs
from precision_bisect.execution.slot import Death, Limits, Slot
from precision_bisect.execution.uniformity import unlike_workers
from precision_bisect.machine.free_space import Space
from precision_bisect.machine.plain_files import whole, written
from precision_bisect.runs.runfolder import LOGS
from precision_bisect.trial import Outcome, Proposal

if TYPE_CHECKING:
    from distributed import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The outcome of a trial, the end of the log of one without a verdict, and files to keep."""

    outcome: Outcome
    log: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)


class Tail(Logs):
    """Keeps the end of the last log only, for whoever sends it."""

    __slots__ = ()

    def keep(self, log: Path, proposal: Proposal, outcome: Outcome) -> Outcome:
        """Copy the end of a log, and return the outcome as it is."""
        with suppress(OSError):
            self.folder.joinpath("tail").write_bytes(tail(log))
        return outcome

    def take(self) -> bytes:
        """Return what was kept since the last call."""
        path = self.folder / "tail"
        kept = b""
        with suppress(OSError):
            kept = path.read_bytes()
            path.unlink()
        return kept


def take_files(folder: Path) -> Mapping[str, bytes]:
    """Return the files of a folder by path inside it, and remove them. Raises OSError."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        files[str(path.relative_to(folder))] = path.read_bytes()
        path.unlink()
    return files


def receive(delivery: Delivery, proposal: Proposal, folder: Path) -> Outcome:
    """Put what was delivered into the run folder, and return the outcome.

    Raises RunFolderError where a file cannot be written.
    """
    for name, data in delivery.files.items():
        with written(str(folder / name)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with whole(folder / name) as stream:
                stream.write(data)
    if not delivery.log:
        return delivery.outcome
    with tempfile.NamedTemporaryFile() as stream:
        stream.write(delivery.log)
        stream.flush()
        return Logs(folder / LOGS).keep(Path(stream.name), proposal, delivery.outcome)


# How long a trial is given to notice that its child was killed.
_ENDING_S = 0.1


def _unprepared() -> ExecutorError:
    return ExecutorError("it could not take what the run needs", "its own log says why")


class ModelPlugin(WorkerPlugin):
    """The run's folder on a worker, with the model and the samples; sent once."""

    def __init__(self, key: str, shipped: ShippedModel) -> None:
        self.name = key
        self._shipped: ShippedModel | None = shipped

    def setup(self, worker: Worker) -> None:
        """Unpack it. Raises ExecutorError on a worker unlike the sender, and OSError."""
        assert self._shipped is not None
        shipped, self._shipped = self._shipped, None
        facts_by_worker = {"this machine": shipped.facts, f"worker {worker.address}": facts()}
        if trouble := unlike_workers(facts_by_worker):
            raise ExecutorError(
                f"the cluster differs from this machine: {trouble}",
                "install the same versions on all of them",
            )
        # Dask's nanny makes its worker a daemon, which Python lets have no children.
        multiprocessing.current_process().daemon = False
        self.versions: Mapping[str, str] | None = None
        self.folder = Path(worker.local_directory) / self.name
        self.keep = self.folder / "keep"
        self.keep.mkdir(parents=True)
        self.samples = self.folder / "samples.pickle"
        self.samples.write_bytes(shipped.samples)
        self.model = unpack(shipped, self.folder / "model")

    def teardown(self, worker: Worker) -> None:
        """Remove the folder."""
        shutil.rmtree(Path(worker.local_directory) / self.name, ignore_errors=True)

    def put(self, name: str, spec: bytes) -> Path:
        """Write a spec without samples, and return the file of the `RemoteSpec` that makes it."""
        path = self.folder / f"{name}.spec"
        path.write_bytes(spec)
        away = RemoteSpec(spec=path, samples=self.samples, model=self.model, keep=self.keep)
        whole = self.folder / f"{name}.away"
        whole.write_bytes(pickle.dumps(away))
        return whole

    def describe(self, away: Path) -> RemoteBackend:
        """Ask a child what backend there is. Raises PluginError where that costs the child."""
        slot = Slot(spec=away, folder=self.folder / "look")
        try:
            remote = slot.call_bare(describe_backend, away)
        except Death as death:
            raise PluginError(
                f"the backend cannot be used: {death.outcome.message}",
                "run `precision-bisect doctor` on that machine",
            ) from death
        finally:
            slot.end()
        self.versions = remote.survey.versions()
        return remote


class TrialsPlugin(WorkerPlugin):
    """Evaluates the trials of one search on a worker, one at a time.

    `least` are the bytes that must be free for each on the worker's disk. `versions` are what a
    worker must say of its backend, None where any will do.
    """

    def __init__(self, name: str, post: str, spec: bytes, limits: Limits, least: int) -> None:
        self.name = name
        self.versions: Mapping[str, str] | None = None
        self._post = post
        self._spec = spec
        self._limits = limits
        self._least = least
        self.trouble = "it is not ready"

    async def setup(self, worker: Worker) -> None:
        """Make what evaluates. Raises ExecutorError for a worker unlike others, and OSError."""
        self._busy = threading.Lock()
        try:
            await asyncio.to_thread(self._open, worker)
            self.trouble = ""
        except Exception as error:
            self.trouble = str(error) or type(error).__name__
            raise

    async def teardown(self, worker: Worker) -> None:
        """End the child, and wait until the trial in it has noticed."""
        self.trouble = "it was let go"
        await asyncio.to_thread(self._close)

    def evaluate(self, proposal: Proposal) -> Delivery | str:
        """Evaluate a proposal, or say why no trials are taken here.

        Raises the PrecisionBisectErrors that end a run, and OSError.
        """
        with self._busy:
            if why := self.why_not():
                return why
            try:
                outcome = self._isolated(proposal)
            except Exception:
                if not self.trouble:
                    raise
                return self.trouble
            return Delivery(outcome=outcome, log=self._tail.take(), files=take_files(self._keep))

    def why_not(self) -> str:
        """Return why the worker takes no trials now, "" if it does."""
        return self.trouble or Space((self._folder,), self._least).shortage()

    def _open(self, worker: Worker) -> None:
        post = worker.plugins.get(self._post)
        if not isinstance(post, ModelPlugin) or not hasattr(post, "model"):
            raise _unprepared()
        away = post.put(self.name, self._spec)
        # A worker may join in the middle of a run, with other versions than were compared at its
        # start.
        if self.versions is not None:
            versions = post.versions or post.describe(away).survey.versions()
            if trouble := unlike_workers({"the others": self.versions, worker.address: versions}):
                raise ExecutorError(
                    f"it is not like the others: {trouble}",
                    "use workers of one kind, or --mixed-gpus",
                )
        self._folder, self._keep = post.folder, post.keep
        self._tail = Tail(post.folder)
        slot = Slot(spec=away, folder=post.folder / self.name)
        self._isolated = Isolated(slots=[slot], limits=self._limits, logs=self._tail)

    def _close(self) -> None:
        if not hasattr(self, "_isolated"):
            return
        # A trial whose process died is tried again, in a child that must end, too.
        while not self._busy.acquire(timeout=_ENDING_S):
            self._isolated.close()
        try:
            self._isolated.close()
        finally:
            self._busy.release()


class SilencePlugin(WorkerPlugin):
    """Leaves Ctrl-C to the driver, where a terminal sends it to the worker, too."""

    def setup(self, worker: Worker) -> None:
        """Ignore it; Dask calls this in the main thread of a process that has a nanny."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)


async def look_on(post: str, spec: bytes, dask_worker: Worker) -> RemoteBackend:
    """Return what a worker's backend says; Dask calls this on each. Raises as `Post.look` does."""
    there = dask_worker.plugins[post]
    assert isinstance(there, ModelPlugin)
    away = there.put("look", spec)
    return await asyncio.to_thread(there.describe, away)


def why_no_trials(trials: str, dask_worker: Worker) -> str:
    """Return why a worker takes no trials, "" if it does; Dask calls this on each."""
    there = dask_worker.plugins.get(trials)
    return there.why_not() if isinstance(there, TrialsPlugin) else str(_unprepared())


def evaluate_task(trials: str, proposal: Proposal) -> Delivery | str:
    """Evaluate a proposal on the worker that calls this, or say why not; a task of Dask's."""
    there = get_worker().plugins.get(trials)
    if not isinstance(there, TrialsPlugin):
        return str(_unprepared())
    return there.evaluate(proposal)


class ClosePlugin(SchedulerPlugin):
    """Takes the plugins of a run off the workers when its client is gone, even killed.

    `key` is what their names begin with.
    """

    def __init__(self, key: str, client: str) -> None:
        self.name = f"{key}-leaving"
        self._key = key
        self._client = client

    def remove_client(self, scheduler: "Scheduler", client: str) -> None:
        """Called by the scheduler when a client has left."""
        if client == self._client:
            scheduler.loop.add_callback(self._clear, scheduler)

    async def _clear(self, scheduler: "Scheduler") -> None:
        """Remove the newest first: they use what the older ones have."""
        for name in reversed([*scheduler.worker_plugins]):
            if name.startswith(self._key):
                with suppress(Exception):
                    await scheduler.unregister_worker_plugin(None, name=name)
        with suppress(ValueError):
            scheduler.remove_plugin(self.name)
