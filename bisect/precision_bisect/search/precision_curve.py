"""The curve: the error by the number of kept layers, along the ranking.

The law of rounding (see `rounding_law`) tells the culprits: layers that hurt alone as much as all
less sensitive ones together. It also tells which plans are worth an evaluation. The curve is drawn
first and ends at a plan that passes, so that a run has an answer long before its search ends. Once
the search has ended, a few points complete the curve.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from precision_bisect.errors import counted
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.runs.results.result import PointName
from precision_bisect.search.rounding_law import Law, jitter, typical, worst
from precision_bisect.search.sensitivity import bounded, rank
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
FILLED_BY_BUILDS = 2
"""Points that complete the curve below the answer; fewer where each is a build. Half and double
change no more than chance does in benchmarks/constants.py."""
LEAST_GAIN = 0.03
"""Plans with fewer layers are tried after one passes, while each keeps less by `LEAST_GAIN` (a
share of its layers). Half and double change no more than chance does in
benchmarks/constants.py."""
WIDE_RATIO = 3.0
"""Ratio of two neighbouring points' errors from which a point between them is evaluated. Half and
double change no more than chance does in benchmarks/constants.py."""
FAR_DOWN = 3.0
"""Factor by which the error must fall for a few layers beyond the answer to be worth a point. Half
and double change no more than chance does in benchmarks/constants.py."""
SPREAD = 16
SPREAD_SHARE = 0.125
"""Rounding is spread where a passing plan keeps more layers beside the culprits than either bound:
`SPREAD` layers and `SPREAD_SHARE` of all. On PP-OCRv4 det and rec such sets are partly arbitrary:
several of that size pass. So no search follows."""
LAWFUL = 3.0
"""Measured error over the law's, up to which a failing plan is called rounding. On some 40
networks 94% of 415 points lay between 0.3 and 1.2; the rest is a margin."""
FEW = 8
"""Layers that lower the error for the point `margin`, at most: `FEW`, or half the answer where
that is more; never beyond half of all layers. Half and double change nothing in
benchmarks/constants.py."""


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
        return min((plan for plan, told in self.tried.items() if told.passed), default=None)

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
            (error := typical(outcome)) is not None and error <= LAWFUL * law.left(count)
            for count, outcome in _prefixes(self, law)
            if not outcome.passed and self.culprits is not None and count > len(self.culprits)
        )

    @property
    def open(self) -> int:
        """The number of evaluations that may still be spent."""
        # Steps grow by a share, so their number grows with the logarithm of the layers.
        most = CURVE_EVALUATIONS + 2 * math.ceil(math.log2(max(2, self.problem.size)))
        return most - len(self.tried)

    def points(self, answer: Plan | None, answered: Outcome | None) -> list[CurveTrial]:
        """Return the points by the number of layers; the answer has its own outcome."""
        told = dict(self.tried)
        if told and answer is not None and answered is not None:
            told[answer] = answered
        # A plan that is several of them has the last of its names.
        names: dict[Plan | None, PointName] = {
            self.culprits: "culprits",
            self.margin: "margin",
            Plan.of(()): "all_low",
            answer: "answer",
        }
        return [CurveTrial(plan, told[plan], names.get(plan, "")) for plan in sorted(told)]

    def _expected(self, plan: Plan) -> str:
        """Return the law's error for first layers of the order, to end a reason with."""
        if self.law is None or plan != Plan.of(self.law.order[: len(plan)]):
            return ""
        return f"; the law says {self.law.left(len(plan)):.2g}"

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
        high, low = (worst(each[1]) or 0.0 for each in (fails, passes))
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
    told = yield from rank(curve.problem)
    # `scores` are errors of single layers, so the law begins with nothing kept.
    curve.law = law = Law.of(told.scores, without=Plan.of(()))
    nothing = Plan.of(())
    (low,) = yield (Proposal(plan=nothing, phase=Phase.CURVE, reason="every layer low"),)
    curve.tried[nothing] = low
    count = yield from _confirmed(curve, law, problem.tolerance, typical(low))
    culprits = Plan.of(law.order[:count])
    yield from _alone(curve, culprits)
    curve.culprits = culprits


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
        (told,) = yield (Proposal(plan=plan, phase=Phase.RANKING, reason=reason),)
        if told.passed:
            yield from curve.judge(plan, reason)


def complete(curve: Curve, answer: Plan, answered: Outcome | None) -> Search[None]:
    """Evaluate a point beyond the answer, where one is worth it, and some below it."""
    if curve.law is None or answered is None:
        return
    error = typical(answered)
    if error is not None and 0 < error < math.inf and answered.passed:
        in_range = answer.with_((curve.problem.overflowing() or answer).kept)
        beyond = _beyond(curve.law, answer) if in_range == answer else in_range
        if beyond is not None:
            outcome = yield from curve.judge(beyond, "beyond the answer")
            found = typical(outcome)
            # Samples that do not feel an overflow say nothing of others: no fall is asked of it.
            far = in_range != answer or (found is not None and found * FAR_DOWN <= error)
            if outcome.passed and far:
                curve.margin = beyond
    # Each point changes which two differ most, so the place of the next is found anew.
    for _ in range(FILLED_BY_BUILDS if curve.problem.builds else FILLED):
        count = _between(curve, curve.law, answer, answered)
        if count is None or curve.open <= 0:
            return
        yield from curve.judge(Plan.of(curve.law.order[:count]), "a point between")


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


def _beyond(law: Law, answer: Plan) -> Plan | None:
    """Return the answer with the few layers that lower the predicted error most per layer."""
    # Layers of equal error stay in network order, as `law.order` has them.
    scores = dict(zip(law.order, law.errors, strict=True))
    rest = [layer for layer in law.order if layer not in answer.kept]
    left = _left([scores[layer] for layer in rest])
    half = len(law.order) // 2 - len(answer)
    most = min(half, len(rest) - 1, max(FEW, len(answer) // 2))
    if most < 1 or not 0 < left[0] < math.inf:
        return None
    falls = {
        # The floor of 1e-9 stands in for an error of 0, whose logarithm is infinite.
        count: math.log(left[0] / max(left[count], left[0] * 1e-9))
        for count in range(1, most + 1)
    }
    worth = [count for count, fall in falls.items() if fall >= math.log(FAR_DOWN)]
    # Largest fall per layer; of equal ones the fewer layers.
    best = max(worth, key=lambda count: (falls[count] / count, -count), default=None)
    return None if best is None else answer.with_(rest[:best])


def _left(errors: list[float]) -> list[float]:
    """Return the law's error of the low layers from each place on, and 0 at the end."""
    squares, found = 0.0, [0.0]
    for error in reversed(errors):
        squares += error * error
        found.append(math.sqrt(squares))
    return found[::-1]


def _between(curve: Curve, law: Law, answer: Plan, answered: Outcome) -> int | None:
    """Return the number of layers for a point between the two whose errors differ most."""
    known = dict(_prefixes(curve, law))
    known[len(answer)] = answered
    limit = curve.problem.tolerance or 0.0
    errors = {
        # Errors of 0 and infinity have no ratio: they count as far below and far above the limit.
        count: min(max(error, limit / 1e3), limit * 1e4)
        for count, outcome in sorted(known.items())
        if count <= len(answer) and (error := typical(outcome)) is not None
    }
    gaps = [
        (errors[few] / errors[more], few, more)
        for few, more in pairwise(errors)
        if more - few > 1 and errors[few] > WIDE_RATIO * errors[more]
    ]
    if not gaps:
        return None
    _, few, more = max(gaps)
    # The geometric mean of both errors by the law: half way on a logarithmic axis.
    level = math.sqrt(max(law.left(few), 0.0) * law.left(more))
    inside = range(few + 1, more)
    if not 0 < level < math.inf:
        return (few + more) // 2
    return next((count for count in inside if law.left(count) <= level), inside[-1])


def _prefixes(curve: Curve, law: Law) -> Iterator[tuple[int, Outcome]]:
    """Yield the points that keep the first layers of the order, each with their number."""
    for plan, outcome in curve.tried.items():
        if plan == Plan.of(law.order[: len(plan)]):
            yield len(plan), outcome
