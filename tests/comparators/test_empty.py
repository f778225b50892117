"""Outputs without an element, as of a detector that finds nothing, are judged by their shapes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import models
import precision_bisect
from precision_bisect.commandline.main import main
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.comparison_remarks import overlooked_remarks
from precision_bisect.judging.comparators.metrics import multiple
from precision_bisect.judging.comparators.output_errors import output_errors, together
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.options import Options
from precision_bisect.protocols import Comparator, Judgement, Sample
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.search.sample_sets import pool_of
from precision_bisect.trial import Verdict

LIMITS = {"elementwise": 0.01, "max": 0.01, "mean": 0.01, "quantile": 0.01, "l2": 0.01}
LIMITS |= {"cosine": 0.01, "psnr": 30.0, "snr": 30.0}
IMAGE = np.random.default_rng(0).random((2, 3, 16, 16)).astype(np.float32)
FITTING = {
    "ctc": np.eye(5, dtype=np.float32)[[0, 1, 2, 0, 3]],
    "embeddings": models.normal(4, 16),
    "perplexity": models.normal(8, 30),
    "ssim": IMAGE,
    "top1": models.normal(16, 10),
    "top5": models.normal(16, 10),
}
"""By check an output whose first dimension may be zero."""


def by_metric(metric: str, dtype: str = "float32") -> Comparator:
    """Return a comparator by one of Polygraphy's metrics; integers are exact with "classes"."""
    classes = ["y"] if dtype == "classes" else []
    options = Options(model=Path("m.onnx"), metric=metric, tol=LIMITS[metric])
    return choose_comparator(options, ["y"], classes)


def by_check(name: str) -> Comparator:
    """Return the comparator of a ready-made check."""
    return choose_comparator(Options(model=Path("m.onnx"), check=name, tol=0.01), ["y"])


def judged(comparator: Comparator, got: Sequence[Any], want: Sequence[Any]) -> Judgement:
    """Judge samples with one output."""
    return comparator.judge([{"y": each} for each in got], [{"y": each} for each in want])


CASES = [
    *((by_metric(metric), models.normal(3, 6)) for metric in LIMITS),
    *((by_metric(metric), np.arange(18, dtype=np.int64)) for metric in LIMITS),
    (by_metric("max", "classes"), np.arange(18)),
    *((by_check(name), array) for name, array in FITTING.items()),
    (by_check("boxes"), np.array([[1, 2, 30, 40, 0.9, 3]], np.float32)),
]

SHAPED = [
    (each, full) for each, full in CASES if each.settings().get("check") not in ("ctc", "boxes")
]
"""Those to which another shape is an error of its own."""


@pytest.mark.parametrize(("comparator", "full"), CASES)
def test_nothing_equals_nothing(comparator: Comparator, full: NDArray[Any]) -> None:
    """Beside another sample and alone an empty output has no error, and hides none."""
    empty = full[:0]
    same = [judged(comparator, each, each) for each in ([empty, full], [empty], [full, empty])]
    assert [Verdict.PASS] * 3 == [each.verdict for each in same]
    assert pytest.approx([0.0] * 3, abs=1e-6) == [each.error for each in same]
    wrong = np.asarray((1 - 10 * full).astype(full.dtype))[::-1]
    alone, beside = (
        judged(comparator, got, want)
        for got, want in (([wrong], [full]), ([empty, wrong], [empty, full]))
    )
    assert (Verdict.FAIL, alone.error) == (beside.verdict, beside.error)


@pytest.mark.parametrize(("comparator", "full"), SHAPED)
def test_something_for_nothing_fails_by_its_shape(
    comparator: Comparator, full: NDArray[Any]
) -> None:
    """What was found although there is nothing, and the other way round, is told as shapes."""
    empty = full[:0]
    for got, want in ((full, empty), (empty, full)):
        found = judged(comparator, [full, got], [full, want])
        assert (Verdict.FAIL, np.inf) == (found.verdict, found.error)
        said = f"{[*got.shape]} instead of {[*want.shape]}"
        assert said in found.message


def test_a_text_without_a_step_is_an_empty_text() -> None:
    """CTC compares texts, of any number of steps."""
    full = FITTING["ctc"]
    blank = full[[0, 0]]
    for got, want, error in (
        (full, full[:0], 3 / 3),
        (full[:0], full, 3 / 6),
        (blank, full[:0], 0.0),
    ):
        assert pytest.approx(error) == judged(by_check("ctc"), [full, got], [full, want]).error


def test_boxes_where_there_are_none_are_all_wrong() -> None:
    """A reference without boxes says nothing of columns, and any box fails."""
    one = np.array([[1, 2, 30, 40, 0.9, 3]], np.float32)
    for count in (4, 5, 6, 7):
        wide = np.resize(one, (2, count)).astype(np.float32)
        found = judged(by_check("boxes"), [wide, wide[:0]], [wide[:0], wide[:0]])
        assert (Verdict.FAIL, 1.0) == (found.verdict, found.error)


def test_a_comparator_is_tried_with_what_is_there() -> None:
    """Wrong outputs are made of those with an element, whatever their type."""
    for array in (models.normal(16, 10), np.arange(16), np.arange(16) % 2 == 0):
        reference = [{"y": array}, {"y": array[:0]}]
        try_out(by_check("top1"), reference, "--check top1")


def test_an_output_that_is_always_empty_is_named() -> None:
    """Others are judged beside it, and a remark says that nothing judges it."""
    reference: list[Sample] = [{"y": models.normal(0, 6), "z": models.normal(4)}]
    comparator = choose_comparator(Options(model=Path("m.onnx"), tol=0.01), ["y", "z"])
    (remark,) = overlooked_remarks(comparator, reference)
    assert "output 'y' is empty in every sample" in remark


def test_errors_by_output_count_what_is_there() -> None:
    """Empty outputs add no element; parts without any leave the others as they are."""
    full, empty = {"y": models.normal(3, 6)}, {"y": models.normal(0, 6)}
    off = {"y": full["y"] + np.float32(0.5)}
    (whole,) = output_errors([empty, off], [empty, full])
    (alone,) = output_errors([off], [full], first=1)
    assert alone == whole
    (parted,) = together([output_errors([empty], [empty]), output_errors([off], [full], first=1)])
    assert alone == parted
    (nothing,) = output_errors([empty], [empty], first=2)
    assert (0, 2, 0.0) == (nothing.elements, nothing.sample, nothing.max)


@pytest.mark.parametrize("metric", LIMITS)
def test_the_target_judges_alike(metric: str) -> None:
    """What is written for deployment has the same arithmetic; NaN is beyond any limit."""
    empty, full = models.normal(0, 6), models.normal(1, 6)
    limit = LIMITS[metric]
    assert 0.0 == multiple({"metric": metric, "quantile": 0.9}, limit, limit, empty, empty)
    assert np.inf == multiple({"metric": metric, "quantile": 0.9}, limit, limit, full, empty)
    lost = np.full_like(full, np.nan)
    assert np.inf == multiple({"metric": metric, "quantile": 0.9}, limit, limit, lost, full)


DETECTOR = """(float[1,5,4] b, float[1,1,5] s) => (float[n,4] dets)
<float k = {1.0}, int64[1] most = {5}, float[1] iou = {0.5}, float[1] least = {0.49999},
 int64[1] last = {2}, int64[1] one = {1}, int64[1] zero = {0}>
{ boxes = Mul(b, k) scores = Mul(s, k)
  chosen = NonMaxSuppression(boxes, scores, most, iou, least)
  column = Gather <axis = 1> (chosen, last) row = Squeeze(column, one)
  all = Squeeze(boxes, zero) dets = Gather <axis = 0> (all, row) }"""
NEAR, FAR, CLEAR = 0.49995, 0.1, 0.9
"""Scores: FP16 rounds the first to 0.5, which is above the detector's threshold."""


def seen(score: float) -> Sample:
    """Return a sample with a box of this score and four of less; boxes are exact in FP16."""
    low = np.arange(10, dtype=np.float32).reshape(5, 2) * 32
    boxes = np.concatenate([low, low + 16], -1)[None]
    return {"b": boxes, "s": np.float32(score) - np.arange(5, dtype=np.float32)[None, None] / 50}


def search(folder: Path, samples: Sequence[Sample], **options: Any) -> Result:
    """Search the detector with these samples."""
    model = models.save(models.parse(DETECTOR), folder)
    return precision_bisect.find(
        model, inputs=[*samples], threads=1, out=folder / "run", **options
    )


JUDGES: Sequence[dict[str, Any]] = ({"tol": 0.01}, {"check": "boxes", "tol": 0.05})


@pytest.mark.parametrize("judge", JUDGES)
def test_samples_without_boxes_take_part(tmp_path: Path, judge: dict[str, Any]) -> None:
    """They pass where the low model finds nothing, too; where it finds a box, a layer is kept."""
    plain = search(tmp_path, [seen(CLEAR), seen(FAR)], **judge)
    assert (Status.NOTHING_TO_KEEP, 0.0) == (plain.status, plain.error)
    near = search(tmp_path, [seen(CLEAR), seen(FAR), seen(NEAR)], overwrite=True, **judge)
    assert (Status.FOUND, 0.0, 1) == (near.status, near.error, len(near.kept))


def test_where_nothing_is_ever_found_there_is_nothing_to_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so, with the outputs and their shapes, and what to do."""
    model = models.save(models.parse(DETECTOR), tmp_path)
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", **dict(seen(FAR + number / 100)))  # type: ignore[arg-type]
    assert 2 == main([str(model), "--inputs", str(tmp_path), "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err.splitlines()[-1]
    assert "the outputs of all 3 samples are empty, 'dets' [0, 4]; give inputs" in said


def test_one_of_many_is_enough(tmp_path: Path) -> None:
    """Where those that choose are empty, others join until one is not; the rest judge."""
    count = 40
    pool = pool_of(range(count), 0)
    full = next(number for number in range(count) if number not in pool)
    samples = [seen(CLEAR if n == full else FAR + n / 1000) for n in range(count)]
    found = search(tmp_path, samples, tol=0.01)
    assert found.unseen is not None
    took, judging = found.unseen.took_part, found.unseen.judged
    assert (count, 0) == (took + judging, found.unseen.failed)
    assert len(pool) < took
