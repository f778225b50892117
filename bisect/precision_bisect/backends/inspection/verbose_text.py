"""The layers of an engine from what TensorRT 10 and later and TensorRT-RTX log while they build.

With detailed profiling and a verbose logger one message begins with `Layers:` and has a line per
engine layer. It comes on a machine without a GPU, too, where nothing can be deserialized and
asked. Names of tensors and nodes stand in it unescaped, and models are untrusted. So fields are
found by their fixed keys, one after the other, and what cannot be read is left out.

TensorRT 10 writes types and layouts as one phrase, weights as `Weights: {"Type": "Half", ...}`,
and constants among the inputs; later libraries list constants by themselves.
"""

import re
from collections.abc import Iterator

from precision_bisect.backends.inspection.engine_layers import (
    EngineLayer,
    EngineTensor,
    normal_type,
    onnx_nodes,
    sort_out,
)

_HEADER = "Layers:\n"
_ENDS = ("\n\nI/O Tensors:", "\n\nBindings:")
_LINE = re.compile(r"\n(?=Name: )")
_KIND = re.compile(r"\w*")
# Digits are bounded: the text is untrusted, and Python refuses to convert thousands of them.
_DIMENSIONS = re.compile(r", Dimensions: \[((?:-?\d{1,18}(?:,-?\d{1,18})*)?)\]")
_DATATYPE = re.compile(r"Datatype: (.*?)(?:, Format: | \}|\Z)", re.S)
_HELD = re.compile(r', (\w+): \{"Type": "(\w+)", "Count": (\d{1,18})\}')


def parse_layers(text: str) -> list[EngineLayer]:
    """Return the engine layers that the message lists, in its order; [] for any other text."""
    _, header, body = text.partition(_HEADER)
    if not header:
        return []
    end = next((end for end in _ENDS if end in body), "")
    # The last end counts: a name may hold the words of an end.
    lines = _LINE.split(body.rpartition(end)[0] if end else body)
    return [layer for line in lines if (layer := _layer(line.strip("\n"))) is not None]


def _layer(line: str) -> EngineLayer | None:
    head, stream, tail = line.partition(", StreamId: ")
    name, typed, rest = head.removeprefix("Name: ").partition(", LayerType: ")
    if not stream or not typed or not line.startswith("Name: "):
        return None
    kind = _KIND.match(rest)
    tensors, _, tactic = rest.partition(", TacticName: ")
    before, _, outputs = tensors.partition("], Outputs: [")
    read, _, listed = before.partition("], Constants: [")
    inputs, constants = sort_out(_tensors(read))
    return EngineLayer(
        name=name,
        kind=kind.group() if kind else "",
        inputs=inputs,
        outputs=tuple(_tensors(outputs)),
        constants=(*constants, *_tensors(listed), *_held(outputs)),
        tactic=tactic.partition(", TacticValue: ")[0],
        nodes=onnx_nodes(tail.partition(", Metadata: ")[2]),
    )


def _tensors(section: str) -> Iterator[EngineTensor]:
    for entry in section.split("{ Name: ")[1:]:
        name = entry.partition(", Location: ")[0].partition(", Dimensions: [")[0]
        dims = _DIMENSIONS.search(entry, len(name))
        dtype = _DATATYPE.search(entry, dims.end()) if dims else None
        if dims is None or dtype is None:
            continue
        yield EngineTensor(
            name=name,
            dtype=normal_type(dtype.group(1)),
            dims=tuple(int(d) for d in dims.group(1).split(",") if d),
            format=entry.partition(", Format: ")[2].partition(" }")[0] or dtype.group(1),
        )


def _held(section: str) -> Iterator[EngineTensor]:
    """Yield the weights that stand among the parameters, behind the outputs."""
    for name, dtype, count in _HELD.findall(section.rpartition(" }]")[2]):
        yield EngineTensor(name=name, dtype=normal_type(dtype), dims=(int(count),))
