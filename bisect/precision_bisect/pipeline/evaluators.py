"""Who evaluates the trials of a run: the stack between the driver and the backend."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from precision_bisect.execution.executor import TrialTask
from precision_bisect.execution.gpu_forecasts import GpuForecasts
from precision_bisect.machine.stopping import until
from precision_bisect.pipeline.engine_ranking import RankedByEngine
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.protocols import Backend
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.runs.monitoring.events import Observer
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.other_cases import Cases
from precision_bisect.search.stopwatch import Stopwatch
from precision_bisect.search.workers import Evaluate, Workers, forecasting, threads


@contextmanager
def evaluators(prepared: Prepared, folder: Path) -> Iterator[Workers]:
    """Yield the workers of a run, and stop them afterwards; logs of trials go into `folder`.

    The stack is built from the inside out: stopwatch, evaluator, executor, forecasts. `Driver`
    wraps these workers: it asks the ledger and then the budget, so what is known costs nothing.
    The course is outermost: it repeats what noise may have decided, and it names the samples that
    are held out, a sample set like others.
    """
    backend, emulator = prepared.here, prepared.emulator
    with ExitStack() as stack:
        # The emulator's memory is given back last, when nobody asks it any more.
        stack.callback(prepared.rest)
        here = None
        if backend is not None:
            # The stopwatch wraps the backend: it holds the engine that others are timed beside.
            # The evaluator wraps both: copies are further runs of an engine that it has open.
            stopwatch = stack.enter_context(
                Stopwatch(
                    partial(backend.build, afresh=True),
                    prepared.baseline,
                    prepared.case.options.engine.time_batch,
                )
            )
            here = evaluator(prepared, backend, stopwatch)
        # The executor wraps the evaluator, or one that a spec makes in another process, so that
        # the end of that process is an outcome.
        task = TrialTask(spec=prepared.spec, here=here, least=prepared.space.least, folder=folder)
        workers = stack.enter_context(prepared.executor.workers(task, prepared.work))
        # Forecasts pass the executor by: the emulator is on this machine, and needs no child.
        if backend is None and emulator is not None:
            forecasts = evaluator(prepared, emulator)
            if prepared.case.options.forecast_on == "cuda":
                evaluate = _on_gpu(prepared, folder, workers.evaluate, forecasts, stack)
            else:
                evaluate = forecasting(workers.evaluate, forecasts)
            workers = replace(workers, evaluate=evaluate)
        if prepared.case.options.rank_by == "engine":
            ranked = RankedByEngine(prepared=prepared, otherwise=workers.evaluate)
            workers = replace(workers, evaluate=ranked)
        try:
            yield workers
        finally:
            # The end of the time is often why: what ends here must not be ended by it.
            with until(lambda: False):
                stack.close()


@contextmanager
def reopened(
    prepared: Prepared, path: Path, budget: Budget, observer: Observer
) -> Iterator[Driver]:
    """Yield a driver of forecasts and other cases, over the ledger of a search that has ended."""
    emulator = prepared.emulator
    forecasts: Evaluate = Cases() if emulator is None else evaluator(prepared, emulator)
    with open_ledger(path, prepared.fingerprint, resume=True) as ledger:
        yield Driver(threads(forecasts), ledger, budget, observer)
    prepared.rest()


def evaluator(
    prepared: Prepared, backend: Backend, stopwatch: Stopwatch | None = None
) -> Evaluator:
    """Return what evaluates the trials of a run in this process, on a backend."""
    return Evaluator(
        backend=backend,
        emulator=prepared.emulator or backend,
        comparator=prepared.case.comparator,
        samples=prepared.case.sets,
        keep=prepared.case.options.folder,
        engines=prepared.engines,
        stopwatch=stopwatch or Stopwatch(),
        at_once=prepared.case.at_once,
        copies=prepared.copies,
        loop=prepared.case.loop,
    )


def _on_gpu(
    prepared: Prepared, folder: Path, builds: Evaluate, on_cpu: Evaluate, stack: ExitStack
) -> Evaluate:
    """Return what forecasts on the GPU beside `builds`, in children that `stack` ends."""
    # Imported here: loky and psutil are for runs that need them.
    from precision_bisect.execution.process_evaluator import children

    # The limit on memory is for builds, which differ by plan; the emulator takes the same for
    # every plan. It calls no host that may be to blame.
    engine = replace(prepared.spec.options.engine, backend_options={})
    options = replace(prepared.spec.options, trial_memory_mib=None, engine=engine)
    spec = replace(prepared.spec, options=options, forecasts=True)
    on_gpu = children(spec, prepared.work, folder, "forecaster")
    return stack.enter_context(closing(GpuForecasts(builds=builds, on_gpu=on_gpu, on_cpu=on_cpu)))
