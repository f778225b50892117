"""What an executor is to the tool: who evaluates the trials of a run, here or elsewhere.

To add one, write an `ExecutorPlugin` and name it in the entry points of the group
`precision_bisect.executors`. Only runs that ask for it import it.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.graphs.load import Model
from precision_bisect.options import Options
from precision_bisect.plugins import EXECUTORS, load
from precision_bisect.protocols import Backend, Described
from precision_bisect.search.workers import Evaluate, Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The backend of a run, and where it is.

    `name` is the backend's, `why` the reason for the choice, `workers` how many trials run at a
    time. In `model` the layers are pinned that it cannot run low. `here` is the backend if it
    builds in this process, else None.
    """

    name: str
    why: str
    backend: Described
    model: Model
    workers: int
    here: Backend | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """What an executor evaluates trials with.

    `here` evaluates in this process, None unless the backend does. Elsewhere `spec` makes what
    does. `least` are the bytes that must be free on a disk for each trial. Logs and engines go
    into the run folder, `folder`.
    """

    spec: EvaluatorSpec
    here: Evaluate | None
    least: int
    folder: Path


class Executor(Protocol):
    """Evaluates the trials of one run."""

    def place(self, spec: EvaluatorSpec, model: Model, work: Path) -> Placed:
        """Choose the backend for a spec whose options may say "auto"; see what it cannot run low.

        `work` is an empty folder. Raises a PrecisionBisectError where no backend can be used.
        """
        ...

    def workers(self, task: TrialTask, work: Path) -> AbstractContextManager[Workers]:
        """Begin to take trials; leaving the context ends that.

        `work` is a folder for files that nobody needs afterwards. Raises a PrecisionBisectError.
        """
        ...


class ExecutorPlugin(Protocol):
    """One kind of executors, under the name of its entry point."""

    def check(self, options: Options) -> None:
        """Raise UsageError for options that cannot work with it; reaches nobody."""
        ...

    def opened(self, options: Options, work: Path) -> AbstractContextManager[Executor]:
        """Reach the options' executor, and leave it; `work` is a folder for files.

        Raises PluginError where something is missing, ExecutorError where nobody answers.
        """
        ...


def executor_plugin(options: Options) -> ExecutorPlugin:
    """Return the plug-in that the options name. Raises PluginError, and what its check does."""
    plugin = cast("ExecutorPlugin", load(EXECUTORS, options.executor))
    plugin.check(options)
    return plugin
