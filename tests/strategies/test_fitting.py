"""What single layers are believed to add, fitted to what groups of them added."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.fitting import Fitted
from precision_bisect_strategies.rankings import RHOS, orders

SIZE = 60
NEARLY = int(np.flatnonzero(RHOS == 0.995)[0])
VALUES = np.array([math.exp(8 * place / SIZE) / 1000 for place in range(SIZE)])


def fitted() -> Fitted:
    """Return the ranking's errors, each layer of cost 1."""
    return Fitted(VALUES, np.ones(SIZE))


def learn(known: Fitted, first: int, last: int, error: float) -> None:
    """Tell what the layers from `first` to before `last` add."""
    group = list(range(first, last))
    known.learn(group, orders(SIZE, 0), error, 0.0)


@given(st.floats(0.8, 1.25), st.floats(0.01, 100.0))
@settings(max_examples=40)
def test_a_scale_and_an_exponent_are_found(exponent: float, scale: float) -> None:
    """From five sums every layer's error follows within a fifth, though never measured."""
    truth = scale * VALUES**exponent
    known = fitted()
    for first, last in ((0, 60), (0, 55), (0, 40), (40, 55), (50, 55)):
        learn(known, first, last, float(truth[first:last].sum()))
    found = known.values(NEARLY)
    assert found is not None
    np.testing.assert_allclose(found, truth, rtol=1 / 5)


@pytest.mark.parametrize("unit", [1e-160, 1e-12, 1e12, 1e160])
def test_the_unit_of_errors_does_not_matter(unit: float) -> None:
    """Neither tiny nor huge errors are cut off, nor do they overflow."""
    known = Fitted(unit * VALUES, np.ones(SIZE))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for first, last in ((0, 60), (0, 50), (20, 40)):
            learn(known, first, last, unit * float(VALUES[first:last].sum()))
        found = known.values(NEARLY)
    assert found is not None
    np.testing.assert_allclose(found / unit, VALUES, rtol=1e-6)


def test_nothing_is_fitted_to_nothing() -> None:
    """Before any sum is known there is no fit, and a copy learns for itself alone."""
    known = fitted()
    other = known.copy()
    learn(other, 0, 60, 1.0)
    assert known.values(NEARLY) is None
    assert other.values(NEARLY) is not None


def test_what_noise_drowns_says_little() -> None:
    """A sum that is noise for the most part moves the fit less than one that is not."""
    group = list(range(SIZE))
    ranks = orders(SIZE, 0)
    right = float(VALUES.sum())
    found = []
    for noise in (0.0, 10 * right):
        known = fitted()
        known.learn(group, ranks, right, 0.0)
        known.learn(group, ranks, 10 * right, noise)
        values = known.values(NEARLY)
        assert values is not None
        found.append(float(values.sum()))
    assert right < found[1] < found[0]


def test_a_group_is_given_credit_for_a_little_more_than_believed() -> None:
    """Of an untried ranking, too; not for much more, and not where builds differ."""
    group = list(range(50))

    def excess(factor: float, *, exact: bool = True) -> float:
        known = Beliefs(
            VALUES.tolist(),
            [1.0] * SIZE,
            room=float(VALUES[:50].sum()),
            expected=10,
            exact=exact,
        )
        known.learn_sum(list(range(SIZE)), float(VALUES.sum()))
        price = known.price(float(VALUES[:50].sum()), list(range(SIZE)), {})
        added = factor * float(VALUES[:50].sum())
        return (added - known.fair_sum(group, price, added)) / price

    assert excess(1.05) < 0.5
    assert excess(1.05) < excess(1.05, exact=False)
    assert excess(1.5) > 2.0
