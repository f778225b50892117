"""All exports of a plan into a run folder: each is written whole, or gone with the reason."""

from collections.abc import Mapping
from functools import partial

import onnx

from precision_bisect.exports.autocast import write_autocast
from precision_bisect.exports.export import Export, layers_in_tensorrt, named_layers
from precision_bisect.exports.judging import Judge, write_judging
from precision_bisect.exports.layer_precisions import NotWritable
from precision_bisect.exports.mixed import write_mixed
from precision_bisect.exports.polygraphy_command import write_polygraphy_script
from precision_bisect.exports.trtexec import write_trtexec
from precision_bisect.exports.trtexec_names import layer_precisions
from precision_bisect.quantization.scales_file import write_scales
from precision_bisect.results.deployment import Deployment
from precision_bisect.run_folder.runfolder import (
    AUTOCAST,
    EXPORTS,
    LAYER_PRECISIONS,
    MIXED_DATA,
    MIXED_MODEL,
    POLYGRAPHY_SCRIPT,
    TRTEXEC,
    RunFolder,
)


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
    texts = {
        TRTEXEC: partial(write_trtexec, export, folder.path, reasons[MIXED_MODEL]),
        LAYER_PRECISIONS: partial(layer_precisions, export),
        POLYGRAPHY_SCRIPT: partial(_polygraphy, export),
        AUTOCAST: partial(_autocast, export),
    }
    for name, text in texts.items():
        try:
            folder.write(name, text())
            reasons[name] = None
        except NotWritable as reason:
            folder.remove(name)
            reasons[name] = str(reason)
    return reasons, graph


def write_gain(folder: RunFolder, export: Export) -> Mapping[str, str | None]:
    """Write every export as `write_exports` does, but nothing where every layer stays FP32.

    The model itself is that plan. Raises RunFolderError.
    """
    if gains(export):
        return write_exports(folder, export)
    remove_exports(folder)
    names = [name for name in EXPORTS if name != MIXED_DATA]
    return dict.fromkeys(names, "every layer stays FP32, which the model itself is")


def gains(export: Export) -> bool:
    """Tell whether anything of the plan is below FP32: else the model itself is the plan."""
    return bool(export.model.low_tensors) or any(
        name != "fp32" for name in export.precisions.values()
    )


def remove_exports(folder: RunFolder) -> None:
    """Remove every export, for a run that ended without an answer. Raises RunFolderError."""
    for name in EXPORTS:
        folder.remove(name)


def _polygraphy(export: Export) -> str:
    return write_polygraphy_script(
        layers_in_tensorrt(export), export.below_fp32, tf32=export.settings.tf32
    )


def _autocast(export: Export) -> str:
    layers = named_layers(export)
    if export.quantized or len({"fp32", *export.below_fp32}) > 2:
        types = ", ".join(("fp32", *reversed(export.below_fp32)))
        raise NotWritable(f"AutoCast knows one 16-bit type beside fp32, and the plan has {types}")
    if export.pair.high != "fp32":
        raise NotWritable(f"AutoCast keeps layers in fp32, and the plan in {export.pair.high}")
    return write_autocast(layer.name for layer in layers)
