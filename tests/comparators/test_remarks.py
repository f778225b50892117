"""Outputs smaller than their tolerance are named, with flags under which plans can fail."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import precision_bisect
from polygraphy_metrics import METRICS
from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.comparison_remarks import (
    overlooked_remarks,
)
from precision_bisect.options import Options
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import Event, Warned
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.trial import Verdict
from precision_bisect_reports.page_model import page_of

WAYS = 6625
SOFT: Sample = {"probs": np.full((1, WAYS), 1 / WAYS, np.float32)}
BOTH: Sample = {**SOFT, "y": np.linspace(1.0, 2.0, 8, dtype=np.float32)}


def remarks(sample: Sample, **flags: Any) -> list[str]:
    """Return what is said of the comparator that these flags give."""
    comparator = choose_comparator(Options(model=Path("m.onnx"), **flags), list(sample))
    return overlooked_remarks(comparator, [sample])


def proposed(remark: str) -> list[str]:
    """Return the proposal of a remark as words for a command line."""
    return shlex.split(remark.partition("judge relatively by ")[2])


def judged(sample: Sample, words: list[str], factor: float) -> Verdict | None:
    """Judge the outputs, the small one times a factor, by what a command line says."""
    options = to_options(run_parser().parse_args(["m.onnx", *words]))
    got = {**sample, "probs": sample["probs"] * np.float32(factor)}
    return choose_comparator(options, list(sample)).judge([got], [sample]).verdict


@pytest.mark.parametrize("sample", [SOFT, BOTH], ids=["alone", "beside another"])
@pytest.mark.parametrize(
    "flags", [{}, {"tol": 0.03}, {"atol": 0.03}, {"tol": 2.0}, {"metric": "max"}]
)
def test_the_flags_that_are_proposed_judge(sample: Sample, flags: dict[str, Any]) -> None:
    """As they stand on a command line, 0.1% off passes by them, and zeros and a tenth off fail."""
    remark = next(each for each in remarks(sample, **flags) if "'probs'" in each)
    verdicts = [judged(sample, proposed(remark), factor) for factor in (0.999, 0.9, 0.0)]
    assert [Verdict.PASS, Verdict.FAIL, Verdict.FAIL] == verdicts


def test_values_near_zero_do_not_decide() -> None:
    """FP32's rounding of sums is far beyond a relative limit there; the norm passes it."""
    small: Sample = {"probs": np.array([1e-4, 1e-12], np.float32)}
    (remark,) = remarks(small)
    options = to_options(run_parser().parse_args(["m.onnx", *proposed(remark)]))
    rounded = {"probs": small["probs"] + np.float32(1e-11)}
    assert choose_comparator(options, ["probs"]).judge([rounded], [small]).verdict is Verdict.PASS


def test_a_norm_below_the_limit_is_named() -> None:
    """The L2 norm has no relative limit: the signal's ratio to the noise is proposed."""
    (remark,) = remarks(SOFT, metric="l2", tol=0.1)
    assert "judge relatively by --metric snr --tol 40" in remark
    assert [Verdict.PASS, Verdict.FAIL] == [
        judged(SOFT, proposed(remark), factor) for factor in (0.999, 0.0)
    ]


@pytest.mark.parametrize("metric", METRICS)
def test_outputs_of_ordinary_size_are_not_named(metric: str) -> None:
    """Nothing is said where zeros fail, nor by metrics that go by the reference's size."""
    tol = {"psnr": 40.0, "snr": 40.0}.get(metric, 1e-2)
    assert [] == remarks({"y": BOTH["y"]}, metric=metric, tol=tol)
    relative = metric in ("cosine", "psnr", "snr")
    tiny = {"probs": SOFT["probs"] / 2}
    assert relative is (remarks(tiny, metric=metric, tol=tol) == [])


def test_the_largest_of_all_samples_is_told() -> None:
    """A sample whose outputs are smaller still does not stand for the others."""
    comparator = choose_comparator(Options(model=Path("m.onnx")), list(SOFT))
    (remark,) = overlooked_remarks(comparator, [{"probs": SOFT["probs"] / 2}, SOFT])
    assert "at most 0.00015" in remark


def test_one_large_element_is_enough() -> None:
    """A softmax with a peak can fail, however small its other elements are."""
    peaked = SOFT["probs"].copy()
    peaked[0, 7] = 0.9
    assert [] == remarks({"probs": peaked})


def test_an_output_of_zeros_is_named() -> None:
    """No limit helps there: inputs that reach it do."""
    (remark,) = remarks({"mask": np.zeros(4, np.float32)})
    assert "output 'mask' is 0 in every sample" in remark
    assert "--metric" not in remark


def test_what_cannot_be_judged_is_left_alone(tmp_path: Path) -> None:
    """A reference that is not finite, and a check of the user's own, are others' to speak of."""
    assert [] == remarks({"probs": np.array([np.nan], np.float32)})
    (tmp_path / "check.py").write_text("def f(outputs, reference):\n    return 0.0\n")
    assert [] == remarks(SOFT, check=f"{tmp_path / 'check.py'}:f", tol=1.0)


def search(folder: Path, **options: Any) -> tuple[Result, list[str]]:
    """Search a model whose output is 1e-9, and return the result and the warnings."""
    body = (
        "(float[4] x) => (float[4] y) <float a = {1e-5}, float b = {1e-4}>"
        " { s = Mul(x, a) y = Mul(s, b) }"
    )
    said: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, Warned):
            said.append(event.message)

    result = precision_bisect.find(
        models.save(models.parse(body), folder),
        inputs=[{"x": np.ones(4, np.float32)}],
        threads=1,
        out=folder / "run",
        observer=observe,
        **options,
    )
    return result, said


def test_a_run_says_it_at_the_start_and_at_the_end(tmp_path: Path) -> None:
    """With 1e-9 against 0.01 nothing need be kept, which is not said without a word of it."""
    result, said = search(tmp_path)
    assert result.status is Status.NOTHING_TO_KEEP
    (told,) = [each for each in said if "smaller than its tolerance" in each]
    assert len(result.overlooked) == 1 and f"{result.overlooked[0]!r} is smaller" in told
    assert "metric='snr' tol=40" in told
    # At the end once, and not among the remarks as well.
    assert "zeros would pass" in page_of(result).banner
    assert not [note for note in result.notes if "tolerance" in note]


def test_the_relative_limit_finds_what_underflows(tmp_path: Path) -> None:
    """By the flags that are proposed the same model has layers to keep, and nothing is said."""
    result, said = search(tmp_path, metric="snr", tol=40.0)
    assert result.status is Status.FOUND
    assert result.kept
    assert not any("smaller" in each for each in said)
