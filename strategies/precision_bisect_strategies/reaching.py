"""The chance that single positions add a certain error, by what is believed of the layers."""

import numpy as np

from precision_bisect_strategies.beliefs import FIGURE_SPREAD, Beliefs, Positions
from precision_bisect_strategies.rankings import RHOS, TINY, Array, phi


def reach(
    beliefs: Beliefs,
    group: Positions,
    error: float,
    *,
    total: float | None = None,
    blind: float = 0.0,
) -> Array:
    """Return the chance of each of these positions to add at least `error`; shape (group,).

    With `total`, given that they were measured to add that together. `blind` is the least chance,
    before that, that the ranking says nothing of them; all are alike then. Scores must be
    `finite`.
    """
    least = max(error, TINY)
    if total is None:
        chances = np.array([_reaching(each, least) for each in beliefs.by_ranking(group)])
        return _blurred(beliefs.doubting(blind)[:, None] * chances)
    if len(group) == 1:
        return np.array([float(total >= error)])
    errors, likely, _ = beliefs.weighed(group, total, blind)
    # One ranking at a time: of thousands of layers the steps in between take a lot of memory.
    above = (phi(np.log(np.maximum(each, TINY) / least) / FIGURE_SPREAD) for each in errors)
    pairs = zip(likely, above, strict=True)
    return _blurred(np.array([of_one @ chances for of_one, chances in pairs]))


def _reaching(errors: Array, least: float) -> Array:
    """Return the chances to reach an error by the orders of one ranking, shape (group,)."""
    logs = np.log(np.maximum(errors, TINY))
    spreads = np.hypot(logs.std(axis=0), FIGURE_SPREAD)
    return phi((logs.mean(axis=0) - np.log(least)) / spreads)


def _blurred(chances: Array) -> Array:
    """Return the chances of positions, shape (m,), by all rankings, shape (rankings, m).

    To the useless one all are alike: which was drawn to add most says nothing.
    """
    useless = RHOS == 0.0
    alike = chances[useless].mean(axis=1).sum()
    return np.asarray(chances[~useless].sum(axis=0) + alike)
