"""Shapes behind shape arithmetic, which speed is estimated by."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from models import parse, save
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.node_views import tensor_shapes
from precision_bisect.graphs.shape_values import by_numpy, by_reference, with_shapes

POSITIONS = """(int64[batch, sequence] ids) => (float[b, s, 8] y)
<float[16, 8] words, int64[1, 32] places, float[32, 8] learnt, float[8, 8] w>
{
    shape = Shape (ids)
    one = Constant <value_int: int = 1> ()
    past = Constant <value_int: int = 0> ()
    length = Gather <axis = 0> (shape, one)
    end = Add (length, past)
    axis = Constant <value_ints: ints = [0]> ()
    last = Constant <value_ints: ints = [1]> ()
    ends = Unsqueeze (end, axis)
    place = Slice (places, axis, ends, last, last)
    position = Gather (learnt, place)
    word = Gather (words, ids)
    sum = Add (word, position)
    y = MatMul (sum, w)
}
"""


def test_positions_of_a_text_have_a_shape(tmp_path: Path) -> None:
    """Transformers slice their positions; without shapes no product of them would be counted."""
    proto = parse(POSITIONS)
    rng = np.random.default_rng(0)
    del proto.graph.initializer[:]
    stored: dict[str, np.ndarray] = {
        "words": rng.normal(size=(16, 8)).astype(np.float32),
        "places": np.arange(32, dtype=np.int64)[None],
        "learnt": rng.normal(size=(32, 8)).astype(np.float32),
        "w": rng.normal(size=(8, 8)).astype(np.float32),
    }
    for name, array in stored.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path = save(proto, tmp_path)
    shapes = tensor_shapes(load_model(path), {"ids": (2, 5)})
    y = onnxruntime.InferenceSession(path).run(None, {"ids": np.zeros((2, 5), np.int64)})[0]
    assert y.shape == shapes["y"] and (2, 5, 8) == shapes["sum"]
    # ONNX's own inference knows the others, and takes an unknown dimension for the other one's.
    assert (1, 5, 8) == shapes["position"]


def test_shapes_beside_outputs_that_no_node_makes(tmp_path: Path) -> None:
    """An input or a weight may be an output, too: what reads it keeps its shape."""
    proto = parse("""(float[n, 2] x) => (float[n, 2] x, float[2, 3] w, float[n, 3] y)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}> { a = MatMul (x, w) y = Exp (a) }""")
    shapes = tensor_shapes(load_model(save(proto, tmp_path)), {"x": (4, 2)})
    assert {"x": (4, 2), "w": (2, 3), "a": (4, 3), "y": (4, 3)} == shapes


PRODUCT = "() => (int64[n, m] y) <int64[1] column, int64[1] row> { y = Mul (row, column) }"
FILLED = """() => (int64[n, m] y) <int64[2] shape = {3000, 3000}> {
    filled = ConstantOfShape (shape)
    y = Identity (filled)
}"""


@pytest.mark.parametrize("how", ["weights", "constants", "filled"])
def test_what_is_no_shape_is_not_computed(how: str) -> None:
    """A file that spreads two vectors to a matrix would decide how much memory is taken."""
    proto = parse(FILLED if how == "filled" else PRODUCT)
    if how != "filled":
        numbers = np.arange(3000, dtype=np.int64)
        arrays = {"column": numbers, "row": numbers[:, None]}
        tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
        del proto.graph.initializer[:]
        if how == "weights":
            proto.graph.initializer.extend(tensors)
        for tensor in tensors if how == "constants" else ():
            node = onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
            proto.graph.node.insert(0, node)
    tracemalloc.start()
    with_shapes(proto)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3000 * 3000 * 8 / 2 and "Constant" != proto.graph.node[-1].op_type


COMMON: list[tuple[str, dict[str, object], list[object]]] = [
    ("Add", {}, [[3, 4], 5]),
    ("Where", {}, [[True, False], [1, 2], [3, 4]]),
    ("Concat", {"axis": 0}, [[1], [2, 3]]),
    ("Gather", {"axis": 0}, [[7, 8, 9], -1]),
    ("Gather", {}, [[[1, 2], [3, 4]], [1, 0]]),
    ("Unsqueeze", {}, [[7, 8], [0, 2]]),
    ("Reshape", {}, [[[1, 2, 3], [4, 5, 6]], [0, -1]]),
    ("Reshape", {}, [[[1, 2], [3, 4]], [4]]),
    ("Cast", {"to": onnx.TensorProto.INT32}, [[7, 8]]),
    ("Cast", {"to": onnx.TensorProto.BOOL}, [[0, 8]]),
    ("Slice", {}, [[1, 2, 3, 4], [1], [2**62]]),
    ("Slice", {}, [[1, 2, 3, 4], [-1], [-(2**62)], [0], [-2]]),
    ("Slice", {}, [[[1, 2], [3, 4]], [0], [1], [-1]]),
]


@pytest.mark.parametrize(("start", "end"), [(-9, -9), (-9, 0), (-4, -5), (9, -9), (1, 9)])
def test_a_slice_backwards_begins_within_the_tensor(start: int, end: int) -> None:
    """Python has nothing left of what begins before the first element, ONNX that element."""
    names, bounds = ["x", "start", "end", "axis", "step"], [[start], [end], [0], [-1]]
    node = onnx.helper.make_node("Slice", names, ["y"])
    arrays = [np.arange(4), *(np.array(bound, np.int64) for bound in bounds)]
    value_info = onnx.helper.make_tensor_value_info
    inputs = [value_info(name, onnx.TensorProto.INT64, None) for name in names]
    outputs = [value_info("y", onnx.TensorProto.INT64, None)]
    graph = onnx.helper.make_graph([node], "slice", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 18)]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(None, dict(zip(names, arrays, strict=True)))
    np.testing.assert_array_equal(by_numpy(node, arrays), expected, strict=True)


@pytest.mark.parametrize(("op_type", "settings", "read"), COMMON)
def test_common_arithmetic_comes_to_what_onnx_says(
    op_type: str, settings: dict[str, Any], read: list[object]
) -> None:
    """It is computed without ONNX's evaluator, which is slow to import: a slip would be ours."""
    arrays = [np.array(values) for values in read]
    names = [f"in{place}" for place in range(len(arrays))]
    node = onnx.helper.make_node(op_type, names, ["out"], **settings)
    value = by_numpy(node, arrays)
    opsets = [onnx.helper.make_opsetid("", 18)]
    proto = onnx.ModelProto(ir_version=10, opset_import=opsets)
    expected = by_reference(node, dict(zip(names, arrays, strict=True)), proto)
    assert value is not None
    np.testing.assert_array_equal(np.asarray(value), expected, strict=True)
