"""16-bit floats of a graph, which ONNX Runtime's CPU provider would compute in FP32."""

from collections.abc import Iterator

import onnx

from precision_bisect.errors import RefusedError
from precision_bisect.graphs.graph import HALF_TYPES, all_graphs


def refuse_half_compute(proto: onnx.ModelProto) -> None:
    """Raise RefusedError if anything but a round trip of two Casts has a 16-bit float type."""
    if (offending := next(half_typed(proto), None)) is not None:
        raise RefusedError(
            f"{offending!r} has a 16-bit float type: ONNX Runtime's CPU provider would "
            "compute it in FP32 and the verdict would be false",
            "judge FP16 graphs on a GPU",
        )


def half_typed(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield the names of 16-bit tensors other than those between two Casts."""
    produced: set[str] = set()
    used: set[str] = set()
    for graph in all_graphs(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in HALF_TYPES:
                yield value.name
        # A tensor between two Casts is a round trip, which ONNX Runtime keeps as it is.
        yield from (t.name for t in graph.initializer if t.data_type in HALF_TYPES)
        used.update(output.name for output in graph.output)
        for node in graph.node:
            if node.op_type != "Cast":
                used.update(node.input)
            for attribute in node.attribute:
                if attribute.t.data_type in HALF_TYPES:
                    yield node.output[0]
                if attribute.name in ("to", "dtype") and attribute.i in HALF_TYPES:
                    produced.add(node.output[0])
    yield from sorted(produced & used)
