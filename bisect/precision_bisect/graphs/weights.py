"""Weights apart from the graph: each is held once, and external ones are mapped, never read in.

Protobuf stops at 2 GiB, so the graph is kept small. Every large initializer becomes a stub that
says "external", and its values lie beside the graph as a numpy array (a memory map if the file has
external data). Sessions get both together, see `precision_bisect.graphs.ort`.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import ModelError
from precision_bisect.graphs.graph import all_graphs, copied, every_node, refill
from precision_bisect.graphs.soundness import refuse_segments
from precision_bisect.machine.plain_files import too_large

Weights = dict[str, NDArray[np.generic]]

INLINE_BYTES = 1024
"""Bytes up to which an initializer stays in the graph, since shape inference reads small
ones: INT64 shapes of up to 128 values. Answers are the same with half and double
(`benchmarks/constants.py`)."""

LARGE_BYTES = 2**30
"""Weights from which on what holds the model once more is left out: advice is not tried, and few
layers beyond the range need no ranking."""
# Bytes of a cache line, which kernels like weights to begin at.
_ALIGNED = 64
# Bytes that are read at a time.
_PIECE = 2**20
STUB_LOCATION = "weights held by precision-bisect"
_AGAIN = "export or copy the model again"


def total_bytes(weights: Mapping[str, NDArray[np.generic]]) -> int:
    """Return the size of weights together."""
    return sum(array.nbytes for array in weights.values())


def take_weights(model: onnx.ModelProto, folder: Path) -> Weights:
    """Move the large initializers of the main graph out of `model` and return them by name.

    External data is looked for inside `folder` only. Tensors of subgraphs and of local functions
    stay there. Raises ModelError for external data that is missing, too short or outside the
    folder, and for a tensor that is a segment of another.
    """
    weights: Weights = {}
    nested = list(_nested_tensors(model))
    refuse_segments((*model.graph.initializer, *nested))
    for tensor in nested:
        if _is_external(tensor):
            _read_in(tensor, folder)
    _densify(model)
    for tensor in model.graph.initializer:
        if _is_external(tensor) and _dtype(tensor) is None:
            _read_in(tensor, folder)
            continue
        if _is_external(tensor):
            array = map_external(tensor, folder)
        elif _dtype(tensor) is None or _nbytes(tensor) <= INLINE_BYTES:
            continue
        else:
            array = _to_array(tensor)
        # Small external data goes into the graph as well: shape inference must see it.
        if array.nbytes <= INLINE_BYTES:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(array), tensor.name))
            continue
        weights[tensor.name] = array
        make_stub(tensor)
    return weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The bytes of a tensor in a file of external data; `length` None for all up to the end."""

    location: str
    offset: int
    length: int | None

    def hashed(self, folder: Path) -> bytes:
        """Return the SHA-256 of these bytes. Raises OSError."""
        digest = hashlib.sha256()
        with (folder / self.location).open("rb") as stream:
            stream.seek(self.offset)
            remaining = math.inf if self.length is None else self.length
            while remaining > 0 and (piece := stream.read(int(min(remaining, _PIECE)))):
                digest.update(piece)
                remaining -= len(piece)
        return digest.digest()


def pointing_to(proto: onnx.ModelProto, places: Mapping[str, Part]) -> onnx.ModelProto:
    """Return a copy whose stubs say where their values are."""
    pointing = copied(proto)
    for tensor in pointing.graph.initializer:
        if tensor.name in places and _is_external(tensor):
            del tensor.external_data[:]
            for key, value in asdict(places[tensor.name]).items():
                tensor.external_data.add(key=key, value=str(value))
    return pointing


def external_parts(model: onnx.ModelProto) -> list[Part]:
    """Return the bytes that the tensors of a model are in external files, each once, in order.

    Of what cannot be read, which `take_weights` refuses, nothing is said.
    """
    parts = set()
    for tensor in (*model.graph.initializer, *_nested_tensors(model)):
        if _is_external(tensor):
            properties = {entry.key: entry.value for entry in tensor.external_data}
            needed = None if _dtype(tensor) is None else _nbytes(tensor)
            with suppress(ValueError):
                length = int(properties["length"]) if "length" in properties else needed
                offset = int(properties.get("offset", 0))
                parts.add(
                    Part(location=properties.get("location", ""), offset=offset, length=length)
                )
    return sorted(parts, key=lambda part: (part.location, part.offset, part.length or 0))


def drop_unused(graph: onnx.GraphProto, weights: Weights) -> None:
    """Remove the initializers that nothing reads; ONNX Runtime refuses values for them."""
    used: set[str] = set()
    for inner in all_graphs(graph):
        used.update(output.name for output in inner.output)
        used.update(name for node in inner.node for name in node.input)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    if len(kept) < len(graph.initializer):
        refill(graph.initializer, kept)
    for name in [name for name in weights if name not in used]:
        del weights[name]


def make_stub(tensor: onnx.TensorProto) -> None:
    """Turn `tensor` into a stub of the same name, type and shape, without values."""
    name, dims, data_type = tensor.name, list(tensor.dims), tensor.data_type
    tensor.Clear()
    tensor.name, tensor.data_type = name, data_type
    tensor.dims.extend(dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", STUB_LOCATION


def stub(name: str, array: NDArray[np.generic]) -> onnx.TensorProto:
    """Return a stub initializer for an array that is handed to the session separately."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
    make_stub(tensor)
    return tensor


def map_external(tensor: onnx.TensorProto, folder: Path) -> NDArray[np.generic]:
    """Return the external values of `tensor` as a read-only memory map of its shape and type.

    Raises ModelError when the entry is malformed, points outside `folder`, or the file is missing
    or shorter than the tensor.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _inside(folder, entries.get("location", ""), tensor.name)
    dtype = _dtype(tensor)
    if dtype is None:
        raise ModelError(f"weight {tensor.name!r} has a type that cannot be mapped", _AGAIN)
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries["length"]) if "length" in entries else None
    except ValueError as error:
        raise ModelError(
            f"external data of {tensor.name!r} has a malformed offset", _AGAIN
        ) from error
    needed = math.prod(tensor.dims) * dtype.itemsize
    available = path.stat().st_size - offset
    # Sizes of untrusted files: Python's integers do not overflow, numpy's would.
    if offset < 0 or min(tensor.dims, default=0) < 0 or needed > available:
        raise ModelError(
            f"external data of {tensor.name!r} needs {needed} bytes at {offset}, but "
            f"{path.name} has {path.stat().st_size}",
            "the file is truncated or belongs to another model; copy it again",
        )
    if length is not None and length != needed:
        raise ModelError(
            f"external data of {tensor.name!r} says {length} bytes, needs {needed}", _AGAIN
        )
    if needed == 0:
        return np.empty(tuple(tensor.dims), dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=tuple(tensor.dims))


def in_file(weights: Weights, file: Path) -> Weights:
    """Return the weights as maps of a new file, whose pages all sessions share.

    Of an array each session has a copy of its own, and a second one while it opens. Weights that
    are maps stay as they are. Raises OSError, and leaves no file then.
    """
    arrays = {name: w for name, w in weights.items() if not isinstance(w, np.memmap)}
    offsets = {}
    try:
        with file.open("wb") as stream:
            for name, array in arrays.items():
                stream.write(b"\0" * (-stream.tell() % _ALIGNED))
                offsets[name] = stream.tell()
                stream.write(array.tobytes())
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return weights | {
        name: np.memmap(file, array.dtype, "r", offsets[name], array.shape)
        for name, array in arrays.items()
    }


def _inside(folder: Path, location: str, name: str) -> Path:
    root = folder.resolve()
    # `resolve` first: the way may lead out by ".." or by a symbolic link.
    path = (root / location).resolve()
    if not location or not path.is_relative_to(root):
        raise ModelError(
            f"external data of {name!r} points outside the model's folder: {location!r}",
            "refused, since a model must not read other files; put the data beside the model",
        )
    if not path.is_file():
        raise ModelError(
            f"external data of {name!r} is missing: no file {location!r} beside the model",
            "copy the data file next to the .onnx file",
        )
    return path


def _to_array(tensor: onnx.TensorProto) -> NDArray[np.generic]:
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise ModelError(f"weight {tensor.name!r} is damaged: {error}", _AGAIN) from error


def _dtype(tensor: onnx.TensorProto) -> np.dtype[np.generic] | None:
    """Return the tensor's numpy type, None for types that stay in the graph (int4, text)."""
    if tensor.data_type == onnx.TensorProto.BFLOAT16:
        bfloat16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        return None
    return dtype if dtype.kind in "fiub" and dtype.isbuiltin == 1 else None


def _nbytes(tensor: onnx.TensorProto) -> int:
    dtype = _dtype(tensor)
    return 0 if dtype is None else math.prod(tensor.dims) * dtype.itemsize


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def _read_in(tensor: onnx.TensorProto, folder: Path) -> None:
    """Put the external values of a tensor that cannot be mapped into the graph."""
    if _dtype(tensor) is not None:
        array = np.array(map_external(tensor, folder))
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        return
    location = next((e.value for e in tensor.external_data if e.key == "location"), "")
    _inside(folder, location, tensor.name)
    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def _densify(model: onnx.ModelProto) -> None:
    """Turn sparse initializers and constants, flat or by coordinates, into ordinary ones."""
    graph = model.graph
    graph.initializer.extend(map(_dense, graph.sparse_initializer))
    del graph.sparse_initializer[:]
    for node in every_node(model):
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("sparse_tensor"):
                dense = _dense(attribute.sparse_tensor)
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Return a sparse tensor as an ordinary one. Raises ModelError where it takes too much."""
    values = onnx.numpy_helper.to_array(sparse.values)
    places = onnx.numpy_helper.to_array(sparse.indices)
    # The array, its bytes in the graph, and the copy that keeps them.
    if trouble := too_large(3 * math.prod(sparse.dims) * values.dtype.itemsize):
        raise ModelError(
            f"the sparse weight {sparse.values.name!r} takes {trouble}",
            "export it with ordinary weights, or on a machine with more memory",
        )
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    dense[np.unravel_index(places, dense.shape) if places.ndim == 1 else tuple(places.T)] = values
    return onnx.numpy_helper.from_array(dense, sparse.values.name)


def _nested_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors but the main graph's: in nodes and functions, and parts of sparse ones."""
    graph = model.graph
    for message in (*graph.sparse_initializer, *graph.node, *model.functions):
        yield from _tensors_in(message)


def _tensors_in(message: Any) -> Iterator[onnx.TensorProto]:
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for submessage in (value,) if hasattr(value, "ListFields") else value:
                if isinstance(submessage, onnx.TensorProto):
                    yield submessage
                else:
                    yield from _tensors_in(submessage)
