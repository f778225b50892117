"""Whether an answer holds: on copies of the samples that no decision before has seen.

A search takes what passes, so an answer near the tolerance may have passed by luck, and fail when
a sum is ordered otherwise. What is accepted is judged on a fresh draw of copies (see
`inputs.copies`). An answer that does not hold is widened along the ranking by the law of rounding
(see `rounding_law`).
"""

import math
from dataclasses import dataclass, field, replace

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.search.combinators import mapped
from precision_bisect.search.limits_and_noise import CLEAR_SPREADS, LEAST_CLEAR
from precision_bisect.search.rounding_law import Law, typical
from precision_bisect.search.sensitivity import rank
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet

ROOM = 1.645
"""By so many standard deviations between builds an answer stays below the tolerance: 95%."""


@dataclass(slots=True, kw_only=True)
class Holding:
    """Judges plans of one problem on draws of copies, each draw once.

    Where plans are built it `rebuilds` each. Without `copies` a fresh build is judged on the
    samples alone. `drawn` is the number of the last draw that was used. `spread` says why an
    answer had to be widened, "" where the one that was found held.
    """

    problem: Problem
    copies: bool = True
    rebuilds: bool = False
    drawn: int = 0
    spread: str = ""
    _errors: dict[Plan, list[tuple[float, float]]] = field(init=False, default_factory=dict)
    _steps: list[float] = field(init=False, default_factory=list)

    def fresh(self) -> int:
        """Return the number of a draw that nothing was judged on."""
        self.drawn += 1
        return self.drawn

    def judge(
        self, plan: Plan, reason: str, samples: SampleSet = SampleSet.JUDGED
    ) -> Search[Outcome]:
        """Judge a plan on a fresh draw, in a fresh build where plans are built."""
        (outcome,) = yield (
            Proposal(
                plan=plan,
                phase=Phase.RECHECK,
                samples=samples,
                kind=Kind.REBUILD if self.rebuilds else Kind.JUDGE,
                draw=self.fresh() if self.copies else 0,
                timed=self.rebuilds,
                reason=reason,
            ),
        )
        self.note(plan, outcome)
        return outcome

    def note(self, plan: Plan, built: Outcome) -> None:
        """Learn from one more build of a plan, on copies or on the samples alone."""
        error = typical(built)
        if not self.rebuilds or error is None or not 0 < error < math.inf:
            return
        stability = built.evidence.stability
        jitter = (stability.jitter if stability else None) or 0.0
        known = self._errors.setdefault(plan, [])
        if known:
            # One of two that was judged on the samples alone differs by their luck, too.
            luck = max(jitter, known[-1][1]) if 0.0 in (jitter, known[-1][1]) else 0.0
            step = math.log(error / known[-1][0])
            self._steps.append(max(0.0, step**2 - luck**2))
        known.append((error, jitter))

    @property
    def builds(self) -> float:
        """The standard deviation of the error's logarithm between two builds of one plan."""
        return math.sqrt(sum(self._steps) / (2 * len(self._steps))) if self._steps else 0.0

    def leaves_room(self, plan: Plan) -> bool:
        """Tell whether a plan that passed would pass in nearly every other build, too."""
        errors = self._errors.get(plan)
        if self.problem.tolerance is None or not errors:
            return True
        typical = math.exp(sum(math.log(error) for error, _ in errors) / len(errors))
        # Few builds tell the deviation badly: about Student's t instead of the normal quantile.
        spreads = ROOM * (1 + 1.5 / max(1, len(self._steps)))
        return typical * math.exp(spreads * self.builds) <= self.problem.tolerance

    def widened(self, plan: Plan, refuted: Outcome) -> Search[Plan | None]:
        """Return the plan with layers added until it passes on a draw; None where none does.

        The most sensitive layers join first. `refuted` is what the plan came to on a draw. As it
        chose the plan, the draw that passed is no proof: judge once more.
        """
        told = yield from rank(self.problem)
        law = Law.of(told.scores, without=plan)
        self.spread = self.spread or _refuted(plan, refuted)
        outcome, added = refuted, 0
        while added < law.steps:
            added = law.next(added, outcome, self.problem.tolerance, self.builds)
            wider = plan.with_(law.order[:added])
            outcome = yield from self.judge(wider, f"{len(plan)} layers and {added} more")
            if outcome.passed and self.leaves_room(wider):
                return wider
        return None


def on_draw(search: Search[Plan], draw: int) -> Search[Plan]:
    """Return the same search with what it would judge on the samples judged on a draw."""

    def ask(proposal: Proposal) -> Proposal:
        return proposal if proposal.kind is Kind.PREDICT else replace(proposal, draw=draw)

    return mapped(search, ask=ask)


def clear_limit(tolerance: float | None, held: Outcome | None) -> float | None:
    """Return the error from which one failing evaluation needs no copies to be believed.

    None where errors are no figures. It lies as many of the answer's own spreads above the
    tolerance as luck hardly bridges.
    """
    stability = None if held is None else held.evidence.stability
    if tolerance is None or stability is None or stability.jitter is None:
        return None
    return tolerance * max(LEAST_CLEAR, math.exp(CLEAR_SPREADS * stability.jitter))


def _refuted(plan: Plan, outcome: Outcome) -> str:
    """Say on how many copies a plan failed, or that it has to leave room."""
    stability = outcome.evidence.stability
    what = f"the {len(plan)} layers found first" if len(plan) else "all layers low"
    if outcome.passed:
        return f"{what} pass, but builds differ by more than they leave room for"
    if stability is None:
        return f"{what} failed when they were built afresh"
    return (
        f"{what} fail on {stability.failed} of {stability.copies} "
        "copies of the samples that differ by one part in 100,000"
    )
