"""Scatters that add or multiply, against numpy's halves one by one in the order of the updates."""

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from effort import examples
from models import load_text, normal
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.recurrences import is_recurrence
from precision_bisect.graphs.load import Model
from precision_bisect.plan import Plan
from precision_bisect.precisions import LowName
from precision_bisect.protocols import Sample
from precision_bisect.settings.targets import TARGETS, TargetName

LOW = Plan.of(())
NUMPY = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
Floats = NDArray[np.float32]
Places = NDArray[np.int64]


def one_by_one(
    kind: str, x: Floats, places: Places, updates: Floats, axis: int, reduction: str, low: LowName
) -> Floats:
    """Return what is stored in the low type after all updates, each added by itself."""
    stored, values = x.astype(NUMPY[low]), updates.astype(NUMPY[low])
    operation = np.add if reduction == "add" else np.multiply
    for at in np.ndindex(places.shape if kind == "ScatterElements" else places.shape[:-1]):
        where = tuple(places[at]) if kind == "ScatterND" else list(at)
        if isinstance(where, list):
            where[axis] = places[at]
            where = tuple(where)
        stored[where] = operation(stored[where], values[at])
    return stored.astype(np.float32)


def scatter(kind: str, attributes: str, folder: Path) -> Model:
    """Return a scatter alone, all shapes of which are open."""
    rank = "[a,b]"
    return load_text(
        f"(float{rank} x, int64[c,d] places, float[e,f] updates) => (float{rank} y) "
        f"{{ y = {kind}<{attributes}>(x, places, updates) }}",
        folder,
        opset=18,
    )


@examples(20)
@given(
    st.sampled_from(("ScatterElements", "ScatterND")),
    st.integers(-2, 1),
    st.sampled_from(("add", "mul")),
    st.sampled_from(("fp16", "bf16")),
    st.integers(0, 30),
    st.integers(0, 2**31),
    st.sampled_from(TARGETS),
)
def test_a_scatter_stores_after_each_value(
    kind: str,
    axis: int,
    reduction: str,
    low: LowName,
    count: int,
    seed: int,
    target: TargetName,
) -> None:
    """Bit for bit, with places that repeat, negative ones, none at all, on every target."""
    draw = np.random.default_rng(seed)
    x = NUMPY[low].type(draw.normal(size=(4, 5))).astype(np.float32)
    shape = (count, 5) if kind == "ScatterND" or axis in (0, -2) else (4, count)
    size = 4 if kind == "ScatterND" else x.shape[axis]
    places = draw.integers(-size, size, (count, 1) if kind == "ScatterND" else shape)
    updates = draw.normal(size=shape).astype(NUMPY[low]).astype(np.float32)
    attributes = f'reduction = "{reduction}"'
    if kind == "ScatterElements":
        attributes += f", axis = {axis}"
    with tempfile.TemporaryDirectory() as folder:
        model = scatter(kind, attributes, Path(folder))
    backend = EmulatedBackend(model, low, threads=1, targets=[target])
    found = backend.evaluate(LOW, {"x": x, "places": places, "updates": updates})["y"]
    expected = one_by_one(kind, x, places, updates, axis, reduction, low)
    np.testing.assert_array_equal(expected, found)


@examples(12)
@given(st.integers(1, 3), st.integers(0, 12), st.integers(0, 2), st.integers(0, 2**31))
def test_slices_of_any_rank_are_stored_one_by_one(
    depth: int, count: int, width: int, seed: int
) -> None:
    """A ScatterND whose indices are of one, two or all dimensions; slices may be empty."""
    draw = np.random.default_rng(seed)
    shape = (3, 4, width)
    if depth == 3 and width == 0:
        count = 0
    x = draw.normal(size=shape).astype(np.float16).astype(np.float32)
    places = np.stack([draw.integers(-n, max(n, 1), count) for n in shape[:depth]], 1)
    updates = draw.normal(size=(count, *shape[depth:])).astype(np.float16).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        model = load_text(
            f"(float[3,4,w] x, int64[c,{depth}] p, float[{','.join('c' + '34w'[depth:])}] u) =>"
            ' (float[3,4,w] y) { y = ScatterND<reduction = "add">(x, p, u) }',
            Path(folder),
            opset=18,
        )
    found = EmulatedBackend(model, threads=1).evaluate(LOW, {"x": x, "p": places, "u": updates})
    expected = one_by_one("ScatterND", x, places, updates, 0, "add", "fp16")
    np.testing.assert_array_equal(expected, found["y"])


@pytest.mark.parametrize("width", [1, 5])
def test_rows_with_one_index_each_are_stored_one_by_one(width: int, tmp_path: Path) -> None:
    """As exporters write the sum of a graph's messages: an index for each row, expanded."""
    model = load_text(
        f"""(float[7,{width}] x, int64[e] places, float[e,{width}] u) => (float[7,{width}] y)
        <int64[1] axis = {{1}}, int64[2] shape = {{300, {width}}}> {{
        column = Unsqueeze(places, axis) index = Expand(column, shape)
        y = ScatterElements<axis = 0, reduction = "add">(x, index, u) }}""",
        tmp_path,
        opset=18,
    )
    draw = np.random.default_rng(3)
    x, updates = (draw.normal(size=(n, width)).astype(np.float16).astype("f") for n in (7, 300))
    places = draw.integers(-7, 7, 300)
    feed: Sample = {"x": x, "places": places, "u": updates}
    found = EmulatedBackend(model, threads=1).evaluate(LOW, feed)["y"]
    index = np.repeat(places[:, None], width, 1)
    expected = one_by_one("ScatterElements", x, index, updates, 0, "add", "fp16")
    np.testing.assert_array_equal(expected, found)


def test_a_sum_of_many_stalls(tmp_path: Path) -> None:
    """8,000 times 0.4 come to 1024 in FP16, as on a GPU, and to 3200 where the layer is kept."""
    model = scatter("ScatterElements", 'reduction = "add"', tmp_path)
    feed: Sample = {
        "x": np.zeros((3, 1), np.float32),
        "places": np.ones((8000, 1), np.int64),
        "updates": np.full((8000, 1), 0.4, np.float32),
    }
    backend = EmulatedBackend(model, threads=1)
    high, low = (backend.evaluate(plan, feed)["y"] for plan in (Plan.all_high(1), LOW))
    np.testing.assert_allclose(high, [[0], [3200], [0]], rtol=1e-3)
    np.testing.assert_array_equal(low, [[0], [1024], [0]])


@pytest.mark.parametrize("reduction", ["none", "min", "max"])
def test_other_scatters_are_no_recurrence(reduction: str, tmp_path: Path) -> None:
    """The smallest and the largest value are the same in any order and type."""
    attributes = "" if reduction == "none" else f'reduction = "{reduction}"'
    model = scatter("ScatterElements", attributes or "axis = 0", tmp_path)
    assert not is_recurrence(model.proto.graph.node[0])


def test_a_scatter_of_integers_is_left_alone(tmp_path: Path) -> None:
    """A count beside a float layer, which runs low."""
    model = load_text(
        """(int64[4] x, int64[n] places, int64[n] ones, float[4] f) => (int64[4] y, float[4] g) {
        y = ScatterElements<reduction = "add">(x, places, ones) g = Tanh(f) }""",
        tmp_path,
        opset=18,
    )
    feed: Sample = {
        "x": np.zeros(4, np.int64),
        "places": np.zeros(5000, np.int64),
        "ones": np.ones(5000, np.int64),
        "f": normal(4),
    }
    found = EmulatedBackend(model, threads=1).evaluate(LOW, feed)
    np.testing.assert_array_equal([5000, 0, 0, 0], found["y"])


def test_a_product_of_many_is_stored_after_each(tmp_path: Path) -> None:
    """CumProd stores each step like CumSum: halves end at 0 beyond 2^-25."""
    model = load_text(
        "(float[40] x) => (float[40] y) <int64 axis = {0}> { y = CumProd(x, axis) }",
        tmp_path,
        opset=26,
    )
    x = np.r_[np.full(30, 0.5), np.full(10, 2.0)].astype(np.float32)
    backend = EmulatedBackend(model, threads=1)
    high, low = (backend.evaluate(plan, {"x": x})["y"] for plan in (Plan.all_high(1), LOW))
    expected = np.cumprod(x.astype(np.float64)), np.multiply.accumulate(x.astype(np.float16))
    np.testing.assert_array_equal(expected[0].astype(np.float32), high)
    np.testing.assert_array_equal(expected[1].astype(np.float32), low)
    assert high[-1] > 0 == low[-1]
