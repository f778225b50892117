"""From a plan to marks: they are what TensorRT's parser finds in FP32 in the typed graph."""

import random
import tempfile
from pathlib import Path

import onnx
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from models import save
from precision_bisect.backends.tensorrt.build import Marks, prepare_network
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.high_nodes import told
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from random_graphs import KINDS, random_models
from weak_networks import Parsed, handles_floats, markable, parsed
from wider_graphs import IMAGES, MOVERS, WiderMaker

OPERATORS = (*KINDS, *IMAGES, *MOVERS, "Clip", "ConstantChain", "If", "TopK", "Where")
"""All but powers of integers, which the parser computes in FP32 whatever the types say."""


def types_of_nodes(held: Parsed, names: set[str]) -> dict[str, set[str]]:
    """Return for each node the types of the floats that its layers return, by their metadata."""
    found: dict[str, set[str]] = {}
    for layer in held.layers:
        name = layer.metadata.removeprefix("[ONNX Layer: ").removesuffix("]").partition(" | ")[0]
        outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
        floats = {tensor.dtype.name for tensor in outputs} & {"FLOAT", "HALF"}
        if name in names and floats and layer.type.name != "CAST":
            found.setdefault(name, set()).update(floats)
    return found


@given(proto=random_models(WiderMaker, OPERATORS), choose=st.randoms(use_true_random=False))
@examples(10)
def test_marks_are_the_typed_graph(
    rtx: Flavour, proto: onnx.ModelProto, choose: random.Random
) -> None:
    """Node by node: marked where TensorRT's parser finds FP32 in model.mixed.onnx, else not."""
    with tempfile.TemporaryDirectory() as place:
        model = load_model(save(proto, Path(place)))
        writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
        count = len(model.table.names)
        plan = Plan.of(choose.sample(range(count), count // 2))
        save_typed(writer.write(plan, guard_islands=False), Path(place) / "typed.onnx")
        strong = parsed(rtx.module, onnx.load(Path(place) / "typed.onnx"))
    weak = parsed(rtx.module, proto)
    with markable(rtx.module) as noted:
        marks = Marks(kept=(), high=told(writer.high_nodes(plan), model.table), low="fp16")
        prepare_network(marks, [], weak.network)
    names = {node.name for node in proto.graph.node}
    types = types_of_nodes(strong, names)
    for layer in weak.layers:
        name = layer.metadata.removeprefix("[ONNX Layer: ").removesuffix("]").partition(" | ")[0]
        if name in types and handles_floats(layer):
            assert types[name] == ({"FLOAT"} if layer.name in noted.precision else {"HALF"}), name
