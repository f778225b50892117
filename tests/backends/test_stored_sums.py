"""Means whose sums are stored, against numpy, and in which shapes they are."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from effort import examples
from models import keeping, load_text, normal
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.emulator_plugin import forecaster
from precision_bisect.backends.emulation.semantics import adjacent
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import FP16, LOW_TYPES
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, HalfName

SHAPES = st.lists(st.sampled_from((1, 1, 2, 3)), min_size=1, max_size=5)


def in_turn(shape: list[int], axes: list[int]) -> bool:
    """Tell whether numpy need not move a value to bring the reduced axes to one end."""
    array = np.empty(shape)
    others = [axis for axis in range(len(shape)) if axis not in axes]
    ends = (array.transpose(axes + others), array.transpose(others + axes))
    return any(end.flags.c_contiguous for end in ends)


def as_stored(x: NDArray[Any], axes: tuple[int, ...], low: HalfName) -> NDArray[np.float32]:
    """Return the mean of values that `low` holds, its sum stored in it, keeping dimensions."""
    kind = LOW_TYPES[low]
    total = kind.round(x.sum(axis=axes, keepdims=True, dtype=np.float64).astype(np.float32))
    count = kind.round(np.array(x.size / total.size, np.float32))
    with np.errstate(all="ignore"):
        return kind.round(total / count)


def of_mean(shape: str, axes: list[int], folder: Path, *, opset: int = 17) -> Model:
    """Return a mean and a layer that reads it; the axes are an input where the opset wants it."""
    listed = ", ".join(map(str, axes))
    as_input = opset >= 18
    held = f"<int64[{len(axes)}] axes = {{{listed}}}>" if as_input else ""
    call = "ReduceMean(x, axes)" if as_input else f"ReduceMean<axes = [{listed}]>(x)"
    body = f"(float[{shape}] x) => (float y) {held} {{ [mean] m = {call} [neg] y = Neg(m) }}"
    return load_text(body, folder, opset=opset)


@given(SHAPES, st.data())
def test_together_is_what_numpy_need_not_move(shape: list[int], data: st.DataObject) -> None:
    """Dimensions of 1 do not count; what is not known may be anything."""
    rank = len(shape)
    axes = sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1)))
    ends = [axis - rank for axis in axes]
    assert in_turn(shape, axes) == adjacent(tuple(shape), ends)
    hidden = data.draw(st.sets(st.integers(0, rank - 1)))
    dims = tuple(None if i in hidden else size for i, size in enumerate(shape))
    if adjacent(dims, ends):
        assert in_turn(shape, axes)
    if in_turn(shape, axes):
        assert adjacent(dims, ends, unknown=1)


@examples(15)
@given(
    st.lists(st.sampled_from((1, 2, 30)), min_size=1, max_size=4),
    st.sampled_from((13, 18)),
    st.booleans(),
    st.data(),
)
def test_sums_are_stored_where_they_are_on_cuda(
    shape: list[int], opset: int, known: bool, data: st.DataObject
) -> None:
    """Whatever is known of the shape before, each input's own decides; 30 values overflow."""
    rank = len(shape)
    axes = sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1)))
    given = [axis - data.draw(st.sampled_from((0, rank))) for axis in axes]
    declared = ", ".join(str(size) if known else f"d{i}" for i, size in enumerate(shape))
    with tempfile.TemporaryDirectory() as folder:
        model = of_mean(declared, given, Path(folder), opset=opset)
    x = FP16.round(3000 + 100 * normal(*shape))
    mean = x.mean(axis=tuple(axes), keepdims=True, dtype=np.float64).astype(np.float32)
    expected = as_stored(x, tuple(axes), "fp16") if in_turn(shape, axes) else FP16.round(mean)
    backend = EmulatedBackend(model, "fp16", threads=1, targets=["onnxruntime"])
    (found,) = backend.evaluate(Plan.of(()), {"x": x}).values()
    np.testing.assert_allclose(found, -expected, rtol=2.0**-10)
    assert (x.size // mean.size < 30 or not in_turn(shape, axes)) == np.isfinite(found).all()
    (high,) = backend.evaluate(Plan.all_high(2), {"x": x}).values()
    np.testing.assert_allclose(high, -mean, rtol=1e-5)


@pytest.mark.parametrize("low", HALF_NAMES)
def test_the_mean_is_rounded_twice(low: HalfName, tmp_path: Path) -> None:
    """Once as a sum, and once more; the number of values is rounded, too."""
    model = of_mean("64, 999", [-1], tmp_path)
    kind = LOW_TYPES[low]
    x = kind.round(1 + normal(64, 999))
    (found,) = (
        EmulatedBackend(model, low, threads=1, targets=["onnxruntime"])
        .evaluate(Plan.of(()), {"x": x})
        .values()
    )
    expected = as_stored(x, (-1,), low)
    once = kind.round(x.mean(axis=-1, keepdims=True))
    assert np.mean(found == -expected) > 0.9 > np.mean(found == -once)


def test_a_mean_over_everything(tmp_path: Path) -> None:
    """No axes are all axes; a sum of 64 values of 3000 overflows."""
    text = "(float[a, 32] x) => (float y) { [mean] m = ReduceMean(x) [neg] y = Neg(m) }"
    model = load_text(text, tmp_path)
    backend = EmulatedBackend(model, "fp16", threads=1, targets=["onnxruntime"])
    feed = {"x": np.full((2, 32), 3000, np.float32)}
    (low,) = backend.evaluate(Plan.of(()), feed).values()
    assert not np.isfinite(low).any()


def test_no_values_at_all(tmp_path: Path) -> None:
    """An empty batch has no means, and is no error."""
    model = of_mean("n, c", [-1], tmp_path)
    backend = EmulatedBackend(model, "fp16", threads=1, targets=["onnxruntime"])
    (found,) = backend.evaluate(Plan.of(()), {"x": np.zeros((0, 32), np.float32)}).values()
    assert 0 == found.size


@pytest.mark.parametrize(("batch", "finite"), [(1, False), (2, True)])
def test_a_mean_overflows_by_its_sum(batch: int, finite: bool, tmp_path: Path) -> None:
    """3,000 is no large mean; that of 32 channels is infinite for one image, not for two."""
    model = of_mean("n, 32, 4, 4", [1], tmp_path)
    backend = EmulatedBackend(model, "fp16", threads=1, targets=["onnxruntime"])
    feed = {"x": np.full((batch, 32, 4, 4), 3000, np.float32)}
    (low,) = backend.evaluate(Plan.of(()), feed).values()
    (kept,) = backend.evaluate(keeping(model, "mean"), feed).values()
    assert finite == bool(np.isfinite(low).all())
    np.testing.assert_array_equal(kept, np.full_like(kept, -3000))


def test_more_values_than_the_type_counts_to(tmp_path: Path) -> None:
    """The mean over 256 x 256 places is 0: their number is infinite in FP16."""
    model = of_mean("1, 2, h, w", [-2, -1], tmp_path)
    backend = EmulatedBackend(model, "fp16", threads=1, targets=["onnxruntime"])
    (found,) = backend.evaluate(
        Plan.of(()), {"x": np.full((1, 2, 256, 256), 0.5, np.float32)}
    ).values()
    np.testing.assert_array_equal(np.zeros_like(found), found)


@pytest.mark.parametrize(
    ("backend", "finite"), [("onnxruntime", False), ("emulated", True), ("tensorrt", True)]
)
def test_forecasts_are_of_the_engine_that_judges(
    backend: str, finite: bool, tmp_path: Path
) -> None:
    """Only ONNX Runtime on CUDA is known to store sums."""
    model = of_mean("8, 64", [-1], tmp_path)
    emulator = forecaster(model, Options(model=model.path, backend=backend), Scales())
    feed = {"x": np.full((8, 64), 3000, np.float32)}
    (found,) = emulator.evaluate(Plan.of(()), feed).values()
    assert finite == bool(np.isfinite(found).all())
