"""Widening for `--risk`: what the spread of errors suggests of unseen inputs, and never proves.

Errors of samples are taken as log-normal. The spread is that of the samples, and of two copies of
each where samples are few. Where a network selects, or errors are of two kinds, nothing is said.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist, fmean, stdev, variance
from typing import NamedTuple

from precision_bisect.graphs.load import Model
from precision_bisect.pipeline.stability import StabilityCheck, one
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.runs.results.unseen import CONFIDENCE, SAFE, Estimate, share_at_most
from precision_bisect.search.combinators import mapped
from precision_bisect.search.rounding_law import Law, jitter, worst
from precision_bisect.search.sensitivity import NEGLIGIBLE, rank
from precision_bisect.trial import Kind, OneByOne, Outcome, Phase, SampleSet, Trial

SELECTING = frozenset(("TopK", "ArgMax", "ArgMin", "NonMaxSuppression", "NonZero"))
"""Operators that choose among values: an input either flips the choice or not, so that no spread
tells the share that does. On magika and a mixture of experts the estimate is right in 62% to 85%
of draws."""
PRIOR = 4
LEAST_SD, OF_COPIES = 0.3, 2.0
"""Of samples too few to tell it the standard deviation of ln(error) is taken to be max(`LEAST_SD`,
`OF_COPIES` x that of copies), with the weight of `PRIOR` samples. Fitted on 16 networks, where the
estimate is right in 92 to 98% of draws."""
MOST_WIDENINGS = 6
KINDS_APART = math.log(10)
"""Neighbouring errors of samples that differ by this are of two kinds. Half and double change
nothing in benchmarks/constants.py."""
LEAST_ERROR = 1e-3
"""Share of the limit that smaller errors are raised to, as of samples that come out exact."""
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, SAFE, 0.1, 0.2, 0.5)
"""Shares of unseen inputs that may be over which are told apart. Round figures."""
ROOM = 0.8
"""Share of the limit that a plan to deploy stays below, where that is nearly as fast."""
LEAST_SHARE = 0.2
"""No share is said below this part of the exact bound for so many samples."""
_STEPS = 400
RISK_DRAW = 1 << 17
"""The draw of copies that tell the spread: one for all plans. Searches count theirs from 1."""


class Spread(NamedTuple):
    """The errors of so many samples: mean and standard deviation of ln(error)."""

    samples: int
    mean: float
    sd: float

    @classmethod
    def of(cls, judgement: OneByOne | None, limit: float, jitter: float = 0.0) -> "Spread | None":
        """Return that of some samples; None without figures, and where they are of two kinds.

        Where single samples have no copies, the `jitter` of all together stands for them.
        """
        errors = [] if judgement is None else list(judgement.errors)
        if judgement is None or not errors or not all(map(_finite, errors)):
            return None
        logs = [_log(error, limit) for error in errors]
        ordered = sorted(logs)
        # Samples of two kinds have no common spread: a mean between them is no sample's.
        if any(b - a >= KINDS_APART for a, b in pairwise(ordered)):
            return None
        copied = [
            variance([log, *(_log(error, limit) for error in copies)])
            for log, copies in zip(logs, judgement.copies, strict=False)
            if copies and all(map(_finite, copies))
        ]
        count, own = len(logs), math.sqrt(fmean(copied)) if copied else jitter
        among = stdev(logs) if count > 1 else 0.0
        # Few samples say little of their own spread: that of copies counts as PRIOR samples more.
        square = PRIOR * max(LEAST_SD, OF_COPIES * own) ** 2 + (count - 1) * among**2
        return cls(count, fmean(logs), math.sqrt(square / (count + PRIOR - 1)))

    def error(self, risk: float) -> float:
        """Return the error that hardly more than this share of inputs exceeds."""
        return math.exp(self.mean + factor(self.samples, risk) * self.sd)

    @classmethod
    def of_outcome(cls, outcome: Outcome, limit: float) -> "Spread | None":
        """Return that of the samples which a trial has judged, with its copies."""
        return cls.of(outcome.evidence.one_by_one, limit, jitter(outcome))


def unseen_share(outcome: Outcome, limit: float | None) -> float | None:
    """Return the share of unseen inputs that may be over, by the spread of a trial's errors.

    None where it says nothing.
    """
    spread = None if limit is None else Spread.of_outcome(outcome, limit)
    if spread is None or limit is None:
        return None
    return next((share for share in SHARES if spread.error(share) <= limit), 1.0)


def overshoot(outcome: Outcome, limit: float) -> float:
    """Return by which factor a trial's errors are too large for a plan to deploy.

    Up to 1 it is `SAFE` on unseen inputs, and has room on copies; infinity without a figure.
    """
    error, spread = worst(outcome), Spread.of_outcome(outcome, limit)
    over = math.inf if error is None else error / (ROOM * limit)
    return over if spread is None else max(over, spread.error(SAFE) / limit)


def safe_error(outcome: Outcome, limit: float) -> float:
    """Return the largest error of a plan that is safe to deploy, if its errors spread alike."""
    error = worst(outcome)
    return 0.0 if not error else min(ROOM * limit, error / overshoot(outcome, limit))


def law_of_unsafe(problem: Problem, low: Outcome) -> Search[Law]:
    """Rank the layers where every layer low holds, and is not safe on unseen inputs.

    The sample of the largest error ranks them. Blocks that may stay low together are not looked
    into.
    """
    limit, single, hardest = problem.tolerance, low.evidence.one_by_one, SampleSet.RANKING
    if single is not None:
        errors = zip(single.errors, single.numbers, strict=True)
        _, number = max((-1.0 if error is None else error, number) for error, number in errors)
        hardest = SampleSet.chosen([number])
    # `NEGLIGIBLE` of this is half of what low layers may add.
    enough = None if limit is None else safe_error(low, limit) / (2 * NEGLIGIBLE)
    search = rank(replace(problem, tolerance=enough))
    ranking = yield from mapped(search, ask=lambda proposal: replace(proposal, samples=hardest))
    return Law.of(ranking.scores, Plan.of(()))


def _finite(error: float | None) -> bool:
    return error is not None and math.isfinite(error)


def _log(error: float | None, limit: float) -> float:
    return math.log(max(error or 0.0, LEAST_ERROR * limit))


@lru_cache
def factor(samples: int, risk: float) -> float:
    """Return the tolerance factor K: mean + K sd exceeds the quantile 1 - `risk` in 90% of draws.

    The variance has `samples` + 3 degrees of freedom: P(Z >= sqrt(n) (z - K u)) = 0.9, with u the
    root of a chi square over them.
    """
    degrees, quantile = samples + PRIOR - 1, NormalDist().inv_cdf(1 - risk)
    constant = math.log(2) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    places = [4 * (i + 0.5) / _STEPS for i in range(_STEPS)]
    weights = [
        math.exp(constant + (degrees - 1) * math.log(u) - degrees * u * u / 2) * 4 / _STEPS
        for u in places
    ]
    low, high, scale, cdf = 0.0, 100.0, math.sqrt(samples), NormalDist().cdf
    # Halving 40 times leaves 1e-10.
    for _ in range(40):
        middle = (low + high) / 2
        chance = sum(
            weight * cdf(scale * (middle * u - quantile))
            for u, weight in zip(places, weights, strict=True)
        )
        low, high = (low, middle) if chance > CONFIDENCE else (middle, high)
    return high


def selecting(model: Model) -> Sequence[str]:
    """Return the operators of a model that select, each once."""
    return sorted({node.op_type for node in model.proto.graph.node} & SELECTING)


def telling_limit(model: Model, limit: float | None) -> float | None:
    """Return the limit by which shares of unseen inputs are told; None where a model selects."""
    return None if selecting(model) else limit


def safer(plan: Plan, holding: StabilityCheck, risk: float) -> Search[Plan]:
    """Return the plan with layers added until the spread suggests that few enough inputs are over.

    It holds on copies, too. It stays as it is where the spread says nothing.
    """
    limit = holding.problem.tolerance
    if limit is None:
        return plan
    law: Law | None = None
    added, wider = 0, plan
    for _ in range(MOST_WIDENINGS):
        outcome = yield from judged_by_pool(wider, holding)
        spread = Spread.of(outcome.evidence.one_by_one, limit)
        if spread is None:
            return plan
        if (over := spread.error(risk) / limit) <= 1:
            break
        if law is None:
            ranked = yield from rank(holding.problem)
            law = Law.of(ranked.scores, without=plan)
        wanted = law.left(added) / over
        # Errors of layers add up by squares: as many join as the law asks for, at least one.
        places = range(added + 1, law.steps)
        added = next((count for count in places if law.left(count) <= wanted), law.steps)
        wider = plan.with_(law.order[:added])
    if wider == plan:
        return plan
    # The pool has chosen how much wider it is, so a draw that had no part judges it.
    recheck = yield from holding.judge(wider, f"the answer for --risk {risk:.2g}")
    while not recheck.passed:
        larger = (yield from holding.widened(wider, recheck)) if recheck.verdict else None
        if larger is None:
            return plan
        wider = larger
        recheck = yield from holding.judge(wider, "the wider answer, judged afresh")
    return wider


def judged_by_pool(plan: Plan, holding: StabilityCheck) -> Search[Outcome]:
    """Judge a plan on each sample of the pool, and on copies of each."""
    reason, draw = "how errors spread over samples", RISK_DRAW if holding.copies else 0
    kind = Kind.REBUILD if holding.rebuilds else Kind.JUDGE
    pool = SampleSet.POOL
    return (yield from one(plan, Phase.RECHECK, reason, kind=kind, samples=pool, draw=draw))


def estimated(trials: Sequence[Trial], plan: Plan, limit: float | None, risk: float) -> Estimate:
    """Return what the spread suggests of a plan, as far as it was judged for that."""
    judgements = [
        trial.outcome.evidence.one_by_one
        for trial in trials
        if trial.proposal.plan == plan
        and trial.proposal.samples == SampleSet.POOL
        and trial.proposal.phase is Phase.RECHECK
    ]
    spread = Spread.of(judgements[-1], limit) if judgements and limit is not None else None
    if spread is None or limit is None:
        return Estimate(risk=risk, share_under=None)
    least = LEAST_SHARE * share_at_most(0, spread.samples)
    reached = spread.error(risk) <= limit
    return Estimate(risk=risk, share_under=max(risk, least) if reached else None, spread=spread.sd)
