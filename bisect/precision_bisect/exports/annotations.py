"""What a model viewer shows of a layer: its precision, and why it needs it.

Nodes have metadata (`NodeProto.metadata_props`) since version 10 of ONNX's file format.
Older files keep their version, which tools go by, and tell the same in the node's documentation.
"""

import onnx

from precision_bisect.exports.export import Export

PREFIX = "precision_bisect"
_METADATA_SINCE = 10


def annotate(proto: onnx.ModelProto, export: Export) -> None:
    """Write the keys `precision_bisect.precision`, `.cause` and `.evidence` into nodes of a graph.

    The model has `precision_bisect.point`, the point of the curve that its plan is.

    Layers above the lowest precision have the first, diagnosed ones all. The evidence of a layer
    that was no candidate is why. Nodes keep what they had.
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
        told[layer.name] = {f"{PREFIX}.{key}": value for key, value in values.items()}
    key = f"{PREFIX}.point"
    kept = [each for each in proto.metadata_props if each.key != key]
    del proto.metadata_props[:]
    proto.metadata_props.extend([*kept, onnx.StringStringEntryProto(key=key, value=export.point)])
    for node in proto.graph.node:
        if values := told.get(node.name, {}):
            _write(node, values, proto.ir_version)


def _write(node: onnx.NodeProto, values: dict[str, str], ir_version: int) -> None:
    if ir_version >= _METADATA_SINCE:
        for key, value in values.items():
            node.metadata_props.add(key=key, value=value)
    else:
        lines = [f"{key}: {value}" for key, value in values.items()]
        node.doc_string = "\n".join(filter(None, (node.doc_string, *lines)))
