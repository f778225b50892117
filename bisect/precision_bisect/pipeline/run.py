"""One run over a pair of types: the place that brings all rooms together."""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from precision_bisect.errors import RunFolderError
from precision_bisect.execution.executor import Executor
from precision_bisect.graphs.layers_file import write_layers
from precision_bisect.judging.comparators.comparison_remarks import limits_in_words
from precision_bisect.machine.stopping import Stopped, past_deadline, running_s, until
from precision_bisect.options import Options
from precision_bisect.pipeline.asked_too_much import LOW_ONLY, AskedLow
from precision_bisect.pipeline.conclude import conclude
from precision_bisect.pipeline.early_end import end_early
from precision_bisect.pipeline.evaluators import evaluators
from precision_bisect.pipeline.fused_case import FusedCase
from precision_bisect.pipeline.input_ranges import RANGE
from precision_bisect.pipeline.loading import load_run
from precision_bisect.pipeline.made_files import keep_made
from precision_bisect.pipeline.prepare import Prepared, assemble
from precision_bisect.pipeline.run_fingerprint import plugin_versions
from precision_bisect.pipeline.whole_course import searched_in, whole_course
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
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
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.runs.saved_options import options_to_json
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.search.engine_store import Store
from precision_bisect.search.sample_sets import searched
from precision_bisect.trial import Outcome, Trial


def run_pair(
    options: Options, observer: Observer, work: Path, lock: RunLock, executor: Executor
) -> Result:
    """Search with one pair of types; see `api.run`."""
    _keep_answer(options)
    budget = Budget(
        max_trials=options.max_trials, max_time_s=options.max_time_s, spent_s=running_s()
    )
    try:
        with until(budget.overdue):
            loaded = load_run(options, observer, work)
            prepared = assemble(loaded, observer, work, executor=executor)
    except Stopped as stopped:
        return end_early(stopped, options, budget, lock)
    # Only now: a run that is refused leaves no folder, and takes no other's place.
    folder = lock.open(overwrite=options.overwrite, rungs=False)
    asked_low = AskedLow(loaded=loaded, executor=executor, work=work / "asked")
    prepared = replace(prepared, loaded=keep_made(prepared.loaded, work, folder))
    return run_prepared(prepared, observer, budget, folder, asked_low=asked_low)


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
    options = prepared.case.options
    with (
        open_ledger(
            folder.ledger,
            prepared.fingerprint,
            resume=options.resume,
            options=options_to_json(prepared.loaded.request),
            plugins=plugin_versions(options),
        ) as ledger,
        ExitStack() as at_work,
    ):
        workers = at_work.enter_context(evaluators(prepared, folder.path))
        recorded = ledger.trials()
        _refuse_others(recorded, prepared, folder.ledger)
        # A resumed run has one budget with its earlier sessions.
        spent_s = sum(trial.outcome.wall_s for trial in recorded)
        budget.spent_s += spent_s
        # A rung of a ladder begins when the one above it has ended.
        began_s = budget.wall_s() if part else 0.0
        # A session that was killed has noted nothing but its trials.
        header = ledger.header()
        budget.earlier_s += max(spent_s, header.wall_s if header else 0.0)
        budget.trials += sum(not trial.proposal.forecast for trial in recorded)
        budget.space = prepared.space
        store = Store(folder.path, options.disk_cap_mib * 2**20)
        driver = Driver(workers, ledger, budget, tell_all(observer, store))
        fused = None if part else FusedCase(given=prepared)
        if not part:
            write_layers(prepared.case.model, folder)
        observer(_started(prepared, len(recorded)))

        def course() -> Search[Result]:
            with until(budget.overdue):
                ending = yield from whole_course(prepared, driver, fused)
            # Workers end before the explanation begins, which needs their memory.
            at_work.close()
            may_blame = ending.status is Status.NOT_PRECISION and driver.trials
            if asked_low and may_blame and not prepared.case.model.rounds_ends:
                observer(
                    Warned(message="looking for the layers of --low-only that break it alone")
                )
                high = driver.outcome_of(prepared.everything, searched(driver.trials))
                with until(budget.overdue), driver.standing():
                    ending = yield from _blamed(asked_low, driver, high)
            ending = _settled(ending, driver, budget)
            # The trials that were lost are tried again when the run is resumed.
            if ending.status is Status.ABORTED:
                for trial in driver.lost:
                    ledger.reopen(trial.proposal)
            if ending.status is Status.INTERRUPTED:
                driver.interrupt()
            if not part:
                observer(TrialsEnded())
            with past_deadline():
                try:
                    return (yield from conclude(prepared, driver, ending, budget, folder, fused))
                except KeyboardInterrupt:
                    if part:
                        raise
                    driver.interrupt()
                # It came where nothing answers it: the answer is written without what explains it.
                return (yield from conclude(prepared, driver, ending, budget, folder, fused))

        result = driver.run(course())
        ledger.note_wall(budget.wall_s() - began_s)
        return result


def _refuse_others(recorded: Sequence[Trial], prepared: Prepared, path: Path) -> None:
    """Raise RunFolderError for trials of layers or of samples that the run has not."""
    samples = frozenset(range(len(prepared.case.sets.feeds)))
    most = Plan.all_high(len(prepared.case.model.table.candidates)).mask
    for trial in recorded:
        proposal, single = trial.proposal, trial.outcome.evidence.one_by_one
        # A fused form has layers of its own, and the ends of a range are samples of their own.
        foreign = not proposal.case and proposal.plan.mask > most
        judged = () if single is None or RANGE in proposal.case else single.numbers
        if foreign or not samples.issuperset((*(proposal.samples.numbers or ()), *judged)):
            what = f"{path} is damaged: it has trials of other layers or samples than the run"
            raise RunFolderError(what, "search anew with --overwrite")


def _settled(ending: Ending, driver: Driver, budget: Budget) -> Ending:
    """Return the ending as far as it says something of the plans."""
    if ending.status is Status.INFEASIBLE and ending.slow and budget.late:
        # More time might have found a faster plan: what was timed is not all there is.
        ending = replace(ending, status=Status.BUDGET_EXHAUSTED)
    if driver.lost and ending.status in WITHOUT_ANSWER:
        # It was decided by a process that was lost, which says nothing of the plan.
        ending = replace(ending, status=Status.ABORTED)
    return ending


def _blamed(asked_low: AskedLow, driver: Driver, high: Outcome | None) -> Search[Ending]:
    """Return the ending of a run in which the plan of every layer high has failed."""
    prepared = asked_low.prepared()
    with evaluators(prepared, asked_low.work) as workers:
        driver.cases.add(LOW_ONLY, lambda: workers.evaluate)
        ended = yield from searched_in(prepared, part=True, case=LOW_ONLY)
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
    case = prepared.case
    return RunStarted(
        model=str(case.options.model),
        backend=prepared.backend.name,
        why=prepared.why,
        strategy=prepared.loaded.strategy.name,
        assumption=prepared.loaded.strategy.assumption,
        candidates=len(case.model.table.candidates),
        layers_total=len(case.model.table.layers),
        samples=len(case.sets.judging_numbers),
        held_out=len(case.sets.held_out),
        tolerance=case.comparator.tolerance,
        resumed_trials=recorded,
        limits=limits_in_words(case.comparator),
        workers=case.options.workers,
        speed=str(case.options.speed),
        target=case.options.target if prepared.backend.emulated else None,
    )
