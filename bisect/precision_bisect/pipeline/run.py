"""One run over a pair of types: the place that brings all rooms together."""

import filecmp
import shlex
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from precision_bisect.errors import RunFolderError
from precision_bisect.execution.executor import Executor
from precision_bisect.graphs.fp32_outputs import non_finite
from precision_bisect.graphs.layers_file import write_layers
from precision_bisect.judging.comparators.comparison_remarks import limits_in_words
from precision_bisect.machine.plain_files import whole
from precision_bisect.machine.stopping import Stopped, past_deadline, until
from precision_bisect.options import DEFAULT_STRATEGY, Options
from precision_bisect.pipeline.asked_too_much import LOW_ONLY, AskedLow
from precision_bisect.pipeline.best_known import Standing, best_known
from precision_bisect.pipeline.chart import chart, outcome_of_answer, retraced
from precision_bisect.pipeline.choosing import (
    error_of_others,
    judged_by_held_out,
    judged_by_others,
    on_samples,
)
from precision_bisect.pipeline.conclude import conclude
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.pipeline.evaluators import evaluators
from precision_bisect.pipeline.fastest import Rivals, estimates_of, fastest
from precision_bisect.pipeline.loading import Loaded, load_run
from precision_bisect.pipeline.prepare import Prepared, assemble
from precision_bisect.pipeline.risk import selecting
from precision_bisect.pipeline.run_fingerprint import plugin_versions
from precision_bisect.pipeline.stability import StabilityCheck
from precision_bisect.pipeline.whole_modules import by_modules
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
from precision_bisect.runs.runfolder import REFERENCE, RunFolder
from precision_bisect.runs.saved_options import options_to_json
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.combinators import mapped
from precision_bisect.search.driver import CrashLoop, Driver
from precision_bisect.search.engine_store import Store
from precision_bisect.search.precision_curve import Curve
from precision_bisect.search.sample_sets import searched
from precision_bisect.trial import CaseName, Outcome

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
    given = work in run.request.model.parents
    return replace(
        run,
        request=replace(run.request, model=path) if given else run.request,
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
    budget = Budget(max_trials=options.max_trials, max_time_s=options.max_time_s)
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
                ending = driver.run(_whole_course(prepared, driver, part=part))
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
        ended = driver.run(_search(prepared, part=True, case=LOW_ONLY))
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


def _whole_course(prepared: Prepared, driver: Driver, *, part: bool) -> Search[Ending]:
    """Search, and complete what is told of an answer, unless the run is `part` of another."""
    ending = yield from _search(prepared, part=part)
    if not part:
        ending = yield from _charted(prepared, driver, ending)
        ending = yield from _by_modules(prepared, driver, ending)
        ending = yield from _with_fastest(prepared, driver, ending)
    return ending


def _charted(prepared: Prepared, driver: Driver, ending: Ending) -> Search[Ending]:
    """Complete the curve; return the ending, with a better plan of the curve if there is one."""
    options = prepared.options
    is_answer = ending.status is Status.FOUND and options.until == "answer"
    if not is_answer and (ending.status is not Status.STOPPED or options.until != "curve"):
        return ending
    # The answer stands: whatever ends this early costs only points of the curve.
    with suppress(BudgetSpent, CrashLoop, Stopped, KeyboardInterrupt):
        while True:
            curve = prepared.curve
            yield from chart(prepared, driver, curve, ending)
            # Another strategy is asked for by its name: its plan is the answer. So is one that was
            # widened for unseen inputs, and one of whole modules.
            named = prepared.strategy.name != DEFAULT_STRATEGY
            if not is_answer or named or options.risk is not None or options.by == "module":
                break
            better = yield from _better(prepared, driver, curve, ending)
            if better is None:
                break
            ending = better
    return ending


def _by_modules(prepared: Prepared, driver: Driver, ending: Ending) -> Search[Ending]:
    """Return the ending with its answer as whole modules of PyTorch, if they hold."""
    by_module = prepared.options.by == "module"
    if ending.status is not Status.FOUND or not (by_module or prepared.model.pytorch):
        return ending
    problem = prepared.problem
    holding = StabilityCheck(problem=problem, copies=prepared.copies is not None)
    # The answer stands, as in `_charted`.
    with suppress(BudgetSpent, CrashLoop, Stopped, KeyboardInterrupt):
        assert ending.plan is not None
        judged = by_modules(ending.plan, prepared.modules, holding, every=by_module)
        modules = yield from on_samples(ending.samples, judged)
        if modules is None:
            return ending
        plan = prepared.modules.whole(modules.names)
        if (yield from _passes_others(prepared, plan, ending)):
            others = error_of_others(driver.trials, plan)
            error = None if modules.error is None else max(modules.error, others)
            return replace(ending, by_modules=replace(modules, error=error))
    return ending


def _with_fastest(prepared: Prepared, driver: Driver, ending: Ending) -> Search[Ending]:
    """Return the ending with the plan to deploy, where one is looked for beside the answer."""
    answer, options = ending.plan, prepared.options
    if ending.status is not Status.FOUND or answer is None or not _seeks_fastest(prepared):
        return ending
    outcome = outcome_of_answer(driver, answer, ending.samples)
    curve = retraced(prepared, driver, ending)
    if outcome is None or curve.law is None or curve.problem.large:
        return ending
    rivals = Rivals(
        law=curve.law,
        answer=answer,
        outcome=outcome,
        starts=[] if curve.margin is None else [curve.margin],
        estimates=estimates_of(prepared),
        refuted=driver.refuted,
    )
    # The answer stands, as in `_charted`.
    with suppress(BudgetSpent, CrashLoop, Stopped, KeyboardInterrupt):
        copies, smallest = prepared.copies is not None, options.objective == "smallest"
        search = fastest(prepared.problem, rivals, copies=copies, smallest=smallest)
        deployable = yield from on_samples(ending.samples, search)
        if deployable is None or deployable.plan == answer:
            return replace(ending, deploy=deployable)
        if not (yield from _passes_others(prepared, deployable.plan, ending)):
            return replace(ending, deploy=rivals.deployable(answer, outcome))
        if options.holdout:
            yield from judged_by_held_out(deployable.plan, builds=prepared.problem.builds)
        return replace(ending, deploy=deployable)
    return ending


def _seeks_fastest(prepared: Prepared) -> bool:
    """Whether a fast plan is looked for: where the answer is no end in itself, and by estimate.

    Engines are timed, not estimated, and each plan costs a build there. A strategy that is asked
    for by its name, whole modules, a share of unseen inputs and speed limits are such ends.
    """
    options = prepared.options
    is_end = (
        prepared.strategy.name != DEFAULT_STRATEGY
        or options.by == "module"
        or options.risk is not None
        or options.speed.given
    )
    wanted = options.objective != "fewest" and options.until == "answer"
    return wanted and prepared.backend.emulated and not is_end


def _passes_others(prepared: Prepared, plan: Plan, ending: Ending) -> Search[bool]:
    """Judge a plan by all other samples than those that an answer was searched with, if any."""
    if not prepared.sets.others:
        return True
    problem = prepared.problem
    holding = StabilityCheck(problem=problem, rebuilds=problem.builds)
    judged = yield from judged_by_others(plan, holding, ending.samples, widen=False)
    return judged.outcome.passed


def _better(
    prepared: Prepared, driver: Driver, curve: Curve, ending: Ending
) -> Search[Ending | None]:
    """Judge plans of the curve that are better than the answer; None where none holds."""
    assert ending.plan is not None
    outcome = outcome_of_answer(driver, ending.plan, ending.samples)
    if outcome is None:
        return None
    problem, options = prepared.problem, prepared.options
    trials = JudgedTrials(
        tolerance=problem.tolerance,
        size=problem.size,
        samples=ending.samples,
        allowed=options.copies_failing,
    )
    standing = Standing(
        ending=ending,
        outcome=outcome,
        refuted=driver.refuted,
        copies=prepared.copies is not None,
        certify=prepared.certify,
        seen=trials.having(driver.trials),
    )
    better = yield from on_samples(ending.samples, best_known(problem, curve, standing))
    if better is None or better.plan is None:
        return None
    if not (yield from _passes_others(prepared, better.plan, ending)):
        return None
    if options.holdout:
        yield from judged_by_held_out(better.plan, builds=problem.builds)
    return better


def _search(prepared: Prepared, *, part: bool, case: CaseName = "") -> Search[Ending]:
    """Search in a case, and return how that ends, whatever ends it."""
    if trouble := non_finite(prepared.reference):
        return Ending(
            status=Status.NOT_PRECISION,
            message=f"the FP32 reference itself is not finite: {trouble}; "
            "mend the model or the inputs first",
        )
    try:
        course = _course(prepared, part=part)
        return (yield from mapped(course, ask=lambda proposal: replace(proposal, case=case)))
    except BudgetSpent as spent:
        return Ending(status=Status.BUDGET_EXHAUSTED, message=str(spent))
    except CrashLoop as loop:
        return Ending(status=Status.ABORTED, message=str(loop))
    except Stopped as stopped:
        return Ending(status=Status.BUDGET_EXHAUSTED, message=stopped.message)
    except KeyboardInterrupt:
        return Ending(status=Status.INTERRUPTED)


def _course(prepared: Prepared, *, part: bool) -> Search[Ending]:
    """Return the search of a run, which may be `part` of a larger one."""
    options, by_module = prepared.options, prepared.options.by == "module"
    course = Course(
        certify=prepared.certify,
        pool=prepared.sets.pool if prepared.sets.others else (),
        others=prepared.sets.others > 0,
        held_out=options.holdout > 0,
        risk=None if selecting(prepared.model) else options.risk,
        copies=prepared.copies is not None,
        copies_failing=options.copies_failing,
        # Only the default strategy begins at the curve's plan; one rung of a ladder has no curve
        # to show.
        curve=not (part or by_module or prepared.strategy.name != DEFAULT_STRATEGY),
        modules=prepared.modules if by_module else None,
        until=options.until,
    )
    return flow(prepared.problem, prepared.strategy, course)


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
