"""The chance that single positions add a certain error."""

import math

import numpy as np
import pytest

from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.reaching import reach


def believed() -> Beliefs:
    """Return beliefs over 50 layers whose errors grow along the line."""
    scores = [math.exp(8 * place / 50) / 1000 for place in range(50)]
    return Beliefs(scores, [1.0] * 50, room=10.0, expected=3)


def test_what_positions_add_together_bounds_what_one_of_them_does() -> None:
    """One that adds nearly all of it is unlikely, more than that hardly possible."""
    known, group = believed(), list(range(20, 30))
    low, high, beyond = (reach(known, group, share, total=1.0) for share in (0.05, 0.5, 3.0))
    assert (low > high).all()
    assert (high > beyond).all()
    assert beyond.sum() < 0.01
    assert reach(known, [25], 0.9, total=1.0).tolist() == [1.0]
    assert reach(known, [25], 1.1, total=1.0).tolist() == [0.0]


@pytest.mark.parametrize("measured", [False, True])
def test_if_the_ranking_says_nothing_the_mildest_may_add_as_much_as_the_worst(
    measured: bool,
) -> None:
    """That it does with a certain chance raises the least likely ones to the same level."""
    known, group = believed(), list(range(50))
    known.learn(list(range(45)), [], clean=True, bad=False)
    expected = known.expected(group)
    total = sum(expected) if measured else None
    sure = reach(known, group, expected[-1] / 2, total=total)
    doubted = reach(known, group, expected[-1] / 2, total=total, blind=0.5)
    assert doubted[0] > 2 * sure[0]
    assert doubted[-1] < sure[-1]
    useless = reach(known, group, expected[-1] / 2, total=total, blind=1.0)
    assert useless == pytest.approx(np.full(50, useless[0]))
