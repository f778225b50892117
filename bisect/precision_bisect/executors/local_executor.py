"""Trials on this machine: in threads of this process, or in child processes.

A backend that builds engines lives in child processes: a crash there is an outcome.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precision_bisect.backends.choose_backend import choose_backend
from precision_bisect.errors import UsageError
from precision_bisect.executors.executor import Executor, Placed, TrialTask
from precision_bisect.executors.uniformity import require_alike_gpus
from precision_bisect.isolation.described import Survey
from precision_bisect.isolation.evaluator_spec import EvaluatorSpec
from precision_bisect.isolation.survey import isolated, surveyed
from precision_bisect.model.load import Model
from precision_bisect.options import Options
from precision_bisect.search.workers import Workers, threads
from precision_bisect.trial import SampleSet
from precision_bisect.typed.pinning import settle

if TYPE_CHECKING:
    from precision_bisect.isolation.slot import Slot


class LocalExecutor:
    """See `Executor` and `ExecutorPlugin`.

    While it is open, the child that was asked about the backend becomes that of the first worker:
    it has read the model and written weights. `_asked` are the slots of the workers until then.
    """

    _open = False
    _asked: "Sequence[Slot]" = ()

    def check(self, options: Options) -> None:
        """Raise UsageError for an address."""
        if options.executor_address is not None:
            raise UsageError(f"--executor {options.executor} has no address", "leave it out")

    @contextmanager
    def opened(self, options: Options, work: Path) -> Iterator[Executor]:
        """Yield an executor for one run."""
        own = copy(self)
        own._open = True
        try:
            yield own
        finally:
            own._end_asked()

    def place(self, spec: EvaluatorSpec, model: Model, work: Path) -> Placed:
        """Choose the backend, and make it here or ask it in a child."""
        options, why, make = spec.options, "", None
        # A child that is asked by name finds out itself whether the backend can be used. Loading
        # CUDA here as well takes seconds, and memory of the GPU until the end.
        if options.backend == "auto" or not isolated(options):
            feeds, _ = spec.samples[SampleSet.ALL]
            chosen = choose_backend(options, feeds, work, scales=spec.scales, timed=spec.timed)
            options, why, make = replace(options, backend=chosen.name), chosen.why, chosen.make
        spec = replace(spec, options=options)
        here = None if make is None or isolated(options) else make(model)
        backend = here or self._survey(spec, work)
        if here is None and not (options.mixed_gpus or options.backend == "emulated"):
            require_alike_gpus(options.gpus)
        settled = settle(model, backend, options.low)
        # Pinned layers change the table, and a backend numbers layers by the table that it was
        # made with.
        if here is not None and make is not None and settled is not model:
            here = make(settled)
        return Placed(
            name=options.backend,
            why=why,
            backend=backend,
            model=settled,
            workers=options.workers,
            here=here,
        )

    @contextmanager
    def workers(self, task: TrialTask, work: Path) -> Iterator[Workers]:
        """Yield threads, each of which evaluates here or waits for a child."""
        count, (asked, self._asked) = task.spec.options.workers, (self._asked, ())
        if task.here is not None:
            yield threads(task.here, count)
            return
        # Imported here: loky and psutil are for runs that need them.
        from precision_bisect.isolation.process_evaluator import children

        with closing(children(task.spec, work, task.folder, slots=asked)) as evaluate:
            yield threads(evaluate, count)

    def _survey(self, spec: EvaluatorSpec, work: Path) -> Survey:
        """Ask what the backend says of itself, in the child of the first worker."""
        # Imported here, as above.
        from precision_bisect.isolation.process_evaluator import slots_in

        # A search before this one may have ended without a trial.
        self._end_asked()
        self._asked = slots_in(work, spec.options)
        said = surveyed(spec, self._asked[0])
        if not self._open:
            self._end_asked()
        return said

    def _end_asked(self) -> None:
        asked, self._asked = self._asked, ()
        for slot in asked:
            slot.end()


LOCAL = LocalExecutor()
