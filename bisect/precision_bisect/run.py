"""One run from options to result: the only place that brings all rooms together."""

from precision_bisect.budget import Budget, BudgetSpent
from precision_bisect.conclude import conclude
from precision_bisect.driver import Driver, Evaluators
from precision_bisect.events import Observer, RunStarted, ignore
from precision_bisect.flow import Ending, Status, flow
from precision_bisect.ledger.store import open_ledger
from precision_bisect.options import Options
from precision_bisect.prepare import Prepared, prepare
from precision_bisect.reference import non_finite
from precision_bisect.result import Result
from precision_bisect.runfolder import RunFolder
from precision_bisect.trial import Kind
from precision_bisect.workdir import workdir


def run(options: Options, observer: Observer = ignore) -> Result:
    """Search as the options say, write the run folder, and return the result.

    Raises a PrecisionBisectError for bad input, with nothing lost. A spent budget and Ctrl-C
    during the search end it with the best plan so far.
    """
    with workdir() as work:
        return _run(prepare(options, observer, work), observer)


def _run(prepared: Prepared, observer: Observer) -> Result:
    options = prepared.options
    folder = RunFolder(options.folder, overwrite=options.overwrite)
    with open_ledger(folder.ledger, prepared.fingerprint, resume=options.resume) as ledger:
        recorded = ledger.trials()
        budget = Budget(
            max_trials=options.max_trials,
            max_time_s=options.max_time_s,
            spent_s=sum(trial.outcome.wall_s for trial in recorded),
            trials=sum(trial.proposal.kind is not Kind.PREDICT for trial in recorded),
        )
        evaluators = Evaluators(
            backend=prepared.backend,
            emulator=prepared.emulator,
            comparator=prepared.comparator,
            samples=prepared.sample_sets,
            keep=folder.path,
        )
        driver = Driver(evaluators, ledger, budget, observer)
        observer(_started(prepared, len(recorded)))
        ending = _search(prepared, driver)
        return conclude(prepared, driver, ending, budget, folder)


def _search(prepared: Prepared, driver: Driver) -> Ending:
    if trouble := non_finite(prepared.reference):
        return Ending(
            status=Status.NOT_PRECISION,
            message=f"the FP32 reference itself is not finite: {trouble}; "
            "mend the model or the inputs first",
        )
    try:
        return driver.run(
            flow(prepared.problem, prepared.strategy, held_out=prepared.options.holdout > 0)
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
    )
