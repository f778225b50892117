"""One run over a pair of types: the place that brings all rooms together."""

import filecmp
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from precision_bisect.errors import RunFolderError
from precision_bisect.execution.executor import Executor
from precision_bisect.graphs.layers_file import write_layers
from precision_bisect.judging.comparators.comparison_remarks import limits_in_words
from precision_bisect.machine.plain_files import whole
from precision_bisect.machine.stopping import past_deadline, running_s, until
from precision_bisect.options import Options
from precision_bisect.pipeline.asked_too_much import LOW_ONLY, AskedLow
from precision_bisect.pipeline.conclude import conclude
from precision_bisect.pipeline.evaluators import evaluators
from precision_bisect.pipeline.loading import Loaded, load_run
from precision_bisect.pipeline.prepare import Prepared, assemble
from precision_bisect.pipeline.run_fingerprint import plugin_versions
from precision_bisect.pipeline.whole_course import searched_in, whole_course
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.monitoring.events import (
    Observer,
    RunStarted,
    TrialsEnded,
    Warned,
    tell_all,
)
from precision_bisect.runs.results.certificates import Uncertified
from precision_bisect.runs.results.endings import WITHOUT_ANSWER, Ending, Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_result, result_file
from precision_bisect.runs.runfolder import REFERENCE, RunFolder
from precision_bisect.runs.saved_options import options_to_json
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.search.engine_store import Store
from precision_bisect.search.sample_sets import searched
from precision_bisect.trial import Outcome

_Run = TypeVar("_Run", Loaded, Prepared)


def keep_made(run: _Run, work: Path, folder: RunFolder) -> _Run:
    """Copy the model that was made in `work`, if one was, and return the run over the copy.

    An engine's outputs that are the reference are copied, too. Raises RunFolderError where the run
    folder cannot be written, or has another such file: that of a run which is there already.
    """
    model_path = run.options.model
    ours = work in model_path.parents
    models: tuple[Path, ...] = (
        (model_path.with_name(f"{model_path.name}.data"), model_path) if ours else ()
    )
    for source in (work / REFERENCE, *models):
        if source.exists():
            with folder.writing(source.name) as path:
                _copy(source, path)
    if not ours:
        return run
    path = folder.path / model_path.name
    asked_in_work = work in run.request.model.parents
    return replace(
        run,
        request=replace(run.request, model=path) if asked_in_work else run.request,
        options=replace(run.options, model=path),
        model=replace(run.model, path=path),
    )


def _copy(source: Path, path: Path) -> None:
    """Copy a file, unless it is there already; nothing that differs is replaced."""
    if not path.exists():
        with whole(path) as stream, source.open("rb") as original:
            shutil.copyfileobj(original, stream)
    elif not filecmp.cmp(source, path, shallow=False):
        raise RunFolderError(
            f"{path} is of another run",
            "replace that run with --overwrite, or choose another --out",
        )


def run_pair(
    options: Options, observer: Observer, work: Path, lock: RunLock, executor: Executor
) -> Result:
    """Search with one pair of types; see `api.run`."""
    _keep_answer(options)
    budget = Budget(
        max_trials=options.max_trials, max_time_s=options.max_time_s, spent_s=running_s()
    )
    loaded = load_run(options, observer, work)
    prepared = assemble(loaded, observer, work, executor=executor)
    folder = lock.open(overwrite=options.overwrite, rungs=False)
    asked_low = AskedLow(loaded=loaded, executor=executor, work=work / "asked")
    prepared_run = keep_made(prepared, work, folder)
    return run_prepared(prepared_run, observer, budget, folder, asked_low=asked_low)


def run_prepared(
    prepared: Prepared,
    observer: Observer,
    budget: Budget,
    folder: RunFolder,
    *,
    part: bool = False,
    asked_low: AskedLow | None = None,
) -> Result:
    """Search with what was prepared; the ledger is in `folder`, and its trials count in `budget`.

    `part` tells that this is one rung of a ladder: only the ledger is written. Where no plan
    passes, `asked_low` may be why.
    """
    options = prepared.options
    with open_ledger(
        folder.ledger,
        prepared.fingerprint,
        resume=options.resume,
        options=options_to_json(prepared.request),
        plugins=plugin_versions(options),
    ) as ledger:
        # Workers end before the explanation begins, which needs their memory.
        with evaluators(prepared, folder.path) as workers:
            recorded = ledger.trials()
            # A resumed run has one budget with its earlier sessions.
            budget.spent_s += sum(trial.outcome.wall_s for trial in recorded)
            budget.trials += sum(not trial.proposal.forecast for trial in recorded)
            budget.space = prepared.space
            store = Store(folder.path, prepared.options.disk_cap_mib * 2**20)
            driver = Driver(workers, ledger, budget, tell_all(observer, store))
            if not part:
                write_layers(prepared.model, folder)
            observer(_started(prepared, len(recorded)))
            with until(budget.overdue):
                ending = driver.run(whole_course(prepared, driver, part=part))
        asked_low = None if prepared.model.rounds_ends else asked_low
        if ending.status is Status.NOT_PRECISION and asked_low and driver.trials:
            observer(Warned(message="looking for the layers of --low-only that break it alone"))
            high = driver.outcome_of(prepared.everything, searched(driver.trials))
            with until(budget.overdue):
                ending = _blamed(asked_low, driver, high)
        if ending.status is Status.INFEASIBLE and ending.slow and budget.late:
            # More time might have found a faster plan: what was timed is not all there is.
            ending = replace(ending, status=Status.BUDGET_EXHAUSTED)
        if driver.lost and ending.status in WITHOUT_ANSWER:
            # It was decided by a process that was lost, which says nothing of the plan.
            ending = replace(ending, status=Status.ABORTED)
        # The trials that were lost are tried again when the run is resumed.
        if ending.status is Status.ABORTED:
            for trial in driver.lost:
                ledger.reopen(trial.proposal)
        if not part:
            observer(TrialsEnded())
        with past_deadline():
            return conclude(prepared, driver, ending, budget, folder, part=part)


def _blamed(asked_low: AskedLow, driver: Driver, high: Outcome | None) -> Ending:
    """Return the ending of a run in which the plan of every layer high has failed."""
    prepared = asked_low.prepared()
    with evaluators(prepared, asked_low.work) as workers:
        driver.cases.add(LOW_ONLY, lambda: workers.evaluate)
        ended = driver.run(searched_in(prepared, part=True, case=LOW_ONLY))
        driver.cases.clear()
    return asked_low.blamed(prepared, ended, None if high is None else high.error)


def _keep_answer(options: Options) -> None:
    """Raise RunFolderError where a curve alone would take the place of an answer that has it."""
    if options.until == "answer" or not options.resume:
        return
    try:
        former = read_result(result_file(options.folder), "")
    except RunFolderError:
        return
    lesser = former.certificate.uncertified is Uncertified.CULPRITS
    if former.status is Status.FOUND and not lesser:
        raise RunFolderError(
            f"{options.folder} holds an answer, which has its curve",
            f"precision-bisect curve {shlex.quote(str(options.folder))} tells it, "
            "or choose another --out",
        )


def _started(prepared: Prepared, recorded: int) -> RunStarted:
    return RunStarted(
        model=str(prepared.options.model),
        backend=prepared.backend.name,
        why=prepared.why,
        strategy=prepared.strategy.name,
        assumption=prepared.strategy.assumption,
        candidates=len(prepared.model.table.candidates),
        layers_total=len(prepared.model.table.layers),
        samples=len(prepared.sets.judging_numbers),
        held_out=len(prepared.sets.held_out),
        tolerance=prepared.comparator.tolerance,
        resumed_trials=recorded,
        limits=limits_in_words(prepared.comparator),
        workers=prepared.options.workers,
        speed=str(prepared.options.speed),
        target=prepared.options.target if prepared.backend.emulated else None,
    )
