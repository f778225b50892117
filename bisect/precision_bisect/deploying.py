"""From a run to what judges its answer where it is deployed, and the last check of that."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from precision_bisect.backends.cuda.opening import opening_without
from precision_bisect.backends.cuda.provider import AS_WRITTEN, cuda_options
from precision_bisect.deployment import Deployment, SessionOptions
from precision_bisect.engine_settings import EngineSettings
from precision_bisect.evidence import Opening
from precision_bisect.exports.judging import Judge
from precision_bisect.exports.recheck import recheck
from precision_bisect.prepare import Prepared
from precision_bisect.protocols import Comparator
from precision_bisect.runfolder import RunFolder


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


def rechecked(prepared: Prepared, folder: RunFolder, deployment: Deployment) -> Deployment:
    """Return the deployment with what a fresh process made of the exported files.

    ONNX Runtime judges there where it has judged the run, on this machine.
    """
    options = prepared.options
    found = recheck(
        folder.path,
        prepared.work,
        judges=prepared.backend.name == "onnxruntime" and prepared.cluster is None,
        gpu=options.gpus[0] if options.gpus else None,
    )
    return replace(deployment, recheck=found)


def _limits(comparator: Comparator) -> Mapping[str, Any]:
    """Return the comparator's settings; a check by the path of its script."""
    settings = comparator.settings()
    path = getattr(comparator, "path", None)
    if "check" in settings and path is not None:
        name = str(settings["check"]).rpartition(":")[2]
        return {**settings, "check": f"{path}:{name}"}
    return settings
