"""One place for a child process, with the GPU it uses and the limits it has.

The pool is loky's, with one process. It starts a fresh interpreter (a fork would copy CUDA's
state, which does not survive it), passes calls and results, notices how a process died, and kills
one that hangs.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
from loky.process_executor import ProcessPoolExecutor, TerminatedWorkerError

from precision_bisect.errors import PluginError
from precision_bisect.execution import child
from precision_bisect.execution.child import Death, oom_kills, tail, terminated, unreadable
from precision_bisect.execution.evaluator_spec import EvaluatorSpec, Survey
from precision_bisect.machine.plain_files import written
from precision_bisect.machine.stopping import Looks, kill_group, look_at_clock
from precision_bisect.options import Options
from precision_bisect.runs.runfolder import TIMING_CACHE
from precision_bisect.trial import TrialStatus

R = TypeVar("R")

LOAD_S = 3600.0
"""Seconds after which a child that has not begun is taken to hang: loading gigabytes from a slow
disk takes minutes. A bound."""
# Seconds between two looks at a child's memory. A bound; a child can grow beyond its limit for so
# long.
_TICK_S = 0.1
# Ticks in which the pool notices the end of a child, on a busy machine, too. If it has not, it
# waits for the rest of half an answer, and for ever. A bound.
_GONE_TICKS = 30
# Bytes. Loky replaces processes that grow by 300 MB, as every engine does.
_NO_LEAK_LIMIT = str(2**62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may take: seconds, and MiB of resident memory. None for no limit."""

    time_s: float | None = None
    memory_mib: float | None = None

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return the limits of a trial."""
        return cls(time_s=options.trial_timeout_s, memory_mib=options.trial_memory_mib)


@dataclass(slots=True, kw_only=True)
class Slot:
    """A child process that is made when it is needed, and made anew after it was lost.

    `spec` is the file of the pickled spec, `folder` is for the child's files. `gpu` is its
    CUDA_VISIBLE_DEVICES, None to leave that as it is; `variables` are others of its environment.
    `hosts` are those that it calls, in words for people.
    """

    spec: Path
    folder: Path
    gpu: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    hosts: str = ""
    _pool: Any = field(init=False, default=None)
    _loaded: bool = field(init=False, default=False)
    _process: Any = field(init=False, default=None)

    @property
    def log(self) -> Path:
        """The file with what the child prints."""
        return self.folder / "log.txt"

    @property
    def pid(self) -> int | None:
        """The child's process, if there is one."""
        return None if self._process is None else int(self._process.pid)

    def call(self, limits: Limits, function: Callable[..., R], *arguments: Any) -> R:
        """Return what a function returns in a child that has loaded the spec.

        Raises what the function raises, Death if the process was lost or had to be ended, and
        Stopped, which ends it, too, where the run's time is over.
        """
        if not self._loaded:
            try:
                self.call_bare(child.load_evaluator, self.spec)
            except BaseException:
                self.end()
                raise
            self._loaded = True
        self._silence()
        return self._within(limits, function, *arguments)

    def call_bare(
        self, function: Callable[..., R], *arguments: Any, limits: Limits | None = None
    ) -> R:
        """Return what a function returns in a child that need not have loaded the spec."""
        if self._pool is None:
            self._start()
        limits = limits or Limits(time_s=LOAD_S)
        return self._within(limits, function, *arguments, self._work)

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Make the child, and have it call a function before all else; nobody waits for that.

        If it costs the child, the next call raises Death.
        """
        if self._pool is None:
            self._start()
        self._pool.submit(function, *arguments, self._work)

    def surveyed(self, spec: EvaluatorSpec) -> Survey:
        """Return what the spec's backend says of itself; loading it here may crash.

        The spec is saved as the slot's. The child keeps model and backend for the trials. Raises
        PluginError where asking costs the child, since the backend cannot be used then, and
        RunFolderError.
        """
        spec.save(self.spec)
        return self._asked(spec.options.backend, child.backend_facts, self.spec)

    def picked(self, options: Options) -> tuple[str, str]:
        """Return what `pick_backend` does in the child; raises PluginError as `surveyed` does."""
        return self._asked(f"--backend {options.backend}", child.pick, options)

    def _asked(self, what: str, function: Callable[..., R], argument: object) -> R:
        """Return what a function says of `what`; the child is ended where it raises."""
        try:
            return self.call_bare(function, argument)
        except Death as death:
            self.end()
            raise PluginError(
                f"{what} cannot be used: {death.outcome.message}",
                "`precision-bisect doctor` says what works here",
            ) from death
        except BaseException:
            self.end()
            raise

    def end(self, *, lost: bool = False) -> None:
        """Kill the child and what it has started, if there is one; the next call makes another.

        `lost` says that the pool has noticed its end already.
        """
        # Forgotten first: whatever fails below, the next call starts a new child.
        pool, self._pool, process, self._process = self._pool, None, self._process, None
        self._loaded = False
        if pool is not None and not lost:
            # The pool may be reading half an answer, and reads on until the pipe ends. It ends
            # only once nobody can write to it, and this process holds the writing end, too.
            pool._result_queue._writer.close()
        if process is not None:
            kill_group(process.pid)
        if pool is not None:
            pool.shutdown(wait=True, kill_workers=True)

    def _start(self) -> None:
        self._clear()
        with written(str(self.folder)):
            self._work.mkdir(parents=True, exist_ok=True)
        self._silence()
        self._pool = ProcessPoolExecutor(
            max_workers=1, initializer=child.begin, initargs=(self.log,), env=self._environment()
        )
        # The pool starts its process with the first call; psutil guards against a pid that is used
        # again.
        self._process = psutil.Process(self._within(Limits(time_s=LOAD_S), os.getpid))

    @property
    def _work(self) -> Path:
        return self.folder / "work"

    def _clear(self) -> None:
        """Remove what an earlier child left, except the timing cache, which speeds builds up."""
        for path in self._work.glob("*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != TIMING_CACHE:
                with suppress(OSError):
                    path.unlink()

    def _environment(self) -> Mapping[str, str]:
        own = {"LOKY_MAX_MEMORY_LEAK_SIZE": _NO_LEAK_LIMIT, "TMPDIR": str(self._work)}
        own |= self.variables
        return own if self.gpu is None else {**own, "CUDA_VISIBLE_DEVICES": self.gpu}

    def _silence(self) -> None:
        """Empty the log: what it says is about one call."""
        with suppress(OSError):
            os.truncate(self.log, 0)

    def _within(self, limits: Limits, function: Callable[..., R], *arguments: Any) -> R:
        kills = oom_kills()
        future: Future[R] = Future()
        try:
            future = self._pool.submit(function, *arguments)
            self._watch(future, limits)
            return future.result()
        except TerminatedWorkerError as error:
            self.end(lost=True)
            printed = b""
            with suppress(OSError):
                printed = tail(self.log)
            raise terminated(str(error), kills, printed) from error
        except BrokenProcessPool as error:
            self.end(lost=True)
            raise unreadable() from error
        except BaseException:
            # An exception of the function leaves the process as it was; an interrupt leaves it at
            # work.
            if not future.done():
                self.end()
            raise

    def _watch(self, future: "Future[Any]", limits: Limits) -> None:
        """Wait for a call to end.

        Raises Death past a limit, and for half an answer, Stopped where the run's time is over.
        """
        deadline = None if limits.time_s is None else time.monotonic() + limits.time_s
        gone_ticks, looks = 0, Looks()
        while not wait([future], timeout=_TICK_S).done:
            # A build may take minutes.
            look_at_clock(self.hosts)
            # The answer of a child that has ended meanwhile is still to be read.
            asleep_s = looks.asleep_s()
            if asleep_s and deadline is not None:
                deadline += asleep_s
            gone_ticks += not self._alive()
            if gone_ticks > _GONE_TICKS:
                raise unreadable()
            if deadline is not None and time.monotonic() > deadline:
                assert limits.time_s is not None
                message = f"took longer than {limits.time_s:g} s, and was killed"
                raise Death(TrialStatus.TIMED_OUT, message)
            if limits.memory_mib is not None and (used := self._memory_mib()) > limits.memory_mib:
                message = f"took {used:.0f} MiB of memory, {limits.memory_mib:g} are allowed"
                raise Death(TrialStatus.OUT_OF_MEMORY, f"{message}, and was killed")

    def _alive(self) -> bool:
        # A zombie has ended, and only waits for its parent to look.
        with suppress(psutil.NoSuchProcess):
            return self._process is None or self._process.status() != psutil.STATUS_ZOMBIE
        return False

    def _memory_mib(self) -> float:
        with suppress(psutil.Error):
            return float(self._process.memory_info().rss) / 2**20
        return 0.0


__all__ = ["LOAD_S", "Death", "Limits", "Slot"]
