"""A graph with its weights as one protobuf message, written without holding it in memory.

Protobuf would hold the values three times: as they are made, in the message, and as its bytes.
Here the large values are written where the message has them, behind fields that protobuf
serialized. Wire format: https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.graphs.quantization.rounding import quantized
from precision_bisect.graphs.typed.chunks import chunks, converted, scales_of, side_by_side
from precision_bisect.graphs.typed.typed_graph import TypedGraph, TypedWeight

_LENGTH_DELIMITED = 2
"""The wire type of bytes, text and messages: a length, then that many bytes."""


def write_weight(stream: IO[bytes], weight: TypedWeight) -> None:
    """Write the values of a weight in its type, in C order and little-endian, piece by piece."""
    for stored in side_by_side(_stored, _placed(weight)):
        stream.write(stored.view(np.uint8).data)


def _placed(weight: TypedWeight) -> Iterator[tuple[TypedWeight, int, NDArray[Any]]]:
    """Yield the weight with each of its pieces, and where that begins."""
    start = 0
    for part in chunks(weight.source):
        yield weight, start, part
        start += part.size


def _stored(weight: TypedWeight, start: int, part: NDArray[Any]) -> NDArray[Any]:
    """Return the values from place `start` on, a part of the weight's source, in its type."""
    if weight.quantization is None:
        return converted(part, weight.dtype)
    scale = scales_of(weight.quantization.scale, weight.source.shape, start, part.size)
    return quantized(part, scale, weight.quantization.kind)


class SelfContained:
    """A typed graph as the bytes of one ONNX file, its large weights behind the small ones.

    `nbytes` is the size of the file.
    """

    def __init__(self, typed: TypedGraph) -> None:
        graph = onnx.GraphProto()
        graph.CopyFrom(typed.proto.graph)
        small = [tensor for tensor in graph.initializer if tensor.name not in typed.weights]
        stubs = [tensor for tensor in graph.initializer if tensor.name in typed.weights]
        self._weights = [
            (_tensor_up_to_values(stub, typed.weights[stub.name]), typed.weights[stub.name])
            for stub in stubs
        ]
        del graph.initializer[:]
        graph.initializer.extend(small)
        inner = graph.SerializeToString()
        values = sum(len(head) + weight.nbytes for head, weight in self._weights)
        model = onnx.ModelProto()
        model.CopyFrom(typed.proto)
        model.ClearField("graph")
        # Lengths stand before contents, so all sizes are summed before a byte is written.
        self._head = (
            model.SerializeToString()
            + _field(onnx.ModelProto, "graph", len(inner) + values)
            + inner
        )
        self.nbytes = len(self._head) + values

    def write(self, stream: IO[bytes]) -> None:
        """Write all bytes."""
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
