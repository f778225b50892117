"""Trials on this machine: in threads of this process, or in child processes.

A backend that builds engines lives in child processes: a crash there is an outcome.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precision_bisect.backends.backend_plugin import choose_backend, pick_backend
from precision_bisect.errors import UsageError
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.execution.executor import Executor, Placed, TrialTask
from precision_bisect.execution.uniformity import require_alike_gpus
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.pinning import pin_unbuildable
from precision_bisect.machine.gpu import devices
from precision_bisect.options import Options
from precision_bisect.search.workers import Workers, threads

if TYPE_CHECKING:
    from precision_bisect.execution.slot import Slot


def isolated(options: Options) -> bool:
    """Tell whether trials run in child processes; `options` name the backend."""
    if options.isolate == "auto":
        limited = options.trial_timeout_s is not None or options.trial_memory_mib is not None
        return limited or options.backend != "emulated"
    return options.isolate == "always"


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
        """Yield an executor for one run, whose first child begins to load the backend's library.

        That takes seconds, while this process computes the reference.
        """
        own = copy(self)
        own._open = True
        try:
            if own._asks_child(options):
                # Imported here, as below.
                from precision_bisect.execution import child
                from precision_bisect.execution.child import Death

                # Why it cannot begin is told when it is asked.
                with suppress(Death):
                    own._slot(options, work).begin(child.pick, options.sent)
            yield own
        finally:
            own._end_asked()

    def place(self, spec: EvaluatorSpec, model: Model, work: Path) -> Placed:
        """Choose the backend, and make it here or ask it in a child."""
        name, why = self._picked(spec.options, work)
        options, make, here = replace(spec.options, backend=name), None, None
        spec = replace(spec, options=options)
        if not isolated(options):
            self._end_asked()
            chosen = choose_backend(
                options,
                spec.samples.feeds,
                work,
                scales=spec.scales,
                timed=spec.timed,
                steps=spec.samples.steps,
            )
            make, here = chosen.make, chosen.make(model)
        backend = here or self._slot(options, work).surveyed(spec)
        if not self._open:
            self._end_asked()
        if here is None and not (options.mixed_gpus or options.backend == "emulated"):
            require_alike_gpus(options.gpus)
        pinned = pin_unbuildable(model, backend, options.low)
        # Pinned layers change the table, and a backend numbers layers by the table that it was
        # made with.
        if here is not None and make is not None and pinned is not model:
            here = make(pinned)
        return Placed(
            name=name, why=why, backend=backend, model=pinned, workers=options.workers, here=here
        )

    @contextmanager
    def workers(self, task: TrialTask, work: Path) -> Iterator[Workers]:
        """Yield threads, each of which evaluates here or waits for a child."""
        count, (slots, self._asked) = task.spec.options.workers, (self._asked, ())
        if task.here is not None:
            yield threads(task.here, count)
            return
        # Imported here: loky and psutil are for runs that need them.
        from precision_bisect.execution.process_evaluator import children

        with closing(children(task.spec, work, task.folder, slots=slots)) as evaluate:
            yield threads(evaluate, count)

    def _picked(self, options: Options, work: Path) -> tuple[str, str]:
        """Return the name of the backend, and why it is the one.

        Whoever makes one that is named finds out whether it can be used. What there is to choose
        from on a GPU is looked at in a child: here CUDA would take seconds once more, and memory
        of the GPU until the end.
        """
        if options.backend != "auto":
            return options.backend, ""
        if not self._asks_child(options):
            return pick_backend(options)
        return self._slot(options, work).picked(options)

    def _asks_child(self, options: Options) -> bool:
        """Tell whether a child is asked what there is."""
        if options.backend == "auto" and options.isolate == "auto":
            return bool(devices())
        return isolated(options)

    def _slot(self, options: Options, work: Path) -> "Slot":
        """Return the slot of the first worker."""
        # Imported here, as above.
        from precision_bisect.execution.process_evaluator import slots_in

        self._asked = self._asked or slots_in(work, options)
        return self._asked[0]

    def _end_asked(self) -> None:
        slots, self._asked = self._asked, ()
        for slot in slots:
            slot.end()


LOCAL = LocalExecutor()
