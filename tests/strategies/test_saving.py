"""What keeping some layers of a low group is believed to save."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.saving import Fits, excess, gains

FEW = settings(max_examples=30, deadline=None)


def beliefs(size: int, costs: float = 1.0) -> Beliefs:
    """Return beliefs over errors that grow along the line; three must stay."""
    scores = [math.exp(8 * place / size) / 1000 for place in range(size)]
    return Beliefs(scores, [costs] * size, room=1.0, expected=3)


@given(st.integers(3, 60), st.floats(1e-4, 100.0), st.data())
@FEW
def test_no_layer_of_a_group_that_adds_no_more_than_the_price_is_worth_keeping(
    size: int, total: float, data: st.DataObject
) -> None:
    """The lower the price, the more is saved."""
    known = beliefs(size)
    start = data.draw(st.integers(0, size - 2))
    group = list(range(start, data.draw(st.integers(start + 1, size))))
    assert 0.0 == pytest.approx(excess(known, group, total, price=1.001 * total), abs=1e-12)
    saved = [excess(known, group, total, price=total / part) for part in (2, 8, 32)]
    assert saved == sorted(saved)
    assert saved[-1] <= 32


def test_a_group_that_adds_too_much_likely_holds_a_heavy_layer() -> None:
    """What is saved by keeping its heavy layers grows with what the group adds."""
    known = beliefs(100)
    group = list(range(40))
    usual = known.parts(group).sum()
    price = known.price(1.0, list(range(100)), {})
    saved = [excess(known, group, times * usual, price) for times in (1.0, 10.0, 100.0)]
    assert saved[0] < saved[1] < saved[2]


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_layers_that_rank_alike_need_not_be_alike(score: float) -> None:
    """Some of a group of equals may be worth keeping, more if it adds ten times as much."""
    known = Beliefs([score] * 200, [1.0] * 200, room=1.0, expected=10)
    group = list(range(50))
    assert 5.0 == pytest.approx(known.parts(group, 5.0).sum())
    saved = [excess(known, group, total, price=0.01) for total in (0.01, 0.5, 5.0)]
    assert saved[0] < 0.5 < saved[1] < saved[2]


def test_a_layer_astray_is_looked_for_where_no_order_tells_a_total() -> None:
    """Where all orders come to far less than a group adds, one layer likely adds the rest."""
    known = Beliefs([1.0 + 0.001 * place for place in range(200)], [1.0] * 200, room=1, expected=9)
    group = list(range(50))
    usual = known.parts(group).sum()
    price = known.price(1.0, list(range(200)), {})
    assert excess(known, group, usual, price) < 1
    assert excess(known, group, 10 * usual, price) > 100


@given(st.integers(4, 60), st.floats(1e-3, 10.0), st.floats(0.0, 1.0), st.data())
@FEW
def test_one_layer_gains_what_fits_into_its_error_less_what_it_costs(
    size: int, total: float, room: float, data: st.DataObject
) -> None:
    """Of a single layer that is known; one of several gains no more than it if it adds it all."""
    known = beliefs(size, costs=2.0)
    number = data.draw(st.integers(1, size // 2))
    kept = {size - 1 - i: data.draw(st.floats(1e-3, 5.0)) for i in range(number)}
    left = sorted(kept.values())
    before = sum(2.0 for i in range(number) if sum(left[: i + 1]) <= room)
    fits = sum(2.0 for i in range(number) if sum(left[: i + 1]) <= room + total)
    room_for = Fits(known, [], kept)
    saved, chances = gains(known, [0], total, room, room_for)
    assert saved.sum() == pytest.approx(max(fits - before - 2.0, 0.0))
    assert chances.sum() == pytest.approx(1.0 if fits - before > 2.0 else 0.0)
    assert room_for.expected(room) == pytest.approx(before)
    group = list(range(size // 2))
    several = gains(known, group, total, room, room_for)
    assert several.saved.shape == several.chances.shape == (len(group),)
    assert several.saved.sum() <= saved.sum() + 1e-9
    assert several.chances.sum() <= 1.0 + 1e-9


def test_more_is_gained_where_a_group_adds_more() -> None:
    """Layers that are undecided are let go for it, as well as kept ones."""
    known = beliefs(100)
    group, undecided = list(range(40)), list(range(60, 100))
    usual = known.parts(group).sum()
    measured = {50 + i: 0.02 * (i + 1) for i in range(10)}
    for kept in (dict[int, float](), measured):
        saved = [
            gains(known, group, times * usual, 0.01, Fits(known, undecided, kept)).saved.sum()
            for times in (1.0, 10.0, 100.0)
        ]
        assert saved[0] < saved[1] < saved[2]
