"""What is believed of the ranking, and how trials change it."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_bisect_strategies import beliefs
from precision_bisect_strategies.beliefs import Array, Beliefs

SIZE = 100


def heavy_tailed(seed: int) -> list[float]:
    """Return errors that ascend."""
    return sorted(np.random.default_rng(seed).lognormal(0, 2, SIZE))


def first(errors: list[float], power: float | None = 1.0) -> Beliefs:
    """Return what is believed of layers that cost the same."""
    return Beliefs.at_first(errors, [1.0] * len(errors), power=power)


@given(
    errors=st.lists(st.floats(0, 1e6) | st.just(math.inf), min_size=2, max_size=40),
    power=st.sampled_from([None, 1.0, 2.0]),
    price=st.floats(1e-9, 1e9),
)
def test_chances_are_chances_and_fall_with_the_size(
    errors: list[float], power: float | None, price: float
) -> None:
    """Whatever the errors, a larger group is never likelier to pass."""
    if power and not all(map(math.isfinite, errors)):
        power = None
    believed = first(sorted(errors), power)
    for bad in (False, True):
        chances = believed.passing(range(len(errors)), price, bad=bad)
        assert np.isfinite(chances).all()
        assert (chances >= -1e-9).all() and (chances <= 1 + 1e-9).all()
        assert (np.diff(chances) <= 1e-9).all()
    assert believed.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_sums_as_ranked_speak_for_the_ranking(power: float) -> None:
    """Groups that add what the ranking says make it trusted; others make it doubted."""
    errors = heavy_tailed(1)
    right = wrong = first(errors, power)
    shuffled = np.random.default_rng(2).permutation(errors)
    for start in range(0, SIZE, 10):
        group = range(start, start + 10)
        right = right.learn_sum(group, sum(errors[start : start + 10]))
        wrong = wrong.learn_sum(group, float(shuffled[start : start + 10].sum()))
    assert right.rho > 0.95
    assert wrong.rho < 0.7
    assert wrong.rho < first(errors, power).rho < right.rho


def test_the_scale_is_learnt() -> None:
    """Where all layers add three times as much, so much less fits."""
    errors = heavy_tailed(3)
    before = first(errors)
    after = before.learn_sum(range(SIZE), 3 * sum(errors))
    room = sum(errors[:80])
    assert after.fitting(range(80), room)[-1] < before.fitting(range(80), room)[-1] / 2
    assert after.fitting(range(80), 3 * room)[-1] > after.fitting(range(80), room)[-1]


def test_clean_groups_and_culprits_move_the_ranking() -> None:
    """Passing alone tells, too: culprits among the least sensitive speak against the ranking."""
    believed = first(heavy_tailed(4), None)
    price = math.exp(1.3)
    good = believed.learn(range(80), (), price, clean=True)
    bad = believed.learn(range(20), (), price, clean=False)
    assert bad.rho < believed.rho < good.rho


def test_layers_that_were_missed_explain_a_single_large_error() -> None:
    """A ranking that proved right is not given up for one group that adds far too much."""
    errors = heavy_tailed(5)
    believed = first(errors).learn_sum(range(SIZE), sum(errors))
    for start in range(0, 60, 10):
        believed = believed.learn_sum(range(start, start + 10), sum(errors[start : start + 10]))
    surprised = believed.learn_sum(range(60, 70), 50 * sum(errors[60:70]), errors[90])
    assert surprised.rho > 0.9
    assert float(surprised.weights @ surprised.missed) > float(believed.weights @ believed.missed)


def test_the_marginal_rate_is_where_the_slack_ends() -> None:
    """All should fit into enough slack; into less, the marginal rate is what the next one adds."""
    errors = heavy_tailed(6)
    believed = first(errors).learn_sum(range(SIZE), sum(errors))
    assert math.isinf(believed.marginal_rate(2 * sum(errors), range(SIZE), {}))
    rate = believed.marginal_rate(sum(errors[:90]), range(SIZE), {})
    assert errors[80] < rate < errors[97]
    assert believed.marginal_rate(sum(errors[:90]), range(SIZE - 1), {SIZE - 1: errors[-1]}) > 0


def test_thousands_of_layers_take_no_array_of_all_hypotheses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is believed is the same, computed for one hypothesis at a time or for all at once."""
    errors, group = heavy_tailed(4), range(SIZE)

    def told() -> list[Array]:
        believed = first(errors, 2.0).learn_sum(group, sum(errors))
        believed = believed.learn(range(30), range(30, 90), 1.0, clean=True)
        chances = [believed.passing(group, 1.0, bad=bad) for bad in (False, True)]
        fitting = believed.fitting(group, sum(errors) / 2)
        return [believed.weights, *chances, fitting, np.array(believed.fair(group, 1.0))]

    whole = told()
    monkeypatch.setattr(beliefs, "HELD_AT_ONCE", 1)
    for found, expected in zip(told(), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    monkeypatch.undo()
    tracemalloc.start()
    first(sorted(np.random.default_rng(5).lognormal(0, 2, 5000)), 2.0).learn_sum(range(5000), 1e4)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
