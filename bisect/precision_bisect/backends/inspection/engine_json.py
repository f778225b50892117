"""The layers of an engine from the JSON of TensorRT's engine inspector.

8.6 and 10.x join type and layout in `Format/Datatype`. They give types of weights in fields such
as `Weights` and `ConvBias`, and list the weights of kernels as inputs. 11.x splits type and layout
into `Datatype` and `Format`, and lists `Constants` (NVIDIA's page on migrating IEngineInspector
usage from 10.x to 11.x). Engines built without detailed profiling list only names.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from precision_bisect.backends.inspection.engine_layers import (
    EngineLayer,
    EngineTensor,
    normal_type,
    onnx_nodes,
    sort_out,
)

_PROFILE = re.compile(r" \[profile \d+\]\Z")
_TYPE_KEYS = ("Datatype", "DataType", "Format/Datatype")
_FORMAT_KEYS = ("Format", "Format/Datatype")


def parse_json(text: str) -> list[EngineLayer]:
    """Return the engine layers that an inspector's JSON lists; [] where it lists none.

    A layer occurs once per optimization profile. Fields of unexpected types count as absent.
    """
    try:
        # Metadata holds raw control characters, which strict JSON forbids.
        parsed = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return []
    layers = parsed.get("Layers") if isinstance(parsed, dict) else None
    return list(_layers(layers)) if isinstance(layers, list) else []


def _layers(entries: list[Any]) -> Iterator[EngineLayer]:
    for entry in entries:
        # Without detailed profiling an entry is only a name.
        if isinstance(entry, str):
            yield EngineLayer(name=_PROFILE.sub("", entry))
        elif isinstance(entry, dict):
            inputs, constants = sort_out(_tensors(entry.get("Inputs")))
            yield EngineLayer(
                name=_PROFILE.sub("", _text(entry, "Name")),
                kind=_text(entry, "LayerType"),
                inputs=inputs,
                outputs=tuple(_tensors(entry.get("Outputs"))),
                constants=(*constants, *_tensors(entry.get("Constants")), *_weights(entry)),
                tactic=_text(entry, "TacticName"),
                nodes=onnx_nodes(_text(entry, "Metadata")),
            )


def _tensors(entries: Any) -> Iterator[EngineTensor]:
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        dims = entry.get("Dimensions")
        yield EngineTensor(
            name=_text(entry, "Name"),
            dtype=normal_type(_text(entry, *_TYPE_KEYS)),
            dims=tuple(d for d in dims if isinstance(d, int)) if isinstance(dims, list) else (),
            format=_text(entry, *_FORMAT_KEYS),
        )


def _weights(layer: dict[str, Any]) -> Iterator[EngineTensor]:
    for key, entry in layer.items():
        if isinstance(entry, dict) and "Type" in entry:
            count = entry.get("Count")
            yield EngineTensor(
                name=key,
                dtype=normal_type(_text(entry, "Type")),
                dims=(count,) if isinstance(count, int) else (),
            )


def _text(entry: dict[str, Any], *keys: str) -> str:
    """Return the first of the fields that is there as text, else ""."""
    return next((entry[key] for key in keys if isinstance(entry.get(key), str)), "")
