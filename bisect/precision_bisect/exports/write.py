"""All exports of a plan into a run folder: each is written whole, or gone with the reason.

Those that are one text are entry points of the group `precision_bisect.exports`: under the name of
the file a function from `Export` to the text, which raises NotWritable with the reason.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from precision_bisect.errors import PluginError, RunFolderError
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.exports.judging import Judge, write_judging
from precision_bisect.exports.mixed import write_causes, write_fp32, write_mixed
from precision_bisect.graphs.quantization.scales import write_scales
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.plugins import EXPORTERS, load
from precision_bisect.runs.belonging import exported_texts
from precision_bisect.runs.results.deployment import Deployment
from precision_bisect.runs.runfolder import (
    EXPORTS,
    FP32_DATA,
    FP32_MODEL,
    MIXED_DATA,
    MIXED_MODEL,
    RunFolder,
)


def write_exports(folder: RunFolder, export: Export) -> Mapping[str, str | None]:
    """Write every export of the plan; return for each file why it could not be, or None.

    Scales go with them, so that all of this can be written again. What judged the plan stays as it
    is. What a former run left of a file that cannot be written is removed. Raises RunFolderError.
    """
    reason, _ = _write_model(folder, export)
    return {MIXED_MODEL: reason, **write_texts(folder, export, reason)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A typed model that was written, with what judges it; `reasons` as of `write_exports`."""

    typed: TypedGraph | None
    reasons: Mapping[str, str | None]
    deployment: Deployment | None


def write_deployed(folder: RunFolder, export: Export, judge: Judge) -> Deployed:
    """Write the typed model, and what judges it where it is deployed. Raises RunFolderError."""
    reason, typed = _write_model(folder, export)
    graph = None if typed is None else typed.proto.graph
    judging, deployment = write_judging(folder, export, judge, graph)
    return Deployed(typed=typed, reasons={MIXED_MODEL: reason, **judging}, deployment=deployment)


def write_told(folder: RunFolder, export: Export, deployed: Deployed) -> Mapping[str, str | None]:
    """Write what tells of the diagnosis: texts, and the nodes of the typed model.

    Returns all reasons. Raises RunFolderError.
    """
    if deployed.typed is not None:
        # It needs room for the model a second time; the first is whole, and says the same types.
        with suppress(RunFolderError):
            write_causes(folder, export, deployed.typed)
    return {**deployed.reasons, **write_texts(folder, export, deployed.reasons[MIXED_MODEL])}


def write_texts(
    folder: RunFolder, export: Export, no_mixed: str | None
) -> Mapping[str, str | None]:
    """Write the exports that are one text each, as `write_exports` does.

    `no_mixed` says why there is no typed model, None where there is one. Raises RunFolderError.
    """
    reasons: dict[str, str | None] = {}
    export = replace(export, folder=folder.path, no_mixed=no_mixed)
    if not export.needs_fp32_form:
        folder.remove(FP32_MODEL)
        folder.remove(FP32_DATA)
    else:
        try:
            write_fp32(folder, export)
            reasons[FP32_MODEL] = None
        except NotWritable as reason:
            reasons[FP32_MODEL] = str(reason)
    for name in exported_texts():
        try:
            folder.write(name, _text(name, export))
            reasons[name] = None
        except NotWritable as reason:
            folder.remove(name)
            reasons[name] = str(reason)
    return reasons


def _write_model(folder: RunFolder, export: Export) -> tuple[str | None, TypedGraph | None]:
    """Write the typed model; return why it could not be, or None, and the model."""
    reason, typed = None, None
    try:
        typed = write_mixed(folder, export)
    except NotWritable as error:
        reason = str(error)
    if export.quantized:
        write_scales(folder, export.scales)
    return reason, typed


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
    beside = (MIXED_DATA, FP32_MODEL, FP32_DATA)
    names = [name for name in (*EXPORTS, *exported_texts()) if name not in beside]
    return dict.fromkeys(names, "every layer stays FP32, which the model itself is")


def gains(export: Export) -> bool:
    """Tell whether anything of the plan is below FP32: else the model itself is the plan."""
    return bool(export.model.in_low) or any(name != "fp32" for name in export.precisions.values())


def remove_exports(folder: RunFolder) -> None:
    """Remove every export, for a run that ended without an answer. Raises RunFolderError."""
    for name in (*EXPORTS, *exported_texts()):
        folder.remove(name)
