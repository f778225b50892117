"""A plan does not pass because ONNX Runtime drops a NaN that FP32 has not."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from models import load_text, parse, save
from precision_bisect import find
from precision_bisect.backends.emulation.dropped_nan import DROPPING, watch_dropped
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.segments import FEWEST_SEGMENTS, Segmented, cut
from precision_bisect.backends.emulation.switched import FLAGS_INPUT, switch
from precision_bisect.graphs import ort
from precision_bisect.graphs.fp32_outputs import in_fp32
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import DroppedNan, Sample, dropping
from precision_bisect.runs.results.endings import Status
from precision_bisect.settings.engine_settings import EngineSettings, IoTypes

BORN = "square = Mul(x, x) born = Sub(square, large)"
"""300 squared and 180,000 are both infinite in FP16, and their difference is NaN."""
CONSTANTS = (
    "float[1, 8] large = {0.5, 180000, 180000, 180000, 180000, 180000, 180000, 180000},"
    " float[8] mask = {0, -3.4e38, 0, 0, 0, 0, 0, 0},"
    " float half = {0.5}, float one = {1}, float[1] ones = {1}, int64[1] last = {1},"
    " int64[1] count = {1}, uint8 point = {0}, int64[3] image = {1, 1, 8},"
    " int64[3] boxes = {1, 2, 4}, int64[3] scores = {1, 1, 2}, int64[1] two = {2},"
    " int64[1] start = {0}, int64[1] end = {2},"
    " int64[4] picture = {1, 1, 2, 4}, float[1,5] roi = {0, 0, 0, 3, 1},"
    " int64[4] grid = {1, 2, 2, 2}, float[1, 4] region = {0, 0, 3, 1},"
    " int64[2, 1] rows = {0, 0}, int64[1] eight = {8}, int64[8] places = {0, 0, 0, 0, 0, 0, 0, 0}"
)
TO_FLOAT = "y = Cast<to = 1>(kept)"
DROPS = {
    "MaxPool": "b = Reshape(born, image) y = MaxPool<kernel_shape = [8]>(b)",
    "GlobalMaxPool": "b = Reshape(born, image) y = GlobalMaxPool(b)",
    "MaxRoiPool": "b = Reshape(born, picture) y = MaxRoiPool<pooled_shape = [1, 1]>(b, roi)",
    "ReduceMax": "y = ReduceMax(born, last)",
    "ReduceMin": "low = Neg(born) y = ReduceMin(low, last)",
    "ArgMax": "kept = ArgMax<axis = 1>(born) " + TO_FLOAT,
    "ArgMin": "low = Neg(born) kept = ArgMin<axis = 1>(low) " + TO_FLOAT,
    "TopK": "low = Neg(born) y, where = TopK<largest = 0>(low, count)",
    "Hardmax": "y = Hardmax(born)",
    "Shrink": "y = Shrink(born)",
    "ThresholdedRelu": "y = ThresholdedRelu(born)",
    "Cast": "kept = Cast<to = 6>(born) " + TO_FLOAT,
    "CastLike": "kept = CastLike(born, start) " + TO_FLOAT,
    "Clip": "low = ReduceMin<keepdims = 0>(born) y = Clip(x, low)",
    "GridSample": """p = Reshape(x, picture) d = Sigmoid(born) g = Reshape(d, grid)
        y = GridSample(p, g)""",
    "RoiAlign": """b = Reshape(born, picture)
        y = RoiAlign<mode = "max", output_height = 1, output_width = 1>(b, region, start)""",
    "QuantizeLinear": "kept = QuantizeLinear(born, one, point) " + TO_FLOAT,
    "DynamicQuantizeLinear": "kept, scale, p = DynamicQuantizeLinear(born) " + TO_FLOAT,
    "Equal": "kept = Equal(born, half) " + TO_FLOAT,
    "Greater": "kept = Greater(born, half) " + TO_FLOAT,
    "GreaterOrEqual": "kept = GreaterOrEqual(born, half) " + TO_FLOAT,
    "Less": "kept = Less(half, born) " + TO_FLOAT,
    "LessOrEqual": "kept = LessOrEqual(half, born) " + TO_FLOAT,
    "NonMaxSuppression": """b = Reshape(born, boxes) q = Slice(x, start, end, last)
        s = Reshape(q, scores) kept = NonMaxSuppression(b, s, count) """
    + TO_FLOAT,
    "ScatterND": """b = Reshape(born, eight) f = Slice(b, start, two)
        y = ScatterND<reduction = "max">(ones, rows, f)""",
    "ScatterElements": """b = Reshape(born, eight)
        y = ScatterElements<reduction = "max">(ones, places, b)""",
}
X = np.full((1, 8), 300, np.float32)
X[0, 0] = 1


def outputs(body: str, folder: Path, kept: tuple[str, ...], x: np.ndarray = X) -> Sample:
    """Return what the emulator gives for a plan."""
    graph = f"(float[1, 8] x) => (float[A] y) <{CONSTANTS}> {{ {body} }}"
    model = load_text(graph, folder, opset=18)
    plan = Plan.of(i for i, name in enumerate(model.table.names) if name in kept)
    return EmulatedBackend(model, "fp16", threads=1).evaluate(plan, {"x": x})


def test_the_cases_are_all_operators_that_drop() -> None:
    """None is left out."""
    assert DROPPING.keys() == DROPS.keys()


@pytest.mark.parametrize("operator", DROPS)
def test_a_dropped_nan_is_told(operator: str, tmp_path: Path) -> None:
    """The layer is named, whichever operator drops it; in FP32 there is none."""
    body = f"{BORN} {DROPS[operator]}"
    low = outputs(body, tmp_path, ())
    assert isinstance(low, DroppedNan)
    assert len(low.layers) == 1
    assert not isinstance(outputs(body, tmp_path, ("node_of_square", "node_of_born")), DroppedNan)


@pytest.mark.parametrize("most_nodes", [2**12, 0])
def test_a_graph_for_one_plan_tells_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_nodes: int
) -> None:
    """It is compared with every layer high, which is another plan, and another graph.

    So it is beyond the most nodes that are optimised, where each plan has a graph of its own.
    """
    monkeypatch.setattr(ort, "_PREPACK_NODES", most_nodes)
    graph = f"(float[1, 8] x) => (float[A] y) <{CONSTANTS}> {{ {BORN} {DROPS['ArgMax']} }}"
    model = load_text(graph, tmp_path, opset=18)
    few = EmulatedBackend(model, threads=1, few=True)
    assert isinstance(few.evaluate(Plan.of(()), {"x": X}), DroppedNan)


HARMLESS: Mapping[str, str] = {
    "the branch not taken": f"{BORN} c = Greater(x, half) n = Not(c) y = Where(n, born, x)",
    "asked by IsNaN": f"{BORN} c = IsNaN(born) y = Where(c, x, born)",
    "a mask of attention": "m = Add(x, mask) p = Softmax(m) y = ReduceMax(p, last)",
    "infinity in a maximum": "s = Mul(x, x) y = ReduceMax(s, last)",
    "NaN in FP32, too": "n = Neg(x) l = Log(n) a = Mul(x, half) b = Add(a, l) "
    "m = ReduceMax(b, last) i = IsNaN(m) y = Where(i, one, m)",
}


@pytest.mark.parametrize("body", HARMLESS.values(), ids=HARMLESS)
def test_what_the_model_itself_means_is_no_dropped_nan(body: str, tmp_path: Path) -> None:
    """A Where, a guard, infinity, and NaN that FP32 has as well are let be."""
    assert not isinstance(outputs(body, tmp_path, ()), DroppedNan)


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT2", "UINT2"])
def test_integers_of_few_bits_have_no_nan(kind: str, tmp_path: Path) -> None:
    """A NaN that is cast to one of these is dropped, too."""
    number = onnx.TensorProto.DataType.Value(kind)
    body = f"{BORN} kept = Cast<to = {number}>(born) {TO_FLOAT}"
    graph = f"(float[1, 8] x) => (float[A] y) <{CONSTANTS}> {{ {body} }}"
    model = load_text(graph, tmp_path, opset=25)
    assert isinstance(
        EmulatedBackend(model, threads=1).evaluate(Plan.of(()), {"x": X}), DroppedNan
    )


def test_an_integer_of_infinity_is_told(tmp_path: Path) -> None:
    """It is another number on each engine."""
    body = f"square = Mul(x, x) kept = Cast<to = 6>(square) {TO_FLOAT}"
    assert isinstance(outputs(body, tmp_path, ()), DroppedNan)


@pytest.mark.parametrize("io_types", ["model", "fp16"])
@pytest.mark.parametrize("drops", ["y = ReduceMax(born, last)", DROPS["ArgMax"]])
def test_a_search_goes_on_until_no_nan_is_dropped(
    drops: str, io_types: IoTypes, tmp_path: Path
) -> None:
    """Every layer low fails, whatever the outputs' type, and the layers that make it are kept."""
    graph = f"(float[1, 8] x) => (float[A] y) <{CONSTANTS}> {{ {BORN} {drops} }}"
    path = save(parse(graph, opset=18), tmp_path)
    engine = EngineSettings(io_types=io_types)
    told = find(path, inputs={"x": X}, tol=1e5, out=tmp_path / "run", engine=engine)
    assert Status.FOUND is told.status
    assert ["node_of_square", "node_of_born"] == told.kept
    assert any("engines that keep it give NaN" in note for note in told.notes)


def test_outputs_in_halves_go_on_telling() -> None:
    """They are judged in FP32, and still do not pass."""
    outputs = DroppedNan({"y": np.ones(1, np.float16)}, ["layer"])
    assert ["layer"] == dropping([in_fp32(outputs)])
    assert np.float32 == in_fp32(outputs)["y"].dtype


def test_a_graph_in_segments_counts_what_is_dropped(tmp_path: Path) -> None:
    """The outputs that count belong to the segments in which the operators are."""
    chain = " ".join(f"a{i} = Tanh(a{i - 1})" for i in range(1, 80))
    text = f"""(float[1, 8] x) => (float[A] y) <{CONSTANTS}> {{
      {BORN} m = ReduceMax(born, last) z = Mul(m, x) a0 = Tanh(z) {chain}
      y = ReduceMax(a79, last) }}"""
    model = load_text(text, tmp_path, opset=18)
    graph = switch(model, Pair(low="fp16", high="fp32"), Scales())
    watched = watch_dropped(graph, model)
    segments = deque(cut(graph, model))
    assert len(segments) >= FEWEST_SEGMENTS
    session = Segmented(segments, ["y", *watched], 1)
    for low, count in ((True, 7), (False, 0)):
        flags = graph.switches.flags(np.full(len(model.table.candidates), low))
        told = session.run({"x": X, FLAGS_INPUT: flags})
        assert [count, 0] == [int(told[name]) for name in watched]
    assert ["node_of_m", "node_of_y"] == list(watched.values())
