"""From a run to what judges its answer where it is deployed, and the last check of that."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from precision_bisect.backends.cuda.defaults import warning_of
from precision_bisect.backends.cuda.opening import opening_without
from precision_bisect.backends.cuda.provider import AS_WRITTEN, cuda_options
from precision_bisect.deployment import Deployment, Recheck, SessionOptions
from precision_bisect.engine_settings import EngineSettings
from precision_bisect.errors import RunFolderError
from precision_bisect.events import Observer, Warned
from precision_bisect.evidence import Opening
from precision_bisect.exports.export import Export
from precision_bisect.exports.judging import Judge, write_judging
from precision_bisect.exports.layer_precisions import NotWritable
from precision_bisect.exports.mixed import write_mixed
from precision_bisect.exports.recheck import judged, recheck
from precision_bisect.precisions import Pair
from precision_bisect.prepare import Prepared
from precision_bisect.protocols import Comparator
from precision_bisect.runfolder import RUN_SCRIPT, RunFolder

_HIGH = "every-layer-high"
"""A folder for files that are gone once they were judged."""


def session_options(settings: EngineSettings, opening: Opening | None = None) -> SessionOptions:
    """Return how ONNX Runtime on CUDA opens an answer; `opening` is that of its last build."""
    opening = opening or opening_without(())
    return SessionOptions(
        provider_options=cuda_options(tf32=settings.tf32, own=settings.ort_options),
        session_config=AS_WRITTEN,
        graph_optimization_level=opening.level,
        disabled_optimizers=tuple(opening.disabled),
    )


def judge_of(prepared: Prepared, comparator: Comparator, options: SessionOptions) -> Judge:
    """Return what judges the answer of a run where it is deployed."""
    return Judge(
        samples=prepared.samples,
        reference=prepared.reference,
        limits=_limits(comparator),
        backend=prepared.backend.name,
        options=options,
    )


def warned(prepared: Prepared, observer: Observer) -> Prepared:
    """Say where the library's own options fail even with every layer in FP32; return the run.

    It is asked where ONNX Runtime on CUDA judges on this machine, with TF32 off.
    """
    options = prepared.options
    tf32 = session_options(options.engine).provider_options["use_tf32"] != "0"
    if not _judges_here(prepared) or options.high != "fp32" or tf32:
        return prepared
    remark = warning_of(high_by_defaults(prepared), prepared.comparator.tolerance)
    if not remark:
        return prepared
    observer(Warned(message=remark))
    return replace(prepared, remarks=[*prepared.remarks, remark])


def high_by_defaults(prepared: Prepared) -> Recheck:
    """Return what the model comes to with every layer high, in a fresh process."""
    options = prepared.options
    export = Export(
        model=prepared.model,
        kept=prepared.model.table.names,
        pair=Pair(low=options.low, high=options.high),
        settings=options.engine,
        scales=prepared.scales,
    )
    folder = RunFolder(prepared.work / _HIGH)
    judge = judge_of(prepared, prepared.comparator, session_options(options.engine))
    try:
        _, deployment = write_judging(folder, export, judge, write_mixed(folder, export))
        if deployment is None:
            return Recheck(outcome="not_judged", message="the samples cannot be stored")
        return judged(folder.path / RUN_SCRIPT, folder.path, _gpu(prepared))
    except (NotWritable, RunFolderError) as error:
        return Recheck(outcome="not_judged", message=str(error))
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)


def rechecked(prepared: Prepared, folder: RunFolder, deployment: Deployment) -> Deployment:
    """Return the deployment with what a fresh process made of the exported files.

    ONNX Runtime judges there where it has judged the run, on this machine.
    """
    judges, gpu = _judges_here(prepared), _gpu(prepared)
    found = recheck(folder.path, prepared.work, judges=judges, gpu=gpu)
    return replace(deployment, recheck=found)


def _judges_here(prepared: Prepared) -> bool:
    """Return whether ONNX Runtime on a GPU of this machine judges the run."""
    return prepared.backend.name == "onnxruntime" and prepared.cluster is None


def _gpu(prepared: Prepared) -> str | None:
    """Return what CUDA_VISIBLE_DEVICES says to a process that judges, None for what it says."""
    return prepared.options.gpus[0] if prepared.options.gpus else None


def _limits(comparator: Comparator) -> Mapping[str, Any]:
    """Return the comparator's settings; a check by the path of its script."""
    settings = comparator.settings()
    path = getattr(comparator, "path", None)
    if "check" in settings and path is not None:
        name = str(settings["check"]).rpartition(":")[2]
        return {**settings, "check": f"{path}:{name}"}
    return settings
