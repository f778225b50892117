"""Which plan leaves a run in its exports, and whether its own trial passed."""

from precision_bisect.errors import UsageError
from precision_bisect.layer_table import LayerName
from precision_bisect.pipeline.judged_answer import JudgedAnswer
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.runs.results.chosen_point import ExportedPoint, kept_at
from precision_bisect.runs.results.curve_of_result import CurveSection
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.runs.runfolder import ENGINE, RunFolder
from precision_bisect.search.driver import Driver
from precision_bisect.settings.export_points import DEPLOY, FEWEST, NEAR_MISS
from precision_bisect.trial import Phase


def exported_plan(
    prepared: Prepared, ending: Ending, answer: JudgedAnswer, chart: CurveSection
) -> tuple[ExportedPoint | None, list[str]]:
    """Return the plan to export, with a remark if the point asked for does not exist."""
    deploy = None if ending.deploy is None else ending.deploy.record
    curve, missing = (chart.curve, chart.culprits), list[str]()
    try:
        point, kept = kept_at(prepared.case.options.export_point, answer.kept, deploy, curve)
    except UsageError as error:
        missing = [error.one_line()]
        point, kept = kept_at(DEPLOY, answer.kept, deploy, curve)
    if point == FEWEST and answer.near_miss:
        point = NEAR_MISS
    if point in (FEWEST, NEAR_MISS) and answer.plan is None:
        return None, missing
    whole = ending.by_modules
    modules = () if whole is None or point not in (DEPLOY, FEWEST) else whole.names
    return ExportedPoint(kept=list(map(LayerName, kept)), point=point, modules=modules), missing


def within_limits(
    prepared: Prepared,
    driver: Driver,
    ending: Ending,
    answer: JudgedAnswer,
    exported: ExportedPoint | None,
) -> bool:
    """Whether the plan that is exported is within the limits, as its own trial says."""
    if exported is None or exported.point == NEAR_MISS:
        return False
    if exported.point in (DEPLOY, FEWEST):
        return answer.plan is not None and ending.status is not Status.STOPPED
    plan = prepared.case.model.table.plan_of(exported.kept)
    outcome = driver.judged(plan, answer.samples) or driver.on_copies(plan)
    return outcome is not None and outcome.passed


def without_other_engine(
    prepared: Prepared,
    driver: Driver,
    ending: Ending,
    folder: RunFolder,
    exported: ExportedPoint | None,
) -> list[str]:
    """Remove the engine that was kept last where it is of another plan than the files.

    Return a remark that says so.
    """
    path, deploy = folder.path / ENGINE, ending.deploy
    passed = (
        trial.proposal
        for trial in reversed(driver.every_trial)
        if trial.proposal.phase is Phase.RECHECK and trial.outcome.passed
    )
    last = next(passed, None)
    if exported is None or last is None or not path.exists():
        return []
    case = deploy.case if deploy is not None and exported.point == DEPLOY else ""
    if (last.plan, last.case) == (prepared.case.model.table.plan_of(exported.kept), case):
        return []
    path.unlink()
    return [f"no {ENGINE}: the exported files hold another plan than was built last"]
