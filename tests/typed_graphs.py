"""What typed graphs are held against: a run that rounds as they say, and rules on structure."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from precision_bisect.graphs.graph import HALF_TYPES
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import FP16, LowType
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.layer_table import Exclusion
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair


def types_of(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the element types of the main graph's tensors, as strict inference finds them."""
    graph = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        types[value.name] = value.type.tensor_type.elem_type
    return types


def simulated(typed: onnx.ModelProto) -> onnx.ModelProto:
    """Return an FP32 graph that computes what a typed one says: every 16-bit value is rounded.

    What a node writes in a 16-bit type goes through a round trip, initializers of such a type hold
    the same values in FP32, and all else is as it was, QuantizeLinear and its like included.
    """
    types = types_of(typed)
    proto = onnx.ModelProto()
    proto.CopyFrom(typed)
    graph = proto.graph
    del graph.node[:], graph.value_info[:]
    for tensor in graph.initializer:
        if tensor.data_type in HALF_TYPES:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for node in typed.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.op_type == "Cast" and types[node.output[0]] in HALF_TYPES:
            copy.CopyFrom(helper.make_node("Identity", node.input, node.output))
        rounded = [(i, n) for i, n in enumerate(node.output) if types.get(n) in HALF_TYPES]
        for i, name in rounded:
            copy.output[i] = f"{name}/exact"
        graph.node.append(copy)
        for _, name in rounded:
            graph.node.append(
                helper.make_node("Cast", [f"{name}/exact"], [f"{name}/low"], to=types[name])
            )
            graph.node.append(
                helper.make_node("Cast", [f"{name}/low"], [name], to=TensorProto.FLOAT)
            )
    return proto


def run_as_written(proto: onnx.ModelProto, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a graph on one thread without any optimization, so that no Cast can be dropped."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def check_structure(model: Model, typed: onnx.ModelProto) -> None:
    """Assert what holds for the typed graph of any plan: names, Casts, and who keeps its types."""
    graph = typed.graph
    names = [node.name for node in graph.node]
    assert len(set(names)) == len(names) and all(names)
    assert list(model.proto.graph.input) == list(graph.input)
    assert list(model.proto.graph.output) == list(graph.output)
    own = {node.name for node in model.proto.graph.node}
    casts = {n.output[0]: n for n in graph.node if n.name not in own and n.op_type == "Cast"}
    directions = Counter((node.input[0], node.attribute[0].i) for node in casts.values())
    assert set(directions.values()) <= {1}
    assert not any(node.input[0] in casts for node in casts.values())
    read = {name for node in graph.node for name in node.input} | {o.name for o in graph.output}
    assert all(tensor.name in read for tensor in graph.initializer)
    types = types_of(typed)
    nodes = {node.name: node for node in graph.node}
    movable = (None, Exclusion.FOLLOWER, Exclusion.CONSTANT, Exclusion.PINNED)
    for layer, node in zip(model.table.layers, model.proto.graph.node, strict=True):
        if layer.exclusion in movable or layer.op_type in ("Shape", "Size"):
            continue
        for new, old in zip(
            (*nodes[node.name].input, *nodes[node.name].output),
            (*node.input, *node.output),
            strict=True,
        ):
            assert not old or types.get(new) == model.elem_types.get(old), f"{node.name}: {old}"


def checked(model: Model, plan: Plan, low: LowType = FP16) -> TypedGraph:
    """Return the typed graph of a plan that passes the checker and keeps the rules."""
    typed = TypedWriter(model, Pair(low=low.name, high="fp32")).write(plan)
    path = model.path.with_name("typed.onnx")
    save_typed(typed, path)
    onnx.checker.check_model(path, full_check=True)
    check_structure(model, onnx.load(path))
    return typed


def casts(typed: TypedGraph) -> list[str]:
    """Return what the Casts that were added do: the tensor and the type it goes to."""
    prefix = "precision_bisect/cast/"
    names = (node.name for node in typed.proto.graph.node)
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def guarded(typed: TypedGraph) -> list[str]:
    """Return the layers of which an input has a guard, in network order."""
    prefix = "precision_bisect/guard/"
    names = [each.name for each in typed.proto.graph.node if each.name.startswith(prefix)]
    return [name.removeprefix(prefix).rpartition("/")[0] for name in names]
