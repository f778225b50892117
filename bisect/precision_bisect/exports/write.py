"""All exports of a plan into a run folder: each is written whole, or gone with the reason.

Those that are one text are entry points of the group `precision_bisect.exports`: under the name of
the file a function from `Export` to the text, which raises NotWritable with the reason.
"""

from collections.abc import Mapping
from dataclasses import replace

import onnx

from precision_bisect.errors import PluginError
from precision_bisect.exports.export import Export
from precision_bisect.exports.judging import Judge, write_judging
from precision_bisect.exports.layer_precisions import NotWritable
from precision_bisect.exports.mixed import write_mixed
from precision_bisect.plugins import EXPORTERS, load
from precision_bisect.quantization.scales_file import write_scales
from precision_bisect.results.deployment import Deployment
from precision_bisect.run_folder.belonging import exported_texts
from precision_bisect.run_folder.runfolder import EXPORTS, MIXED_DATA, MIXED_MODEL, RunFolder


def write_exports(folder: RunFolder, export: Export) -> Mapping[str, str | None]:
    """Write every export of the plan; return for each file why it could not be, or None.

    Scales go with them, so that all of this can be written again. What judged the plan stays as it
    is. What a former run left of a file that cannot be written is removed. Raises RunFolderError.
    """
    return _write(folder, export)[0]


def write_judged(
    folder: RunFolder, export: Export, judge: Judge
) -> tuple[Mapping[str, str | None], Deployment | None]:
    """Write every export, and what judges the plan where it is deployed; say how it is."""
    reasons, graph = _write(folder, export)
    judging, deployment = write_judging(folder, export, judge, graph)
    return {**reasons, **judging}, deployment


def _write(
    folder: RunFolder, export: Export
) -> tuple[dict[str, str | None], onnx.GraphProto | None]:
    """Write the exports that need a plan alone; return the reasons, and the typed graph."""
    reasons: dict[str, str | None] = {}
    graph = None
    try:
        graph = write_mixed(folder, export)
        reasons[MIXED_MODEL] = None
    except NotWritable as reason:
        reasons[MIXED_MODEL] = str(reason)
    if export.quantized:
        write_scales(folder, export.scales)
    export = replace(export, folder=folder.path, no_mixed=reasons[MIXED_MODEL])
    for name in exported_texts():
        try:
            folder.write(name, _text(name, export))
            reasons[name] = None
        except NotWritable as reason:
            folder.remove(name)
            reasons[name] = str(reason)
    return reasons, graph


def _text(name: str, export: Export) -> str:
    """Return what an exporter writes. Raises NotWritable, also where it fails otherwise."""
    try:
        text: str = load(EXPORTERS, name)(export)
    except PluginError as error:
        raise NotWritable(error.one_line()) from error
    except NotWritable:
        raise
    except Exception as error:  # others' code raises anything
        raise NotWritable(f"its exporter failed: {type(error).__name__}: {error}") from error
    return text


def write_gain(folder: RunFolder, export: Export) -> Mapping[str, str | None]:
    """Write every export as `write_exports` does, but nothing where every layer stays FP32.

    The model itself is that plan. Raises RunFolderError.
    """
    if gains(export):
        return write_exports(folder, export)
    remove_exports(folder)
    names = [name for name in (*EXPORTS, *exported_texts()) if name != MIXED_DATA]
    return dict.fromkeys(names, "every layer stays FP32, which the model itself is")


def gains(export: Export) -> bool:
    """Tell whether anything of the plan is below FP32: else the model itself is the plan."""
    return bool(export.model.low_tensors) or any(
        name != "fp32" for name in export.precisions.values()
    )


def remove_exports(folder: RunFolder) -> None:
    """Remove every export, for a run that ended without an answer. Raises RunFolderError."""
    for name in (*EXPORTS, *exported_texts()):
        folder.remove(name)
