"""What `--risk` widens by: an estimate that is right where errors are log-normal."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
import tiny
from effort import examples
from final_screens import words
from models import parse, save, with_weights
from precision_bisect import find
from precision_bisect.errors import UsageError
from precision_bisect.options import Options
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.pipeline.risk import (
    ROOM,
    Spread,
    estimated,
    factor,
    overshoot,
    unseen_share,
)
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.ledger.ledger_reader import read_ledger
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.runs.results.unseen import SAFE, Estimate, OverSamples, as_safe
from precision_bisect.runs.runfolder import LEDGER
from precision_bisect.search.driver import Driver
from precision_bisect.trial import OneByOne, Outcome, Phase
from precision_bisect_strategies.guided import Guided
from simulated import SIZE, Simulated, driven, samples


@pytest.mark.parametrize(
    ("count", "known"), [(1, 4.02), (2, 3.40), (4, 2.89), (8, 2.51), (16, 2.23), (32, 2.04)]
)
def test_the_factor_is_the_tolerance_factor(count: int, known: float) -> None:
    """With n + 3 degrees of freedom it has the values of the tables."""
    assert pytest.approx(known, abs=0.01) == factor(count, 0.05)


@pytest.mark.parametrize(("count", "student"), [(1, 1.533), (8, 1.363), (32, 1.306)])
def test_at_the_median_the_factor_is_that_of_students_t(count: int, student: float) -> None:
    """A factor below 1 is one, too."""
    assert student / math.sqrt(count) == pytest.approx(factor(count, 0.5), abs=1e-3)


@pytest.mark.parametrize("count", [2, 8, 32])
def test_the_estimate_is_right_in_nine_of_ten_draws_of_log_normal_errors(count: int) -> None:
    """Copies spread less than samples, by 1.7: few draws say an error that over 5% exceed."""
    rng, sd = np.random.default_rng(count), 0.5
    wrong = 0
    for _ in range(1000):
        logs = sd * rng.standard_normal(count)
        copied = logs[:, None] + sd / 1.7 * rng.standard_normal((count, 2))
        told = OneByOne(
            numbers=[*range(count)], errors=np.exp(logs).tolist(), copies=np.exp(copied).tolist()
        )
        spread = Spread.of(told, 10.0)
        wrong += spread is not None and spread.error(0.05) < math.exp(1.645 * sd)
    assert wrong <= 100 + 3 * math.sqrt(90)


def test_errors_of_two_kinds_and_without_figures_have_no_spread() -> None:
    """A factor of ten between neighbours is two kinds; infinity and None are no figures."""
    for errors in ([0.001, 0.002, 0.5], [0.1, math.inf], [None, 0.1], []):
        told = OneByOne(numbers=[*range(len(errors))], errors=errors)
        assert Spread.of(told, 1.0) is None
    assert Spread.of(None, 1.0) is None
    exact = Spread.of(OneByOne(numbers=[0], errors=[0.0]), 1.0)
    assert exact is not None and exact.error(0.05) < 0.01


def test_copies_count_where_samples_are_few() -> None:
    """Twice the deviation of copies, 0.3 at least; of many samples it hardly counts."""
    told = OneByOne(numbers=[0], errors=[1.0], copies=[[math.e, 1 / math.e]])
    spread = Spread.of(told, 1.0)
    assert spread is not None and pytest.approx(2.0) == spread.sd
    alone = Spread.of(OneByOne(numbers=[0], errors=[1.0]), 1.0)
    assert alone is not None and pytest.approx(0.3) == alone.sd
    for copies in ([], [math.inf, 1.0], [None]):
        assert alone == Spread.of(replace(told, copies=[copies]), 1.0)


def outcome(errors: list[float]) -> Outcome:
    """Return an outcome with the errors of single samples."""
    judged = oracles.outcome(max(errors))
    told = OneByOne(numbers=[*range(len(errors))], errors=errors)
    return replace(judged, evidence=replace(judged.evidence, one_by_one=told))


@examples(40)
@given(
    errors=st.lists(st.floats(0.01, 0.09), min_size=1, max_size=12),
    limits=st.lists(st.floats(0.01, 10.0), min_size=2, max_size=2),
)
def test_a_looser_limit_is_exceeded_by_no_more_unseen_inputs(
    errors: list[float], limits: list[float]
) -> None:
    """What is called safe stays safe, and falls short by no larger factor."""
    tight, loose = sorted(limits)
    judged = outcome(errors)
    shares = [unseen_share(judged, limit) for limit in (tight, loose)]
    assert None not in shares and (shares[0] or 0) >= (shares[1] or 0)
    assert overshoot(judged, tight) >= overshoot(judged, loose)
    if overshoot(judged, loose) <= 1:
        assert as_safe(shares[1], None) and max(errors) <= ROOM * loose


def test_one_that_is_less_safe_than_its_rival_is_none() -> None:
    """A small share is as good as none; where both are large the smaller one is."""
    assert as_safe(SAFE, 0.0) and as_safe(None, 0.0) and as_safe(0.2, 0.5)
    assert not as_safe(0.2, None) and not as_safe(0.5, 0.2)
    # Of two kinds of errors nothing is said, and the limit tells by itself.
    mixed = outcome([1e-4, 0.05])
    assert unseen_share(mixed, 0.1) is None and unseen_share(mixed, None) is None
    assert overshoot(mixed, 0.1) == pytest.approx(0.5 / ROOM)


ERRORS = [0.9, 0.5, 0.45, 0.4, 0.4, 0.35, 0.35, 0.3, 0.3, 0.3, 0.25, 0.25]


def searched(path: Path, risk: float | None) -> tuple[Ending, Driver]:
    """Run the flow on eight samples whose errors spread by 0.3, and add up as rounding does."""

    def rule(plan: Plan, feed: Sample) -> float:
        low = [ERRORS[i] for i in range(SIZE) if i not in plan.kept]
        luck = np.random.default_rng(int(feed["x"][0])).standard_normal()
        return math.hypot(*low) * math.exp(0.3 * luck)

    path.mkdir()
    with driven(path, Simulated(rule), sets=samples(8)) as driver:
        ending = driver.run(flow(oracles.problem(SIZE), Guided(), Course(risk=risk)))
    return ending, driver


def test_a_risk_keeps_more_layers_and_fewer_fresh_inputs_fail(tmp_path: Path) -> None:
    """The wider answer is told with where it came from; what it says of fresh inputs is so."""
    plain, _ = searched(tmp_path / "plain", None)
    safe, driver = searched(tmp_path / "safe", 0.05)
    assert plain.plan is not None and safe.plan is not None
    assert len(plain.plan) < len(safe.plan) < SIZE
    assert f"the answer was widened from {len(plain.plan)} layers for --risk 5%" == safe.spread
    assert Status.FOUND is safe.status
    found = estimated(driver.trials, safe.plan, 1.0, 0.05)
    assert found.share_under is not None and pytest.approx(0.05, abs=0.002) == found.share_under
    assert estimated(driver.trials, plain.plan, 1.0, 0.05).share_under is None
    low = math.hypot(*(ERRORS[i] for i in range(SIZE) if i not in safe.plan.kept))
    fresh = low * np.exp(0.3 * np.random.default_rng(5).standard_normal(4000))
    assert np.mean(fresh > 1.0) <= 0.05


def test_an_estimate_says_how_many_samples_would_prove_it() -> None:
    """None over of 45 proves 5%, of 230 one in a hundred."""
    proofs = [Estimate(risk=risk, share_under=None).provable_by for risk in (0.05, 0.01)]
    assert [45, 230] == proofs


def test_a_percentile_over_samples_is_one_of_the_errors() -> None:
    """Of 40 the 38th; of few the largest."""
    assert OverSamples(samples=40, median=19.5, p95=37) == OverSamples.of(map(float, range(40)))
    assert OverSamples(samples=2, median=1.5, p95=2) == OverSamples.of([2.0, 1.0])
    assert OverSamples.of([]) is None


def test_a_real_run_tells_its_estimate(tmp_path: Path) -> None:
    """The result has it, and the curve's answer the errors over all samples."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    result = tiny.search(model, tmp_path / "run", inputs=tiny.samples(12), risk=0.05)
    assert result.unseen is not None and result.unseen.estimate is not None
    assert (4, 8) == (result.unseen.judged, result.unseen.took_part)
    assert 0.05 == result.unseen.estimate.risk
    (answer,) = (each for each in result.curve if each.point == "answer")
    assert answer.over_samples is not None and 12 == answer.over_samples.samples


@pytest.mark.parametrize("risk", [0.0, -0.1, 0.7, math.nan])
def test_a_risk_is_a_share(risk: float) -> None:
    """What is no share up to a half is refused in one line."""
    with pytest.raises(UsageError, match="no share of inputs to bear"):
        replace(Options(model=Path("m.onnx")), risk=risk)


def test_where_a_network_selects_no_share_of_unseen_inputs_is_said(tmp_path: Path) -> None:
    """An input flips a choice or not: how errors spread over others tells nothing of it."""
    weights = {"w0": np.random.default_rng(0).normal(0, 0.125, (64, 64)).astype(np.float32)}
    text = """(float[16, 64] x) => (float[16, 64] y, float[16, 1] z) <int64[1] k = {1}> {
      [mm0] a = MatMul(x, w0) [act0] y = Tanh(a) [top] z, i = TopK(a, k) }"""
    rng = np.random.default_rng(7)
    inputs = [{"x": rng.normal(0, 2, (16, 64)).astype(np.float32)} for _ in range(4)]
    run = partial(find, save(with_weights(parse(text), weights), tmp_path), inputs=inputs)
    loose = run(tol=10.0, out=tmp_path / "loose", threads=1)
    limit = 1.01 * (loose.error_max or 0.0)
    tight = run(tol=limit, out=tmp_path / "tight", threads=1)
    (low,) = {
        overshoot(trial.outcome, limit) > 1
        for trial in read_ledger(tmp_path / "tight" / LEDGER).own
        if trial.proposal.phase is Phase.PREFLIGHT and not trial.proposal.plan
    }
    assert low and tight.deploy is not None and tight.tf32 is not None
    assert (None, None) == (tight.deploy.unseen_share, tight.tf32.fp32_unseen)
    assert "of unseen inputs may be over" not in words(tight)
