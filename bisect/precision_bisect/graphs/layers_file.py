"""Writing `layers.json`: every node of a model, in its run's folder."""

from collections.abc import Mapping, Sequence

from precision_bisect.graphs.graph import captured
from precision_bisect.graphs.load import Model
from precision_bisect.layer_table import Exclusion, Layer
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.model_layers import ModelLayers, Row
from precision_bisect.runs.runfolder import LAYERS, RunFolder

# What feeds a follower beside the values that it moves: indices, shapes, conditions.
_NO_VALUES = (Exclusion.CONSTANT, Exclusion.SHAPE, Exclusion.NOT_FLOAT, Exclusion.NOT_TENSOR)


def write_layers(model: Model, folder: RunFolder) -> None:
    """Write the file, as docs/report.md describes it. Raises RunFolderError."""
    contents = ModelLayers(model=model.path.name, layers=_rows(model))
    folder.write(LAYERS, plain_json.dumps(contents) + "\n")


def _rows(model: Model) -> list[Row]:
    """Return one row per node of the main graph, in network order."""
    layers = model.table.layers
    places = {layer.name: place for place, layer in enumerate(model.table.candidates)}
    producers: dict[str, int] = {}
    follows: dict[int, int | None] = {}
    rows: list[Row] = []
    for index, (node, layer) in enumerate(zip(model.proto.graph.node, layers, strict=True)):
        # Subgraphs read tensors of the graph around them without naming them as inputs.
        read = (*node.input, *sorted(captured(node)))
        inputs = list(dict.fromkeys(producers[name] for name in read if name in producers))
        follows[index] = _source(layer, inputs, layers, follows)
        rows.append(
            Row(
                name=layer.name,
                op=layer.op_type,
                module=layer.module,
                candidate=places.get(layer.name),
                exclusion=layer.exclusion,
                detail=layer.detail if layer.exclusion else "",
                follows=follows[index],
                inputs=inputs,
            )
        )
        producers.update(dict.fromkeys(layer.outputs, index))
    return rows


def _source(
    layer: Layer, inputs: list[int], layers: Sequence[Layer], follows: Mapping[int, int | None]
) -> int | None:
    """Return the layer whose values a follower moves, through other followers; the first of many.

    None for what is no follower, and for one that moves the model's inputs or constants.
    """
    if layer.exclusion is not Exclusion.FOLLOWER:
        return None
    feeding = [i for i in inputs if layers[i].exclusion not in _NO_VALUES]
    if not feeding:
        return None
    first = feeding[0]
    return follows[first] if layers[first].exclusion is Exclusion.FOLLOWER else first
