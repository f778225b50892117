"""Advice for INT8: a model that has the problem, and that following it leaves nothing to keep."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import advice_cases
from advice_cases import helps
from models import normal, parse, with_weights
from precision_bisect.explaining.advice.advise import Adviser
from precision_bisect.runs.results.endings import Status
from reported_models import stretched

PRODUCT = "(float[64,4] x) => (float[64,3] y) { [mm] y = MatMul(x, w) }"


searched = partial(advice_cases.searched, low="int8", tol=0.1, backend="emulated")


def test_channels_are_brought_to_one_size(tmp_path: Path) -> None:
    """Smoothed, as the trial on a copy says, the layer of the outlier channel need not be kept.

    Unsmoothed it can do with FP16, and the search in that agrees.
    """
    result, advice = searched(*stretched(), tmp_path, "outliers")
    assert ["second"] == result.kept
    assert ["second"] == advice["smooth"].layers
    assert "channel 3 of s reaches" in advice["smooth"].evidence
    assert helps(advice["smooth"], kept=0)
    assert advice["fp16-kept"].holds
    half, none = searched(*stretched(), tmp_path, "fp16", high="fp16")
    assert result.kept == half.kept
    assert "fp16-kept" not in none
    # 400 in the norm's scale, 1 / 400 in the weight: the factor that evens both is 256.
    mended, _ = searched(*stretched(400.0 / 256.0), tmp_path, "smoothed")
    assert Status.NOTHING_TO_KEEP is mended.status


def test_readers_along_other_axes_have_no_channels(tmp_path: Path) -> None:
    """What is a channel to a convolution is a row to a product: neither is told of one."""
    body = """(float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,16] z) {
        [stretch] s = Mul(x, channels)
        [conv] y = Conv(s, w1)
        [product] z = MatMul(s, w2) }"""
    channels = np.ones((4, 1, 1), np.float32)
    channels[3] = 1000.0
    weights = {"channels": channels, "w1": normal(4, 4, 1, 1), "w2": normal(8, 16)}
    proto = with_weights(parse(body), weights)
    result, advice = searched(proto, [{"x": normal(1, 4, 8, 8)}], tmp_path, "both", tol=1e-3)
    assert ["conv", "product"] == result.kept
    assert 2 == len(result.diagnosis)
    assert "smooth" not in advice


def test_another_calibration_is_said_where_it_passes(tmp_path: Path) -> None:
    """A single outlier that nothing reads is cut off by percentiles, and all runs INT8."""
    weight = normal(4, 3, seed=1)
    weight[3] = 0.0
    feeds = [{"x": normal(64, 4, seed=i)} for i in range(60)]
    feeds[7]["x"][0, 3] = 200.0
    proto = with_weights(parse(PRODUCT), {"w": weight})
    result, advice = searched(proto, feeds, tmp_path, "minmax")
    assert ["mm"] == result.kept
    assert "--calibration percentile" in advice["calibration"].text
    mended, _ = searched(proto, feeds, tmp_path, "percentile", calibration="percentile")
    assert Status.NOTHING_TO_KEEP is mended.status


def test_convolutions_are_smoothed_too(tmp_path: Path) -> None:
    """Channels of a convolution are the second axis of its input and of its weight."""
    body = """(float[2,8,6,6] x) => (float[2,4,4,4] y) {
        [stretch] s = Mul(x, channels)
        [conv] y = Conv(s, w) }"""
    channels, weight = np.ones((8, 1, 1), np.float32), normal(4, 8, 3, 3) / np.float32(9)
    channels[5], weight[:, 5] = 1000.0, weight[:, 5] / np.float32(1000)
    proto = with_weights(parse(body), {"channels": channels, "w": weight})
    result, advice = searched(proto, [{"x": normal(2, 8, 6, 6)}], tmp_path, "conv")
    assert ["conv"] == result.kept
    assert "channel 5 of s" in advice["smooth"].evidence
    assert advice["smooth"].holds


def test_a_fault_in_advice_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is written, with its diagnosis, whatever goes wrong behind it."""

    def faulty(case: Any) -> Any:
        raise ValueError(case)

    entries = [Adviser(faulty)]
    monkeypatch.setattr("precision_bisect.explaining.advice.advise.ADVISERS", entries)
    result, advice = searched(*stretched(), tmp_path, "faulty")
    assert ["second"] == result.kept
    assert 1 == len(result.diagnosis)
    assert {} == advice
