"""`run_onnxruntime.py`: a template, filled in with how the exported model is opened and judged."""

from collections.abc import Mapping
from typing import Any

from precision_bisect.backends.cuda.provider import CUDA
from precision_bisect.exports.export import Export
from precision_bisect.exports.one_file import one_file
from precision_bisect.results.deployment import SessionOptions
from precision_bisect.run_folder.runfolder import (
    GOLDEN_INPUTS,
    GOLDEN_OUTPUTS,
    MIXED_MODEL,
    RUN_SCRIPT,
)

_SETTINGS = "SETTINGS: dict[str, Any] = {}\n"
LOW_LAYERS = "low_layers"
_HALVES = ("fp16", "bf16")


def write_run_script(
    export: Export,
    options: SessionOptions,
    limits: Mapping[str, Any],
    judged_by: str,
    provider: str = CUDA,
) -> str:
    """Return the script that opens the exported model with these options and judges it.

    `limits` are the comparator's settings; `judged_by` is the backend of the run.
    """
    settings = {
        "judged_by": _judged_by(judged_by),
        "model": MIXED_MODEL,
        "inputs": GOLDEN_INPUTS,
        "outputs": GOLDEN_OUTPUTS,
        "provider": provider,
        "provider_options": dict(options.provider_options),
        "session_config": dict(options.session_config),
        "graph_optimization_level": options.graph_optimization_level,
        "disabled_optimizers": list(options.disabled_optimizers),
        "limits": dict(limits),
        "custom_ops": [str(path.absolute()) for path in export.settings.ort_custom_ops],
        LOW_LAYERS: _low_layers(export),
    }
    literals = "".join(_line(key, value) for key, value in settings.items())
    return one_file(RUN_SCRIPT, {_SETTINGS: f"{{\n{literals}}}"})


def of_plan(script: str, export: Export) -> str:
    """Return a script that judges the plan of an export as it has judged another plan."""
    begins = _line(LOW_LAYERS, []).partition("[")[0]
    return "".join(
        _line(LOW_LAYERS, _low_layers(export)) if line.startswith(begins) else line
        for line in script.splitlines(keepends=True)
    )


def _low_layers(export: Export) -> list[str]:
    return [str(name) for name, kind in export.precisions.items() if kind in _HALVES]


def _line(key: str, value: object) -> str:
    return f"    {key!a}: {value!a},\n"


def _judged_by(backend: str) -> str:
    """Return what the script says of the verdicts that its options stand for."""
    if backend == "onnxruntime":
        return "onnxruntime: these options judged the answer"
    return f"{backend}: the answer was not judged by these options, which are this tool's for CUDA"
