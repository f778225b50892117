"""Typed graphs as files: one weights file for all plans of a model, or one plan by itself."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

import onnx

from precision_bisect.errors import RunFolderError
from precision_bisect.machine.atomic import whole
from precision_bisect.model.graph import all_graphs
from precision_bisect.typed.typed_graph import TypedGraph, TypedWeight
from precision_bisect.typed.wire import SelfContained, write_weight

_WEIGHTS = "weights.bin"
_ALIGNMENT = 4096
"""Bytes: the size of a page, so that readers can map each weight by itself."""
_LARGEST_FILE = 2**31 - 1
"""Bytes: protobuf's limit on a message."""

Places = Mapping[str, tuple[int, int]]
"""Offset and length, in bytes, of each weight in its file."""


class TypedFolder:
    """A folder in which the typed graphs of all plans of one writer share one weights file.

    A weight is appended once, when the first graph needs it, so a further trial writes only its
    small graph. The weights file is begun anew: graphs that an earlier object saved there lose
    their weights. Nodes have no documentation in them: TensorRT 8.6 and 9 write it behind a node's
    name in the metadata of layers. Several threads may save at a time. Raises RunFolderError where
    the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}
        self._saving = threading.Lock()
        self._numbers = count()
        with _explained(path):
            path.mkdir(parents=True, exist_ok=True)
            (path / _WEIGHTS).write_bytes(b"")

    def save(self, typed: TypedGraph, name: str) -> Path:
        """Write the graph under `name` in this folder and return its path.

        Raises RunFolderError where it cannot be written.
        """
        file = self.path / name
        # One at a time: offsets are those of the file's end.
        with _explained(self.path), self._saving:
            with (self.path / _WEIGHTS).open("ab") as stream:
                for weight_name, weight in typed.weights.items():
                    if weight_name not in self._places:
                        self._places[weight_name] = _append(stream, weight)
            proto = _pointing_to(typed.proto, _WEIGHTS, self._places)
            _clear_documentation(proto)
            file.write_bytes(proto.SerializeToString())
        return file

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


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn OSError into RunFolderError, with the folder and what to do."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot write typed graphs to {folder}: {error.strerror}",
            "point TMPDIR to a writable folder with free space, then go on with --resume",
        ) from error


def save_typed(typed: TypedGraph, path: Path, *, again: bool = False) -> None:
    """Write a typed graph by itself: one file below protobuf's 2 GiB, else with a data file.

    The data file lies beside `path` and has its name with `.data` appended; `again` tells that it
    is there already. Each file appears complete under its name, or the old one stays. Weights pass
    through memory in pieces. Raises OSError where the files cannot be written.
    """
    contained = SelfContained(typed)
    if contained.nbytes <= _LARGEST_FILE:
        with whole(path) as stream:
            contained.write(stream)
        return
    data = path.with_name(f"{path.name}.data")
    # The data first: a graph without its data would be damaged, data without a graph is only in
    # the way.
    places = dict(_places(typed))
    if not again:
        with whole(data) as stream:
            for weight in typed.weights.values():
                _append(stream, weight)
    with whole(path) as stream:
        stream.write(_pointing_to(typed.proto, data.name, places).SerializeToString())


def _append(stream: IO[bytes], weight: TypedWeight) -> tuple[int, int]:
    """Append a weight in its type, aligned; return its offset and length in bytes."""
    stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
    offset = stream.tell()
    write_weight(stream, weight)
    return offset, weight.nbytes


def _places(typed: TypedGraph) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name of each weight with its offset and length, as `_append` puts them."""
    end = 0
    for name, weight in typed.weights.items():
        offset = end + -end % _ALIGNMENT
        end = offset + weight.nbytes
        yield name, (offset, weight.nbytes)


def _pointing_to(proto: onnx.ModelProto, location: str, places: Places) -> onnx.ModelProto:
    """Return a copy whose stubs say where in the file `location` their values are."""
    pointing = onnx.ModelProto()
    pointing.CopyFrom(proto)
    for tensor in pointing.graph.initializer:
        if tensor.name in places and tensor.data_location == onnx.TensorProto.EXTERNAL:
            offset, length = places[tensor.name]
            del tensor.external_data[:]
            for key, value in (("location", location), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
    return pointing


def _clear_documentation(proto: onnx.ModelProto) -> None:
    nodes = [node for graph in all_graphs(proto.graph) for node in graph.node]
    for node in (*nodes, *(node for function in proto.functions for node in function.node)):
        node.ClearField("doc_string")
