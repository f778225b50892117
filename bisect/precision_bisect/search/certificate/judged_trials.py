"""The trials of a run, as far as a certificate can rest on them.

The certificate's own search and what is read off the ledger afterwards both ask here, so they
agree on what counts.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Self

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search, T
from precision_bisect.search.combinators import mapped
from precision_bisect.search.limits_and_noise import clearly_failed, passing_within
from precision_bisect.search.precision_curve import FEW_COPIES
from precision_bisect.trial import (
    JUDGED_KINDS,
    Identity,
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
)

LEAST_DEAR_S = 1.0
"""Seconds up to which a forecast is not compared with a build, which hardly takes less."""


@dataclass(slots=True, kw_only=True)
class JudgedTrials:
    """The trials on one sample set: builds by plan, and what the emulator forecast.

    They are noted with the comparator's verdicts, by its `tolerance`; plans have `size` layers.
    With `copies` two sorts of trials count: those on copies, of which `allowed` may fail, and
    failures on the samples by errors of `clear` and more. `spared` are plans that a search was
    told to fail by their forecast alone, `ranked` those that the ranking has forecast.
    """

    tolerance: float | None
    size: int
    samples: SampleSet = SampleSet.JUDGED
    copies: bool = False
    clear: float | None = None
    allowed: int = 0
    forecasts: dict[Plan, Outcome] = field(init=False, default_factory=dict)
    spared: set[Plan] = field(init=False, default_factory=set)
    ranked: set[Plan] = field(init=False, default_factory=set)
    _builds: dict[Plan, dict[Identity, Trial]] = field(init=False, default_factory=dict)

    def having(self, trials: Iterable[Trial]) -> Self:
        """Note some trials; return the same object."""
        for trial in trials:
            self.note(trial.proposal, trial.outcome)
        return self

    def note(self, proposal: Proposal, outcome: Outcome) -> None:
        """Note the first outcome of a proposal that is judged or forecast.

        Left out is what proves nothing: what has few copies, and further builds for a latency. The
        forecasts of the ranking are counted.
        """
        if proposal.phase is Phase.RANKING and proposal.kind is Kind.PREDICT:
            self.ranked.add(proposal.plan)
        drawn = proposal.phase in FEW_COPIES and proposal.draw
        timed = proposal.phase is Phase.SPEED and proposal.kind is Kind.AGAIN
        if proposal.samples != self.samples or drawn or timed:
            return
        if proposal.kind is Kind.PREDICT:
            self.forecasts.setdefault(proposal.plan, outcome)
        elif proposal.kind in JUDGED_KINDS:
            trial = Trial(proposal=proposal, outcome=outcome)
            self._builds.setdefault(proposal.plan, {}).setdefault(proposal.identity, trial)

    @property
    def built(self) -> list[Plan]:
        """The plans that were judged, in the order in which they first were."""
        return list(self._builds)

    @property
    def dear(self) -> bool:
        """Whether a forecast takes longer than a build, on average."""
        builds = [trial.outcome for one in self._builds.values() for trial in one.values()]
        took, build = (_mean_s(outcomes) for outcomes in (self.forecasts.values(), builds))
        return took > max(build, LEAST_DEAR_S)

    @property
    def certifying(self) -> int:
        """The evaluations that the certificate's trials have taken, those of copies included."""
        stabilities = (
            trial.outcome.evidence.stability
            for trials in self._builds.values()
            for trial in trials.values()
            if trial.proposal.phase is Phase.CERTIFICATE
        )
        return sum(1 + (stability.copies if stability else 0) for stability in stabilities)

    def outcomes(self, plan: Plan) -> list[Outcome]:
        """Return all outcomes of a plan, whether they count or not."""
        return [trial.outcome for trial in self._builds.get(plan, {}).values()]

    def counting(self, plan: Plan) -> list[Outcome]:
        """Return the outcomes of a plan that may prove something."""
        return [
            trial.outcome
            for trial in self._builds.get(plan, {}).values()
            if not self.copies or trial.proposal.draw or clearly_failed(trial.outcome, self.clear)
        ]

    def lucky(self, outcome: Outcome) -> bool:
        """Tell whether the samples failed though enough of their copies held."""
        stability = outcome.evidence.stability
        return outcome.failed and stability is not None and stability.failed <= self.allowed

    def proof(self, plan: Plan) -> Outcome | None:
        """Return the first outcome that tells of a plan; None where builds disagree, or none."""
        outcomes = [
            outcome
            for outcome in self.counting(plan)
            if outcome.verdict is not None and not self.lucky(outcome)
        ]
        return outcomes[0] if len({outcome.verdict for outcome in outcomes}) == 1 else None

    def tried(self, plan: Plan, limit: float | None) -> bool:
        """Tell whether a plan was judged and did not pass. One that did is asked for again."""
        return any(not passing_within(outcome, limit).passed for outcome in self.counting(plan))

    def missed(self, plan: Plan) -> dict[int, float]:
        """Return, for a layer of `plan`, the least error of failing plans that lack it alone.

        They may keep further layers. An error without a figure is infinite.
        """
        errors: dict[int, float] = {}
        for built, trials in self._builds.items():
            lacking = plan.mask & ~built.mask
            if not lacking or lacking & (lacking - 1):  # not one bit of the mask
                continue
            layer = lacking.bit_length() - 1
            for outcome in (trial.outcome for trial in trials.values() if trial.outcome.failed):
                error = math.inf if outcome.error is None else outcome.error
                errors[layer] = min(error, errors.get(layer, math.inf))
        return errors


def _mean_s(outcomes: Collection[Outcome]) -> float:
    return sum(outcome.wall_s for outcome in outcomes) / max(1, len(outcomes))


def noting(search: Search[T], trials: JudgedTrials) -> Search[T]:
    """Return the same search; the outcomes of its proposals are noted in `trials`."""

    def tell(proposal: Proposal, outcome: Outcome) -> Outcome:
        trials.note(proposal, outcome)
        return outcome

    return mapped(search, tell=tell)
