"""Why layers cannot be INT8 or FP8: each cause on a small model that has it, with its figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from advice_cases import case_for
from effort import examples
from ladder_model import OUTLIERS, QUANTIZABLE, samples, write
from models import normal, parse, save, with_weights
from precision_bisect.explaining.diagnosis.diagnose import Question, diagnose
from precision_bisect.explaining.diagnosis.findings import Finding
from precision_bisect.explaining.diagnosis.holding import LOWEST_EXPONENT, Magnitudes, Scaled
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import FP8, INT8, QuantizedType
from precision_bisect.graphs.quantization.calibration import scales_for
from precision_bisect.graphs.quantization.scales import fake_quantized
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.options import CalibrationName, Options
from precision_bisect.precisions import LowName, Pair
from precision_bisect.protocols import Sample

MATMUL = "(float[16,4] x) => (float[16,3] y) { [mm] y = MatMul(x, w) }"


def found_in(
    model: Model,
    feeds: Sequence[Sample],
    low: LowName = "int8",
    calibration: CalibrationName = "minmax",
) -> list[Finding]:
    """Diagnose every layer that can be quantized, each as kept."""
    pair = Pair(low=low, high="fp32")
    model = pin_formless(model, pair)
    options = Options(model=model.path, low=low, calibration=calibration, threads=1)
    scales = scales_for(model, pair, feeds, options)
    case = case_for(model, feeds, scales=scales, low=low)
    question = Question(case=case, kept=list(model.table.names))
    return list(diagnose(question)[0].layers)


def matmul(folder: Path, weight: np.ndarray | None = None) -> Model:
    """Return a model of one product of an input with a weight."""
    given_or_drawn = normal(4, 3, seed=1) if weight is None else weight
    return load_model(save(with_weights(parse(MATMUL, opset=19), {"w": given_or_drawn}), folder))


def test_the_operand_that_suffers_is_named(tmp_path: Path) -> None:
    """A channel of outliers is called that; values alike in size are only rounded."""
    found = {each.layer: each for each in found_in(load_model(write(tmp_path)), samples())}
    assert QUANTIZABLE == list(found)
    assert OUTLIERS == [name for name in found if found[name].cause == "outliers"]
    evidence = str(found["second"].evidence)
    assert "input reaches 788, 12 times its root mean square, in channel 3" in evidence
    assert "97% becomes 0; int8 leaves 36 dB of it" in evidence
    assert (3, pytest.approx(400, rel=0.2)) == (
        found["second"].figures["channel"],
        found["second"].figures["channel_ratio"],
    )


def test_what_is_cut_off_is_clipping(tmp_path: Path) -> None:
    """With a threshold below the largest values most of the noise is what saturates."""
    feeds: list[Sample] = [{"x": normal(16, 4, seed=i)} for i in range(200)]
    feeds[3]["x"][2, 1] = 60.0
    (found,) = found_in(matmul(tmp_path), feeds, calibration="percentile")
    assert "clipping" == found.cause
    assert "input reaches 60, INT8's maximum with its scale is" in str(found.evidence)
    figures = found.figures
    assert figures["largest"] > figures["limit"] == pytest.approx(127 * figures["scale"])
    assert 0 < figures["clipped_share"] < 1e-3
    assert (3, [2, 1], "x") == (figures["sample"], figures["index"], figures["tensor"])


@pytest.mark.parametrize("low", ["int8", "fp8"])
def test_channels_of_two_sizes_underflow(tmp_path: Path, low: LowName) -> None:
    """Where the small channels are not even a step of the scale, they become 0."""
    sizes = np.array([1e4, 1e4, 1e-3, 1e-3], np.float32)
    feeds: list[Sample] = [{"x": normal(16, 4, seed=i) * sizes} for i in range(2)]
    (found,) = found_in(matmul(tmp_path, np.eye(4, 3, dtype=np.float32)), feeds, low)
    assert "underflow" == found.cause
    assert "input" == found.figures["largest_in"]
    assert 0.5 <= found.figures["flushed_share"] < 0.6


def test_no_one_limit_is_told_of_a_weight(tmp_path: Path) -> None:
    """Channels have scales of their own: the largest one's is no limit for the others' values."""
    column = np.append(np.full(14, 3.5e-3), [1.0, 1.0]).astype(np.float32)
    body = "(float[8,16] x) => (float[8,2] y) { [mm] y = MatMul(x, w) }"
    weight = np.stack([column, column * np.float32(1000)], axis=1)
    model = load_model(save(with_weights(parse(body), {"w": weight}), tmp_path))
    (found,) = found_in(model, [{"x": np.clip(normal(8, 16), -1, 1)}])
    assert ("underflow", "weight") == (found.cause, found.figures["largest_in"])
    assert "88% of the weight is too small for the scale of its channel" in str(found.evidence)


@pytest.mark.parametrize(("low", "word"), [("int8", "steps of"), ("fp8", "4 significant bits")])
def test_values_alike_in_size_are_rounded(tmp_path: Path, low: LowName, word: str) -> None:
    """Neither far from each other nor cut off, they lack digits."""
    (found,) = found_in(matmul(tmp_path), [{"x": normal(16, 4)}], low)
    assert "rounding" == found.cause
    assert word in str(found.evidence)
    assert 20 < found.figures["decibels"] < 60
    assert (low, "fp32") == (found.low, found.high)
    assert found.hurts is not None
    assert pytest.approx(found.figures["error_out"]) == found.hurts.errors[0]


def test_the_histogram_is_in_multiples_of_the_scale(tmp_path: Path) -> None:
    """The largest value of a tensor, or of a weight's channel, lies in the bin below 2^7."""
    (found,) = found_in(matmul(tmp_path), [{"x": normal(16, 4)}])
    histogram = found.histogram
    assert histogram is not None
    assert histogram.scaled
    for part, values in (("inputs", 64), ("weights", 12)):
        counts = histogram.counts[part]
        assert values == sum(counts)
        assert 7 == histogram.lowest_exponent + max(np.flatnonzero(counts)) + 1
    assert [] == histogram.counts["outputs"]


def test_a_weight_is_held_by_channel(tmp_path: Path) -> None:
    """A column that is small as a whole has a scale of its own, and loses nothing more."""
    weight = normal(4, 3, seed=1) * np.array([1.0, 1e-6, 1.0], np.float32)
    (found,) = found_in(matmul(tmp_path, weight), [{"x": normal(16, 4)}])
    assert "rounding" == found.cause
    assert found.figures["flushed_share"] < 0.1


@examples(30)
@given(
    values=hnp.arrays(np.float32, (5, 4), elements=st.floats(-1e4, 1e4, width=32)),
    scale=st.floats(2.0**-10, 2.0**10, width=32),
    kind=st.sampled_from((INT8, FP8)),
)
def test_noise_is_that_of_the_operators(
    values: np.ndarray, scale: float, kind: QuantizedType
) -> None:
    """Saturation and rounding together are what QuantizeLinear and DequantizeLinear leave."""
    values = np.abs(values)
    held = Scaled(kind=kind, scale=np.array(scale, np.float32), channels=-1)
    found = Magnitudes()
    found.add(values, held)
    left = fake_quantized(values, np.float32(scale), kind)
    noise = np.square(left.astype(np.float64) - values).sum()
    assert pytest.approx(noise, rel=1e-3, abs=1e-9) == found.noise
    over = values > kind.largest * np.float32(scale)
    assert found.beyond == int(over.sum())
    assert found.flushed == int(((left == 0) & (values > 0)).sum())
    np.testing.assert_array_equal(values.max(axis=0), found.channels)
    assert found.exponents.sum() == found.nonzero


@pytest.mark.parametrize(
    ("values", "scale", "exponents"),
    [([1e-44, 1.0, 1e4], 100.0, [-149, -7, 6]), ([1.0, 3e38], 2e-38, [125, 127])],
)
def test_what_a_scale_takes_out_of_range_is_at_the_ends(
    values: list[float], scale: float, exponents: list[int]
) -> None:
    """Values that the division makes 0 or infinite count as very small or very large."""
    found = Magnitudes()
    found.add(np.array(values, np.float32), Scaled(kind=INT8, scale=np.array(scale, np.float32)))
    assert exponents == [int(i) + LOWEST_EXPONENT for i in np.flatnonzero(found.exponents)]
    assert found.exponents.sum() == found.nonzero


def test_what_stays_out_is_no_operand(tmp_path: Path) -> None:
    """Biases and outputs are not quantized, so they are in no figure."""
    body = "(float[2,2] x) => (float[2,2] y) { [g] y = Gemm(x, w, b) }"
    weights: dict[str, Any] = {"w": np.eye(2, dtype=np.float32), "b": np.full(2, 1e9, np.float32)}
    model = load_model(save(with_weights(parse(body), weights), tmp_path))
    (found,) = found_in(model, [{"x": normal(2, 2)}])
    assert found.figures["largest"] < 10
