"""One run from options to result: the only place that brings all rooms together."""

from precision_bisect.budget import Budget, BudgetSpent
from precision_bisect.conclude import conclude
from precision_bisect.driver import Driver
from precision_bisect.endings import Ending, Status
from precision_bisect.evaluation import Evaluators
from precision_bisect.events import Observer, RunStarted, ignore
from precision_bisect.flow import Course, flow
from precision_bisect.ledger.store import open_ledger
from precision_bisect.options import Options
from precision_bisect.prepare import Prepared, prepare
from precision_bisect.reference import non_finite
from precision_bisect.result import Result
from precision_bisect.runfolder import RunFolder
from precision_bisect.speed.stopwatch import Stopwatch
from precision_bisect.trial import Kind
from precision_bisect.workdir import workdir
from precision_bisect.workers import threads


def run(options: Options, observer: Observer = ignore) -> Result:
    """Search as the options say, write the run folder, and return the result.

    Raises a PrecisionBisectError for bad input, with nothing lost. A spent budget and Ctrl-C
    during the search end it with the best plan so far.
    """
    with workdir() as work:
        if options.ladder:
            # It is made of runs.
            from precision_bisect.ladder.climb import climb

            return climb(options, observer, work)
        prepared = prepare(options, observer, work)
        folder = RunFolder(options.folder, overwrite=options.overwrite)
        folder.refuse_other_run(rungs=False)
        budget = Budget(max_trials=options.max_trials, max_time_s=options.max_time_s)
        return run_prepared(prepared, observer, budget, folder)


def run_prepared(
    prepared: Prepared,
    observer: Observer,
    budget: Budget,
    folder: RunFolder,
    *,
    part: bool = False,
) -> Result:
    """Search with what was prepared; the ledger is in `folder`, and its trials count in `budget`.

    `part` tells that this is one rung of a ladder: nothing but the ledger is written.
    """
    options = prepared.options
    with (
        open_ledger(folder.ledger, prepared.fingerprint, resume=options.resume) as ledger,
        Stopwatch(prepared.backend.build, prepared.baseline) as stopwatch,
    ):
        recorded = ledger.trials()
        budget.spent_s += sum(trial.outcome.wall_s for trial in recorded)
        budget.trials += sum(trial.proposal.kind is not Kind.PREDICT for trial in recorded)
        evaluators = Evaluators(
            backend=prepared.backend,
            emulator=prepared.emulator,
            comparator=prepared.comparator,
            samples=prepared.sample_sets,
            keep=options.folder,
            stopwatch=stopwatch,
        )
        driver = Driver(evaluators, ledger, budget, observer, threads(options.workers))
        observer(_started(prepared, len(recorded)))
        ending = _search(prepared, driver)
        return conclude(prepared, driver, ending, budget, folder, part=part)


def _search(prepared: Prepared, driver: Driver) -> Ending:
    if trouble := non_finite(prepared.reference):
        return Ending(
            status=Status.NOT_PRECISION,
            message=f"the FP32 reference itself is not finite: {trouble}; "
            "mend the model or the inputs first",
        )
    try:
        return driver.run(
            flow(
                prepared.problem,
                prepared.strategy,
                Course(certify=prepared.certify, held_out=prepared.options.holdout > 0),
            )
        )
    except BudgetSpent as spent:
        return Ending(status=Status.BUDGET_EXHAUSTED, message=str(spent))
    except KeyboardInterrupt:
        return Ending(status=Status.INTERRUPTED)


def _started(prepared: Prepared, recorded: int) -> RunStarted:
    return RunStarted(
        model=str(prepared.options.model),
        backend=prepared.backend.name,
        why=prepared.why,
        strategy=prepared.strategy.name,
        assumption=prepared.strategy.assumption,
        candidates=len(prepared.model.table.candidates),
        layers_total=len(prepared.model.table.layers),
        samples=prepared.judging,
        held_out=prepared.options.holdout,
        tolerance=prepared.comparator.tolerance,
        resumed_trials=recorded,
        workers=prepared.options.workers,
        speed=str(prepared.options.speed),
    )
