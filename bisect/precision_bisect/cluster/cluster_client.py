"""A cluster as a run uses it: what is sent there, who is there, and whether it still is.

Every call of Dask's client that fails here is a `ExecutorError`: nothing is lost by it, since
trials without an outcome are tried again when the run is resumed.
"""

import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from distributed import Client

from precision_bisect.cluster.shipped_model import RemoteBackend, pack
from precision_bisect.cluster.task_queue import (
    ClosePlugin,
    ModelPlugin,
    TrialsPlugin,
    look_on,
    why_no_trials,
)
from precision_bisect.errors import ExecutorError, PrecisionBisectError, UsageError
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.slot import Limits
from precision_bisect.execution.uniformity import merged, require_alike, unlike_workers
from precision_bisect.machine.stopping import look_at_clock
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.search.workers import Threads

PATIENCE_S = 60.0
"""So long a cluster may be without a worker, and a scheduler without an answer."""
_AWAY_S = 20.0
"""So long a scheduler that may hang is waited for at the end. A bound: children end meanwhile."""
_TICK_S = 1.0
_RESUME = "see to the cluster, or leave out --cluster; go on with --resume"


class ClusterClient:
    """The workers that a Dask client reaches, for one run.

    `key` begins the names of all that the run has there.
    """

    def __init__(self, client: Client, key: str) -> None:
        self.client = client
        self.key = key
        self._brought = False
        self._lost = False
        self._searches = 0
        self._versions: Mapping[str, str] | None = None

    def survey(self, spec: EvaluatorSpec) -> tuple[RemoteBackend, int]:
        """Return what the workers' backend is and says of itself, and how many there are.

        The first call takes the model and the samples there. The spec may leave the backend to
        `pick_backend`. Raises UsageError for unlike workers unless the options allow them,
        ExecutorError, and what the backend raises there.
        """
        self._bring(spec)
        words = self._on_all(look_on, self.key, _bare(spec))
        together = combined(words, mixed=spec.options.mixed_gpus)
        self._versions = None if spec.options.mixed_gpus else together.survey.said
        return together, len(words)

    @contextmanager
    def trials(self, spec: EvaluatorSpec, limits: Limits, least: int) -> Iterator[tuple[str, int]]:
        """Have the workers take trials; yield the name of what does, and their number.

        One with less than `least` bytes free on its disk takes none for now. Workers that join
        take trials, too, if they are like those that were asked. Raises ExecutorError.
        """
        self._searches += 1
        name = f"{self.key}-{self._searches}"
        plugin = TrialsPlugin(name, self.key, _bare(spec), limits, least)
        plugin.versions = self._versions
        self._call(lambda: self.client.register_plugin(plugin, name=name))
        try:
            reasons = self._reasons(name)
            count = sum(not why for why in reasons.values())
            if count == 0:
                why = next(iter(reasons.values()), "they are gone")
                raise self.trouble(f"has no worker that can be used: {why}")
            yield name, count
        finally:
            self.take_away(name)

    def ready(self, trials: str) -> list[str]:
        """Return the addresses of the workers that take these trials. Raises ExecutorError."""
        return [worker for worker, why in self._reasons(trials).items() if not why]

    def watch(self, empty_since: float | None) -> float | None:
        """Return since when the cluster has had no worker, on time's monotonic clock.

        `empty_since` is what the last call returned, None for the first. Raises ExecutorError
        where it has been too long.
        """
        if self._call(self.client.nthreads):
            return None
        now = time.monotonic()
        if empty_since is None:
            return now
        if now > empty_since + PATIENCE_S:
            raise self.trouble(f"has had no worker for {PATIENCE_S:.0f} s")
        return empty_since

    def take_away(self, name: str) -> None:
        """Remove a plugin from the workers, as far as they are still there."""
        if self._lost:
            return
        going = Threads().submit(self.client.unregister_worker_plugin, name)
        self._lost = not wait([going], timeout=_AWAY_S).done

    @property
    def closed(self) -> bool:
        """Whether Dask's client has given up on the scheduler."""
        return str(self.client.status) in ("closing", "closed")

    def lost(self) -> ExecutorError:
        """Note that the scheduler is gone, and return the error."""
        self._lost = True
        return self.trouble("is lost")

    def trouble(self, what: str) -> ExecutorError:
        """Return the error that the cluster is in some trouble."""
        at = str(self.client.scheduler.address) if self.client.scheduler else "?"
        return ExecutorError(f"the cluster at {at} {what}", _RESUME)

    def _bring(self, spec: EvaluatorSpec) -> None:
        """Take to every worker what all searches of the run use."""
        if self._brought:
            return
        # A scheduler that does not have this package cannot clear up after a driver that is
        # killed; that is all it is needed for.
        with suppress(Exception):
            self.client.register_plugin(ClosePlugin(self.key, self.client.id))
        self._call(
            lambda: self.client.register_plugin(ModelPlugin(self.key, pack(spec)), name=self.key)
        )
        self._brought = True

    def _reasons(self, trials: str) -> Mapping[str, str]:
        """Return why each worker, by address, takes no trials; "" for those that do."""
        words = self._call(lambda: self.client.run(why_no_trials, trials, on_error="return"))
        return {
            worker: _line(answer) if isinstance(answer, BaseException) else answer
            for worker, answer in sorted(words.items())
        }

    def _on_all(self, function: Callable[..., Any], *arguments: Any) -> Mapping[str, Any]:
        """Return what a function returns on each worker, by address. Raises what one raises."""
        words = self._call(lambda: self.client.run(function, *arguments, on_error="return"))
        if not words:
            raise self.trouble("has no worker")
        for worker, answer in words.items():
            if isinstance(answer, PrecisionBisectError):
                raise type(answer)(f"{answer.message} (worker {worker})", answer.hint) from answer
            if isinstance(answer, BaseException):
                raise self.trouble(
                    f"has a worker, {worker}, that fails: {_line(answer)}"
                ) from answer
        return dict(sorted(words.items()))

    def _call(self, function: Callable[[], Any]) -> Any:
        """Call Dask. Raises ExecutorError, Stopped, and the errors of ours that workers raise."""
        try:
            return self._awaited(function)
        except PrecisionBisectError:
            raise
        except Exception as error:
            raise self.trouble(f"does not answer as it should: {_line(error)}") from error

    def _awaited(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns, while the scheduler shows that it is there.

        One that hangs keeps its connections, and Dask's calls wait for ever.
        """
        future, asked_s = Threads().submit(function), time.monotonic()
        sign = future
        while not wait([future], timeout=_TICK_S).done:
            look_at_clock()
            if sign is future or sign.done():
                sign, asked_s = Threads().submit(self.client.nthreads), time.monotonic()
            elif time.monotonic() > asked_s + PATIENCE_S:
                raise self.lost()
        return future.result()


def combined(looks: Mapping[str, RemoteBackend], *, mixed: bool) -> RemoteBackend:
    """Return what several workers, by address, say together.

    What one of them cannot run low, none does. Raises UsageError where they would use different
    backends, and for other differences unless they may be `mixed`.
    """
    if trouble := unlike_workers({at: {"backend": look.backend} for at, look in looks.items()}):
        raise UsageError(f"the workers are not alike: {trouble}", "name one by --backend")
    facts_by_worker = {worker: look.survey.said for worker, look in looks.items()}
    if not mixed:
        require_alike(facts_by_worker)
    stuck = {name: why for look in looks.values() for name, why in look.survey.stuck.items()}
    first = next(iter(looks.values()))
    return replace(first, survey=replace(first.survey, said=merged(facts_by_worker), stuck=stuck))


def _bare(spec: EvaluatorSpec) -> bytes:
    """Return the spec without the samples, which are there already."""
    none = SampleSets(feeds=(), pool=(), reference=())
    return pickle.dumps(replace(spec, samples=none), protocol=pickle.HIGHEST_PROTOCOL)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
