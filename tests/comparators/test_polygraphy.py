"""Verdicts are Polygraphy's, and the figure beside each agrees with it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from polygraphy import comparator as pg

from effort import examples
from polygraphy_metrics import METRICS
from precision_bisect.judging.comparators import metrics
from precision_bisect.judging.comparators.metrics import multiple
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator, Tolerance
from precision_bisect.machine.polygraphy_quiet import quiet
from precision_bisect.protocols import Judgement
from precision_bisect.trial import Verdict

Array = NDArray[Any]
ORDERED: tuple[str, ...] = ("elementwise", "max", "mean", "quantile")
SIGNAL_FIRST: tuple[str, ...] = ("psnr", "snr")
MANY = examples(20)


def judge(
    metric: str, got: Array, want: Array, atol: float = 1e-2, rtol: float | None = None
) -> Judgement:
    """Judge one output of one sample; the relative limit is the absolute one unless given."""
    return judging(metric, atol, rtol).judge([{"y": got}], [{"y": want}])


def judging(metric: str, atol: float, rtol: float | None = None) -> PolygraphyComparator:
    """Return a comparator of the output y."""
    return PolygraphyComparator(
        metric=metric,
        atol=Tolerance(default=atol),
        rtol=Tolerance(default=atol if rtol is None else rtol),
        outputs=("y",),
    )


def polygraphy_says(metric: str, got: Array, want: Array, atol: float, rtol: float) -> bool:
    """Ask Polygraphy itself about the whole arrays, the reference where each metric wants it."""
    functions: dict[str, Callable[[], Any]] = {
        "l2": lambda: pg.L2CompareFunc(l2_threshold=atol),
        "cosine": lambda: pg.CosineSimilarityCompareFunc(cosine_similarity_threshold=1.0 - atol),
        "psnr": lambda: pg.PsnrCompareFunc(psnr_threshold=atol),
        "snr": lambda: pg.SnrCompareFunc(snr_threshold=atol),
    }
    stats = {"elementwise": "elemwise", "max": "max", "mean": "mean", "quantile": "quantile"}
    if metric in stats:
        function: Any = pg.SimpleCompareFunc(
            atol=atol, rtol=rtol, check_error_stat=stats[metric], error_quantile=0.99
        )
    else:
        function = functions[metric]()
    first, second = (want, got) if metric in SIGNAL_FIRST else (got, want)
    with quiet(), np.errstate(all="ignore"):
        results = function(
            pg.IterationResult({"y": first}, runner_name=""),
            pg.IterationResult({"y": second}, runner_name=""),
        )
    return bool(results["y"])


def test_nothing_is_computed_for_a_log_that_nobody_reads() -> None:
    """Polygraphy makes no statistics inside a quiet block, and does again after it."""
    from polygraphy.comparator import util

    real = util.log_output_stats
    with quiet(), quiet():
        assert util.log_output_stats is not real
        assert not polygraphy_says("max", np.ones(3), np.zeros(3), 0.5, 0.5)
    assert util.log_output_stats is real


FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, float(np.float16(1e-2)), 100.0]),
    st.floats(-1e4, 1e4, width=16),
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    """Draw a reference and outputs near it, of any type and shape that a model may give."""
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64, np.int32, np.int64]))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=5))
    integers = st.integers(-(10**6), 10**6)
    elements = FLOATS if np.issubdtype(dtype, np.floating) else integers
    want = np.array(draw(hnp.arrays(np.dtype(dtype), shape, elements=elements)))
    step = draw(st.sampled_from([0.0, 1e-3, 9.9e-3, 1e-2, 1.01e-2, 0.5, 3.0]))
    signs = draw(hnp.arrays(np.int8, shape, elements=st.integers(-1, 1)))
    with np.errstate(all="ignore"):
        got = (want + signs * step * draw(st.sampled_from([1.0, 10.0]))).astype(dtype)
    return got, want


def limits(metric: str) -> tuple[float, ...]:
    """Return limits that a metric is likely to be near."""
    return (30.0, 60.0) if metric in SIGNAL_FIRST else (1e-3, 1e-2, 0.3)


@pytest.mark.parametrize("metric", METRICS)
@given(pair=pairs(), data=st.data())
@MANY
def test_the_verdict_is_polygraphys(
    metric: str, pair: tuple[Array, Array], data: st.DataObject
) -> None:
    """The verdict is Polygraphy's own on the same arrays, and the error is on its side."""
    got, want = pair
    limit = data.draw(st.sampled_from(limits(metric)))
    judgement = judge(metric, got, want, limit)
    if not (metric in ("l2", "cosine", *SIGNAL_FIRST) and want.dtype.kind == "i"):
        assert polygraphy_says(metric, got, want, limit, limit) is (
            judgement.verdict is Verdict.PASS
        )
    assert judgement.error is not None
    assert (judgement.error <= limit) is (judgement.verdict is Verdict.PASS)
    assert math.isfinite(judgement.error)
    assert judgement.error >= 0


@pytest.mark.parametrize("metric", ORDERED)
@given(
    pair=pairs(),
    atol=st.sampled_from([0.0, 1e-3, 0.1]),
    rtol=st.sampled_from([0.0, 1e-2, 0.5]),
)
@MANY
def test_two_limits_make_the_error_a_multiple(
    metric: str, pair: tuple[Array, Array], atol: float, rtol: float
) -> None:
    """With different limits the verdict stays Polygraphy's and 1 or the one limit is the bound."""
    assume(atol or rtol)
    got, want = pair
    comparator = judging(metric, atol, rtol)
    judgement = comparator.judge([{"y": got}], [{"y": want}])
    passes = judgement.verdict is Verdict.PASS
    assert comparator.tolerance == (1.0 if bool(atol) is bool(rtol) else atol or rtol)
    assert polygraphy_says(metric, got, want, atol, rtol) is passes
    assert judgement.error is not None
    assert (judgement.error <= comparator.tolerance) is passes


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_value_never_passes(metric: str, bad: float) -> None:
    """A single NaN or Inf among a thousand fails by every metric, also where it is expected."""
    want = np.linspace(0.0, 1.0, 1000, dtype=np.float32)
    got = want.copy()
    got[7] = bad
    for reference in (want, got):
        judgement = judge(metric, got, reference, 0.4)
        assert judgement.verdict is Verdict.FAIL
        assert judgement.error == math.inf
        assert "NaN or Inf" in judgement.message


@pytest.mark.parametrize("metric", METRICS)
def test_equal_outputs_pass_with_no_error(metric: str) -> None:
    """Outputs equal to the reference pass by every metric, zeros and scalars included."""
    for want in (np.zeros(4, np.float32), np.float32(3.5), np.array([True, False]), np.arange(3)):
        judgement = judge(metric, np.asarray(want), np.asarray(want), 0.4)
        assert judgement.verdict is Verdict.PASS
        assert judgement.error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_another_shape_fails(metric: str) -> None:
    """Outputs of another shape fail, even where they would broadcast."""
    judgement = judge(metric, np.zeros((1, 3), np.float32), np.zeros(3, np.float32), 0.4)
    assert judgement.verdict is Verdict.FAIL


@pytest.mark.parametrize("metric", METRICS)
def test_a_flipped_boolean_fails(metric: str) -> None:
    """Boolean outputs are judged by every metric; here half of them are wrong."""
    want = np.array([True, True, False, False])
    limit = 30.0 if metric in SIGNAL_FIRST else 0.1
    assert judge(metric, ~want, want, limit).verdict is Verdict.FAIL


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_do_not_wrap_around(metric: str, dtype: type[np.signedinteger[Any]]) -> None:
    """The least integer, which a cast of NaN gives, is far from 0 though 0 minus it wraps."""
    got = np.array([np.iinfo(dtype).min, 1], dtype)
    assert judge(metric, got, np.array([0, 1], dtype), 0.4).verdict is Verdict.FAIL


@pytest.mark.parametrize("metric", METRICS)
def test_nothing_to_judge_is_an_error(metric: str) -> None:
    """No samples, or not as many as references, are no pass."""
    with pytest.raises(ValueError, match="0 outputs for 0 references"):
        judging(metric, 0.1).judge([], [])
    with pytest.raises(ValueError, match="1 outputs for 0 references"):
        judging(metric, 0.1).judge([{"y": np.zeros(1)}], [])


def test_the_reference_divides() -> None:
    """Relative error is relative to the reference: 0 against 1 is 100%, 1 against 0 is not."""
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    assert judge("max", zero, one, 0.0, 1.0).verdict is Verdict.PASS
    assert judge("max", one, zero, 0.0, 1.0).verdict is Verdict.FAIL


def test_the_reference_is_the_signal() -> None:
    """PSNR and SNR take peak and power from the reference, not from the outputs."""
    want, got = np.full(4, 1.0, np.float32), np.full(4, 100.0, np.float32)
    for metric in SIGNAL_FIRST:
        assert judge(metric, got, want, 1.0).verdict is Verdict.FAIL


def test_the_float32_boundary_is_polygraphys() -> None:
    """Exactly on the limit, in float32, passes; the next float above does not."""
    want = np.ones(1, np.float32)
    on = np.float32(0.25)
    above = np.nextafter(np.float32(1.25), np.float32(2)) - np.float32(1)
    assert judge("elementwise", want + on, want, 0.25, 0.0).error == 0.25
    over = judge("elementwise", want + above, want, 0.25, 0.0)
    assert over.verdict is Verdict.FAIL
    assert over.error is not None
    assert over.error > 0.25


def test_the_worst_output_and_sample_count() -> None:
    """Over outputs with limits of their own, the worst multiple decides and is named."""
    comparator = PolygraphyComparator(
        metric="elementwise",
        atol=Tolerance(default=1.0, per_output={"fine": 0.01}),
        rtol=Tolerance(default=0.0),
        outputs=("coarse", "fine"),
    )
    want = {"coarse": np.zeros(2, np.float32), "fine": np.zeros(2, np.float32)}
    bad = {"coarse": np.full(2, 0.5, np.float32), "fine": np.array([0, 0.02], np.float32)}
    judgement = comparator.judge([want, bad], [want, want])
    assert comparator.tolerance == 1.0
    assert judgement.verdict is Verdict.FAIL
    assert judgement.error == pytest.approx(2.0)
    assert judgement.message == "output 'fine', sample 1"


def test_an_error_that_overflows_stays_finite() -> None:
    """Finite outputs far beyond any metric's range fail with a finite figure."""
    want = np.array([1e38, -1e38], np.float32)
    for metric in METRICS:
        for atol, rtol in [(0.4, 0.0), (0.0, 0.4)][: 1 + metrics.METRICS[metric].has_relative]:
            judgement = judge(metric, -3 * want, want, atol, rtol)
            assert judgement.verdict is Verdict.FAIL
            assert judgement.error is not None
            assert math.isfinite(judgement.error)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95])
def test_a_quantile_leaves_the_largest_errors_out(quantile: float) -> None:
    """Of a hundred errors that grow, so many are within the limit, and the error is that one."""
    want = np.ones(101, np.float32)
    got = want + np.arange(101, dtype=np.float32)
    limits = {"metric": "quantile", "quantile": quantile}
    for limit in (100 * quantile, 50.0):
        assert pytest.approx(100 * quantile / limit) == multiple(limits, limit, 0.0, got, want)
