"""All exports of a plan into a run folder: each is written whole, or gone with the reason.

Those that are one text are entry points of the group `precision_bisect.exports`: under the name of
the file a function from `Export` to the text, which raises NotWritable with the reason. A viewer
of the typed model shows at each layer its precision, and why it needs it.
"""

import json
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace

import onnx

from precision_bisect.errors import PluginError, PrecisionBisectError, RunFolderError
from precision_bisect.exports.export import Export, NotWritable
from precision_bisect.exports.judging import Judge, write_judging
from precision_bisect.graphs.graph import HALF_TYPES, refill
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.quantization.scales import write_scales
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import writer_of
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.graphs.types import infer_elem_types
from precision_bisect.layer_table import LayerName, forms_of
from precision_bisect.plan import Plan
from precision_bisect.plugins import EXPORTERS, load
from precision_bisect.precisions import Pair
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

METADATA_PREFIX = "precision_bisect"
LAYERS_KEY = f"{METADATA_PREFIX}.layers"
RUN_KEY = f"{METADATA_PREFIX}.run"
POINT_KEY = f"{METADATA_PREFIX}.point"
_KEYS = frozenset(f"{METADATA_PREFIX}.{key}" for key in ("precision", "cause", "evidence"))
# Version of ONNX's file format from which on nodes have metadata (`NodeProto.metadata_props`).
_METADATA_SINCE = 10


def write_mixed(folder: RunFolder, export: Export) -> TypedGraph:
    """Write the typed model, with a data file beside it from 2 GiB on, in place of a former one.

    Raises NotWritable where the model cannot be typed, where the types that ONNX infers for the
    typed graph are not those of the plan, and where the folder has no room for it.
    """
    folder.remove(MIXED_MODEL)
    folder.remove(MIXED_DATA)
    typed = mixed_model(export)
    save_mixed(folder, typed)
    return typed


def mixed_model(export: Export) -> TypedGraph:
    """Return the typed model of a plan. Raises NotWritable where there is none."""
    try:
        writer = writer_of(export.model, export.pair, export.scales)
        typed = writer.write(export.plan, export.settings.guard_islands, seal=export.seal)
    except PrecisionBisectError as error:
        raise NotWritable(error.one_line()) from error
    for name in not_as_planned(export, typed):
        why = writer.not_low.get(name, "its types say otherwise than the plan")
        raise NotWritable(f"layer {name!r} of the typed model: {why}")
    annotate(typed.proto, export)
    return typed


def write_fp32(folder: RunFolder, export: Export) -> None:
    """Write the FP32 form that exports by layer name are for, in place of a former one.

    Raises NotWritable where the folder has no room for it.
    """
    folder.remove(FP32_MODEL)
    folder.remove(FP32_DATA)
    every = Plan.all_high(len(export.model.table.candidates))
    typed = writer_of(export.model, Pair(low="fp16", high="fp32")).write(every, False)
    save_mixed(folder, typed, FP32_MODEL)


def save_mixed(folder: RunFolder, typed: TypedGraph, name: str = MIXED_MODEL) -> None:
    """Write a typed model into a folder. Raises NotWritable where that has no room for it."""
    try:
        with folder.writing(name) as path:
            save_typed(typed, path)
    except RunFolderError as error:
        folder.remove(f"{name}.data")
        raise NotWritable(error.message) from error


def write_causes(folder: RunFolder, export: Export, typed: TypedGraph) -> None:
    """Write a model that `write_mixed` has written once more, with the diagnosis in its nodes.

    Raises RunFolderError, and the former one stays.
    """
    if export.diagnosis:
        annotate(typed.proto, export)
        with folder.writing(MIXED_MODEL) as path:
            save_typed(typed, path, again=True)


def not_as_planned(export: Export, typed: TypedGraph) -> Iterator[LayerName]:
    """Yield the layers that the typed graph computes in another type than the plan asks for.

    What counts is the type of a layer's outputs, and whether it reads what was quantized for it;
    the model's own quantization is none. Layers whose types ONNX cannot infer are passed over.
    """
    types = infer_elem_types(typed.proto, {})
    forms = forms_of(export.model.table, export.pair)
    kept = frozenset(export.kept)
    own = {layer.name for layer in export.model.table.layers}
    quantized: set[str] = set()
    for node in typed.proto.graph.node:
        if node.op_type == "DequantizeLinear" and node.name not in own:
            quantized.update(node.output)
        # Casts, constants and what moves values have no type of their own to be asked for.
        if node.name not in forms:
            continue
        name = LayerName(node.name)
        form = forms[name].high if name in kept else forms[name].low
        output_types = {types[output] for output in node.output if output in types}
        halves = [LOW_TYPES[form.stored].onnx_type] if form.stored in LOW_TYPES else []
        wrong = bool(output_types) and output_types.intersection(HALF_TYPES) != set(halves)
        if wrong or quantized.isdisjoint(node.input) == (form.quantized is not None):
            yield name


def annotate(proto: onnx.ModelProto, export: Export) -> None:
    """Write the keys `precision_bisect.precision`, `.cause` and `.evidence` into nodes of a graph.

    The model has `precision_bisect.point`, the point of the curve that its plan is, and
    `precision_bisect.run`, what judged it (the run's fingerprint, with tolerance and versions), as
    JSON. Files too old for metadata of nodes keep their version, which tools go by, and have
    `precision_bisect.layers`, the nodes' keys by name. The documentation of nodes is left alone:
    TensorRT 8.6 and 9 take it for a part of their names.

    Layers above the lowest precision have the first, diagnosed ones all. The evidence of a layer
    that was no candidate is why. Nodes keep what they had, but for these keys.
    """
    diagnoses = {diagnosis.layer: diagnosis for diagnosis in export.diagnosis}
    metadata: dict[str, dict[str, str]] = {}
    for layer in export.high_layers:
        values = {"precision": str(export.precisions[layer.name])}
        if layer.name in diagnoses:
            diagnosis = diagnoses[layer.name]
            values |= {"cause": diagnosis.cause, "evidence": diagnosis.evidence}
        elif layer.detail:
            values["evidence"] = layer.detail
        metadata[layer.name] = {f"{METADATA_PREFIX}.{key}": value for key, value in values.items()}
    model = {POINT_KEY: export.point, RUN_KEY: json.dumps(export.run)}
    # A newer IR version would have older tools refuse the file.
    if proto.ir_version < _METADATA_SINCE:
        model[LAYERS_KEY] = json.dumps(metadata)
    _set(proto, model, {POINT_KEY, RUN_KEY, LAYERS_KEY})
    if proto.ir_version >= _METADATA_SINCE:
        for node in proto.graph.node:
            _set(node, metadata.get(node.name, {}), _KEYS)


def _set(
    owner: onnx.ModelProto | onnx.NodeProto, values: Mapping[str, str], instead: Set[str]
) -> None:
    """Give values to keys of an owner, whose keys `instead` are dropped."""
    kept = [prop for prop in owner.metadata_props if prop.key not in instead]
    if len(kept) < len(owner.metadata_props):
        refill(owner.metadata_props, kept)
    for key, value in values.items():
        # A result.json may have halves of surrogate pairs, which are no text.
        owner.metadata_props.add(key=key, value=value.encode("utf-8", "replace").decode())


def write_exports(folder: RunFolder, export: Export) -> Mapping[str, str | None]:
    """Write every export of the plan; return for each file why it could not be, or None.

    Scales go with them, so that all of this can be written again. What judged the plan stays as it
    is. What a former run left of a file that cannot be written is removed. Raises RunFolderError.
    """
    reason, _ = _write_model(folder, export)
    export = replace(export, folder=folder.path, no_mixed=reason)
    return {MIXED_MODEL: reason, **write_texts(folder, export)}


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
    return {**deployed.reasons, **write_texts(folder, export)}


def write_texts(folder: RunFolder, export: Export) -> Mapping[str, str | None]:
    """Write the exports that are one text each, as `write_exports` does. Raises RunFolderError."""
    reasons: dict[str, str | None] = {}
    # One of an earlier export would stand beside strings that are not for it.
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
