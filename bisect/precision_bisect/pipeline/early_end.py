"""The result of a run whose time ends before its first trial: no plan, and a file that says so."""

from contextlib import suppress

from precision_bisect.errors import RunFolderError
from precision_bisect.machine.stopping import Stopped
from precision_bisect.options import Options
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.runs.results.endings import UNTRIED, Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_result, result_file
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.runs.saved_options import told_options
from precision_bisect.search.budget import Budget


def end_early(stopped: Stopped, options: Options, budget: Budget, lock: RunLock) -> Result:
    """Write and return the result of a run that was stopped before it was prepared.

    A resumed run keeps the result that it has. Raises RunFolderError, and what stopped the run
    where that is no limit of the run.
    """
    if not budget.late:
        raise stopped
    folder = lock.open(overwrite=options.overwrite, rungs=bool(options.ladder))
    if options.resume:
        # What is there already is more than this, which has no trial.
        with suppress(RunFolderError):
            return read_result(result_file(folder.path), "")
    result = Result(
        status=Status.BUDGET_EXHAUSTED,
        backend=options.backend,
        emulated=False,
        low=options.low,
        high=options.high,
        tolerance=None,
        layers_total=0,
        candidates=0,
        fingerprint={},
        options=told_options(options),
        error=None,
        noise_floor=None,
        kept=(),
        certificate=Certificate(minimal=False, checked=(), unchecked=(), mode="none"),
        honoured=None,
        layer_precisions_reason=UNTRIED,
        trials=0,
        builds=0,
        evaluations=0,
        wall_s=round(budget.wall_s(), 3),
        diagnosis=(),
        message=f"{UNTRIED}: --max-time of {options.max_time_s:g} s does not cover reading and "
        f"preparing the model ({stopped.message})",
        out=folder.path,
    )
    folder.write(RESULT, result.to_text())
    return result
