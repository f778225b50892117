"""Inputs with NaN and Inf: masks of -inf and unknown values are searched, slips are named."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from models import load_text, normal, parse, save
from precision_bisect import find
from precision_bisect.errors import InputError
from precision_bisect.graphs.fp32_outputs import ReferenceSession
from precision_bisect.judging.inputs.copies import Copies, at_ends
from precision_bisect.judging.inputs.distinct import distinct
from precision_bisect.judging.inputs.input_check import figures, oddities
from precision_bisect.pipeline.loading import _refuse_slips
from precision_bisect.protocols import Run, Sample
from precision_bisect.trial import SampleSet

CAUSAL = np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32)
ATTENTION = """(float[4, 8] q, float[4, 4] bias) => (float[4, 8] y)
    <float k = {2000.0}, float one = {0.0005}> { t = Transpose(q) s = MatMul(q, t)
    b = Mul(s, k) c = Mul(b, one) m = Add(c, bias) p = Softmax(m) y = MatMul(p, q) }"""
UNKNOWN = """(float[2, 4] q) => (float[2, 4] y) <float none = {0.0}> {
    is = IsNaN(q) known = Where(is, none, q) e = Exp(known) y = Mul(e, e) }"""


def with_nan() -> NDArray[np.float32]:
    """Return values of which one is not known."""
    values = normal(2, 4)
    values[1, 2] = np.nan
    return values


@pytest.mark.parametrize(
    ("text", "sample", "kept"),
    [(ATTENTION, {"q": 3 * normal(4, 8), "bias": CAUSAL}, 1), (UNKNOWN, {"q": with_nan()}, 0)],
    ids=["a mask", "unknown values"],
)
def test_what_the_model_takes_is_searched(
    text: str, sample: Sample, kept: int, tmp_path: Path
) -> None:
    """The answer is of what leaves the range alone, and holds on copies that have the same."""
    path = save(parse(text), tmp_path)
    result = find(path, inputs=sample, tol=1e-2, threads=1, out=tmp_path / "run")
    assert result.status == ("found" if kept else "nothing_to_keep")
    assert kept <= len(result.kept) <= 2 * kept
    assert result.stability is not None and not result.stability.failed
    assert not any("leaves its range" in note for note in result.notes)


def test_a_slip_is_named(tmp_path: Path) -> None:
    """Where NaN comes out, the input that has it is to blame, and not the layer."""
    path = save(parse("(float[2, 4] q) => (float[2, 4] y) { e = Exp(q) y = Mul(e, e) }"), tmp_path)
    with pytest.raises(InputError, match="input 'q' of sample 1 has 1 NaN or Inf of 8, and so"):
        find(
            path, inputs=[{"q": normal(2, 4)}, {"q": with_nan()}], threads=1, out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_what_a_loop_takes_is_searched(tmp_path: Path) -> None:
    """A function of the user's may put something else in the place of what is not known."""
    path = save(parse("(float[2, 4] q) => (float[2, 4] y) { e = Exp(q) y = Mul(e, e) }"), tmp_path)

    def known(run: Run, inputs: Sample) -> Sample:
        return run({"q": np.nan_to_num(inputs["q"])})

    result = find(
        path, inputs={"q": with_nan()}, loop=known, tol=1e-2, threads=1, out=tmp_path / "run"
    )
    assert "nothing_to_keep" == result.status


def test_a_held_out_sample_that_does_not_run_is_left_out(tmp_path: Path) -> None:
    """It is no slip that it has NaN, and ends no run that other samples decide."""
    text = """(float[2, 4] q, int64[1] i) => (float[1, 4] y) <float none = {0.0}> {
        is = IsNaN(q) known = Where(is, none, q) e = Exp(known) y = Gather(e, i) }"""
    model = load_text(text, tmp_path)
    fine = {"q": with_nan(), "i": np.array([0])}
    refer = ReferenceSession(model, 1)
    _refuse_slips([fine, {**fine, "i": np.array([7])}], [0, 1], refer)


def test_it_is_told_beside_figures_of_the_rest(tmp_path: Path) -> None:
    """A mask of 0 and -inf is not "0 throughout"."""
    model = load_text(ATTENTION, tmp_path)
    samples: list[Sample] = [{"q": normal(4, 8), "bias": CAUSAL}]
    read = figures(samples, model.inputs, "in", None)
    assert (0.0, 0.0, 0.0) == (read.inputs[1].lowest, read.inputs[1].highest, read.inputs[1].mean)
    (remark,) = oddities(model, samples, read)
    assert remark.startswith("input 'bias' has 6 NaN or Inf of 16: check how it was made")


@pytest.mark.parametrize("exact", [True, False])
def test_copies_change_the_rest(exact: bool) -> None:
    """-inf stays -inf: a finite number would be another mask, as for a row of nothing else."""
    values = np.array([-np.inf, np.inf, np.nan, 0.5 if exact else 0.3], np.float32)
    feeds: list[Sample] = [{"mask": CAUSAL, "x": values}]
    copies = Copies(samples={SampleSet.JUDGED: (feeds, feeds)}, count=1, refer=lambda feed: feed)
    (feed,), _ = copies.make(SampleSet.JUDGED, 1, 0)
    assert CAUSAL is feed["mask"]
    np.testing.assert_array_equal(feed["x"][:3], values[:3])
    assert 0 < abs(feed["x"][3] / values[3] - 1) < 0.01
    upper, lower = at_ends(feeds, "x", (-1.0, 2.0))
    np.testing.assert_array_equal(upper["x"], np.array([-np.inf, np.inf, np.nan, 2], np.float32))
    np.testing.assert_array_equal(lower["x"], np.array([-np.inf, np.inf, np.nan, -1], np.float32))


@pytest.mark.parametrize("size", [8, 1000])
def test_near_samples_are_one_and_other_masks_are_others(size: int) -> None:
    """What is not finite has no distance, and its places are compared."""
    x = np.linspace(1, 2, size, dtype=np.float32)
    first, near, other = x.copy(), x * np.float32(1.0001), x.copy()
    first[0] = near[0] = other[1] = -np.inf
    assert [0, 0, 2] == list(distinct([{"x": first}, {"x": near}, {"x": other}]).near)
