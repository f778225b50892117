"""From a path to a `Model`: read, checked, named, typed, its layers listed; or at a newer opset.

The file is untrusted: any field may be missing, wrong or huge, and each such case ends in one
line.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import onnx.version_converter

from precision_bisect.errors import ModelError, PrecisionBisectError
from precision_bisect.graphs.classify import layer_table
from precision_bisect.graphs.fp32_form import StoredLow, fp32_form
from precision_bisect.graphs.graph import Names, all_graphs, copied, opset, refill, sort_nodes
from precision_bisect.graphs.half_compute import half_typed
from precision_bisect.graphs.interface import Interface
from precision_bisect.graphs.local_functions import ready_to_inline
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.module_names import module_names
from precision_bisect.graphs.soundness import (
    check_expansion,
    check_nodes,
    check_opsets,
    check_types,
)
from precision_bisect.graphs.types import (
    IllTyped,
    TensorSpec,
    declared_low,
    ill_typed_nodes,
    infer_elem_types,
)
from precision_bisect.graphs.weights import (
    Part,
    Weights,
    drop_unused,
    external_parts,
    take_weights,
)
from precision_bisect.graphs.written_out import lacking, with_functions
from precision_bisect.layer_table import LayerTable
from precision_bisect.machine.forked import in_copy
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.machine.stopping import look_at_clock
from precision_bisect.settings.engine_settings import IoTypes

# The highest ONNX file format version that every supported ONNX Runtime reads; later ones change
# no result.
_HIGHEST_IR = 10
# Bytes: protobuf's limit on a message.
_PROTOBUF_LIMIT = 2**31
_AGAIN = "export or copy the file again"
_TORCH = "export it in PyTorch: torch.onnx.export(model, inputs, 'model.onnx')"
_TENSORFLOW = "convert it: python -m tf2onnx.convert (tf2onnx has the flags for each format)"
# What makes an ONNX model of another file, by its ending.
_EXPORT = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".safetensors", ".bin"), _TORCH),
    **dict.fromkeys((".pb", ".h5", ".keras", ".tflite"), _TENSORFLOW),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as the rest of the package sees it.

    `proto` has its nodes in order, unique node names and no local functions. It is the FP32 form
    of a file with 16-bit floats, in which the nodes of `in_low` store these; there `inputs` and
    `outputs` are as in the file. It has stubs for the large weights, which are in `weights`.
    `elem_types` are ONNX element types by tensor name. The nodes of `ill_typed` have types in
    the file that ONNX does not allow. `digest` is the SHA-256 of the file and of
    what its tensors are in files of external data. `pytorch` tells that modules have PyTorch's
    qualified names. `written_out` counts the operators that are in pieces, as engines lack them.

    `of_file` is the file's interface, in which samples come. `interface` is that of what is judged
    and exported.
    """

    path: Path
    proto: onnx.ModelProto
    weights: Weights
    table: LayerTable
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    elem_types: Mapping[str, int]
    in_low: Mapping[str, StoredLow]
    ill_typed: Sequence[IllTyped]
    digest: str
    written_out: Mapping[str, int]
    of_file: Interface
    interface: Interface
    pytorch: bool = False
    shapes: dict[Any, Mapping[str, tuple[int, ...]]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    """What `tensor_shapes` has found, by the shapes of the inputs."""
    held: dict[Any, Any] = field(init=False, default_factory=dict, repr=False, compare=False)
    """What follows from the model alone, by who found it, and for what."""

    def with_io_types(self, io_types: IoTypes) -> "Model":
        """Return the model to be judged and exported with FP32 inputs and outputs in this type."""
        if io_types == "model":
            return self
        interface = self.of_file.with_floats(self.proto.graph, LOW_TYPES[io_types])
        return replace(self, interface=interface)

    @property
    def rounds_ends(self) -> bool:
        """Whether what is judged has an interface that rounds samples."""
        return self.interface != self.of_file


def load_model(path: Path, *, apart: bool = False) -> Model:
    """Read an ONNX model; libraries infer its types `apart` from this process.

    Raises ModelError for a file that is missing, not ONNX, damaged, of an opset below 9, or whose
    external data is missing or lies outside the model's folder.
    """
    try:
        return _load(path, apart=apart)
    except PrecisionBisectError:
        raise
    except Exception as error:  # the file is untrusted: any field of it may be nonsense
        raise ModelError(f"{path} is damaged: {type(error).__name__}: {error}", _AGAIN) from error


def _load(path: Path, *, apart: bool) -> Model:
    proto = _read(path)
    parts = external_parts(proto)
    # Before anything copies the graph: weights are moved out once and never duplicated.
    weights = take_weights(proto, path.parent)
    digest = _digest(path, parts)
    # A fresh copy: protobuf keeps the memory of removed weights until a model is gone.
    proto = copied(proto)
    _check_text(proto)
    # Before functions are put in place, which goes by the order of their nodes.
    sort_nodes(proto)
    # Counted before inlining, which makes up names.
    in_file = Counter(node.name for inner in all_graphs(proto.graph) for node in inner.node)
    inline = partial(_inline_functions, proto)
    if proto.functions:
        proto = in_copy(inline, f"inlining functions of {path}") if apart else inline()
    check_nodes(proto)
    check_types(proto)
    operators = lacking(proto)
    if operators:
        pieces = partial(in_pieces, proto)
        proto = in_copy(pieces, f"writing out operators of {path}") if apart else pieces()
    _initializers_are_constants(proto)
    drop_unused(proto.graph, weights)
    named_in_model = _name_nodes(proto.graph, in_file)
    inputs = tuple(_spec(value) for value in proto.graph.input)
    outputs = tuple(_spec(value) for value in proto.graph.output)
    _forget_unknown_sizes(proto.graph)
    of_file = Interface.of(proto.graph)
    infer = partial(infer_elem_types, proto, weights)
    elem_types: Mapping[str, int] = (
        in_copy(infer, f"inferring the types of {path}") if apart else infer()
    )
    in_low: Mapping[str, StoredLow] = {}
    ill_typed: tuple[IllTyped, ...] = ()
    low = declared_low(elem_types)
    # Bodies may call tensors of two types the same, whose types then are not known by name.
    if low or any(True for _ in half_typed(proto)):
        ill_typed = tuple(ill_typed_nodes(proto, elem_types))
        proto, weights, elem_types, in_low = fp32_form(proto, weights, low)
    modules = module_names(proto)
    return Model(
        path=path,
        proto=proto,
        weights=weights,
        table=layer_table(proto.graph, elem_types, named_in_model, modules),
        inputs=inputs,
        outputs=outputs,
        elem_types=elem_types,
        in_low=in_low,
        ill_typed=ill_typed,
        digest=digest,
        written_out=operators - lacking(proto),
        of_file=of_file,
        interface=of_file,
        pytorch=modules is not None,
    )


def _read(path: Path) -> onnx.ModelProto:
    """Parse the file as binary ONNX, whatever it is called, and check what the rest relies on."""
    hint = _EXPORT.get(path.suffix.lower(), _AGAIN)
    try:
        size = plain_size(path)
        proto = (
            onnx.load(path, format="protobuf", load_external_data=False)
            if size < _PROTOBUF_LIMIT
            # Not parsed at all: protobuf would take the memory first and fail then.
            else onnx.ModelProto()
        )
    except FileNotFoundError as error:
        raise ModelError(f"no such file: {path}", "check the path") from error
    except IsADirectoryError as error:
        raise ModelError(
            f"{path} is a folder", "name the model; `precision-bisect show` tells a run folder"
        ) from error
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except Exception as error:  # protobuf's DecodeError
        raise ModelError(f"{path} is not an ONNX model, or is truncated", hint) from error
    if size >= _PROTOBUF_LIMIT:
        raise ModelError(
            f"{path} is over 2 GiB, which no ONNX file can be",
            "save it with its weights as external data",
        )
    if not proto.ir_version or not proto.graph.node or not proto.opset_import:
        raise ModelError(
            f"{path} is not an ONNX model, or is truncated: it has no nodes or no opset", hint
        )
    check_opsets(path, proto)
    return proto


def _digest(path: Path, parts: Sequence[Part]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        digest.update(hashlib.file_digest(stream, "sha256").digest())
    # Each part has a hash of its own, so that all cores can share them.
    with ThreadPoolExecutor() as pool:
        for hashed in pool.map(lambda part: part.hashed(path.parent), parts):
            digest.update(hashed)
    return digest.hexdigest()


def _check_text(message: Any) -> None:
    """Raise ModelError for text that is not UTF-8: protobuf returns it as bytes."""
    look_at_clock()
    for part, value in message.ListFields():
        if part.type not in (part.TYPE_MESSAGE, part.TYPE_STRING):
            continue
        for inner in (
            (value,) if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value
        ):
            if isinstance(inner, bytes):
                raise ModelError(f"its {part.name} {inner!r} is no UTF-8 text", _AGAIN)
            if not isinstance(inner, str):
                _check_text(inner)


def _inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Put the bodies of local functions in place of their calls, so that their layers are seen."""
    if not proto.functions:
        return proto
    ready_to_inline(proto)
    check_expansion(proto)
    try:
        return onnx.inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"the model's local functions cannot be inlined: {error}",
            "export without functions, or inline them with onnx.inliner",
        ) from error


def in_pieces(proto: onnx.ModelProto, since: Mapping[str, int] | None = None) -> onnx.ModelProto:
    """Return the model with ONNX's functions in place of what engines lack, or the model itself.

    `since` is as in `lacking`.
    """
    # Functions may call further ones.
    while operators := lacking(proto, since):
        calling = with_functions(proto, operators)
        if calling is proto:
            break
        proto = _inline_functions(calling)
    return proto


def _initializers_are_constants(proto: onnx.ModelProto) -> None:
    """Take initializers off the input list, where IR versions below 4 had to put them."""
    names = {tensor.name for tensor in proto.graph.initializer}
    kept = [value for value in proto.graph.input if value.name not in names]
    if len(kept) < len(proto.graph.input):
        refill(proto.graph.input, kept)
    proto.ir_version = min(max(proto.ir_version, 4), _HIGHEST_IR)


def _name_nodes(graph: onnx.GraphProto, in_file: Mapping[str, int]) -> dict[str, bool]:
    """Give every node a unique name; return for each name whether the file has it uniquely.

    Nodes of bodies are among them, after those of the main graph. `in_file` counts the names of
    the file's own nodes; nodes from local functions get names that only this reading of the file
    gives them. A node without a name is called after its first output, and repeated names get a
    running number, as TensorRT's parser does (`node_of_<output>`, `<name>_0`).
    """
    nodes = [node for inner in all_graphs(graph) for node in inner.node]
    counts = Counter(node.name for node in nodes)
    # Unique names first: a name made up below must not take one of theirs.
    named = {name: in_file.get(name) == 1 for name, count in counts.items() if name and count == 1}
    for node in nodes:
        if node.name and counts[node.name] == 1:
            continue
        first_output = next((name for name in node.output if name), "nothing")
        base = node.name or f"node_of_{first_output}"
        name, number = base, 0
        while name in named:
            name, number = f"{base}_{number}", number + 1
        node.name = name
        named[name] = False
    return named


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(_size(dim) for dim in tensor.shape.dim)
    return TensorSpec(name=value.name, dtype=_dtype_name(tensor.elem_type), shape=shape)


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """Return a dimension; Paddle2ONNX and Caffe2 write -1 and "?" for an unknown one."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return None if dim.dim_param == "?" else dim.dim_param or None


def _forget_unknown_sizes(graph: onnx.GraphProto) -> None:
    """Leave unknown dimensions open, in place.

    -1 is no size, and two dimensions called "?" need not be equal.
    """
    for inner in all_graphs(graph):
        for value in (*inner.input, *inner.output, *inner.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if _size(dim) is None:
                    dim.Clear()


def _dtype_name(elem_type: int) -> str | None:
    try:
        return onnx.helper.tensor_dtype_to_np_dtype(elem_type).name
    except KeyError:
        return None


# Operators whose meaning changed at opset 13, which onnx's converter does not know.
_NOT_CONVERTED = ("Hardmax",)


def hint_to_export(lowest: int) -> str:
    """Return what to do about a model of too old an opset."""
    return f"export it at opset {lowest} or newer, or search for fp16"


def at_least_opset(model: Model, lowest: int, needing: str = "bfloat16") -> Model:
    """Return the model itself, or converted to opset `lowest`, which `needing` needs.

    Raises ModelError if onnx cannot convert it, or if the conversion would lose a layer.
    """
    have = opset(model.proto)
    if not 0 < have < lowest:
        return model
    hint = hint_to_export(lowest)
    what = f"the model has opset {have}, and {needing} needs {lowest}"
    nodes = [node for graph in all_graphs(model.proto.graph) for node in graph.node]
    if any(node.op_type in _NOT_CONVERTED for node in nodes):
        raise ModelError(f"{what}; onnx converts {', '.join(_NOT_CONVERTED)} wrongly", hint)
    convert = partial(onnx.version_converter.convert_version, model.proto, lowest)
    try:
        proto = in_copy(convert, f"converting {model.path} to opset {lowest}")
    except PrecisionBisectError:
        raise
    except Exception as error:  # the converter raises what its C++ code throws
        text = " ".join(str(error).split())
        raise ModelError(f"{what}; onnx cannot convert it: {text}", hint) from error
    # A layer that the converter replaced would be another one to the ledger.
    outputs = {node.name: tuple(n for n in node.output if n) for node in proto.graph.node}
    for layer in model.table.candidates:
        if outputs.get(layer.name) != layer.outputs:
            raise ModelError(f"{what}; converting it would lose layer {layer.name!r}", hint)
    # The converter leaves the nodes nameless that it adds, and forgets what the exporter has said.
    names = Names(proto.graph)
    metadata = {node.name: node.metadata_props for node in nodes}
    for node in (node for graph in all_graphs(proto.graph) for node in graph.node):
        node.metadata_props.extend(metadata.get(node.name, ()))
        node.name = node.name or names(f"node_of_{node.output[0]}")
    return replace(model, proto=proto, elem_types=infer_elem_types(proto, model.weights))
