"""What single layers add, from what groups of them were measured to add.

A ranking whose order is right may still be off by a scale and by an exponent. Both follow from
sums of groups, by least squares on their logarithms: more sharply than each group tells of itself.
"""

from copy import copy

import numpy as np

from precision_bisect_strategies.rankings import BENT, TINY, Array, Ranks, sums_over

EXPONENTS: Array = np.exp(np.linspace(-0.6, 0.6, 61))
"""Exponents on the ranking's errors to choose from."""
LEAST = 0.1
"""Standard deviation of ln of a sum around what the right scale and exponent say, at least."""


class Fitted:
    """The ranking's errors, fitted to measured sums.

    `values`, shape (layers,), are its errors per unit of cost, finite, least first; `costs`, shape
    (layers,), are what keeping each layer costs.
    """

    def __init__(self, values: Array, costs: Array) -> None:
        self._values: Array = values / (float(values.max(initial=0.0)) or 1.0)
        self._costs = costs
        self._ratios: list[Array] = []
        self._spreads: list[Array] = []
        self._noises: list[float] = []
        self._found: dict[int, Array] = {}

    def copy(self) -> "Fitted":
        """Return one that learns on its own from here."""
        other = copy(self)
        other._ratios = list(self._ratios)
        other._spreads = list(self._spreads)
        other._noises = list(self._noises)
        other._found = {}
        return other

    def learn(self, group: list[int], ranks: Ranks, error: float, noise: float) -> None:
        """Learn that the layers at these places add `error`, give or take `noise`.

        `ranks`, shape (rankings, draws, layers), are the places of all layers in true orders that
        were drawn: what the group's sums differ by in these is what one ranking leaves open.
        """
        logs = np.log(np.maximum(self._values[group], TINY))
        sums = (np.exp(np.outer(EXPONENTS, logs)) * self._costs[group]).sum(axis=1)
        drawn = sums_over(self._values, ranks, group, self._costs)
        self._ratios.append(np.log(error) - np.log(np.maximum(sums, TINY)))
        self._spreads.append(np.log(np.maximum(drawn, TINY)).std(axis=1))
        self._noises.append(noise / error)
        self._found = {}

    def values(self, ranking: int) -> Array | None:
        """Return the fitted errors per unit of cost, least first; None before anything is learnt.

        Shape (layers,). A sum counts the more, the less this ranking leaves open.
        """
        if not self._ratios:
            return None
        if ranking not in self._found:
            ratios, noises = np.array(self._ratios), np.array(self._noises)
            open_ = np.array([each[ranking] for each in self._spreads])
            weights = 1 / (LEAST**2 + open_**2 + noises**2)
            scales = weights @ ratios / weights.sum()
            misfits = weights @ (ratios - scales) ** 2 + (np.log(EXPONENTS) / BENT) ** 2
            best = int(misfits.argmin())
            powers = np.maximum(self._values, 0.0) ** EXPONENTS[best]
            self._found[ranking] = powers * np.exp(scales[best])
        return self._found[ranking]
