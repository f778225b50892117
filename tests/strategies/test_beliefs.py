"""What the guided search believes of a ranking, held against the model that it comes from."""

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_bisect_strategies.beliefs import Beliefs
from precision_bisect_strategies.rankings import RANKINGS

FEW = settings(max_examples=40)


def beliefs(size: int, *, expected: int = 3, room: float | None = None) -> Beliefs:
    """Return beliefs over errors that grow along the line."""
    scores = [math.exp(8 * place / size) / 1000 for place in range(size)]
    return Beliefs(scores, [1.0] * size, room=room, expected=expected)


@given(st.integers(2, 60), st.booleans(), st.integers(0, 1000))
@FEW
def test_longer_groups_are_less_likely_to_pass(size: int, bad: bool, seed: int) -> None:
    """Chances lie between 0 and 1 and fall along the line; a whole suspect line cannot pass."""
    known = beliefs(size)
    rng = random.Random(seed)
    for _ in range(rng.randrange(4)):
        cut = rng.randrange(1, size)
        line = list(range(size))
        known.learn(line[:cut], line[cut:], clean=rng.random() < 0.5, bad=False)
    chances = known.passing(list(range(size)), bad=bad)
    assert (chances >= -1e-9).all()
    assert (chances <= 1 + 1e-9).all()
    assert (np.diff(chances) <= 1e-9).all()
    if bad:
        assert chances[-1] == pytest.approx(0.0, abs=1e-9)


@given(st.integers(4, 40), st.data())
@FEW
def test_learning_obeys_total_probability(size: int, data: st.DataObject) -> None:
    """Averaged over how one group comes out, the chance of another is what it was before."""
    cut = data.draw(st.integers(1, size - 2))
    line = list(range(size))
    known, failed, passed = (beliefs(size) for _ in range(3))
    before = known.passing(line[cut:], bad=False)
    clean = known.passing(line[:cut], bad=False)[-1]
    failed.learn(line[:cut], [], clean=False, bad=False)
    passed.learn(line[:cut], [], clean=True, bad=False)
    after = clean * passed.passing(line[cut:], bad=False)
    after += (1 - clean) * failed.passing(line[cut:], bad=False)
    assert after == pytest.approx(before, rel=1e-6)


@given(st.integers(4, 40), st.data())
@FEW
def test_a_suspect_line_is_cut_consistently(size: int, data: st.DataObject) -> None:
    """A cut of a suspect line passes as often as it does among lines that hold a culprit."""
    cut = data.draw(st.integers(1, size - 1))
    line = list(range(size))
    known = beliefs(size)
    chances = known.passing(line, bad=False)
    known.learn(line, [], clean=False, bad=False)
    part, whole = chances[cut - 1], chances[-1]
    expected = (part - whole) / (1 - whole)
    assert known.passing(line, bad=True)[cut - 1] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_chances_come_true() -> None:
    """Over networks drawn from the model, groups pass as often as they are believed to."""
    size, networks, aims = 80, 600, (0.25, 0.5, 0.75)
    rng = np.random.default_rng(1)
    known = beliefs(size, expected=6)
    chances = known.passing(list(range(size)), bad=False)
    cuts = [int(abs(chances - aim).argmin()) for aim in aims]
    clean = np.zeros(len(aims))
    normal = np.array([NormalDist().inv_cdf((place + 0.5) / size) for place in range(size)])
    cells = [(each, round(count)) for each in RANKINGS for count in known.counts]
    weights = known.weights.ravel()
    for number in rng.choice(len(cells), networks, p=weights):
        ranking, culprits = cells[number]
        rhos = np.where(rng.random(size) < ranking.missed, 0.0, ranking.rho)
        latent = rhos * normal + np.sqrt(1 - rhos**2) * rng.standard_normal(size)
        first = np.argsort(latent)[-culprits:].min()
        clean += [first > cut for cut in cuts]
    assert clean / networks == pytest.approx(chances[cuts], abs=0.08)


def test_a_useless_ranking_is_found_out() -> None:
    """When what ranks lowest fails again and again, the ranking is no longer trusted."""
    known = beliefs(200, expected=5)
    trusted = known.rho
    for start in range(0, 100, 10):
        group = list(range(start, start + 10))
        known.learn(group, [], clean=False, bad=False)
    assert known.rho < 0.6 * trusted


def test_a_ranking_that_misses_some_is_told_from_a_useless_one() -> None:
    """After culprits at the far end and many clean layers, the last ones are still suspected."""
    known = beliefs(200, expected=10)
    last = list(range(190, 200))
    useless = 1 - (1 - 3 / 200) ** len(last)
    known.learn([5], [], clean=False, bad=False)
    known.learn([60], [], clean=False, bad=False)
    known.learn([i for i in range(150) if i not in (5, 60)], [], clean=True, bad=False)
    assert known.passing(last, bad=False)[-1] < 0.2 < 1 - useless


@given(st.floats(0.1, 10.0))
@FEW
def test_the_price_is_what_the_room_runs_out_at(scale: float) -> None:
    """Layers up to the price fit into the room together; with the next one they do not."""
    size = 50
    errors = [scale * math.exp(8 * place / size) / 1000 for place in range(size)]
    kept = dict(enumerate(errors))
    known = Beliefs(errors, [1.0] * size, room=10 * scale, expected=5)
    price = known.price(2 * scale, [], kept)
    below = sum(error for error in errors if error < price * (1 - 1e-9))
    assert below <= 2 * scale < below + price * (1 + 1e-9)


def test_costly_layers_are_dear() -> None:
    """The price is per cost: a layer of twice the cost is kept for twice the error."""
    known = Beliefs([1.0, 1.0], [1.0, 2.0], room=1.5, expected=1)
    assert known.price(1.5, [], {0: 1.0, 1: 1.0}) == pytest.approx(1.0)
    assert known.cost([0, 1]) == pytest.approx(1.5)


@pytest.mark.parametrize("exponent", [0.8, 1.25])
def test_a_wider_spread_than_the_rankings_is_learned(exponent: float) -> None:
    """From what a few groups add, the errors of other layers are believed within a third."""
    size, few = 200, 10
    scores = [math.exp(8 * place / size) / 1000 for place in range(size)]
    errors = [score**exponent for score in scores]
    room = sum(errors[:-few])
    known = Beliefs(scores, [1.0] * size, room=room, expected=few)
    plain = known.expected([50, 198])
    for first, last in ((0, size), (0, 190), (0, 150), (0, 100), (150, 190)):
        known.learn_sum(list(range(first, last)), sum(errors[first:last]))
    learned = known.expected([50, 198])
    truth = [errors[50], errors[198]]
    assert learned == pytest.approx(truth, rel=1 / 3)
    assert plain != pytest.approx(truth, rel=1 / 3)


def test_measured_layers_speak_for_the_others() -> None:
    """The price rises where layers added twice what was believed of them; not by one alone."""
    size = 50
    known = beliefs(size, room=10.0)
    known.learn(list(range(30)), [], clean=True, bad=False)
    measured, undecided = list(range(40, 46)), list(range(20, 40))
    low = known.price(0.5, undecided, dict.fromkeys(measured, 1000000.0))
    believed = dict(zip(measured, known.expected(measured), strict=True))

    def price(factor: float, some: Sequence[int]) -> float:
        return known.price(0.5, undecided, {i: factor * believed[i] for i in some})

    assert price(1.0, measured) < price(2.0, measured) < low
    assert price(2.0, measured[:1]) == pytest.approx(price(1.0, measured[:1]), rel=0.2)


def test_layers_of_infinite_scores_are_equally_likely() -> None:
    """Which of two layers that overflow for the emulator stands first says nothing."""
    scores = [0.1, 0.2, 0.3, math.inf, math.inf, math.inf]
    known = Beliefs(scores, [1.0] * len(scores), room=None, expected=2)
    chances = [float(known.passing([place], bad=False)[0]) for place in range(len(scores))]
    assert chances[3] == pytest.approx(chances[4]) == pytest.approx(chances[5])
    assert chances[0] > chances[1] > chances[2] > chances[3]


@given(st.floats(0.01, 100.0), st.integers(1, 120))
@FEW
def test_more_layers_fit_less_likely(room: float, count: int) -> None:
    """Chances to fit fall with the number of layers, and rise with the room."""
    known = beliefs(200, room=1.0)
    group = list(range(200 - count, 200))
    chances = known.fitting(group, room)
    assert chances.shape == (count,)
    assert (np.diff(chances) <= 1e-9).all()
    assert (known.fitting(group, 2 * room) >= chances - 1e-9).all()
    assert (known.fitting(group, math.inf) == 1.0).all()
    assert known.fitting(group, 0.0)[0] < 1e-6
    assert (beliefs(200).fitting(group, room) == 1.0).all()


def test_of_layers_that_score_alike_the_last_are_those_that_the_emulator_keeps() -> None:
    """An emulator without figures still says which layers it would keep: they stand last."""
    known = Beliefs([0.0] * 20, [1.0] * 20, room=None, expected=4)
    chances = known.passing(list(range(20)), bad=False)
    assert known.passing([19], bad=False)[0] < 0.6 < known.passing([0], bad=False)[0]
    assert chances[15] > 2 * chances[19]


@pytest.mark.parametrize("error", [math.inf, math.nan, None, 0.0])
def test_a_single_layer_without_a_usable_figure_is_told_by_its_failing(
    error: float | None,
) -> None:
    """Only a positive, finite error says what an outcome alone could tell; none where noisy."""
    known = beliefs(20, room=1.0)
    assert not known.tells_all(error, 0.0)
    assert known.tells_all(0.5, 0.0)
    assert not known.tells_all(0.5, 0.1)
    assert not beliefs(20).tells_all(0.5, 0.0)


def test_no_layers_fit_anywhere() -> None:
    """Of an empty group there are no chances."""
    assert beliefs(20, room=1.0).fitting([], 0.5).shape == (0,)


@given(st.integers(3, 60), st.floats(1e-4, 100.0), st.data())
@FEW
def test_parts_of_a_group_come_to_what_it_adds(
    size: int, total: float, data: st.DataObject
) -> None:
    """Whatever the orders."""
    known = beliefs(size, room=1.0)
    start = data.draw(st.integers(0, size - 2))
    group = list(range(start, data.draw(st.integers(start + 1, size))))
    assert total == pytest.approx(known.parts(group, total).sum())
