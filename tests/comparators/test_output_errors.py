"""The errors of the answer stand in `result.json`, output by output, in the outputs' own units."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import precision_bisect
import tiny
from effort import nightly
from precision_bisect.judging.comparators.output_errors import output_errors, together
from precision_bisect.runs.results.result import Result
from precision_bisect.trial import OutputError

BOXES = np.arange(200, dtype=np.float32).reshape(2, 100)


def test_the_largest_error_has_a_place() -> None:
    """Figures are over all samples, the place is that of the worst element of the worst sample."""
    want = [{"boxes": BOXES}, {"boxes": BOXES + 1}]
    got = [{"boxes": BOXES.copy()}, {"boxes": BOXES + 1}]
    got[0]["boxes"][0, 3] += 0.5
    got[1]["boxes"][1, 7] -= 25
    (found,) = output_errors(got, want)
    expected = OutputError(
        output="boxes",
        max=25.0,
        mean=25.5 / 400,
        p99=0.0,
        elements=400,
        differing=2,
        sample=1,
        index=[1, 7],
        expected=108.0,
        got=83.0,
    )
    assert expected == found


def test_the_percentile_is_that_of_the_worst_sample() -> None:
    """Two in a hundred elements that are off by 3 are beyond the 99th percentile of one sample."""
    got = [{"boxes": BOXES.copy()}, {"boxes": BOXES.copy()}]
    got[1]["boxes"][0, :4] += 3
    (found,) = output_errors(got, [{"boxes": BOXES}] * 2)
    assert 3.0 == found.p99


@pytest.mark.parametrize(
    ("want", "got", "error", "index"),
    [
        (np.float32(2.0), np.float32(2.5), 0.5, []),
        (np.array([True, False]), np.array([True, True]), 1.0, [1]),
        (np.array([0, 255], np.uint8), np.array([255, 255], np.uint8), 255.0, [0]),
        (np.array([5], np.int64), np.array([-(2**62)], np.int64), 2.0**62, [0]),
        (np.array([6e4], np.float16), np.array([-6e4], np.float16), 120000.0, [0]),
        (np.zeros((1, 2)), np.zeros((1, 2)), 0.0, [0, 0]),
    ],
)
def test_outputs_of_any_type_have_errors(
    want: Any, got: Any, error: float, index: list[int]
) -> None:
    """Scalars, truth values and whole numbers are measured without wrapping around."""
    (found,) = output_errors([{"y": np.asarray(got)}], [{"y": np.asarray(want)}])
    assert (error, index) == (found.max, found.index)


def test_an_output_of_another_shape_is_left_out() -> None:
    """A check may pass more rows than there were; element by element there is nothing to say."""
    got = {"rows": np.zeros((3, 5)), "y": np.ones(2)}
    found = output_errors([got], [{"rows": np.zeros((2, 5)), "y": np.ones(2)}])
    assert ["y"] == [each.output for each in found]


def written(result: Result) -> list[dict[str, Any]]:
    """Return what `result.json` says of the outputs."""
    assert result.out is not None
    found: list[dict[str, Any]] = json.loads((result.out / "result.json").read_text())[
        "output_errors"
    ]
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "ddmin", "copies": 0},
        {"isolate": "always", "holdout": 1},
        {"ladder": ("fp16", "bf16", "fp32")},
        *nightly({"until": "culprits"}, {"low": "bf16", "tol": 0.5}),
    ],
    ids=" ".join,
)
def test_every_answer_has_them(tmp_path: Path, options: dict[str, Any]) -> None:
    """However the answer was found, the errors of all samples that judge it are there."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    result = tiny.search(model, tmp_path / "run", inputs=tiny.samples(3), **options)
    (found,) = written(result)
    assert 8 * (3 - options.get("holdout", 0)) == found["elements"]
    assert found["max"] == abs(found["got"] - found["expected"])
    assert 0 <= found["mean"] <= found["p99"] <= found["max"]


@pytest.mark.parametrize("options", [{"isolate": "always"}, {"holdout": 3}], ids=str)
def test_samples_that_did_not_choose_are_among_them(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Of many samples few choose; all that judge have a part in the errors."""
    model, feeds = tiny.write_model(tmp_path / "tiny.onnx"), tiny.samples(20)
    result = tiny.search(
        model, tmp_path / "run", inputs=feeds, tol=None, atol=1e-2, copies=0, **options
    )
    (found,) = result.output_errors
    assert 8 * (20 - options.get("holdout", 0)) == found.elements
    assert found.max == abs(found.got - found.expected) == result.error


def test_errors_of_several_parts_are_those_of_all_samples_at_once() -> None:
    """Means are weighed by elements, counts add up, and the place is that of the largest error."""
    exact = [{"y": np.zeros(n, np.float32), "z": np.zeros(2, np.float32)} for n in (3, 5)]
    off = [{"y": np.arange(n, dtype=np.float32), "z": np.ones(2, np.float32)} for n in (3, 5)]
    parts = [output_errors([got], [want]) for got, want in zip(off, exact, strict=True)]
    parts[1] = [replace(each, sample=1) for each in parts[1]]
    assert output_errors(off, exact) == together(parts)
    assert ["y"] == [each.output for each in together([parts[0], parts[1][:1]])]


def test_without_an_answer_there_are_none(tmp_path: Path) -> None:
    """Every layer high has errors, too, but is no answer."""
    model = models.save(models.parse(models.CANCELLATION), tmp_path)
    feeds = [{"x": np.linspace(1, 2, 4, dtype=np.float32)}]
    result = precision_bisect.find(
        model, inputs=feeds, out=tmp_path / "run", tol=1e-9, backend="emulated", max_trials=3
    )
    assert not result.rungs
    assert [] == written(result)


def test_differences_that_leave_the_range_of_the_outputs_are_figures() -> None:
    """Two large floats of unlike sign are further apart than FP32 says; nothing is warned of."""
    far = np.float32(3e38)
    (found,) = output_errors([{"y": np.array([far, 1])}], [{"y": np.array([-far, 1])}])
    assert (2 * float(far), 1) == (found.max, found.differing)
    assert np.isfinite(found.p99) and float(far) == found.mean
