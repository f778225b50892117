"""Leaping to smaller plans, where luck decides near the limit.

Rounding errors of many layers are nearly independent: together they come to about the root of the
sum of their squares, far less than their sum (Higham and Mary, A new approach to probabilistic
rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019). That tells how many layers can run low,
but for luck: another plan changes every rounding after its first layer, and its error is 10% above
or below what is expected, anew each time. Where builds are noisy, errors that just add up are off
by as much. Near the limit, then, dropping one layer more is as likely to fail as dropping several
others. So each build is of the size where the chance that it passes times what it saves is
largest, and in quadrature, of several plans of that size, the emulator's luckiest.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import NormalDist, median

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Outcome, Proposal, SampleSet
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.prediction import predicted

SHARES = (0, 1 / 16, 1 / 8, 1 / 4)
"""Of so many of the layers kept, the most sensitive ones, forecasts are compared."""
STEADY = 1.6
"""Errors add up in quadrature where they are the same multiple of that, to within this factor."""
MOST = 1.6
"""And where they are no larger a multiple: errors that just add up are."""
UNLIKE = 2.5
"""Builds contradict that where they are multiples that differ by more than this factor."""
LUCK = 0.1
"""What ln of an error is expected to be off by, before builds tell."""
BELIEVED = 4
"""That counts as so many builds."""
PATIENCE = 3.0
"""Leaps end once they promised that so many more of them pass than did."""
HUGE = 1e150
"""Errors from here on count as infinite: their squares would overflow."""
VARIETY = 0.15
"""Errors of layers are taken as larger or smaller by about this share, for another such plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """How errors of single layers come together: as the root of the sum of their powers.

    A leap must be expected to save what `worth` layers cost, and to pass with the chance `least`.
    Of `draws` plans of a size the emulator says which one's error is least.
    """

    power: float
    worth: float
    least: float = 0.0
    draws: int = 1


QUADRATURE = Law(power=2.0, worth=1.0, draws=16)
"""Luck is a plan's own: each build of it shows the same."""
SUM = Law(power=1.0, worth=0.7, least=0.5)
"""Luck is a build's own. A plan that needs much of it would fail when it is built again, and
forecasts do not know it."""


@dataclass(slots=True)
class Luck:
    """What errors of builds are, over what is expected of them: ln of the ratios.

    `promised` is the sum of the chances of all leaps so far, of which `kept` passed.
    """

    ratios: list[float] = field(default_factory=list)
    promised: float = 0.0
    kept: int = 0

    def learn(self, expected: float, outcome: Outcome) -> None:
        """Learn from a build that has a verdict; `expected` is its error by the law.

        An overflow is a ratio, too: one that contradicts all others.
        """
        error = outcome.error
        if outcome.verdict is not None and error is not None and error > 0 and expected > 0:
            self.ratios.append(math.log(error / expected))

    @property
    def told(self) -> bool:
        """Whether builds say what to expect of others, agree on it, and bear it out."""
        if not self.ratios or max(self.ratios) == math.inf:
            return False
        if max(self.ratios) - min(self.ratios) > math.log(UNLIKE):
            return False
        return self.promised - self.kept < PATIENCE

    def chances(self, limit: float) -> Callable[[float], float]:
        """Return the chance that a plan passes, as a function of what is expected of it.

        Errors spread more above the median than below, so the lower half tells of the chance.
        Needs a build to go by.
        """
        middle = median(self.ratios)
        lower = sum((ratio - middle) ** 2 for ratio in self.ratios if ratio < middle)
        number = len(self.ratios)
        spread = math.sqrt((BELIEVED * LUCK**2 + 2 * lower) / (BELIEVED + number))
        below = NormalDist(middle, spread * math.sqrt(1 + 1 / (number + 1))).cdf

        def chance(expected: float) -> float:
            return below(math.log(limit / expected)) if expected > 0 else 1.0

        return chance


class Sizes:
    """Plans that keep the most sensitive layers for what they cost, and what to expect of them.

    `scores` are the errors of single layers, shape (layers,), which add up by the law.
    """

    def __init__(
        self, scores: Sequence[float], costs: Sequence[float], law: Law = QUADRATURE
    ) -> None:
        self._power = law.power
        self._powers = [score**law.power if score < HUGE else math.inf for score in scores]
        self._costs = costs
        order = self._order(self._powers)
        saved = accumulate((costs[layer] for layer in order), initial=0.0)
        left = accumulate((self._powers[layer] for layer in reversed(order)), initial=0.0)
        self.costs = list(saved)
        self._expected = [self._root(each) for each in left][::-1]

    def expected(self, size: int) -> float:
        """Return the error of keeping so many."""
        return self._expected[size]

    def error(self, plan: Plan) -> float:
        """Return the error of any plan."""
        kept = plan.kept
        return self._root(sum(each for i, each in enumerate(self._powers) if i not in kept))

    def _root(self, total: float) -> float:
        return float(total ** (1 / self._power))

    def cost(self, plan: Plan) -> float:
        """Return what a plan costs."""
        return sum(self._costs[layer] for layer in plan.indices)

    def plan(self, size: int) -> Plan:
        """Return the plan that keeps so many of the most sensitive."""
        return Plan.of(self._order(self._powers)[:size])

    def drawn(self, size: int, chance: random.Random) -> Plan:
        """Return a plan of this size that is about as good."""
        spread = self._power * VARIETY
        varied = [each * math.exp(spread * chance.gauss(0, 1)) for each in self._powers]
        return Plan.of(self._order(varied)[:size])

    def _order(self, powers: Sequence[float]) -> list[int]:
        return sorted(range(len(powers)), key=lambda i: (-powers[i] / self._costs[i], i))


def leap(
    problem: Problem,
    scores: Sequence[float],
    costs: Sequence[float],
    built: Sequence[tuple[Plan, Outcome]],
    law: Law,
) -> Search[Plan | None]:
    """Return the cheapest plan that passed, of those built before and of leaps from there.

    `scores` are finite errors of single layers, `costs` what keeping each costs. Returns None
    where nothing but all-high has passed, without a tolerance above zero, and where errors do not
    add up in quadrature though the law says so.
    """
    if problem.tolerance is None or problem.tolerance <= 0:
        return None
    sizes = Sizes(scores, costs, law)
    if not math.isfinite(sizes.expected(0)):
        return None
    if law is QUADRATURE and not (yield from _steady(sizes, problem.size)):
        return None
    luck = Luck()
    for plan, outcome in built:
        luck.learn(sizes.error(plan), outcome)
    passed = [plan for plan, outcome in built if outcome.passed]
    best = min(passed, key=sizes.cost, default=Plan.all_high(problem.size))
    tried = {plan for plan, _ in built}
    chance = random.Random(problem.seed)
    while luck.told:
        found = _worthwhile(sizes, law, luck.chances(problem.tolerance), sizes.cost(best))
        if found is None:
            break
        size, odds = found
        most = (sizes.cost(best) + sizes.costs[size]) / 2
        number = law.draws * problem.workers
        drawn = dict.fromkeys(sizes.drawn(size, chance) for _ in range(number))
        plans = [plan for plan in drawn if plan not in tried and sizes.cost(plan) <= most]
        if law.draws > 1:
            plans = yield from _luckiest(problem, plans)
        if not plans:
            break
        outcomes = yield tuple(_leaping(plan, best) for plan in plans)
        tried.update(plans)
        for plan, outcome in zip(plans, outcomes, strict=True):
            luck.learn(sizes.error(plan), outcome)
            luck.promised += odds
            luck.kept += bool(outcome.passed)
            if outcome.passed and sizes.cost(plan) < sizes.cost(best):
                best = plan
    return best if len(best) < problem.size else None


def _steady(sizes: Sizes, layers: int) -> Search[bool]:
    """Tell whether forecasts are a steady multiple of what is expected in quadrature."""
    ratios = []
    for share in SHARES:
        size = round(share * layers)
        outcome = yield from predicted(
            ask(sizes.plan(size), "whether errors add up in quadrature"), None, SampleSet.RANKING
        )
        expected = sizes.expected(size)
        if not outcome.error or not math.isfinite(outcome.error) or not expected:
            return False
        ratios.append(outcome.error / expected)
    return max(ratios) <= min(MOST, STEADY * min(ratios))


def _worthwhile(
    sizes: Sizes, law: Law, chance: Callable[[float], float], best: float
) -> tuple[int, float] | None:
    """Return the size that should save most, and the chance that a plan of it passes."""
    found, most = None, law.worth * sizes.costs[-1] / (len(sizes.costs) - 1)
    for size, cost in enumerate(sizes.costs):
        if best - cost <= most:
            break
        odds = chance(sizes.expected(size))
        if odds >= law.least and (best - cost) * odds > most:
            found, most = (size, odds), (best - cost) * odds
    return found


def _luckiest(problem: Problem, plans: Sequence[Plan]) -> Search[list[Plan]]:
    """Return one plan for each worker, those of least forecasts."""
    outcomes: list[Outcome] = []
    for start in range(0, len(plans), problem.workers):
        batch = plans[start : start + problem.workers]
        outcomes += yield from predicted(_forecasts(batch), None, SampleSet.RANKING)
    told = [
        (outcome.error, plan)
        for plan, outcome in zip(plans, outcomes, strict=True)
        if outcome.error is not None and math.isfinite(outcome.error)
    ]
    return [plan for _, plan in sorted(told)[: problem.workers]]


def _forecasts(plans: Sequence[Plan]) -> Search[tuple[Outcome, ...]]:
    return (yield tuple(Proposal(plan=plan, reason="the error of a leap") for plan in plans))


def _leaping(plan: Plan, best: Plan) -> Proposal:
    return Proposal(
        plan=plan, reason=f"leap from {len(best)} to {len(plan)}", narrowed_to=len(best)
    )
