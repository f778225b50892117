"""Typed graphs as files: one weights file for all plans of a model, or one plan by itself."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.errors import ModelError, PrecisionBisectError
from precision_bisect.graphs.graph import all_graphs, copied, refill
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.quantization.scales import quantized
from precision_bisect.graphs.typed.shared_weights import SharedWeights
from precision_bisect.graphs.typed.typed_graph import (
    THREADS,
    TypedGraph,
    TypedWeight,
    converted,
    piece,
    scales_of,
    starts,
)
from precision_bisect.graphs.weights import Part, external_parts, pointing_to, take_weights
from precision_bisect.machine.plain_files import ROOM, whole, written
from precision_bisect.machine.threads import side_by_side

_WEIGHTS = "weights.bin"
# Bytes: the size of a page, so that readers can map each weight by itself.
_ALIGNMENT = 4096
# Bytes: protobuf's limit on a message.
_LARGEST_FILE = 2**31 - 1
# The wire type of bytes, text and messages: a length, then that many bytes.
_LENGTH_DELIMITED = 2


def write_weight(stream: IO[bytes], weight: TypedWeight) -> None:
    """Write the values of a weight in its type, in C order and little-endian, piece by piece."""
    for stored in side_by_side(partial(_stored, weight), starts(weight.source), THREADS):
        stream.write(stored.view(np.uint8).data)


def _stored(weight: TypedWeight, start: int) -> NDArray[Any]:
    """Return the piece of the weight's source that begins there, in the weight's type."""
    part = piece(weight.source, start)
    if weight.quantization is None:
        return converted(part, weight.dtype)
    scale = scales_of(weight.quantization.scale, weight.source.shape, start, part.size)
    return quantized(part, scale, weight.quantization.kind)


class SelfContained:
    """A typed graph as the bytes of one ONNX file, its large weights behind the small ones.

    Protobuf would hold the values three times: as they are made, in the message, and as its bytes.
    Here the large ones are written where the message has them, behind fields that protobuf
    serialized (https://protobuf.dev/programming-guides/encoding). `nbytes` is the file's size.
    """

    def __init__(self, typed: TypedGraph) -> None:
        graph = copied(typed.proto.graph)
        small = [tensor for tensor in graph.initializer if tensor.name not in typed.weights]
        stubs = [tensor for tensor in graph.initializer if tensor.name in typed.weights]
        self._weights = [
            (_tensor_up_to_values(stub, typed.weights[stub.name]), typed.weights[stub.name])
            for stub in stubs
        ]
        refill(graph.initializer, small)
        inner = graph.SerializeToString()
        values = sum(len(head) + weight.nbytes for head, weight in self._weights)
        model = copied(typed.proto)
        model.ClearField("graph")
        # Lengths stand before contents, so all sizes are summed before a byte is written.
        self._head = (
            model.SerializeToString()
            + _field(onnx.ModelProto, "graph", len(inner) + values)
            + inner
        )
        self.nbytes = len(self._head) + values

    def write(self, stream: IO[bytes]) -> None:
        stream.write(self._head)
        for head, weight in self._weights:
            stream.write(head)
            write_weight(stream, weight)


def _tensor_up_to_values(stub: onnx.TensorProto, weight: TypedWeight) -> bytes:
    """Return the bytes of an initializer up to its values, which end it."""
    tensor = onnx.TensorProto(name=stub.name, dims=stub.dims, data_type=stub.data_type)
    # Fields of a message may come in any order: `raw_data` is written last.
    head = tensor.SerializeToString() + _field(onnx.TensorProto, "raw_data", weight.nbytes)
    return _field(onnx.GraphProto, "initializer", len(head) + weight.nbytes) + head


def _field(message: type, name: str, length: int) -> bytes:
    """Return what precedes `length` bytes of a field: its number and wire type, and the length."""
    number = message.DESCRIPTOR.fields_by_name[name].number  # type: ignore[attr-defined]
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


def _varint(value: int) -> bytes:
    """Return a number as protobuf's varint: seven bits a byte, lowest first."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*digits, value))


class TypedFolder:
    """A folder in which the typed graphs of all plans of one writer share one weights file.

    A weight is appended once, when the first graph needs it, so a further trial writes only its
    small graph. Those that a data file of the model has in the same type are not copied if readers
    look for files from the `root` of the file system on: its pages are in memory already. Of its
    others in 16 bits, such readers may share the file in `shared` with those of other folders. The
    weights file is begun anew: graphs that an earlier object saved there lose their weights. Nodes
    have no documentation in them: TensorRT 8.6 and 9 write it behind a node's name in the metadata
    of layers. Several threads may save at a time. Raises RunFolderError where the folder cannot be
    written.
    """

    def __init__(self, path: Path, *, from_root: bool = False, shared: Path | None = None) -> None:
        self.path = path
        self.root = Path(path.absolute().anchor) if from_root else None
        self._shared = None if shared is None else SharedWeights(shared)
        self._location = _WEIGHTS if self.root is None else _below(self.root, path / _WEIGHTS)
        self._places: dict[str, Part] = {}
        self._saving = threading.Lock()
        self._numbers = count()
        self._writing = partial(
            written, f"typed graphs to {path}", f"{ROOM}, then go on with --resume"
        )
        with self._writing():
            path.mkdir(parents=True, exist_ok=True)
            (path / _WEIGHTS).write_bytes(b"")

    def save(self, typed: TypedGraph, name: str) -> Path:
        """Write the graph under `name` in this folder and return its path.

        Raises RunFolderError where it cannot be written.
        """
        file = self.path / name
        # One at a time: offsets are those of the file's end.
        with self._writing(), self._saving:
            if new := {n: w for n, w in typed.weights.items() if n not in self._places}:
                self._place(new)
            proto = pointing_to(typed.proto, self._places)
            _clear_documentation(proto)
            file.write_bytes(proto.SerializeToString())
        return file

    def _place(self, weights: Mapping[str, TypedWeight]) -> None:
        """Note where each weight is, and append those that are nowhere. Raises OSError."""
        with ExitStack() as stack:
            stream = stack.enter_context((self.path / _WEIGHTS).open("ab"))
            shared: Callable[[TypedWeight], Part | None] | None = None
            if self._shared is not None and self.root is not None:
                location = _below(self.root, self._shared.file)
                append = partial(_append, location=location)
                shared = stack.enter_context(self._shared.appending(append))
            for name, weight in weights.items():
                place = self._own(weight) or (shared and shared(weight))
                self._places[name] = place or _append(stream, weight, self._location)

    def _own(self, weight: TypedWeight) -> Part | None:
        """Return where a data file of the model has a weight as it is stored; None for nowhere."""
        source = weight.source
        if not isinstance(source, np.memmap) or not source.filename or not weight.as_it_is:
            return None
        file = Path(source.filename)
        # Windows has a root for each drive.
        if self.root is None or Path(file.absolute().anchor) != self.root:
            return None
        return Part(location=_below(self.root, file), offset=source.offset, length=source.nbytes)

    @contextmanager
    def saved(self, typed: TypedGraph) -> Iterator[Path]:
        """Yield the path of the graph, which has a name of its own and is gone afterwards.

        Raises RunFolderError where it cannot be written.
        """
        file = self.save(typed, f"model-{next(self._numbers)}.onnx")
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)


def _below(root: Path, file: Path) -> str:
    return file.absolute().relative_to(root).as_posix()


def save_typed(typed: TypedGraph, path: Path, *, again: bool = False) -> None:
    """Write a typed graph by itself: one file below protobuf's 2 GiB, else with a data file.

    The data file lies beside `path` and has its name with `.data` appended; `again` tells that it
    is there already. Each file appears complete under its name, or the old one stays. Weights pass
    through memory in pieces. Raises OSError where the files cannot be written.
    """
    contained = SelfContained(typed)
    data = path.with_name(f"{path.name}.data")
    again = again and data.exists()
    if contained.nbytes <= _LARGEST_FILE and not again:
        with whole(path) as stream:
            contained.write(stream)
        return
    # The data first: a graph without its data would be damaged, data without a graph is only in
    # the way.
    places = dict(_places(typed, data.name))
    if not again:
        with whole(data) as stream:
            for weight in typed.weights.values():
                _append(stream, weight, data.name)
    with whole(path) as stream:
        stream.write(pointing_to(typed.proto, places).SerializeToString())


def save_rewritten(
    proto: onnx.ModelProto,
    weights: Mapping[str, NDArray[Any]],
    path: Path,
    what: str,
    *,
    like: Model,
) -> Model:
    """Write a graph whose stubs stand for `weights`, and return it as it is read from that file.

    It is made of the model that it is `like`, and gets the interface of that. `what` it is stands
    in the error. The folder is made if it is not there. Raises ModelError.
    """
    like.of_file.declare(proto)
    _write(proto, weights, path, what)
    return replace(
        load_model(path),
        interface=like.interface,
        in_low=like.in_low,
        written_out=like.written_out,
    )


def _write(
    proto: onnx.ModelProto, weights: Mapping[str, NDArray[Any]], path: Path, what: str
) -> None:
    stored = {name: TypedWeight(source=w, dtype=w.dtype) for name, w in weights.items()}
    with written(what, ROOM, ModelError):
        path.parent.mkdir(exist_ok=True)
        save_typed(TypedGraph(proto=proto, weights=stored), path)


def save_given(model: object, path: Path) -> None:
    """Write a model that is in no file; it is not changed. Who reads the file checks it.

    Raises ModelError for what is no `onnx.ModelProto`, and where its weights are in files: from
    which folder it does not say.
    """
    if not isinstance(model, onnx.ModelProto):
        raise ModelError(f"model cannot be {model!r}", "give a path or an onnx.ModelProto")
    if external_parts(model):
        raise ModelError(
            "the model has weights in other files", "load them, too: onnx.load(path), or give path"
        )
    proto = copied(model)
    try:
        weights = take_weights(proto, path.parent)
    except PrecisionBisectError:
        raise
    except Exception as error:  # any field may be nonsense, as in a file
        why = f"{type(error).__name__}: {error}"
        raise ModelError(f"the model is damaged: {why}", "export it again") from error
    _write(proto, weights, path, "the model")


def _append(stream: IO[bytes], weight: TypedWeight, location: str) -> Part:
    """Append a weight in its type, aligned, to the file at `location`; return where it is."""
    stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
    offset = stream.tell()
    write_weight(stream, weight)
    return Part(location=location, offset=offset, length=weight.nbytes)


def _places(typed: TypedGraph, location: str) -> Iterator[tuple[str, Part]]:
    """Yield the name of each weight with where `_append` puts it."""
    end = 0
    for name, weight in typed.weights.items():
        offset = end + -end % _ALIGNMENT
        end = offset + weight.nbytes
        yield name, Part(location=location, offset=offset, length=weight.nbytes)


def remove_origins(proto: onnx.ModelProto, ours: str) -> None:
    """Remove documentation, and metadata whose keys do not begin as `ours` do.

    Exporters write there which files of theirs a node comes from.
    """
    graphs, functions = list(all_graphs(proto.graph)), proto.functions
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for function in functions for node in function.node]
    values = [v for graph in graphs for v in (*graph.input, *graph.output, *graph.value_info)]
    tensors = [tensor for graph in graphs for tensor in graph.initializer]
    parts: list[Any] = [proto, *graphs, *functions, *nodes, *values, *tensors]
    for part in parts:
        part.ClearField("doc_string")
        kept = [entry for entry in part.metadata_props if entry.key.startswith(f"{ours}.")]
        del part.metadata_props[:]
        part.metadata_props.extend(kept)


def _clear_documentation(proto: onnx.ModelProto) -> None:
    nodes = [node for graph in all_graphs(proto.graph) for node in graph.node]
    for node in (*nodes, *(node for function in proto.functions for node in function.node)):
        node.ClearField("doc_string")
