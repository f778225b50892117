"""The last points of a curve: one beyond the answer, and some below it, which its layers hold."""

import math
from itertools import pairwise

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.search.precision_curve import FILLED, Curve, nested, prefixes
from precision_bisect.search.rounding_law import Law, typical
from precision_bisect.trial import Outcome

FILLED_BY_BUILDS = 2
"""`FILLED` where each point is a build. Half and double change no more than chance does in
benchmarks/constants.py."""
WIDE_RATIO = 3.0
"""Ratio of two neighbouring points' errors from which a point between them is evaluated. Half and
double change no more than chance does in benchmarks/constants.py."""
FAR_DOWN = 3.0
"""Factor by which the error must fall for a few layers beyond the answer to be worth a point. Half
and double change no more than chance does in benchmarks/constants.py."""
FEW = 8
"""Layers that lower the error for the point `margin`, at most: `FEW`, or half the answer where
that is more; never beyond half of all layers. Half and double change nothing in
benchmarks/constants.py."""


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
            error_beyond = typical(outcome)
            # Samples that do not feel an overflow say nothing of others: no fall is asked of it.
            far = in_range != answer or (
                error_beyond is not None and error_beyond * FAR_DOWN <= error
            )
            if outcome.passed and far:
                curve.margin = beyond
    # Points between are parts of the answer, and begin with the culprits.
    culprits = curve.culprits or answer
    law = curve.law.along(*sorted((culprits, answer)) if nested(culprits, answer) else (answer,))
    # Each point changes which two differ most, so the place of the next is found anew.
    for _ in range(FILLED_BY_BUILDS if curve.problem.builds else FILLED):
        count = _between(curve, law, answer, answered)
        if count is None or curve.open <= 0:
            return
        yield from curve.judge(Plan.of(law.order[:count]), "a point between")


def _beyond(law: Law, answer: Plan) -> Plan | None:
    """Return the answer with the few layers that lower the predicted error most per layer."""
    # Layers of equal error stay in network order, as `law.order` has them.
    scores = dict(zip(law.order, law.errors, strict=True))
    rest = [layer for layer in law.order if layer not in answer.kept]
    rest_errors = _left([scores[layer] for layer in rest])
    half = len(law.order) // 2 - len(answer)
    most = min(half, len(rest) - 1, max(FEW, len(answer) // 2))
    if most < 1 or not 0 < rest_errors[0] < math.inf:
        return None
    falls = {
        # The floor of 1e-9 stands in for an error of 0, whose logarithm is infinite.
        count: math.log(rest_errors[0] / max(rest_errors[count], rest_errors[0] * 1e-9))
        for count in range(1, most + 1)
    }
    worth = [count for count, fall in falls.items() if fall >= math.log(FAR_DOWN)]
    # Largest fall per layer; of equal ones the fewer layers.
    best = max(worth, key=lambda count: (falls[count] / count, -count), default=None)
    return None if best is None else answer.with_(rest[:best])


def _left(errors: list[float]) -> list[float]:
    """Return the law's error of the low layers from each place on, and 0 at the end."""
    squares, totals = 0.0, [0.0]
    for error in reversed(errors):
        squares += error * error
        totals.append(math.sqrt(squares))
    return totals[::-1]


def _between(curve: Curve, law: Law, answer: Plan, answered: Outcome) -> int | None:
    """Return the number of layers for a point between the two whose errors differ most."""
    outcomes = dict(prefixes(curve, law))
    outcomes[len(answer)] = answered
    limit = curve.problem.tolerance or 0.0
    errors = {
        # Errors of 0 and infinity have no ratio: they count as far below and far above the limit.
        count: min(max(error, limit / 1e3), limit * 1e4)
        for count, outcome in sorted(outcomes.items())
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
