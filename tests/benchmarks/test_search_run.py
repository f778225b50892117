"""What one search on one network came to."""

import numpy as np
import pytest
from search_oracles import NOISE, Additive, Noisy, instance
from search_run import AGAIN, search, share_passing, subject


@pytest.mark.parametrize(("error", "share"), [(0.6, 1.0), (1.0, 0.5), (1.6, 0.0)])
def test_fresh_builds_pass_as_far_as_the_error_is_from_the_limit(
    error: float, share: float
) -> None:
    """Half of them at the limit; all, and none, where that is four times the noise away."""
    network = Noisy(network=Additive(errors=np.array([error, 1.0])), seed=3)
    found = share_passing(network, np.array([True, False]))
    assert abs(found - share) <= 3 * 0.5 / AGAIN**0.5
    assert abs(np.log(error)) < 4 * NOISE or found == share


def test_without_noise_fresh_builds_say_what_the_first_did() -> None:
    """With it a prefix that just passed fails in some of them."""
    for structure, alike in (("B", True), ("D", False)):
        searched = subject(instance(structure, 100, 5, 0.98, 0))
        (figures,) = (each for _, each in search("ranked prefix", searched, (1,)))
        assert alike is (figures.again in (0.0, 1.0))
