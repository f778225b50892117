"""From a run to its files for deployment, and the last check: a fresh process judges them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from precision_bisect.backends.backend_plugin import sample_shapes
from precision_bisect.backends.cuda.opening import opening_without
from precision_bisect.backends.cuda.provider import AS_WRITTEN
from precision_bisect.backends.cuda.provider import deployed_provider as deployed_options
from precision_bisect.exports.export import Export
from precision_bisect.exports.judging import Judge
from precision_bisect.exports.recheck import Check
from precision_bisect.exports.trtexec_names import layer_precisions
from precision_bisect.exports.write import (
    gains,
    remove_exports,
    write_deployed,
    write_gain,
    write_told,
)
from precision_bisect.judging.comparators.script import ScriptComparator
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.protocols import Comparator
from precision_bisect.runs.results.chosen_point import ExportedPoint
from precision_bisect.runs.results.deployment import Deployment, Recheck, SessionOptions
from precision_bisect.runs.results.result import Diagnosis
from precision_bisect.runs.runfolder import (
    LAYER_PRECISIONS,
    MIXED_MODEL,
    RUN_SCRIPT,
    RunFolder,
)
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Opening


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of the files for deployment.

    `point` is the point of the curve that they hold, None if none was written. `string` is
    trtexec's, else `reason` says why there is none. `notes` tell what went wrong with the typed
    model and what is not stored; a model that cannot be written (it is large) does not cost the
    answer.
    """

    point: str | None = None
    string: str | None = None
    reason: str | None
    notes: Sequence[str] = ()
    deployment: Deployment | None = None


@contextmanager
def deploying(
    prepared: Prepared, held: ExportedPoint | None, folder: RunFolder, judge: Judge, *, check: bool
) -> Iterator[Callable[[Sequence[Diagnosis]], Written]]:
    """Write the model of an answer; yield what completes the files, given the diagnosis.

    With `check` a fresh process judges the model meanwhile. `held` is None where there is no plan
    to export. Raises RunFolderError.
    """
    if held is None:
        remove_exports(folder)
        yield lambda diagnosis: Written(reason="the run has no answer")
        return
    export = Export(
        model=prepared.model,
        kept=held.kept,
        point=held.point,
        pair=prepared.pair,
        settings=prepared.options.engine,
        scales=prepared.scales,
        diagnosis=(),
        shapes=sample_shapes(prepared.model, prepared.sets.feeds),
        run=prepared.told_fingerprint,
        modules=held.modules,
    )
    if not gains(export):
        reason = write_gain(folder, export)[LAYER_PRECISIONS]
        yield lambda diagnosis: Written(reason=reason)
        return
    deployed = write_deployed(folder, export, judge)
    with ExitStack() as held_open:
        checking = None
        if deployed.deployment is not None and check:
            checking = held_open.enter_context(_check(prepared, folder))

        def ended(diagnosis: Sequence[Diagnosis]) -> Written:
            told = replace(export, diagnosis=diagnosis)
            reasons = write_told(folder, told, deployed)
            verdict = None if checking is None else checking.ended()
            return _written(told, reasons, deployed.deployment, verdict)

        yield ended


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
    if deployment is not None and verdict is not None:
        deployment = replace(deployment, recheck=verdict)
    return Written(
        point=export.point,
        string=layer_precisions(export) if reason is None else None,
        reason=reason,
        notes=notes,
        deployment=deployment,
    )


def deployed_session(settings: EngineSettings, opening: Opening | None = None) -> SessionOptions:
    """Return how ONNX Runtime on CUDA opens an answer as deployed.

    `opening` is that of its last build.
    """
    opening = opening or opening_without(())
    return SessionOptions(
        provider_options=deployed_options(tf32=settings.tf32, own=settings.ort_options),
        session_config=AS_WRITTEN,
        graph_optimization_level=opening.level,
        disabled_optimizers=tuple(opening.disabled),
    )


def judge_of(prepared: Prepared, comparator: Comparator, options: SessionOptions) -> Judge:
    """Return the judge of the run's answer where it is deployed."""
    return Judge(
        samples=prepared.samples,
        reference=prepared.reference,
        limits=_limits(comparator),
        backend=prepared.backend.name,
        options=options,
    )


def _check(prepared: Prepared, folder: RunFolder) -> Check:
    """Begin the check of the files; ONNX Runtime judges if it has judged the run on this machine.

    Only this opens them by themselves, as they are deployed.
    """
    options = prepared.options
    judges = prepared.backend.name == "onnxruntime" and not options.elsewhere
    gpu = options.gpus[0] if options.gpus else None
    return Check(folder.path, prepared.work, judges=judges, gpu=gpu)


def _limits(comparator: Comparator) -> Mapping[str, Any]:
    """Return the comparator's settings; a check is named by the path of its script."""
    settings = comparator.settings()
    if isinstance(comparator, ScriptComparator):
        name = str(settings["check"]).rpartition(":")[2]
        return {**settings, "check": f"{comparator.path}:{name}"}
    return settings
