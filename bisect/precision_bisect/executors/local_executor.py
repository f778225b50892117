"""Trials on this machine: in threads of this process, or in child processes.

A backend that builds engines lives in child processes: a crash there is an outcome.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from precision_bisect.backends.choose_backend import choose_backend
from precision_bisect.errors import UsageError
from precision_bisect.executors.executor import Executor, Placed, TrialTask
from precision_bisect.executors.uniformity import require_alike_gpus
from precision_bisect.isolation.evaluator_spec import EvaluatorSpec
from precision_bisect.isolation.survey import isolated, surveyed
from precision_bisect.model.load import Model
from precision_bisect.options import Options
from precision_bisect.search.workers import Workers, threads
from precision_bisect.typed.pinning import settle


class LocalExecutor:
    """See `Executor` and `ExecutorPlugin`."""

    def check(self, options: Options) -> None:
        """Raise UsageError for an address."""
        if options.executor_address is not None:
            raise UsageError(f"--executor {options.executor} has no address", "leave it out")

    def opened(self, options: Options, work: Path) -> AbstractContextManager[Executor]:
        """Return this executor, which there is nothing to reach of."""
        return nullcontext(self)

    def place(self, spec: EvaluatorSpec, model: Model, work: Path) -> Placed:
        """Choose the backend, and make it here or ask it in a child."""
        feeds = spec.samples.feeds
        chosen = choose_backend(spec.options, feeds, work, scales=spec.scales, timed=spec.timed)
        options = replace(spec.options, backend=chosen.name)
        spec = replace(spec, options=options)
        here = None if isolated(options) else chosen.make(model)
        if here is None and not (options.mixed_gpus or options.backend == "emulated"):
            require_alike_gpus(options.gpus)
        backend = here or surveyed(spec, work)
        settled = settle(model, backend, options.low)
        # Pinned layers change the table, and a backend numbers layers by the table that it was
        # made with.
        if here is not None and settled is not model:
            here = chosen.make(settled)
        return Placed(
            name=chosen.name,
            why=chosen.why,
            backend=backend,
            model=settled,
            workers=options.workers,
            here=here,
        )

    @contextmanager
    def workers(self, task: TrialTask, work: Path) -> Iterator[Workers]:
        """Yield threads, each of which evaluates here or waits for a child."""
        count = task.spec.options.workers
        if task.here is not None:
            yield threads(task.here, count)
            return
        # Imported here: loky and psutil are for runs that need them.
        from precision_bisect.isolation.process_evaluator import children

        with closing(children(task.spec, work, task.folder)) as evaluate:
            yield threads(evaluate, count)


LOCAL = LocalExecutor()
