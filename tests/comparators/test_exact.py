"""Outputs that are classes are exact, or may differ in a share of their elements."""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import models
import precision_bisect
from precision_bisect.errors import UsageError
from precision_bisect.graphs.fp32_outputs import class_outputs, sized_outputs
from precision_bisect.graphs.load import load_model
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator, by_size
from precision_bisect.judging.comparators.steadiness import Shared, shared
from precision_bisect.options import Options
from precision_bisect.plugins import COMPARATORS, installed
from precision_bisect.protocols import Judgement, Sample
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.trial import Verdict

NEAR = (4000, 4010)
SIZE = 256
WANT = np.full(SIZE, NEAR[1], np.int64)


def flipped(count: int) -> NDArray[np.int64]:
    """Return the classes with so many of them flipped to the one nearby."""
    got = WANT.copy()
    got[:count] = NEAR[0]
    return got


def comparator(**flags: Any) -> PolygraphyComparator:
    """Return the comparator for a model with the float output y and the output classes."""
    options = Options(model=Path("m.onnx"), **flags)
    chosen = choose_comparator(options, ["y", "classes"], ["classes"])
    assert isinstance(chosen, PolygraphyComparator)
    return chosen


def judged(got: NDArray[Any], off: float = 0.0, **flags: Any) -> Judgement:
    """Judge these classes beside a float output that is off by so much."""
    y = np.ones(4, np.float32)
    return comparator(**flags).judge(
        [{"y": y + np.float32(off), "classes": got}], [{"y": y, "classes": WANT}]
    )


def test_near_classes_are_as_wrong_as_far_ones() -> None:
    """89 of 256 that flip from 4010 to 4000 fail, though they are off by only 0.25%."""
    judgement = judged(flipped(89))
    assert judgement.verdict is Verdict.FAIL


@pytest.mark.parametrize("count", [0, 1, 3, SIZE])
def test_the_figure_grows_with_the_elements_that_differ(count: int) -> None:
    """It is on the tolerance's scale, where one element is twice the limit."""
    judgement = judged(flipped(count))
    assert judgement.error == pytest.approx(2 * count * 1e-2)
    assert (judgement.verdict is Verdict.PASS) is (count == 0)


@pytest.mark.parametrize(("count", "passes"), [(5, True), (6, False)])
def test_a_share_may_differ(count: int, passes: bool) -> None:
    """With --tol classes=0.02 five of 256 pass and six fail, on a scale of multiples."""
    flags: dict[str, Any] = {"tol": {"classes": 0.02, "": 1e-2}}
    judgement = judged(flipped(count), **flags)
    assert comparator(**flags).tolerance == 1.0
    assert (judgement.verdict is Verdict.PASS) is passes
    assert judgement.error == pytest.approx(count / SIZE / 0.02)


@pytest.mark.parametrize("count", range(1, 100))
def test_exactly_the_share_passes(count: int) -> None:
    """Rounding fails no share that is exactly the limit."""
    want = np.arange(100)
    got = np.where(want < count, -1, want)
    judge = PolygraphyComparator(
        metric="elementwise",
        atol=comparator().atol,
        rtol=comparator().rtol,
        outputs=("c",),
        shares={"c": count / 100},
    ).judge
    assert judge([{"c": got}], [{"c": want}]).verdict is Verdict.PASS


def test_a_float_output_out_of_tolerance_is_not_the_classes_doing() -> None:
    """The message tells that classes alone decide only where they do."""
    assert "no other output" not in judged(flipped(3), off=1.0).message
    assert judged(flipped(0), off=1.0).message == "output 'y', sample 0"


@pytest.mark.parametrize("metric", installed(COMPARATORS))
def test_every_metric_leaves_classes_exact(metric: str) -> None:
    """One boolean that flips fails by every metric, and none that does passes."""
    options = Options(model=Path("m.onnx"), metric=metric, tol=0.4)
    judge = choose_comparator(options, ["b"], ["b"]).judge
    want = np.zeros(1000, np.bool_)
    got = want.copy()
    assert judge([{"b": got}], [{"b": want}]).verdict is Verdict.PASS
    got[7] = True
    assert judge([{"b": got}], [{"b": want}]).verdict is Verdict.FAIL


def test_another_shape_fails() -> None:
    """Classes of another shape differ throughout."""
    judgement = judged(WANT[:1])
    assert (judgement.verdict, judgement.error) == (Verdict.FAIL, math.inf)
    assert "the shape is [1] instead of [256]" in judgement.message


def test_large_integers_are_compared_as_they_are() -> None:
    """Neighbours beyond what a float can tell apart differ."""
    want = np.array([2**62 + 1], np.int64)
    judge = choose_comparator(Options(model=Path("m.onnx")), ["c"], ["c"]).judge
    assert judge([{"c": want - 1}], [{"c": want}]).verdict is Verdict.FAIL


def test_a_part_of_the_tolerance_leaves_classes_exact() -> None:
    """A rung of a ladder, which may use half of the tolerance, passes by equal classes alone."""
    reference: list[Sample] = [{"y": np.ones(4, np.float32), "classes": WANT}]
    half = shared(comparator(), 0.5, reference)
    assert half.judge(reference, reference).verdict is Verdict.PASS
    assert pytest.approx(7e-3) == Shared(comparator=comparator(), share=0.5, base=4e-3).tolerance
    off: list[Sample] = [{**reference[0], "classes": flipped(1)}]
    assert half.judge(off, reference).verdict is Verdict.FAIL


def test_the_fingerprint_tells_the_share() -> None:
    """A run with another share is another run; models without classes are as they were."""
    assert comparator().settings()["classes"] == {"classes": 0.0}
    assert comparator(tol={"classes": 0.02}).settings()["classes"] == {"classes": 0.02}
    assert "classes" not in choose_comparator(Options(model=Path("m.onnx")), ["y"]).settings()


def test_limits_in_numbers_judge_numbers() -> None:
    """--atol by the output's name judges it as any other: an image in 8 bits, off by one."""
    flags: dict[str, Any] = {"atol": {"": 1e-2, "classes": 10.0}}
    assert judged(flipped(9), **flags).verdict is Verdict.PASS
    assert comparator(**flags).settings()["atol"] == {"y": 1e-2, "classes": 10.0}


@pytest.mark.parametrize("share", [1.0, 3.0])
def test_all_elements_are_no_share(share: float) -> None:
    """A limit that lets everything pass, or means numbers, is refused with what to write."""
    with pytest.raises(UsageError) as refused:
        comparator(tol={"classes": share})
    assert f"--atol classes={share:g}" in refused.value.one_line()


def test_integers_behind_a_cast_are_classes(tmp_path: Path) -> None:
    """A float output that is an ArgMax or a comparison cast to float is found; others are not."""
    body = """(float[2,3] x) => (int64[2] c, float[2] f, float[1,2] m, bool[2,3] b, float[2,3] y)
    <float zero = {0}>
    {
        y = Sqrt(x)
        c = ArgMax<axis = 1, keepdims = 0>(y)
        f = Cast<to = 1>(c)
        g = Cast<to = 1>(c)
        h = Unsqueeze(g, a)
        m = Identity(h)
        b = Greater(y, zero)
    }"""
    weights = {"a": np.zeros(1, np.int64)}
    model = load_model(models.save(models.with_weights(models.parse(body), weights), tmp_path))
    assert class_outputs(model) == {
        "c": "int64",
        "f": "cast from int64",
        "m": "cast from int64",
        "b": "bool",
    }


def near_ties(folder: Path) -> Path:
    """Save a model that loses in FP16 by how much one of two classes leads: 400 is added."""
    body = f"""(float[16,{NEAR[1] + 1}] x) => (int64[16] classes) <float k = {{400}}>
    {{ s = Add(x, k) t = Sub(s, k) classes = ArgMax<axis = 1, keepdims = 0>(t) }}"""
    return models.save(models.parse(body), folder)


def scores() -> dict[str, NDArray[np.float32]]:
    """Return scores of which the higher class leads by a little in every row."""
    x = np.zeros((16, NEAR[1] + 1), np.float32)
    x[:, NEAR[0]], x[:, NEAR[1]] = 1.0, 1.05
    return {"x": x}


def search(folder: Path, **options: Any) -> Result:
    """Search the model of near ties."""
    return precision_bisect.find(
        near_ties(folder), inputs=[scores()], threads=1, out=folder / "run", **options
    )


def test_flips_between_near_classes_are_no_pass(tmp_path: Path) -> None:
    """As numbers they are off by 0.0025, which was within the tolerance: now layers are kept."""
    result = search(tmp_path)
    assert result.status is Status.FOUND
    assert result.kept
    assert result.tolerance == {"atol": {}, "rtol": {}, "classes": {"classes": 0.0}}
    (note,) = [note for note in result.notes if "decided" in note]
    assert "--tol classes=0.02" in note


def test_numbers_are_judged_where_they_are_asked_for(tmp_path: Path) -> None:
    """With a limit in numbers the same model has nothing to keep."""
    result = search(tmp_path, atol={"classes": 10.0})
    assert (result.status, result.kept) == (Status.NOTHING_TO_KEEP, [])


def sized(to: int, tail: str, **limits: Any) -> list[str]:
    """Return the integer outputs that are judged by size: y is a rounded float, c an ArgMax."""
    body = f"""(float[2,3] x) => (int64[2] c, y, bool[2,3] b)
    <float zero = {{0}}, float top = {{255}}, int64 two = {{2}}>
    {{
        s = Mul(x, top)
        r = Round(s)
        q = Cast<to = {to}>(r)
        {tail}
        c = ArgMax<axis = 1, keepdims = 0>(x)
        b = Greater(x, zero)
    }}"""
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(models.save(models.parse(body), Path(folder)))
    classes = class_outputs(model)
    return list(by_size(Options(model=Path("m.onnx"), **limits), sized_outputs(model, classes)))


UINT8, INT64 = 2, 7
TAILS = {
    "as it is": "y = Identity(q)",
    "moved": "t = Transpose(q) y = Identity(t)",
    "as floats": "y = Cast<to = 1>(q)",
    "of another width": "y = Cast<to = 6>(q)",
}


@pytest.mark.parametrize("kind", [UINT8, INT64])
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
@pytest.mark.parametrize("limits", [{"tol": 2.0}, {"atol": 1.0}, {"tol": {"y": 3.0, "": 1e-2}}])
def test_rounded_floats_are_judged_by_a_limit_in_their_unit(
    kind: int, tail: str, limits: dict[str, Any]
) -> None:
    """From one step on, by any spelling; what chooses or compares stays exact beside it."""
    assert ["y"] == sized(kind, tail, **limits)


@pytest.mark.parametrize(
    "limits", [{}, {"tol": 1e-2}, {"tol": 0.5}, {"atol": 0.5}, {"tol": {"y": 0.02}, "atol": 2.0}]
)
def test_a_limit_below_one_step_leaves_integers_exact(limits: dict[str, Any]) -> None:
    """It is a share, or for other outputs."""
    assert [] == sized(UINT8, TAILS["as it is"], **limits)


@pytest.mark.parametrize(
    "tail",
    ["i = ArgMax<axis = 1>(x) y = Add(i, two)", "i = ArgMax<axis = 1>(x) y = Cast<to = 6>(i)",
     "v, y = TopK(x, k)", "y = Greater(s, top)"],
)  # fmt: skip
def test_what_a_choice_has_made_is_no_size(tail: str) -> None:
    """Labels stay exact beside boxes whose limit is two pixels."""
    if "TopK" in tail:
        tail = "k = Constant<value = int64[1] {1}>() " + tail
    assert [] == sized(INT64, tail, tol=2.0)


@pytest.mark.parametrize("limits", [{"tol": 2.0}, {"atol": 2.0}])
def test_a_picture_in_8_bits_may_be_two_steps_off(limits: dict[str, Any], tmp_path: Path) -> None:
    """With a limit in steps no layer is kept, and no remark tells to judge numbers."""
    body = """(float[64] x) => (uint8[64] y) <float scale = {20}, float shift = {150}>
    { l = Log(x) s = Mul(l, scale) t = Add(s, shift) r = Round(t) y = Cast<to = 2>(r) }"""
    sample = {"x": np.linspace(0.5, 3, 64, dtype=np.float32)}
    path = models.save(models.parse(body), tmp_path)
    flags: dict[str, Any] = {"inputs": sample, "threads": 1}
    exact = precision_bisect.find(path, out=tmp_path / "exact", **flags)
    steps = precision_bisect.find(path, out=tmp_path / "steps", **flags, **limits)
    assert exact.kept
    assert (Status.NOTHING_TO_KEEP, 2.0) == (steps.status, steps.tolerance)
    assert not any("--atol y" in note or "--tol y" in note for note in steps.notes)


def test_advice_that_was_followed_is_not_given_again(tmp_path: Path) -> None:
    """Where a share may differ already, no remark tells to let one."""
    result = search(tmp_path, tol={"classes": 0.02})
    (note,) = [note for note in result.notes if "decided" in note]
    assert "--tol" not in note
