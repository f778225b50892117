"""What a model viewer shows of a layer: its precision, and why it needs it.

Nodes have metadata (`NodeProto.metadata_props`) since version 10 of ONNX's file format.
Older files keep their version, which tools go by, and tell the same in the metadata of the model.
The documentation of nodes is left alone: TensorRT 8.6 and 9 take it for a part of their names.
"""

import json
from collections.abc import Mapping, Set

import onnx

from precision_bisect.exports.export import Export

METADATA_PREFIX = "precision_bisect"
LAYERS_KEY = f"{METADATA_PREFIX}.layers"
RUN_KEY = f"{METADATA_PREFIX}.run"
POINT_KEY = f"{METADATA_PREFIX}.point"
_KEYS = frozenset(f"{METADATA_PREFIX}.{key}" for key in ("precision", "cause", "evidence"))
_METADATA_SINCE = 10


def annotate(proto: onnx.ModelProto, export: Export) -> None:
    """Write the keys `precision_bisect.precision`, `.cause` and `.evidence` into nodes of a graph.

    The model has `precision_bisect.point`, the point of the curve that its plan is, and
    `precision_bisect.run`, what judged it (the run's fingerprint, with tolerance and versions), as
    JSON; where nodes cannot have metadata, `precision_bisect.layers` are their keys by name.

    Layers above the lowest precision have the first, diagnosed ones all. The evidence of a layer
    that was no candidate is why. Nodes keep what they had, but for these keys.
    """
    found = {each.layer: each for each in export.diagnosis}
    told: dict[str, dict[str, str]] = {}
    for layer in export.high_layers:
        values = {"precision": str(export.precisions[layer.name])}
        if layer.name in found:
            diagnosis = found[layer.name]
            values |= {"cause": diagnosis.cause, "evidence": diagnosis.evidence}
        elif layer.detail:
            values["evidence"] = layer.detail
        told[layer.name] = {f"{METADATA_PREFIX}.{key}": value for key, value in values.items()}
    model = {POINT_KEY: export.point, RUN_KEY: json.dumps(export.run)}
    if proto.ir_version < _METADATA_SINCE:
        model[LAYERS_KEY] = json.dumps(told)
    _set(proto, model, {POINT_KEY, RUN_KEY, LAYERS_KEY})
    if proto.ir_version >= _METADATA_SINCE:
        for node in proto.graph.node:
            _set(node, told.get(node.name, {}), _KEYS)


def _set(
    owner: onnx.ModelProto | onnx.NodeProto, values: Mapping[str, str], instead: Set[str]
) -> None:
    """Give values to keys of an owner, whose keys `instead` are dropped."""
    kept = [each for each in owner.metadata_props if each.key not in instead]
    if len(kept) < len(owner.metadata_props):
        del owner.metadata_props[:]
        owner.metadata_props.extend(kept)
    for key, value in values.items():
        # A result.json may have halves of surrogate pairs, which are no text.
        owner.metadata_props.add(key=key, value=value.encode("utf-8", "replace").decode())
