"""Recurrences under the emulator: their state is rounded at every step, and nothing else."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from effort import nightly
from models import load_text, normal, parse, save, with_weights
from precision_bisect.backends.emulation.cudnn_cells import in_cudnn
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.recurrences import Recurrences, unpredicted
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import FP16, LowType
from precision_bisect.graphs.node_views import View
from precision_bisect.graphs.ort import Session
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, LowName
from precision_bisect.protocols import Sample
from precision_bisect.settings.targets import TargetName

STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 2, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ROUNDS_NOTHING = LowType(
    name="fp16",
    onnx_type=onnx.TensorProto.FLOAT,
    numpy_type=np.dtype(np.float32),
    largest=np.inf,
    smallest_normal=0.0,
    digits=24,
    lowest_opset=1,
)
LOWEST = Plan.of(())


def both(model: Model, feed: Sample, low: LowName = "fp16") -> tuple[Sample, Sample]:
    """Return the outputs with every layer high, and with every layer low."""
    backend = EmulatedBackend(model, low, threads=1)
    high = backend.evaluate(Plan.all_high(len(model.table.candidates)), feed)
    return high, backend.evaluate(LOWEST, feed)


def stepped(model: Model, low: LowType, feed: Sample, target: TargetName = "tensorrt") -> Sample:
    """Return the outputs of a model whose only node is written step by step."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    (node,) = proto.graph.node
    opset = max(each.version for each in proto.opset_import)
    nodes = Recurrences(View(model), opset, target).written(node, node, low)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return Session(proto, model.weights, threads=1).run(feed)


def cell(
    folder: Path,
    op_type: str,
    direction: str,
    opset: int,
    optional: bool,
    *,
    peepholes: bool = True,
    **attributes: Any,
) -> Model:
    """Return a model of one LSTM, GRU or RNN, with all its optional inputs or none."""
    ways, states = 1 + (direction == "bidirectional"), 1 + (op_type == "LSTM")
    rows = GATES[op_type] * HIDDEN
    weights = {"w": normal(ways, rows, WIDTH), "r": normal(ways, rows, HIDDEN, seed=1)}
    inputs = ["x", "w", "r"]
    if optional:
        weights["b"] = normal(ways, 2 * rows, seed=2)
        weights |= {f"s{i}": normal(ways, BATCH, HIDDEN, seed=3 + i) for i in range(states)}
        inputs += ["b", "lengths", *(f"s{i}" for i in range(states))]
    if optional and op_type == "LSTM" and peepholes:
        weights["p"] = normal(ways, 3 * HIDDEN, seed=5)
        inputs.append("p")
    outputs = ["y", "y_h", "y_c"][: 1 + states]
    attributes |= {"hidden_size": HIDDEN, "direction": direction}
    node = helper.make_node(op_type, inputs, outputs, name="cell", **attributes)
    floats = onnx.TensorProto.FLOAT
    feeds = [helper.make_tensor_value_info("x", floats, [STEPS, BATCH, WIDTH])]
    if optional:
        feeds.append(helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, [BATCH]))
    ends = [helper.make_tensor_value_info(name, floats, None) for name in outputs]
    graph = helper.make_graph([node], "g", feeds, ends)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return load_model(save(with_weights(proto, weights), folder))


@pytest.mark.parametrize("opset", [9, 18, *nightly(11, 14)])
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", list(GATES))
def test_steps_of_a_cell_make_the_cell(
    tmp_path: Path, op_type: str, direction: str, optional: bool, opset: int
) -> None:
    """Where nothing is rounded, the steps return what the operator does, lengths and all."""
    model = cell(tmp_path, op_type, direction, opset, optional)
    feed: Sample = {"x": normal(STEPS, BATCH, WIDTH, seed=9)}
    if optional:
        feed = {**feed, "lengths": np.array([5, 2, 3], np.int32)}
    expected = Session(model.proto, model.weights, threads=1).run(feed)
    found = stepped(model, ROUNDS_NOTHING, feed)
    assert list(expected) == list(found)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6)
    low = stepped(model, FP16, feed)
    np.testing.assert_array_equal(low["y"], FP16.round(low["y"]))
    np.testing.assert_allclose(low["y"], expected["y"], atol=0.01)


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("op_type", list(GATES))
def test_operations_of_cudnn_make_the_cell(
    tmp_path: Path, op_type: str, direction: str, optional: bool, opset: int
) -> None:
    """Where nothing is rounded, the cell in cuDNN's operations is the cell."""
    how = {"linear_before_reset": 1} if op_type == "GRU" else {}
    model = cell(tmp_path, op_type, direction, opset, optional, peepholes=False, **how)
    assert in_cudnn(model.proto.graph.node[0])
    feed: Sample = {"x": normal(STEPS, BATCH, WIDTH, seed=9)}
    if optional:
        feed = {**feed, "lengths": np.array([5, 2, 3], np.int32)}
    expected = Session(model.proto, model.weights, threads=1).run(feed)
    found = stepped(model, ROUNDS_NOTHING, feed, "onnxruntime")
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)
    low = stepped(model, FP16, feed, "onnxruntime")
    # More is stored than the state alone.
    assert not np.array_equal(low["y"], stepped(model, FP16, feed)["y"])


def test_what_cudnn_loses_of_a_small_number(tmp_path: Path) -> None:
    """Its tanh of less than 2.4e-4 is 0 in FP16; rounding the state alone keeps it."""
    text = (
        "(float[1,1,1] x) => (float[1,1,1,1] y) <float[1,1,1] w = {1}, float[1,1,1] r = {1}>"
        " { y = RNN<hidden_size = 1>(x, w, r) }"
    )
    model = load_text(text, tmp_path)
    feed: Sample = {"x": np.full((1, 1, 1), 2e-4, np.float32)}
    elsewhere, there = (
        EmulatedBackend(model, targets=[target]).evaluate(LOWEST, feed)["y"].item()
        for target in ("tensorrt", "onnxruntime")
    )
    assert (elsewhere, there) == (pytest.approx(2e-4, rel=1e-3), 0.0)


@pytest.mark.parametrize(
    "attributes",
    [{"clip": 1.0}, {"activations": ["Elu", "Tanh"]}, {"linear_before_reset": 0}],
)
def test_what_runs_on_the_cpu_is_not_taken_apart(
    tmp_path: Path, attributes: dict[str, Any]
) -> None:
    """ONNX Runtime gives cuDNN no cell that it does not have."""
    how = {"linear_before_reset": 1} | attributes
    model = cell(tmp_path, "GRU", "forward", 18, False, **how)
    (node,) = model.proto.graph.node
    assert not in_cudnn(node)
    # In FP32 from end to end: no state is rounded between steps.
    assert not Recurrences(View(model), 18, "onnxruntime").has_steps(node)
    assert Recurrences(View(model), 18).has_steps(node)


@pytest.mark.parametrize(("exclusive", "reverse", "axis"), [*product((0, 1), (0, 1), (0, 1, -1))])
def test_steps_of_a_sum_make_the_sum(
    tmp_path: Path, exclusive: int, reverse: int, axis: int
) -> None:
    """A cumulative sum goes along its axis, either way, with or without the last value."""
    how = f"exclusive = {exclusive}, reverse = {reverse}"
    text = f"(float[a,b] x) => (float[a,b] y) {{ y = CumSum<{how}>(x, axis) }}"
    proto = with_weights(parse(text), {"axis": np.array(axis)})
    model = load_model(save(proto, tmp_path))
    feed = {"x": normal(3, 4)}
    expected = Session(model.proto, model.weights, threads=1).run(feed)
    np.testing.assert_allclose(stepped(model, ROUNDS_NOTHING, feed)["y"], expected["y"], rtol=1e-6)


@pytest.mark.parametrize(("low", "stall"), [("fp16", 1024.0), ("bf16", 128.0)])
def test_a_counter_stalls(tmp_path: Path, low: LowName, stall: float) -> None:
    """A sum of halves stops where a half is below half a step of the type, and only if low."""
    proto = with_weights(
        parse("(float[4096] x) => (float[4096] y) { y = CumSum(x, axis) }"),
        {"axis": np.array(0)},
    )
    model = load_model(save(proto, tmp_path))
    high, lowest = both(model, {"x": np.full(4096, 0.5, np.float32)}, low)
    assert (2048.0, stall) == (high["y"][-1], lowest["y"][-1])


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("op_type", ["RNN", "LSTM"])
def test_the_state_of_a_cell_stalls(tmp_path: Path, op_type: str, low: LowName) -> None:
    """A cell whose state counts up stalls in low precision like the sum that it is."""
    rows = GATES[op_type]
    # Gates i, o, f, c: all open, and tanh(10) = 1 is added to the state of an LSTM each time.
    open_gates = np.array([[[0], [0], [0], [0]]][:1], np.float32)[:, :rows]
    bias = np.zeros((1, 2 * rows), np.float32)
    bias[0, :rows] = [30, 30, 30, 10] if op_type == "LSTM" else [0.5]
    recurrent = np.full((1, rows, 1), 0 if op_type == "LSTM" else 1, np.float32)
    how = "" if op_type == "LSTM" else ', activations = ["Affine"], activation_alpha = [1.0]'
    states = "unused, h, y" if op_type == "LSTM" else "unused, y"
    text = f"""(float[4096,1,1] x) => (float[1,1,1] y) {{
        {states} = {op_type}<hidden_size = 1{how}>(x, w, r, b) }}"""
    proto = with_weights(parse(text), {"w": open_gates, "r": recurrent, "b": bias})
    model = load_model(save(proto, tmp_path))
    high, lowest = both(model, {"x": np.zeros((4096, 1, 1), np.float32)}, low)
    step = 1.0 if op_type == "LSTM" else 0.5
    digits = 11 if low == "fp16" else 8
    np.testing.assert_allclose(high["y"].item(), 4096 * step, rtol=1e-4)
    assert 2.0**digits * step == lowest["y"].item()


def test_a_sum_along_an_axis_that_is_computed_is_one_step(tmp_path: Path) -> None:
    """What cannot be written in steps is rounded at its ends alone."""
    model = load_text(
        "(float[4096] x, int64 axis) => (float[4096] y) { y = CumSum(x, axis) }", tmp_path
    )
    assert "left to the engine" in unpredicted(model)
    feed = {"x": np.full(4096, 0.5, np.float32), "axis": np.array(0)}
    _, lowest = both(model, feed)
    assert lowest["y"][-1] == 2048.0
