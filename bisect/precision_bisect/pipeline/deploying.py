"""From a run to its files for deployment, and what other processes find out of them meanwhile.

A fresh process judges the files: the last check. Another one profiles two plans, which tells what
kept layers cost. That is done once, of an answer whose layers may cost something, and takes a
bounded time. Whatever goes wrong there costs the figures alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from precision_bisect.backends.backend_plugin import sample_shapes
from precision_bisect.backends.cuda.opening import opening_without
from precision_bisect.backends.cuda.provider import AS_WRITTEN, ONE_BY_ONE
from precision_bisect.backends.cuda.provider import deployed_provider as deployed_options
from precision_bisect.errors import RunFolderError, UsageError, shortened
from precision_bisect.exports.autocast import autocast_remark
from precision_bisect.exports.export import Export
from precision_bisect.exports.judging import Judge
from precision_bisect.exports.recheck import Check
from precision_bisect.exports.rerun import Expected, Feeds
from precision_bisect.exports.trtexec import without_command
from precision_bisect.exports.trtexec_names import layer_precisions
from precision_bisect.exports.write import (
    gains,
    remove_exports,
    write_deployed,
    write_gain,
    write_told,
)
from precision_bisect.graphs.typed.rewrite import writer_of
from precision_bisect.graphs.weights import LARGE_BYTES, total_bytes
from precision_bisect.judging.comparators.script import ScriptComparator
from precision_bisect.judging.inputs.loops import PLAIN
from precision_bisect.layer_table import LayerName
from precision_bisect.machine.user_scripts import first_line
from precision_bisect.pipeline.judged_answer import JudgedAnswer
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.plan import Plan
from precision_bisect.protocols import Comparator
from precision_bisect.runs.results.chosen_point import ExportedPoint, kept_at
from precision_bisect.runs.results.curve_of_result import CurveSection
from precision_bisect.runs.results.deployment import (
    Deployment,
    FilesSection,
    Recheck,
    SessionOptions,
)
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.runs.results.layer_costs import MATTERS, Costs
from precision_bisect.runs.results.result import Diagnosis
from precision_bisect.runs.runfolder import (
    AUTOCAST,
    ENGINE,
    LAYER_PRECISIONS,
    MIXED_MODEL,
    RUN_SCRIPT,
    RunFolder,
)
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.speed.island_costs import island_costs
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.export_points import DEPLOY, FEWEST, NEAR_MISS
from precision_bisect.trial import CaseName, Opening, Phase


@dataclass(frozen=True, kw_only=True)
class Written(FilesSection):
    """The files, with `notes` on what went wrong with the typed model and what is not stored.

    A model that cannot be written (it is large) does not cost the answer.
    """

    notes: Sequence[str] = ()


def exported_plan(
    prepared: Prepared, ending: Ending, answer: JudgedAnswer, chart: CurveSection
) -> tuple[ExportedPoint | None, list[str]]:
    """Return the plan to export, with a remark if the point asked for does not exist."""
    deploy = None if ending.deploy is None else ending.deploy.record
    curve, missing = (chart.curve, chart.culprits), list[str]()
    try:
        point, kept = kept_at(prepared.case.options.export_point, answer.kept, deploy, curve)
    # The search is over: a point that does not exist is a remark, and the plan to deploy leaves.
    except UsageError as error:
        missing = [error.one_line()]
        point, kept = kept_at(DEPLOY, answer.kept, deploy, curve)
    if point == FEWEST and answer.near_miss:
        point = NEAR_MISS
    if point in (FEWEST, NEAR_MISS) and answer.plan is None:
        return None, missing
    # Other points of the curve may split a module.
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
    driver: Driver, folder: RunFolder, exported: tuple[Plan, CaseName] | None
) -> list[str]:
    """Remove the engine that was kept last where it is of another plan than the files, or case.

    Return a remark that says so.
    """
    path = folder.path / ENGINE
    passed = (
        trial.proposal
        for trial in reversed(driver.every_trial)
        if trial.proposal.phase is Phase.RECHECK and trial.outcome.passed
    )
    last = next(passed, None)
    if exported in (None, last and (last.plan, last.case)) or not (last and path.exists()):
        return []
    path.unlink()
    return [f"no {ENGINE}: the exported files hold another plan than was built last"]


class Deploying(NamedTuple):
    """What is left to do for files: to wait for their check, and to complete them.

    `checked` returns the verdict, None where nothing is checked; `completed` takes the diagnosis
    and that verdict.
    """

    checked: Callable[[], Recheck | None]
    completed: Callable[[Sequence[Diagnosis], Recheck | None], Written]


@contextmanager
def deploying(
    prepared: Prepared,
    answer: ExportedPoint | None,
    folder: RunFolder,
    judge: Judge,
    *,
    check: bool,
    passed: bool,
) -> Iterator[Deploying]:
    """Write the model of an answer; yield what checks and completes the files.

    With `check` a fresh process judges the model meanwhile; that of a plan that has `passed` must
    pass there. `answer` is None where there is no plan to export. Raises RunFolderError.
    """
    case = prepared.case
    if answer is None:
        remove_exports(folder)
        yield _unchecked(Written(layer_precisions_reason="the run has no answer"))
        return
    export = Export(
        model=case.model,
        kept=answer.kept,
        point=answer.point,
        pair=case.pair,
        settings=case.options.engine,
        scales=case.scales,
        diagnosis=(),
        shapes=sample_shapes(case.model, case.sets.taken),
        run=prepared.fingerprint,
        modules=answer.modules,
        seal=prepared.backend.emulated or "onnxruntime" in case.options.targets,
    )
    # The file as it is computes all high: a copy of it would only look like an answer.
    if not gains(export):
        reason = write_gain(folder, export)[LAYER_PRECISIONS]
        tf32_on = case.options.engine.in_tf32
        yield _unchecked(Written(layer_precisions_reason=reason, tf32_on=tf32_on))
        return
    deployed = write_deployed(folder, export, judge)
    with ExitStack() as held_open:
        checking = None
        if deployed.deployment is not None and check:
            expected = None
            # A plan that has failed here, or a function of this process, cannot be expected to
            # pass there.
            if passed and case.loop.sendable:
                expected = Expected(reference=case.reference, comparator=case.comparator)
            stored = deployed.deployment.samples > 0
            checking = held_open.enter_context(_check(prepared, folder, expected, stored=stored))

        def completed(diagnosis: Sequence[Diagnosis], verdict: Recheck | None) -> Written:
            no_mixed = deployed.reasons[MIXED_MODEL]
            full_export = replace(
                export, diagnosis=diagnosis, folder=folder.path, no_mixed=no_mixed
            )
            reasons = write_told(folder, full_export, deployed)
            return _written(full_export, reasons, deployed.deployment, verdict)

        yield Deploying(lambda: None if checking is None else checking.ended(), completed)


def _unchecked(written: Written) -> Deploying:
    return Deploying(lambda: None, lambda *_: written)


def _written(
    export: Export,
    reasons: Mapping[str, str | None],
    deployment: Deployment | None,
    verdict: Recheck | None,
) -> Written:
    reason = reasons[LAYER_PRECISIONS]
    missing = MIXED_MODEL if reasons[MIXED_MODEL] else RUN_SCRIPT
    notes = [f"no {missing}: {reasons[missing]}"] if reasons[missing] else []
    if deployment is not None and deployment.left_out:
        notes.append(deployment.left_out)
    if reasons[AUTOCAST] is None and (remark := autocast_remark(export)):
        notes.append(remark)
    if deployment is not None and verdict is not None:
        deployment = replace(deployment, recheck=verdict)
    return Written(
        export_point=export.point,
        tf32_on=export.settings.in_tf32,
        layer_precisions=layer_precisions(export) if reason is None else None,
        layer_precisions_reason=reason,
        no_command=without_command(export),
        notes=notes,
        deployment=deployment,
    )


def deployed_session(settings: EngineSettings, opening: Opening | None = None) -> SessionOptions:
    """Return how ONNX Runtime on CUDA opens an answer as deployed.

    `opening` is that of its last build.
    """
    opening = opening or opening_without(())
    return SessionOptions(
        provider_options=deployed_options(tf32=settings.in_tf32, own=settings.ort_options),
        session_config=AS_WRITTEN,
        graph_optimization_level=opening.level,
        disabled_optimizers=tuple(opening.disabled),
    )


def judge_of(prepared: Prepared, comparator: Comparator, options: SessionOptions) -> Judge:
    """Return the judge of the run's answer where it is deployed."""
    return Judge(
        samples=prepared.case.samples,
        reference=prepared.case.reference,
        limits=_limits(comparator),
        backend=prepared.backend.name,
        options=options,
        loop=prepared.case.loop,
    )


def _check(
    prepared: Prepared, folder: RunFolder, expected: Expected | None, *, stored: bool
) -> Check:
    """Begin the check of the files; ONNX Runtime judges if it has judged the run on this machine.

    Only this opens them by themselves, as they are deployed. `stored` tells whether samples are
    beside the model.
    """
    case = prepared.case
    options = case.options
    feeds = Feeds(
        samples=case.samples,
        stored=stored,
        custom_ops=options.engine.ort_custom_ops,
        threads=options.threads,
        known=prepared.loaded.runs,
        large=total_bytes(case.model.weights) > LARGE_BYTES,
        by_defaults="onnxruntime" in options.targets,
        loop=case.loop if case.loop.sendable else PLAIN,
    )
    return Check(
        folder.path,
        prepared.work,
        judges=stored and prepared.backend.name == "onnxruntime" and not options.elsewhere,
        gpu=options.gpus[0] if options.gpus else None,
        feeds=feeds,
        expected=expected,
    )


def _limits(comparator: Comparator) -> Mapping[str, Any]:
    """Return the comparator's settings; a check is named by the path of its script."""
    settings = comparator.settings()
    if isinstance(comparator, ScriptComparator):
        name = str(settings["check"]).rpartition(":")[2]
        return {**settings, "check": f"{comparator.path}:{name}"}
    return settings


PROFILING_SHARE, LEAST_PROFILING_S = 0.1, 6.0
"""Share of the run's time so far that profiling may take, and seconds that are added: a process
with CUDA starts in about four. Bounds."""


@contextmanager
def costing(
    prepared: Prepared, plan: Plan | None, latencies: Mapping[str, float | None], budget: Budget
) -> Iterator[Callable[[], Costs | None]]:
    """Begin a process that can profile a plan; within, the call says what the plan's layers cost.

    It returns None where no engine tells, or no layer is kept: nothing is begun then, nor where
    that is not worth its time. `latencies` are those of the result, in milliseconds.
    """
    if prepared.backend.emulated or plan is None or not plan.kept:
        yield lambda: None
    elif reason := _not_worth(prepared, latencies, budget):
        yield lambda: Costs(left_out=reason)
    else:
        with profiling(prepared) as profiled:

            def costs() -> Costs:
                share_s = LEAST_PROFILING_S + PROFILING_SHARE * budget.elapsed_s()
                if (limit_s := min(share_s, budget.left_s())) <= 0:
                    return Costs(left_out="the time was spent")
                try:
                    return profiled(plan, latencies.get("kept"), limit_s)
                except Exception as error:  # whatever an engine's library raises
                    return Costs(left_out=shortened(first_line(error)))

            yield costs


def _not_worth(prepared: Prepared, latencies: Mapping[str, float | None], budget: Budget) -> str:
    """Return why nothing is profiled, "" where it is."""
    low, kept = latencies.get("all_low"), latencies.get("kept")
    if prepared.case.options.elsewhere:
        return "engines are built elsewhere"
    if budget.late:
        return "the time was spent"
    if low is not None and kept is not None and kept - low < MATTERS * kept:
        return f"every layer low takes {low:.3g} ms, the answer {kept:.3g}"
    return ""


@contextmanager
def profiling(prepared: Prepared) -> Iterator[Callable[[Plan, float | None, float], Costs]]:
    """Begin a process that loads the model; within, the call has it profile a plan.

    The call takes the plan, its latency in milliseconds and the seconds after which the process
    is ended. It raises what goes wrong there.
    """
    # Imported here: loky and psutil are for runs that need them.
    case = prepared.case
    from precision_bisect.execution import child
    from precision_bisect.execution.slot import Death, Limits, Slot

    spec, gpus = prepared.work / "profiled.spec", case.options.gpus
    prepared.spec.save(spec)
    slot = Slot(
        spec=spec,
        # The folder of a worker: its timing cache makes builds of TensorRT quick.
        folder=prepared.work / "worker-1",
        gpu=gpus[0] if gpus else None,
        variables=ONE_BY_ONE if prepared.backend.name == "onnxruntime" else {},
    )

    def profiled(plan: Plan, latency: float | None, limit_s: float) -> Costs:
        limits = Limits(time_s=limit_s, memory_mib=case.options.trial_memory_mib)
        answer, low = slot.call_bare(child.times, spec, [plan, Plan.of(())], limits=limits)
        writer = writer_of(case.model, case.pair, case.scales)
        graph = prepared.graph or cost_graph(case.model, case.shapes)
        return island_costs(writer, graph, plan, (answer, low), latency)

    with suppress(RunFolderError, Death):
        slot.begin(child.backend_facts, spec)
    try:
        yield profiled
    finally:
        slot.end()
