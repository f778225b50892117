"""What keeping some layers of a group that runs low would save, by what is believed of them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from precision_bisect_strategies.beliefs import FIGURE_SPREAD, Beliefs, Positions
from precision_bisect_strategies.rankings import TINY, Array

ASTRAY = 0.02
"""The chance that a group holds a layer of which the ranking is altogether wrong."""
ASTRAY_SPREAD = 3.0
"""Standard deviation of ln of what such a group adds."""


class Gains(NamedTuple):
    """What each position of a group would save, shape (group,), kept as the best of the group.

    `saved` is the expected cost; `chances` are those that it is the best and saves anything.
    """

    saved: Array
    chances: Array


class Fits:
    """What fits into a room, by each likely order. Needs figures.

    `undecided` and `kept` are as in `Beliefs.price`.
    """

    def __init__(self, beliefs: Beliefs, undecided: Positions, kept: Mapping[int, float]) -> None:
        lines = list(beliefs.cheapest_first(undecided, kept))
        self._sums = [np.cumsum(errors) for errors, _ in lines]
        self._costs = [np.append(0.0, np.cumsum(costs)) for _, costs in lines]

    def __len__(self) -> int:
        """Return the number of orders."""
        return len(self._sums)

    def cost(self, order: int, room: Array) -> Array:
        """Return the cost of what fits by one of the orders, for each room."""
        fits = np.searchsorted(self._sums[order], room, side="right")
        return np.asarray(self._costs[order][fits])

    def more(self, room: float, errors: Array) -> Array:
        """Return the cost of what fits besides where the room grows, by each order.

        `errors`, shape (..., orders), are what it grows by; the costs have the same shape.
        """
        now = [self.cost(order, np.asarray(room)) for order in range(len(self))]
        after = [self.cost(order, room + errors[..., order]) for order in range(len(self))]
        return np.asarray(np.stack(after, axis=-1) - np.array(now))

    def expected(self, room: float) -> float:
        """Return the expected cost of what fits."""
        costs = [float(self.cost(order, np.asarray(room))) for order in range(len(self))]
        return sum(costs) / len(costs)


def gains(beliefs: Beliefs, group: Positions, total: float, room: float, fits: Fits) -> Gains:
    """Return what keeping one position of a group that adds `total` would save.

    That is the cost of what fits into its error besides, less its own, of the position that adds
    most for its cost: the others are not kept.
    """
    errors, likely, _ = beliefs.weighed(group, total)
    costs = beliefs.costs(group)
    best = np.array([(of_one / costs).argmax(axis=1) for of_one in errors])
    heaviest = np.take_along_axis(errors, best[:, :, None], axis=2)[:, :, 0]
    net = fits.more(room, heaviest) - costs[best]

    def over(values: Array) -> Array:
        summed = np.bincount(best.ravel(), (likely * values).ravel(), len(group))
        return np.asarray(summed, np.float64)

    return Gains(over(np.maximum(net, 0.0)), over(np.sign(np.maximum(net, 0.0))))


def excess(beliefs: Beliefs, group: Positions, total: float, price: float) -> float:
    """Return the cost that is saved if positions above `price` per cost of a group are kept.

    As expected, given that the group adds `total`: what each adds above the price, over it. A
    total that no order makes likely comes from one layer about which the ranking is wrong.
    """
    errors, likely, right = beliefs.weighed(group, total)
    costs = beliefs.costs(group)
    above = np.maximum(errors / max(price, TINY) - costs, 0.0)
    saved = float((likely * above.sum(axis=2)).sum())
    alone = max(total / max(price, TINY) - float(costs.min()), 0.0)
    wrong = ASTRAY * FIGURE_SPREAD / ASTRAY_SPREAD
    return (right * saved + wrong * alone) / (right + wrong)
