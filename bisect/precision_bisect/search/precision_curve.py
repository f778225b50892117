"""The curve: the error by the number of kept layers, along the ranking.

The law of rounding (see `rounding_law`) tells the culprits: layers that hurt alone as much as all
less sensitive ones together. It also tells which plans are worth an evaluation. The curve is drawn
first and ends at a plan that passes, so that a run has an answer long before its search ends. Once
the search has ended, a few points complete the curve (see `curve_points`).
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from precision_bisect.errors import counted
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.runs.results.curve_of_result import PointName
from precision_bisect.search.rounding_law import (
    LAWFUL,
    ORDINARY_UNITS,
    Law,
    jitter,
    typical,
    worst,
)
from precision_bisect.search.sensitivity import LARGE, Sensitivity, bounded, rank
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet

CURVE_DRAW = 1 << 16
"""The draw of copies for all points: one for all, so that their errors compare. Searches count
their draws from 1, far below it."""
FEW_COPIES = (Phase.CURVE, Phase.SEARCH)
"""Phases whose draws have few copies: they guide a run, and prove nothing."""
CURVE_EVALUATIONS = 20
"""Evaluations of one curve, at most: `CURVE_EVALUATIONS` + 2 log2(layers). A bound: on 20 real
networks the law alone took 22 to 112 inferences of a sample."""
CONFIRMATIONS = 5
"""Evaluations that may name sets of culprits, at most. A bound: the first set was confirmed on
some 40 networks with one exception."""
FILLED = 3
"""Points that complete the curve below the answer. Half and double change no more than chance does
in benchmarks/constants.py."""
LEAST_GAIN = 0.03
"""Plans with fewer layers are tried after one passes, while each keeps less by `LEAST_GAIN` (a
share of its layers). Half and double change no more than chance does in
benchmarks/constants.py."""
SPREAD = 16
SPREAD_SHARE = 0.125
"""Rounding is spread where a passing plan keeps more layers beside the culprits than either bound:
`SPREAD` layers and `SPREAD_SHARE` of all. On PP-OCRv4 det and rec such sets are partly arbitrary:
several of that size pass. So no search follows."""
SHARES_IN_HAND = (1 / 2, 1 / 8)
"""Shares of the tolerance that the law leaves to plans of the worst blocks: two trials at most.
The second is for networks that select, whose errors jump far beyond the law's."""
MOST_JOINT = 64
"""Layers beyond the range among which those that act together are looked for, at most: a forecast
for each. A bound."""


class CurveTrial(NamedTuple):
    """A plan of the curve and its outcome; `name` is "" where it only lies between named ones."""

    plan: Plan
    outcome: Outcome
    name: PointName


@dataclass(slots=True, kw_only=True)
class Curve:
    """What is known of a problem's curve; `sweep` and `complete` fill it in.

    With `copies` the points are judged on copies, too. `law` predicts errors from the ranking.
    `culprits` are the first layers of its order that break the low type together, confirmed by an
    evaluation; None until then. `without` has the emulator's error of the culprits' plan without
    each of them. `margin` has more layers than the answer: all that leave the range; where the
    answer has them, a few that make the error far smaller.
    """

    problem: Problem
    copies: bool = True
    law: Law | None = None
    culprits: Plan | None = None
    margin: Plan | None = None
    without: dict[int, float] = field(default_factory=dict)
    tried: dict[Plan, Outcome] = field(default_factory=dict)

    @property
    def passing(self) -> Plan | None:
        """The smallest plan of the curve that passed, None where none did."""
        return min((plan for plan, outcome in self.tried.items() if outcome.passed), default=None)

    @property
    def spread(self) -> bool:
        """Whether rounding is spread over the network, so that no search is worth it."""
        if self.culprits is None or self.passing is None or self.tried[self.culprits].passed:
            return False
        # What leaves the range suffices: it is the range that breaks the low type, not rounding.
        beyond_range = self.problem.beyond_range()
        if beyond_range in self.tried and self.tried[beyond_range].passed:
            return False
        beside = len(self.passing) - len(self.culprits)
        return beside > max(SPREAD, SPREAD_SHARE * self.problem.size) and self._lawful

    @property
    def _lawful(self) -> bool:
        """Whether every plan that failed beyond the culprits is about as far off as the law says.

        If one is not, the ranking has missed a layer that matters. A search finds it.
        """
        law = self.law
        return law is not None and all(
            typical(outcome) is not None and not law.is_broken_by(count, outcome)
            for count, outcome in prefixes(self, law)
            if not outcome.passed and self.culprits is not None and count > len(self.culprits)
        )

    @property
    def open(self) -> int:
        """The number of evaluations that may still be spent."""
        # Steps grow by a share, so their number grows with the logarithm of the layers.
        most = CURVE_EVALUATIONS + 2 * math.ceil(math.log2(max(2, self.problem.size)))
        return most - len(self.tried)

    def points(self, answer: Plan | None, answered: Outcome | None) -> list[CurveTrial]:
        """Return the points by the number of layers; the answer has its own outcome.

        Each keeps all layers of the one before: others make no line.
        """
        outcomes = {
            plan: outcome for plan, outcome in self.tried.items() if self._compares(outcome)
        }
        if self.tried and answer is not None and answered is not None:
            outcomes[answer] = answered
        # A plan that is several of them has the last of its names.
        names: dict[Plan | None, PointName] = {
            self.culprits: "culprits",
            self.margin: "margin",
            Plan.of(()): "all_low",
            answer: "answer",
        }
        first = (answer, Plan.of(()), self.culprits, self.margin, self.passing)
        drawn: list[Plan] = []
        for plan in (*(point for point in first if point is not None), *sorted(outcomes)):
            if plan in outcomes and all(nested(plan, other) for other in drawn):
                drawn.append(plan)
        return [CurveTrial(plan, outcomes[plan], names.get(plan, "")) for plan in sorted({*drawn})]

    def _compares(self, outcome: Outcome) -> bool:
        """Whether an outcome stands on the line: judged on copies where the others are."""
        on_copies = outcome.evidence.stability is not None
        return on_copies or not (self.copies and Law.tells(outcome))

    def _expected(self, plan: Plan) -> str:
        """Return the law's error for first layers of the order, to end a reason with."""
        if self.law is None or plan != Plan.of(self.law.order[: len(plan)]):
            return ""
        error = self.law.left(len(plan))
        return f"; the law says {error:.2g}" if error < math.inf else ""

    def judge(self, plan: Plan, reason: str) -> Search[Outcome]:
        """Evaluate one more point."""
        (outcome,) = yield (
            Proposal(
                plan=plan,
                phase=Phase.CURVE,
                draw=CURVE_DRAW if self.copies else 0,
                timed=self.problem.timed,
                reason=f"{counted(len(plan), 'layer')}: {reason}{self._expected(plan)}",
            ),
        )
        self.tried[plan] = outcome
        return outcome


def drawable(tolerance: float | None) -> bool:
    """Tell whether a problem has a curve: errors are figures, and the tolerance is above zero."""
    return tolerance is not None and tolerance > 0


def sweep(curve: Curve) -> Search[None]:
    """Rank, find the culprits, and keep more layers until a plan passes.

    Nothing is done where errors are not figures (see `drawable`).
    """
    yield from find_culprits(curve)
    law, culprits = curve.law, curve.culprits
    if law is None or culprits is None:
        return
    count, outcome = len(culprits), curve.tried[culprits]
    # `FILLED` + 1 evaluations are left for the points around the answer.
    while not outcome.passed and curve.open > FILLED + 1:
        failed = count, outcome
        # No noise of builds: the curve shows where plans begin to pass, and the copies decide.
        count = law.next(count, outcome, curve.problem.tolerance, 0.0)
        # A plan that passes already, such as the one to start from, keeps no more.
        if count >= law.steps or (curve.passing is not None and count >= len(curve.passing)):
            return
        outcome = yield from curve.judge(Plan.of(law.order[:count]), "until one passes")
        if outcome.passed:
            yield from _tightened(curve, law, failed, (count, outcome))


def _tightened(
    curve: Curve, law: Law, fails: tuple[int, Outcome], passes: tuple[int, Outcome]
) -> Search[None]:
    """Go back to fewer layers, as long as a much smaller plan should pass in nearly any draw."""
    limit = curve.problem.tolerance or 0.0
    while True:
        # One standard deviation of ln(error) below the tolerance: a median there passes mostly.
        below = limit * math.exp(-jitter(passes[1]))
        high, low = (worst(end[1]) or 0.0 for end in (fails, passes))
        count = law.between((fails[0], high), (passes[0], low), below)
        if count is None or count <= fails[0] or passes[0] - count < LEAST_GAIN * passes[0]:
            return
        if curve.open <= FILLED + 1:
            return
        outcome = yield from curve.judge(Plan.of(law.order[:count]), "fewer that may pass")
        if outcome.passed:
            passes = count, outcome
        else:
            fails = count, outcome


def find_culprits(curve: Curve) -> Search[None]:
    """Rank, and find the layers that break the low type."""
    problem = curve.problem
    if problem.tolerance is None or not drawable(problem.tolerance):
        return
    yield from _preflight(curve)
    ranking = yield from rank(curve.problem, partial(_in_hand, curve))
    # `scores` are errors of single layers, so the law begins with nothing kept.
    curve.law = law = Law.of(ranking.scores, without=Plan.of(()))
    nothing = Plan.of(())
    (low,) = yield (Proposal(plan=nothing, phase=Phase.CURVE, reason="every layer low"),)
    curve.tried[nothing] = low
    count = yield from _confirmed(curve, law, problem.tolerance, typical(low))
    culprits = Plan.of(law.order[:count])
    joint = None
    if not curve.tried[culprits].passed and law.is_broken_by(count, curve.tried[culprits]):
        joint = yield from _joint(curve, law, problem.tolerance, typical(low))
    if joint is not None:
        culprits, curve.law = joint, law.behind(joint)
    else:
        yield from _alone(curve, culprits)
    curve.culprits = culprits
    yield from judge_all_low(curve)


def _in_hand(curve: Curve, blocks: Sensitivity) -> Search[None]:
    """Have a plan of a large model pass before its single layers are ranked, which takes long.

    The curve is of the whole ranking, so these plans are none of its points.
    """
    problem = curve.problem
    if curve.passing is not None or problem.builds or problem.size <= LARGE:
        return
    law, kept = Law.of(blocks.scores, without=Plan.of(())), 0
    for share in SHARES_IN_HAND:
        limit = share * (problem.tolerance or 0.0)
        least = range(law.steps - 1)
        count = bisect_left(least, -limit, key=lambda count: -law.left(count))
        if count in (kept, law.steps - 1):
            continue
        kept = count
        reason = "the worst blocks, for an answer in hand"
        plan = Plan.of(law.order[:kept])
        (outcome,) = yield (Proposal(plan=plan, phase=Phase.RANKING, reason=reason),)
        if outcome.passed:
            return


def judge_all_low(curve: Curve) -> Search[None]:
    """Judge every layer low on copies, as all other points are.

    What does not run, or is not finite, is so there, too.
    """
    nothing = Plan.of(())
    if curve.copies and Law.tells(curve.tried[nothing]):
        yield from curve.judge(nothing, "every layer low")


def _joint(curve: Curve, law: Law, tolerance: float, low: float | None) -> Search[Plan | None]:
    """Return the layers beyond the range that break the low type only together; None for none.

    Each alone does little, so the law knows nothing of them. The plan of all that leave the range
    has passed: what forecasts can do without goes, the least sensitive first, and what is left
    must do as well, and must be needed.
    """
    plan = curve.problem.beyond_range()
    if plan is None or plan not in curve.tried or not 0 < len(plan) <= MOST_JOINT:
        return None
    within = curve.tried[plan]
    if not within.passed:
        return None
    # What is within the tolerance is enough, and what may be mere rounding beside the plan itself.
    limit = max(tolerance, LAWFUL * (typical(within) or 0.0))
    for layer in [layer for layer in reversed(law.order) if layer in plan.kept]:
        error = (yield from _forecast(plan.without((layer,)))).error
        if error is not None and error <= limit:
            plan = plan.without((layer,))
    outcome = yield from curve.judge(plan, "the culprits, which act together")
    # A part of the overflow explains nothing if the rest makes as much.
    error = typical(outcome)
    if error is None or error > min(limit, math.inf if low is None else low / math.sqrt(2)):
        return None
    curve.without.clear()
    yield from _alone(curve, plan)
    least = max(ORDINARY_UNITS * curve.problem.unit, LAWFUL * error)
    needed = all(curve.without.get(layer, 0.0) >= least for layer in plan.indices)
    return plan if needed and len(plan) else None


def _forecast(plan: Plan) -> Search[Outcome]:
    (outcome,) = yield (
        Proposal(
            plan=plan,
            phase=Phase.PREDICTION,
            samples=SampleSet.RANKING,
            kind=Kind.PREDICT,
            reason="fewer layers beyond the range",
        ),
    )
    return outcome


def _preflight(curve: Curve) -> Search[None]:
    """Take what the preflight has shown: the time of a build, and a first plan that passes."""
    problem = curve.problem
    everything = Plan.all_high(problem.size)
    if problem.builds:
        # Both proposals were evaluated in the preflight: asking again gives their outcomes for
        # nothing.
        (high,) = yield (
            Proposal(plan=everything, phase=Phase.RANKING, reason="every layer high"),
        )
        curve.problem = bounded(problem, high)
    for plan, reason in problem.first_plans:
        (outcome,) = yield (Proposal(plan=plan, phase=Phase.RANKING, reason=reason),)
        if outcome.passed:
            yield from curve.judge(plan, reason)


def _confirmed(curve: Curve, law: Law, tolerance: float, low: float | None) -> Search[int]:
    """Return how many first layers are culprits; an evaluation must confirm that together.

    `low` is the error with every layer low.
    """
    # Culprits add at least as much as the rest, so by the law the rest alone is this much.
    most = math.inf if low is None else low / math.sqrt(2)
    count = law.culprits(tolerance, curve.problem.unit)
    for _ in range(CONFIRMATIONS):
        if not count:
            return 0
        outcome = yield from curve.judge(Plan.of(law.order[:count]), "the culprits")
        error = typical(outcome)
        # Together they must be no worse than the mildest of them alone; otherwise the rest still
        # hurts as much, and the set is too large or the ranking is wrong.
        if error is not None and error < math.inf and error <= min(law.errors[count - 1], most):
            return count
        count = law.culprits(tolerance, curve.problem.unit, most=count - 1)
    return 0


def _alone(curve: Curve, culprits: Plan) -> Search[None]:
    """Ask the emulator for the plan of all culprits without each."""
    workers = curve.problem.workers
    layers = culprits.indices
    for start in range(0, len(layers), workers):
        some = layers[start : start + workers]
        # In batches of the number of workers: a budget that ends between two keeps the first.
        outcomes = yield tuple(
            Proposal(
                plan=culprits.without((layer,)),
                phase=Phase.PREDICTION,
                samples=SampleSet.RANKING,
                kind=Kind.PREDICT,
                reason="the culprits without one",
            )
            for layer in some
        )
        for layer, outcome in zip(some, outcomes, strict=True):
            if outcome.error is not None:
                curve.without[layer] = outcome.error


def prefixes(curve: Curve, law: Law) -> Iterator[tuple[int, Outcome]]:
    """Yield the points that keep the first layers of the order, each with their number."""
    for plan, outcome in curve.tried.items():
        if plan == Plan.of(law.order[: len(plan)]):
            yield len(plan), outcome


def nested(one: Plan, other: Plan) -> bool:
    """Tell whether one of two plans keeps all that the other does."""
    return one.kept <= other.kept or other.kept <= one.kept
