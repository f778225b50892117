"""Models in a row, and the verdicts on their layers as words."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models import keeping, save
from precision_bisect.backends.inspection.engine_layers import EngineLayer
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import Pair
from precision_bisect.trial import LayerHonour

FP16 = Pair(low="fp16", high="fp32")


def chain(
    folder: Path, nodes: Mapping[str, str], weights: Mapping[str, Sequence[tuple[int, ...]]]
) -> Model:
    """Return a model of these nodes in a row, by name their operator, each with its weights."""
    made, tensor = [], "x"
    arrays: dict[str, NDArray[np.float32]] = {}
    for number, (name, op_type) in enumerate(nodes.items()):
        own = [f"w{number}_{i}" for i, _ in enumerate(weights.get(name, ()))]
        arrays |= {
            w: np.ones(shape, np.float32)
            for w, shape in zip(own, weights.get(name, ()), strict=True)
        }
        made.append(helper.make_node(op_type, [tensor, *own], [f"t{number}"], name))
        tensor = f"t{number}"
    ends = [helper.make_tensor_value_info(t, TensorProto.FLOAT, None) for t in ("x", tensor)]
    graph = helper.make_graph(
        made, "g", ends[:1], ends[1:], [numpy_helper.from_array(a, w) for w, a in arrays.items()]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(save(proto, folder))


def verdicts(
    model: Model, layers: Sequence[EngineLayer], *, typed: bool = False
) -> dict[str, str]:
    """Return the verdict on every candidate, as if all were kept."""
    plan = keeping(model, *model.table.names)
    graph = TypedWriter(model, FP16).write(plan) if typed else None
    return words(judge_layers(model, plan, graph, layers, FP16))


def words(judged: Sequence[LayerHonour]) -> dict[str, str]:
    """Return the verdicts as words, by layer."""
    return {entry.layer: entry.honoured.value for entry in judged}
