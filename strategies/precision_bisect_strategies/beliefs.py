"""What is believed of the layers: how good the ranking is, and the scale of its errors.

Layers are named by their *position* in the ranking, least sensitive first. True errors are taken
to be lognormal and to correlate with the ranking's by an unknown rho; the factor between both is
unknown, too. Every combination on a grid has a weight, and each trial updates the weights by
Bayes' rule. So a good ranking lets the search test large groups, and a useless one is found out
soon.

A culprit is a layer that adds more than keeping it costs. A group passes when it holds none:
adaptive group testing with a prior (Dorfman 1943; Hwang, JASA 1972).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Positions: TypeAlias = Sequence[int]

RHOS: Array = np.array([0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.995])
"""Correlations of ln of the ranking's errors and of the true ones: the grid's first axis."""
TRUST: Array = np.array([3.0, 1.0, 2.0, 3.0, 5.0, 10.0, 10.0])
"""Their prior weights. Rankings on engines and on real inputs have 0.98 to 0.99
(benchmarks/README.md), so most weight lies there; the rest keeps a poor ranking possible."""
MISSED: Array = np.array([0.0, 0.2, 0.5])
"""Shares of the culprits that stand anywhere, in a ranking that is otherwise right: the second
axis."""
MISSING: Array = np.array([1.0, 0.3, 0.3])
"""Their prior weights. Half and double change no more than chance does in
benchmarks/constants.py."""
RIGHT = 0.95
"""Least correlation of a ranking that may be right of all others; a poorer one explains misses by
itself. Half: kept -2%; double: no more than chance, in benchmarks/constants.py."""
FARTHEST_MISS = 6.0
"""ln of the factor by which a missed layer raises a sum, at most: its chance is spread evenly up
to that. A bound. Half and double change no more than chance does in benchmarks/constants.py."""
UNKNOWN_EXPONENT = 0.15
EXPONENTS = [
    (math.exp(bend), math.exp(-((bend / UNKNOWN_EXPONENT) ** 2) / 2))
    for bend in (-0.3, -0.15, 0.0, 0.15, 0.3)
]
ONE = [(1.0, 1.0)]
"""Powers b of the ranking's errors, e^b, with their weights, a normal density over ln b with the
standard deviation `UNKNOWN_EXPONENT`: true errors may be spread wider than the ranking's, or less.
Without figures there is one power. Half and double change no more than chance does in
benchmarks/constants.py."""
SCALE_STEPS: Array = np.linspace(-3.2, 3.2, 17)
"""Scales that are considered, in standard deviations of `UNKNOWN_SCALE`: +-3.2 leave out 0.1%."""
UNKNOWN_SCALE = 0.8
"""Standard deviation of ln of the factor between the ranking's errors and the true ones. The
median ratio of forecast and engine is 1.0 (NAFNet on an H200). Half and double change no more than
chance does in benchmarks/constants.py."""
UNKNOWN_COUNT = 0.35
"""Standard deviation, in normal scores, of the place where culprits begin, where errors are no
figures. Half and double change no more than chance does in benchmarks/constants.py."""
SURPRISE = 0.2
WIDE_FACTOR = 3.0
"""Prior weight that culprits begin anywhere, up to `WIDE_FACTOR` times as far away. Half and
double change no more than chance does in benchmarks/constants.py."""
MEASURED = {1.0: 0.2, 2.0: 0.6}
"""Standard deviation of ln of a sum around the right belief, by the power that adds up.
Independent errors (2) cancel by chance, errors in step (1) do not. Half and double change no more
than chance does in benchmarks/constants.py."""
LEAST_SPREAD, MOST_SPREAD = 0.05, 6.0
"""Bounds on the standard deviation of one layer's ln(error): 0 would make one surprise impossible,
and beyond 6 an error says nothing."""
UNLIKELY = 1e-9
"""Weight beside the largest, below which a hypothesis is dropped; it only saves time."""
NEXT_TO_NONE = 1e-12
"""Share of the largest error below which errors count as equal. It avoids ln 0."""
LEAST_CHANCE = 1e-9
TINY = 1e-12
"""Least chance and least sum that a logarithm is taken of; both only avoid ln 0."""
LARGEST_ERROR = 1e150
"""Larger finite errors count as this: their square would be beyond Python's floats."""
HELD_AT_ONCE = 2**18
"""Hypotheses times positions that an array has, at most: 2 MiB, which caches hold. A limit on
memory: all 1,105 hypotheses of 5,000 layers take 44 MB an array, and a sum takes eight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beliefs:
    """Hypotheses with their weights, and what follows for groups of positions.

    `logs`, shape (layers,), are ln of the ranking's errors per unit of cost, ascending. `costs`,
    shape (layers,), say what keeping each layer costs. `figures` tells whether errors add up, so
    that a figure says something, with the standard deviation `measured` of its logarithm;
    otherwise only passing counts. Each hypothesis has a correlation, a share of missed layers, an
    exponent, a scale (a logarithm) and a weight, all of the shape (hypotheses,).
    """

    logs: Array
    costs: Array
    figures: bool
    measured: float
    rhos: Array
    missed: Array
    exponents: Array
    scales: Array
    weights: Array

    @classmethod
    def at_first(
        cls, errors: Sequence[float], costs: Sequence[float], *, power: float | None
    ) -> Self:
        """Return what is believed before any trial; `errors` ascend, infinite ones last.

        They are to the `power` that adds up; None means that figures say nothing.
        """
        cost_array = np.asarray(costs, np.float64)
        values = np.asarray(errors, np.float64) / cost_array
        unit, exponents = (UNKNOWN_SCALE * power, EXPONENTS) if power else (UNKNOWN_COUNT, ONE)
        steps = [(step, math.exp(-(step**2) / 2)) for step in SCALE_STEPS]
        steps += [] if power else [(WIDE_FACTOR * step, SURPRISE) for step in SCALE_STEPS]
        rhos, missed, bends, scales, weights = np.array(
            [
                (rho, share, bend, unit * step, trust * missing * usual * likely)
                for rho, trust in zip(RHOS, TRUST, strict=True)
                for share, missing in zip(MISSED, MISSING, strict=True)
                # A missed layer is an explanation only beside a good ranking, so poor ones save
                # the axis.
                if rho >= RIGHT or share == 0
                for bend, usual in exponents
                for step, likely in steps
            ]
        ).T
        return cls(
            logs=_logs(values) if power else _normal_scores(values),
            costs=cost_array,
            figures=power is not None,
            measured=MEASURED[power] if power else 0.0,
            rhos=rhos,
            missed=missed,
            exponents=bends,
            scales=scales,
            weights=weights / weights.sum(),
        )

    @property
    def rho(self) -> float:
        """The expected correlation of the ranking with the truth."""
        return float(self.weights @ self.rhos)

    def marginal_rate(
        self, slack: float, undecided: Positions, kept: Mapping[int, float]
    ) -> float:
        """Return the error per cost from which on keeping pays; infinity if everything should fit.

        Layers run low in the order of their error per cost until `slack`, what is left of the
        tolerance, is used up. The rate is that of the first that does not fit. `kept` has the
        measured errors of single kept positions.
        """
        some = list(kept)
        costs = np.append(self.costs[list(undecided)], self.costs[some])
        rates = np.append(self._spread(undecided), np.array([kept[i] for i in some]))
        rates[len(undecided) :] /= self.costs[some]
        order = np.argsort(rates)
        fits = int(np.searchsorted(np.cumsum((rates * costs)[order]), slack, side="right"))
        return float(rates[order[fits]]) if fits < len(order) else math.inf

    def _spread(self, positions: Positions) -> Array:
        """Return the errors of these layers, ascending, by the likeliest hypothesis."""
        own = self.logs[list(positions)]
        if not len(own):
            return own
        best = int(self.weights.argmax())
        # A useless ranking says nothing of these layers, so they look like a sample of all:
        # between both by the correlation.
        any_ = np.quantile(self.logs, (np.arange(len(own)) + 0.5) / len(own))
        rho = self.rhos[best]
        logs = rho * np.sort(own) + (1 - rho) * any_
        middle = self.logs.mean()
        return np.asarray(
            np.exp(middle + self.exponents[best] * (logs - middle) + self.scales[best])
        )

    def _moments(self, positions: Positions) -> tuple[Array, Array]:
        """Return mean and standard deviation of ln(error) for each position.

        The means have the shape (hypotheses, positions), the deviations (hypotheses, 1).
        """
        middle, spread = float(self.logs.mean()), float(self.logs.std())
        slopes = (self.rhos * self.exponents)[:, None]
        means = middle + slopes * (self.logs[list(positions)] - middle) + self.scales[:, None]
        deviations = spread * self.exponents * np.sqrt(1 - self.rhos**2)
        return means, np.clip(deviations, LEAST_SPREAD, MOST_SPREAD)[:, None]

    def _clean(self, positions: Positions, rate: float) -> Array:
        """Return ln of the chance that each position is no culprit: (hypotheses, positions)."""
        if math.isinf(rate) or not len(positions):
            return np.zeros((len(self.weights), len(positions)))
        means, deviations = self._moments(positions)
        chances = phi((means - math.log(rate)) / deviations)
        # A mixture: with the chance `missed` the position tells nothing.
        chances += self.missed[:, None] * (self._share(rate)[:, None] - chances)
        # `log1p` and the bounds keep sums over thousands of positions exact and finite.
        return np.asarray(np.log1p(-np.clip(chances, LEAST_CHANCE, 1 - LEAST_CHANCE)))

    def _share(self, rate: float) -> Array:
        """Return the share of culprits among all layers, shape (hypotheses,)."""
        if math.isinf(rate):
            return np.zeros(len(self.weights))
        spread = max(float(self.logs.std()), LEAST_SPREAD) * self.exponents
        return phi((float(self.logs.mean()) + self.scales - math.log(rate)) / spread)

    def passing(self, positions: Positions, rate: float, *, bad: bool) -> Array:
        """Return the chance that the first m hold no culprit, for m >= 1: shape (positions,).

        `bad` says that the whole group is known to hold one.
        """

        def expected(some: Self) -> Array:
            clean = np.exp(np.cumsum(some._clean(positions, rate), axis=1))
            if bad:
                whole = clean[:, -1:]
                # Bayes: P(first m clean and the rest not) / P(not all clean).
                clean = (clean - whole) / np.maximum(1 - whole, TINY)
            return np.asarray(some.weights @ clean)

        return np.asarray(np.sum(self._by_parts(expected, positions), axis=0))

    def fitting(self, positions: Positions, slack: float) -> Array:
        """Return the chance that the first m add at most `slack`, for m >= 1: (positions,)."""
        if not self.figures or math.isinf(slack):
            return np.ones(len(positions))

        def expected(some: Self) -> Array:
            means, deviations = some._sums(positions)
            return np.asarray(
                some.weights @ phi((math.log(max(slack, TINY)) - means) / deviations)
            )

        return np.asarray(np.sum(self._by_parts(expected, positions), axis=0))

    def _by_parts(self, of: Callable[[Self], Array], positions: Positions) -> list[Array]:
        """Return what `of` gives for a part of the hypotheses at a time, for these positions."""
        size = max(1, HELD_AT_ONCE // max(1, len(positions)))
        starts = range(0, len(self.weights), size)
        return [of(self._only(slice(start, start + size))) for start in starts]

    def _sums(self, positions: Positions) -> tuple[Array, Array]:
        """Return means and deviations of ln of the sums of the first m: (hypotheses, positions).

        A sum of lognormal errors is taken as lognormal with the same two moments (Fenton 1960).
        """
        means, deviations = self._moments(positions)
        expectations = np.exp(means + deviations**2 / 2) * self.costs[list(positions)]
        totals = np.maximum(np.cumsum(expectations, axis=1), TINY)
        squares = np.cumsum(expectations**2 * np.expm1(deviations**2), axis=1)
        variances = np.log1p(squares / totals**2)
        return np.log(totals) - variances / 2, np.sqrt(variances + self.measured**2)

    def _whole_sum(self, positions: Positions) -> tuple[Array, Array]:
        """Return mean and deviation of ln of their whole sum, of the shape (hypotheses,)."""
        parts = self._by_parts(
            lambda some: np.stack([moments[:, -1] for moments in some._sums(positions)]), positions
        )
        means, deviations = np.concatenate(parts, axis=1)
        return means, deviations

    def _all_clean(self, positions: Positions, rate: float) -> Array:
        """Return ln of the chance that none of them is a culprit, of the shape (hypotheses,)."""
        return np.concatenate(
            self._by_parts(lambda some: some._clean(positions, rate).sum(axis=1), positions)
        )

    def learn(self, part: Positions, rest: Positions, rate: float, *, clean: bool) -> Self:
        """Learn whether `part` holds a culprit; if `rest` is given, one of both is known to."""
        of_part, of_rest = self._all_clean(part, rate), self._all_clean(rest, rate)
        # In logarithms: the chance that a group of hundreds is clean underflows.
        likelihood = of_part if clean else log_not(of_part)
        if len(rest):
            likelihood = likelihood - log_not(of_part + of_rest)
            if clean:
                likelihood = likelihood + log_not(of_rest)
        return self._weighed(likelihood)

    def learn_sum(self, group: Positions, error: float, rate: float = math.inf) -> Self:
        """Learn that these positions together add `error`.

        If the ranking missed layers that add `rate` and more, one of them may be among these.
        """
        if not self.figures or not 0 < error < math.inf:
            return self
        means, deviations = self._whole_sum(group)
        distances = (math.log(error) - means) / deviations
        # Student's t with three degrees of freedom, about: its heavy tails let one odd figure lose
        # no hypothesis for good.
        usual = (1 + distances**2 / 3) ** -2 / deviations * 0.37
        one = 1 - (1 - self.missed * self._share(rate)) ** len(group)
        return self._weighed(
            np.log((1 - one) * usual + one * (distances > 0) / FARTHEST_MISS + TINY)
        )

    def learn_at_most(self, group: Positions, error: float) -> Self:
        """Learn that these positions together add no more than `error`."""
        means, deviations = self._whole_sum(group)
        within = phi((math.log(max(error, TINY)) - means) / deviations)
        return self._weighed(np.log(within + TINY))

    def _weighed(self, logs: Array) -> Self:
        weights = self.weights * np.exp(logs - logs.max())
        likely = replace(self, weights=weights)._only(weights > UNLIKELY * weights.max())
        return replace(likely, weights=likely.weights / likely.weights.sum())

    def _only(self, some: slice | NDArray[np.bool_]) -> Self:
        """Return the same with some of the hypotheses, whose weights stay."""
        return replace(
            self,
            rhos=self.rhos[some],
            missed=self.missed[some],
            exponents=self.exponents[some],
            scales=self.scales[some],
            weights=self.weights[some],
        )

    def fair(self, group: Positions, rate: float) -> float:
        """Return what a group without culprits should add."""
        if math.isinf(rate):
            return math.inf

        def expected(some: Self) -> Array:
            means, deviations = some._moments(group)
            # The mean of a lognormal below `rate`, by its partial expectation.
            cut = (math.log(rate) - means) / deviations - deviations
            sums = np.exp(means + deviations**2 / 2) * phi(cut) @ self.costs[list(group)]
            return np.asarray(some.weights @ sums)

        return float(np.sum(self._by_parts(expected, group)))


def to_power(error: float, power: float) -> float:
    """Return an error to a power of at most 2; finite ones count as `LARGEST_ERROR` at most."""
    return float((error if math.isinf(error) else min(max(error, 0.0), LARGEST_ERROR)) ** power)


def _logs(values: Array) -> Array:
    """Return ln of ascending errors, bounded below and above.

    Errors near 0 are put a little below the others, infinite ones a little above: a single one at
    minus infinity would stretch the spread of all.
    """
    some = values[(values > 0) & np.isfinite(values)]
    if not len(some):
        return np.zeros(len(values))
    # The product with a subnormal error may be 0, which has no logarithm.
    smallest = float(np.finfo(np.float64).smallest_subnormal)
    least = max(float(np.quantile(some, 0.05)) * 1e-3, float(some[-1]) * NEXT_TO_NONE, smallest)
    return np.asarray(np.log(np.clip(values, least, 10 * some[-1])))


def _normal_scores(values: Array) -> Array:
    """Return the normal score of each place; infinite values share their mean score."""
    count = len(values)
    scores = np.array([normal_score((place + 0.5) / count) for place in range(count)])
    endless = np.isinf(values)
    if endless.any():
        scores[endless] = scores[endless].mean()
    return scores


def normal_score(share: float) -> float:
    """Return the value that a normal variable stays below with this chance."""
    return NormalDist().inv_cdf(share)


def log_not(log_probability: Array) -> Array:
    """Return ln(1 - p), given ln p."""
    # `expm1` is exact where p is near 0, where 1 - exp(ln p) would round to 0.
    return np.asarray(np.log(np.maximum(-np.expm1(log_probability), TINY)))


def phi(x: Array) -> Array:
    """Return the normal distribution function, by Abramowitz and Stegun 7.1.26 (error 1e-7)."""
    t = 1 / (1 + 0.3275911 * np.abs(x) / np.sqrt(2))
    series = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    upper = series * np.exp(-(x**2) / 2) / 2
    return np.asarray(np.where(x < 0, upper, 1 - upper))
