"""What keeping layers costs, from real graphs."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from effort import examples
from models import parse
from paced import chain
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.node_views import tensor_shapes
from precision_bisect.graphs.typed.as_written import casts_added, weight_bytes
from precision_bisect.graphs.typed.rewrite import writer_of
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph, Value
from precision_bisect.precisions import Pair
from precision_bisect.runs.results.speed_report import RANK_CORRELATION, RANK_CORRELATIONS
from precision_bisect.search.speed.costs import cost_graph, weight_graph
from precision_bisect.search.speed.roofline import (
    KERNEL_MS,
    cast_ms,
    macs,
    operator_ms,
    product_ms,
)
from precision_bisect.settings.engine_settings import IoTypes

RESULTS = "benchmarks/results/estimates.json"


def saved(
    path: Path, nodes: list[onnx.NodeProto], outputs: list[str], **weights: tuple[int, ...]
) -> Model:
    """Return a model with one input "x" of a dynamic batch, 4 channels and 16 by 16 values."""
    constants = [
        numpy_helper.from_array(np.ones(shape, np.float32), name)
        for name, shape in weights.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 16, 16])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        path / "m.onnx",
    )
    return load_model(path / "m.onnx")


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node that is named after its first output."""
    names = outputs.split()
    return helper.make_node(
        op_type, inputs.split(), names, f"/{names[0]}", None, None, **attributes
    )


def test_neighbours_are_found_through_what_only_moves_values(tmp_path: Path) -> None:
    """A Transpose between two layers does not part them; a branch has both readers."""
    model = saved(
        tmp_path,
        [
            node("Relu", "x", "a"),
            node("Transpose", "a", "moved"),
            node("Exp", "moved", "b"),
            node("Tanh", "a", "c"),
        ],
        ["b", "c"],
    )
    graph = cost_graph(model, {"x": (2, 4, 16, 16)})
    assert ((1, 2), (0,), (0,)) == graph.neighbours
    first = next(value for value in graph.values if value.producer == 0)
    assert ((1, 2), False) == (first.readers, first.read_high)
    assert [None, 0, 1, 2] == [value.producer for value in graph.values]


def test_a_concat_hands_all_that_it_joins_to_its_readers(tmp_path: Path) -> None:
    """Both layers in front of a Concat border on the one behind it."""
    model = saved(
        tmp_path,
        [
            node("Relu", "x", "a"),
            node("Exp", "x", "b"),
            node("Concat", "a b", "both", axis=1),
            node("Tanh", "both", "c"),
        ],
        ["c"],
    )
    assert ((2,), (2,), (0, 1)) == cost_graph(model, {"x": (1, 4, 16, 16)}).neighbours


def test_casts_are_counted_at_every_border(tmp_path: Path) -> None:
    """All low: the input and the output are cast. The middle one high: all four borders are."""
    model = saved(
        tmp_path, [node("Relu", "x", "a"), node("Exp", "a", "b"), node("Tanh", "b", "c")], ["c"]
    )
    graph = cost_graph(model, {"x": (1, 4, 16, 16)})
    one = cast_ms(1024, 2e-3)
    assert 2 * one == pytest.approx(graph.cost(()))
    extra = operator_ms(0, 2048, high=True) - operator_ms(0, 2048, high=False)
    assert 4 * one + extra == pytest.approx(graph.cost((1,)))
    assert 3 * extra == pytest.approx(graph.cost((0, 1, 2)))


def test_a_plan_pays_for_the_kernel_that_it_breaks(tmp_path: Path) -> None:
    """Two launches and the tensor between are saved where three layers are one, of either type."""
    model = saved(
        tmp_path,
        [
            helper.make_node("Relu", ["x"], ["a"], "first"),
            helper.make_node("Exp", ["a"], ["b"], "second"),
            helper.make_node("Tanh", ["b"], ["y"], "third"),
        ],
        ["y"],
    )
    shapes = {"x": (1, 4, 16, 16)}
    plain, fused = (
        cost_graph(model, shapes, fused=groups) for groups in ((), [("first", "second", "third")])
    )
    for kept, high in (((), False), ((0, 1, 2), True)):
        saves = 2 * KERNEL_MS + 2 * operator_ms(0, 2048, high=high)
        assert plain.time(kept) - saves == pytest.approx(fused.time(kept))
    assert plain.time((1,)) == pytest.approx(fused.time((1,)))


def test_a_weight_that_both_types_read_is_stored_twice(tmp_path: Path) -> None:
    """Its Cast is folded: two bytes and four, where one type alone takes two or four."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], "first"),
        helper.make_node("Mul", ["a", "w"], ["b"], "second"),
        helper.make_node("Mul", ["b", "v"], ["y"], "third"),
    ]
    graph = weight_graph(saved(tmp_path, nodes, ["y"], w=(16,), v=(16,)))
    plans = ((), (0,), (0, 1), (2,), (0, 1, 2))
    assert [64, 128, 96, 96, 128] == [graph.time(kept) for kept in plans]


def every_plan(model: Model) -> list[Plan]:
    """Return all plans of a small model."""
    size = len(model.table.candidates)
    return [Plan.of(kept) for n in range(size + 1) for kept in combinations(range(size), n)]


def test_bytes_of_weights_are_those_of_the_file_of_each_plan(tmp_path: Path) -> None:
    """A table that a Gather reads is the largest weight of many networks."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["i"], "choice", axis=1),
        helper.make_node("Gather", ["table", "i"], ["rows"], "look up"),
        helper.make_node("Mul", ["x", "rows"], ["a"], "first"),
        helper.make_node("Mul", ["a", "w"], ["b"], "second"),
        helper.make_node("Mul", ["b", "rows"], ["c"], "third"),
        helper.make_node("Mul", ["c", "w"], ["y"], "fourth"),
    ]
    model = saved(tmp_path, nodes, ["y"], table=(64,), w=(16,))
    graph, writer = weight_graph(model), writer_of(model, Pair(low="fp16", high="fp32"))
    for plan in every_plan(model):
        assert weight_bytes(writer.write(plan)) == graph.time(plan.kept)
    everything = range(len(model.table.candidates))
    assert (128 + 32, 256 + 64) == (graph.time(()), graph.time(everything))


@pytest.mark.parametrize("compared", [False, True])
@pytest.mark.parametrize(("operator", "asked"), [("Identity", {}), ("Flatten", {"axis": 0})])
def test_bytes_of_weights_behind_a_constant_node_are_those_of_the_file(
    tmp_path: Path, operator: str, asked: dict[str, int], compared: bool
) -> None:
    """A weight under another name is stored in both types; what a builder folds is high."""
    nodes = [
        node(operator, "w", "v", **asked),
        node("Mul", "x v", "a"),
        node("Mul", "a v", "b"),
        node("Greater", "x v" if compared else "x a", "larger"),
        node("Where", "larger a b", "y"),
    ]
    model = saved(tmp_path, nodes, ["y"], w=(16,))
    graph, writer = weight_graph(model), writer_of(model, Pair(low="fp16", high="fp32"))
    for plan in every_plan(model):
        assert weight_bytes(writer.write(plan)) == graph.time(plan.kept)


@pytest.mark.parametrize(
    ("kind", "nbytes"),
    [
        *(("FLOAT", 20), ("BFLOAT16", 10), ("FLOAT8E4M3FN", 5), ("INT8", 5), ("UINT8", 5)),
        *(("INT4", 3), ("UINT4", 3), ("FLOAT4E2M1", 3), ("INT2", 2), ("UINT2", 2)),
        *(("INT64", 0), ("INT32", 0), ("BOOL", 0), ("STRING", 0)),
    ],
)
def test_weights_of_any_type_have_their_bytes(kind: str, nbytes: int) -> None:
    """Small ones share bytes, of which the last may not be full; indices are no weights."""
    values: Any = ["0"] * 5 if kind == "STRING" else [0] * 5
    weights = helper.make_tensor("w", TensorProto.DataType.Value(kind), [5], values)
    for body, initializers in (("y = Abs(x)", [weights]), ("c = Constant() y = Abs(x)", [])):
        proto = parse(f"(float[5] x) => (float[5] y) {{ {body} }}")
        proto.graph.initializer.extend(initializers)
        if not initializers:
            proto.graph.node[0].attribute.append(helper.make_attribute("value", weights))
        assert nbytes == weight_bytes(TypedGraph(proto=proto, weights={}))


@pytest.mark.parametrize("io_types", ["model", "fp16"])
def test_casts_are_those_of_the_file_of_each_plan(tmp_path: Path, io_types: IoTypes) -> None:
    """Of 16-bit inputs and outputs FP32 pays for Casts, and every layer low for none."""
    nodes = [node("Exp", "x", "a"), node("Tanh", "a", "b"), node("Add", "a b", "y")]
    model = saved(tmp_path, nodes, ["y"]).with_io_types(io_types)
    graph = cost_graph(model, {"x": (1, 4, 16, 16)})
    writer = writer_of(model, Pair(low="fp16", high="fp32"))
    for plan in every_plan(model):
        casts = sum(value.is_cast(plan.kept) for value in graph.values)
        assert casts_added(writer.write(plan)) == casts
    dearer = graph.time(()) > graph.time(range(3))
    assert dearer is (io_types == "model")


def test_tf32_makes_products_faster_and_nothing_else(tmp_path: Path) -> None:
    """All low, and with another layer high, the time is the same."""
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], "lift"),
        helper.make_node("Conv", ["a", "w"], ["b"], "conv", pads=[4] * 4),
        helper.make_node("Exp", ["b"], ["y"], "exp"),
    ]
    model = saved(tmp_path, nodes, ["y"], v=(64, 4, 1, 1), w=(64, 64, 9, 9))
    shapes = {"x": (64, 4, 16, 16)}
    plain, with_tf32 = (cost_graph(model, shapes, tf32=tf32) for tf32 in (False, True))
    assert plain.time(()) == with_tf32.time(())
    assert plain.time((2,)) == pytest.approx(with_tf32.time((2,)))
    assert plain.time((1,)) > 1.2 * with_tf32.time((1,))


def test_small_convolutions_are_faster_high(tmp_path: Path) -> None:
    """Low ones bring their values into another layout and back: two kernels more, no gain."""
    nodes = [node("Conv", "x w", "y", pads=[1] * 4)]
    model = saved(tmp_path, nodes, ["y"], w=(4, 4, 3, 3))
    costs = cost_graph(model, {"x": (1, 4, 16, 16)})
    # The model's ends are FP32 whatever the plan.
    casts = sum(value.cast_ms for value in costs.values)
    assert costs.time((0,)) == pytest.approx(costs.time(()) - casts - 2 * KERNEL_MS, rel=1e-2)


@pytest.mark.parametrize(
    ("left", "right", "gains"), [((4096, 1024), (1024, 1024), 15), ((1, 1024), (1024, 1024), 2)]
)
def test_a_single_row_gains_by_its_weights_alone(
    left: tuple[int, ...], right: tuple[int, ...], gains: float
) -> None:
    """No tensor core multiplies it: it takes what reading half the bytes takes."""
    product = helper.make_node("MatMul", ["a", "b"], ["y"])
    shapes = {"a": left, "b": right, "y": (left[0], right[1])}
    elements = sum(rows * columns for rows, columns in shapes.values())
    times = [
        operator_ms(product_ms(product, shapes, high=high), elements, high=high)
        for high in (True, False)
    ]
    assert times[0] / times[1] == pytest.approx(gains, rel=0.01)


def test_few_results_or_channels_leave_the_device_idle() -> None:
    """A product of as many operations takes longer; with few channels, no longer than in FP32."""
    wide = helper.make_node("Conv", ["x", "w"], ["y"])
    large = {"x": (1, 64, 64, 64), "w": (64, 64, 1, 1), "y": (1, 64, 64, 64)}
    small = {"x": (1, 4096, 8, 8), "w": (4096, 64, 1, 1), "y": (1, 64, 8, 8)}
    assert macs(wide, large) == 64 * macs(wide, small)
    high, low = (product_ms(wide, small, high=high) * 64 for high in (True, False))
    assert high > 10 * product_ms(wide, large, high=True)
    assert low > 10 * product_ms(wide, large, high=False)
    narrow = {"x": (1, 8, 64, 64), "w": (8, 8, 3, 3), "y": (1, 8, 64, 64)}
    assert product_ms(wide, narrow, high=True) == product_ms(wide, narrow, high=False)


@pytest.mark.parametrize(
    ("made", "weights", "expected"),
    [
        (("Conv", "x w", {"pads": [1] * 4}), {"w": (8, 4, 3, 3)}, 8 * 16 * 16 * 4 * 9),
        (("Conv", "x w", {"group": 4}), {"w": (4, 1, 1, 1)}, 4 * 16 * 16),
        (("ConvTranspose", "x w", {"strides": [2, 2]}), {"w": (4, 8, 2, 2)}, 4 * 256 * 8 * 4),
        (("MatMul", "x w", {}), {"w": (16, 5)}, 4 * 16 * 5 * 16),
        (("Einsum", "x w", {"equation": "bchw,wk->bchk"}), {"w": (16, 5)}, 4 * 16 * 16 * 5),
        (("Einsum", "x w", {"equation": "...w, wk -> ...k"}), {"w": (16, 5)}, 4 * 16 * 16 * 5),
        (("Relu", "x", {}), {}, 0),
    ],
)
def test_multiplications_are_counted(
    tmp_path: Path,
    made: tuple[str, str, dict[str, Any]],
    weights: dict[str, tuple[int, ...]],
    expected: int,
) -> None:
    """By the shapes of the operands, for a batch of 1."""
    op_type, inputs, attributes = made
    model = saved(tmp_path, [node(op_type, inputs, "y", **attributes)], ["y"], **weights)
    shapes = tensor_shapes(model, {"x": (1, 4, 16, 16)})
    assert expected == macs(model.proto.graph.node[0], shapes)


def test_a_deformable_convolution_counts_as_another() -> None:
    """Where it reads changes nothing of how often it multiplies."""
    shapes = {"x": (1, 4, 6, 6), "w": (8, 4, 3, 3), "moved": (1, 18, 6, 6), "y": (1, 8, 6, 6)}
    expected = macs(node("Conv", "x w", "y"), shapes)
    assert 8 * 36 * 4 * 9 == expected == macs(node("DeformConv", "x w moved", "y"), shapes)


def test_a_gemm_counts_the_dimension_that_it_sums_over() -> None:
    """The last of the first operand, or its first where that is transposed."""
    for first, transposed in (((3, 5), 0), ((5, 3), 1)):
        shapes = {"a": first, "b": (5, 7), "y": (3, 7)}
        assert 3 * 7 * 5 == macs(node("Gemm", "a b", "y", transA=transposed), shapes)


def test_cost_follows_the_inputs_that_are_fed(tmp_path: Path) -> None:
    """The batch is dynamic: ten times the batch is ten times the traffic."""
    model = saved(tmp_path, [node("Relu", "x", "a"), node("Exp", "a", "b")], ["b"])
    small, large = (cost_graph(model, {"x": (n, 4, 16, 16)}, 0.0) for n in (1, 10))
    assert 10 * small.cost((0,)) == pytest.approx(large.cost((0,)))


def test_unknown_shapes_have_a_cost_all_the_same(tmp_path: Path) -> None:
    """Behind a NonZero no shape is known: such tensors count as usual ones, not as nothing."""
    nodes = [
        node("Relu", "x", "a"),
        node("NonZero", "a", "where"),
        node("Transpose", "where", "places"),
        node("GatherND", "a places", "found"),
        node("Exp", "found", "b"),
    ]
    graph = cost_graph(saved(tmp_path, nodes, ["b"]), {"x": (1, 4, 16, 16)})
    assert 2 == graph.size
    assert all(value > 0 for value in graph.high_ms)


@st.composite
def graphs(draw: st.DrawFn) -> CostGraph:
    """Draw a cost graph with any connections."""
    size = draw(st.integers(1, 8))
    layer = st.integers(0, size - 1)
    figure = st.floats(0, 10)
    value = st.builds(
        lambda producer, readers, high, cost: Value(
            producer=producer, readers=tuple(sorted(readers)), read_high=high, cast_ms=cost
        ),
        st.none() | layer,
        st.sets(layer, max_size=3),
        st.booleans(),
        figure,
    )
    high_ms = draw(st.lists(figure, min_size=size, max_size=size))
    return CostGraph(tuple(high_ms), tuple(draw(st.lists(value, max_size=12))))


@examples(100)
@given(st.data(), graphs())
def test_a_gain_is_the_difference_of_two_costs(data: st.DataObject, graph: CostGraph) -> None:
    """The quick way and the plain way agree."""
    plan = st.frozensets(st.integers(0, graph.size - 1))
    kept, instead = data.draw(plan), data.draw(plan)
    expected = graph.cost(kept) - graph.cost(instead)
    assert expected == pytest.approx(graph.gain(kept, instead), abs=1e-9)


@examples(25)
@given(graphs())
def test_keeping_a_layer_is_never_free(graph: CostGraph) -> None:
    """Each has a cost above zero, and as many costs as layers there are."""
    assert graph.size == len(graph.alone_ms)
    assert all(cost > 0 for cost in graph.alone_ms)


def test_clusters_are_the_connected_parts() -> None:
    """In a chain they are the runs of consecutive layers."""
    assert [(0, 1), (3,), (5, 6, 7)] == chain([1.0] * 9).clusters([7, 0, 3, 6, 1, 5])


def test_the_rank_correlation_is_that_of_the_benchmark() -> None:
    """What is said of estimates was measured: the median of its networks, and the range."""
    benchmark = json.loads((Path(__file__).parents[2] / RESULTS).read_text())
    estimates = [row["estimate"] for row in benchmark["rows"]]
    assert (min(estimates), max(estimates)) == pytest.approx(RANK_CORRELATIONS, abs=0.006)
    assert benchmark["median"]["estimate"] == pytest.approx(RANK_CORRELATION, abs=0.006)
