"""Who evaluates the trials of a run: threads of this process, child processes, or a cluster."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precision_bisect.cluster.cluster_client import ClusterClient
from precision_bisect.isolation.gpu_forecasts import GpuForecasts
from precision_bisect.isolation.kit import Kit
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.protocols import Backend
from precision_bisect.run_folder.runfolder import LOGS
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.stopwatch import Stopwatch
from precision_bisect.search.workers import Evaluate, Threads, Workers, threads

if TYPE_CHECKING:
    from precision_bisect.isolation.process_evaluator import Isolated
    from precision_bisect.isolation.slot import Limits


@contextmanager
def evaluators(prepared: Prepared, folder: Path) -> Iterator[Workers]:
    """Yield the workers of a run, and stop them afterwards; logs of trials go into `folder`."""
    options = prepared.options
    with ExitStack() as held:
        held.callback(prepared.rest)
        if prepared.cluster is not None:
            yield held.enter_context(_clustered(prepared, prepared.cluster, folder))
            return
        if prepared.here is None:
            yield threads(_in_children(prepared, folder, held), options.workers)
            return
        stopwatch = held.enter_context(Stopwatch(prepared.here.build, prepared.baseline))
        yield threads(_evaluator(prepared, prepared.here, stopwatch), options.workers)


def _in_children(prepared: Prepared, folder: Path, held: ExitStack) -> Evaluate:
    """Return what evaluates in child processes, which `held` ends."""
    predictor, limits = _predictor(prepared), _limits(prepared.options)
    builds = held.enter_context(closing(_isolated(prepared, prepared.kit, limits, folder)))
    if predictor is None or prepared.options.forecast_on != "cuda":
        builds.here = predictor
        return builds
    # The limit on memory is for builds, which differ by plan; the emulator takes the same for
    # every plan.
    kit, limits = replace(prepared.kit, forecasts=True), replace(limits, memory_mib=None)
    on_gpu = _isolated(prepared, kit, limits, folder, "forecaster")
    forecasts = GpuForecasts(builds=builds, on_gpu=on_gpu, on_cpu=predictor)
    return held.enter_context(closing(forecasts))


def _evaluator(prepared: Prepared, backend: Backend, stopwatch: Stopwatch) -> Evaluator:
    return Evaluator(
        backend=backend,
        emulator=prepared.emulator or backend,
        comparator=prepared.comparator,
        samples=prepared.sample_sets,
        keep=prepared.options.folder,
        engines=prepared.engines,
        stopwatch=stopwatch,
        # Workers share the cores: all of them together emulate as many samples as one would.
        abreast=max(1, prepared.abreast // prepared.options.workers),
        copies=prepared.copies,
    )


@contextmanager
def _clustered(prepared: Prepared, cluster: ClusterClient, folder: Path) -> Iterator[Workers]:
    # Imported here: Dask is for runs on a cluster.
    from precision_bisect.cluster.cluster_evaluator import ClusterEvaluator

    limits, least = _limits(prepared.options), prepared.space.least
    with cluster.trials(prepared.kit, limits, least) as (trials, count):
        evaluate = ClusterEvaluator(
            site=cluster,
            executor=cluster.client.get_executor(pure=False),
            trials=trials,
            folder=folder,
            here=_predictor(prepared),
        )
        yield Workers(evaluate=evaluate, executor=Threads(), count=count)


def _isolated(
    prepared: Prepared, made: Kit, limits: "Limits", folder: Path, name: str = "worker"
) -> "Isolated":
    """Return an evaluator with one child process per worker, each made of the same kit."""
    # Imported here: loky and psutil are for runs that need them.
    from precision_bisect.isolation.logs import Logs
    from precision_bisect.isolation.process_evaluator import Isolated
    from precision_bisect.isolation.slot import Slot

    options = prepared.options
    kit = prepared.work / f"{name}.kit"
    made.save(kit)
    slots = [
        Slot(kit=kit, folder=prepared.work / f"{name}-{number}", gpu=gpu)
        for number, gpu in enumerate(options.gpus or [None] * options.workers, 1)
    ]
    return Isolated(slots=slots, limits=limits, logs=Logs(folder / LOGS))


def _predictor(prepared: Prepared) -> Evaluator | None:
    """Return what forecasts in this process while trials run elsewhere, if anything does."""
    emulator = prepared.emulator
    return None if emulator is None else _evaluator(prepared, emulator, Stopwatch())


def _limits(options: Options) -> "Limits":
    from precision_bisect.isolation.slot import Limits

    return Limits(time_s=options.trial_timeout_s, memory_mib=options.trial_memory_mib)
