"""The strongly typed model as a file, for engines that do what the types say."""

from collections.abc import Iterator

from precision_bisect.errors import PrecisionBisectError, RunFolderError
from precision_bisect.exports.annotations import annotate
from precision_bisect.exports.export import Export
from precision_bisect.exports.io_types import take_half
from precision_bisect.exports.layer_precisions import NotWritable
from precision_bisect.layer_table import LayerName, forms_of
from precision_bisect.model.graph import HALF_TYPES
from precision_bisect.model.lowtypes import LOW_TYPES
from precision_bisect.model.types import infer_elem_types
from precision_bisect.run_folder.runfolder import MIXED_DATA, MIXED_MODEL, RunFolder
from precision_bisect.typed.model_files import save_typed
from precision_bisect.typed.rewrite import TypedWriter
from precision_bisect.typed.typed_graph import TypedGraph


def write_mixed(folder: RunFolder, export: Export) -> TypedGraph:
    """Write the typed model, with a data file beside it from 2 GiB on, in place of a former one.

    Raises NotWritable where the model cannot be typed, where the types that ONNX infers for the
    typed graph are not those of the plan, and where the folder has no room for it.
    """
    folder.remove(MIXED_MODEL)
    folder.remove(MIXED_DATA)
    try:
        writer = TypedWriter(export.model, export.pair, export.scales)
        typed = writer.write(export.plan, guard_islands=export.settings.guard_islands)
    except PrecisionBisectError as error:
        raise NotWritable(error.one_line()) from error
    for name in not_as_planned(export, typed):
        why = writer.not_low.get(name, "its types say otherwise than the plan")
        raise NotWritable(f"layer {name!r} of the typed model: {why}")
    if export.settings.io_types == "fp16":
        take_half(typed.proto)
    annotate(typed.proto, export)
    try:
        with folder.writing(MIXED_MODEL) as path:
            save_typed(typed, path)
    except RunFolderError as error:
        folder.remove(MIXED_DATA)
        raise NotWritable(error.message) from error
    return typed


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
        if node.name not in forms:
            continue
        name = LayerName(node.name)
        form = forms[name].high if name in kept else forms[name].low
        known = {types[output] for output in node.output if output in types}
        halves = [LOW_TYPES[form.stored].onnx_type] if form.stored in LOW_TYPES else []
        wrong = bool(known) and known.intersection(HALF_TYPES) != set(halves)
        if wrong or quantized.isdisjoint(node.input) == (form.quantized is not None):
            yield name
