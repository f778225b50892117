"""The promise about inputs that nobody has shown: exact, and kept in nine of ten draws."""

import math

import numpy as np
import pytest

from precision_bisect.runs.results.unseen import CONFIDENCE, Unseen, share_at_most


@pytest.mark.parametrize(
    ("failed", "judged", "share"),
    [
        # 1 - 0.1^(1/n), and 0.9 quantiles of Beta(k + 1, n - k) from statistical tables.
        (0, 8, 0.250),
        (0, 16, 0.134),
        (0, 45, 0.0499),
        (0, 230, 0.00996),
        (1, 10, 0.337),
        (2, 20, 0.245),
        (5, 5, 1.0),
        (0, 0, 1.0),
    ],
)
def test_the_bound_is_that_of_clopper_and_pearson(failed: int, judged: int, share: float) -> None:
    """Known values come out, at both ends too."""
    assert pytest.approx(share, abs=5e-4) == share_at_most(failed, judged)


@pytest.mark.parametrize("judged", [1, 7, 45, 992])
@pytest.mark.parametrize("failed", [0, 1, 5])
def test_the_bound_is_where_so_few_failures_get_improbable(failed: int, judged: int) -> None:
    """At the bound so few draws fail with a probability of exactly one in ten."""
    if failed >= judged:
        return
    share = share_at_most(failed, judged)
    chance = sum(
        math.comb(judged, k) * share**k * (1 - share) ** (judged - k) for k in range(failed + 1)
    )
    assert pytest.approx(1 - CONFIDENCE, rel=1e-6) == chance


@pytest.mark.parametrize("true", [0.002, 0.01, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("judged", [8, 45, 230])
def test_the_promise_is_broken_in_at_most_one_of_ten_draws(true: float, judged: int) -> None:
    """Whatever the true share is, 4,000 draws of samples break the promise in at most 10%."""
    draws = np.random.default_rng(7).binomial(judged, true, 4000)
    promised = {failed: share_at_most(failed, judged) for failed in {*draws.tolist()}}
    broken = np.mean([promised[failed] < true for failed in draws.tolist()])
    # Three standard deviations of a share of 10% over 4,000 draws.
    assert broken <= 0.1 + 3 * math.sqrt(0.09 / 4000)


@pytest.mark.parametrize("helps", [0.0, 0.5, 0.9, 1.0])
def test_the_promise_of_a_widened_answer_is_kept(helps: float) -> None:
    """Samples that fail join and the answer widens until no other fails: so few draws break it.

    What fails no more is no sign of quality: the samples have asked for that.
    """
    rng, broken, runs, judged = np.random.default_rng(3), 0, 2000, 60
    for _ in range(runs):
        true = rng.choice([0.01, 0.04, 0.1])
        # Each sample fails until the answer is as wide as it needs.
        hard = rng.random(judged) < true
        left, joined = set(range(judged)), 0
        while failing := [each for each in left if hard[each]]:
            joined += len(failing)
            left -= set(failing)
            # Widening mends a part of the inputs, those that joined among them.
            true *= 1 - helps
            hard &= rng.random(judged) >= helps
        found = Unseen(judged=len(left), failed=0, took_part=8 + joined, joined=joined)
        broken += found.share_at_most < true
    assert broken / runs <= 0.1 + 3 * math.sqrt(0.09 / runs)


def test_without_samples_that_took_no_part_nothing_is_promised() -> None:
    """What was seen of searches with about as many samples stands in, as no promise."""
    few = {n: Unseen(judged=0, failed=0, took_part=n).alike for n in (1, 2, 3, 5, 8)}
    assert {1: 1, 2: 2, 3: 2, 5: 4, 8: 8} == {n: each and each.samples for n, each in few.items()}
    assert Unseen(judged=8, failed=0, took_part=8).alike is None
    assert 1.0 == Unseen(judged=0, failed=0, took_part=2).share_at_most
