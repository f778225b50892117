"""Forecasts asked for, and a search in which they stand for builds that would fail by far."""

from collections.abc import Iterable

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search, T
from precision_bisect.search.certificate.confirmed_forecasts import confirmed
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.combinators import Batch, Outcomes, answered
from precision_bisect.trial import Kind, Phase, Proposal

FEWEST = 3
"""Failures by far that builds must have confirmed before a search rests on such forecasts. On
simulated networks with wrong overflows (A, rank correlation 0.8) a search takes 126 builds with 1
and 92 with 3, as without forecasts; with right ones (NAFNet, 3e-3) 13 and 14."""


def forecast(plans: Iterable[Plan], trials: JudgedTrials) -> Search[None]:
    """Have some plans forecast, and all that were built to compare, unless builds are faster."""
    proposals = tuple(
        Proposal(plan=plan, kind=Kind.PREDICT, phase=Phase.PREDICTION, reason="before a build")
        for plan in dict.fromkeys([*plans, *trials.built])
        if plan not in trials.forecasts
    )
    if proposals and not trials.dear:
        yield proposals


def sparing(search: Search[T], trials: JudgedTrials) -> Search[T]:
    """Return the same search; plans that are forecast to fail by far count as built and failed.

    That is so once builds have confirmed `FEWEST` such forecasts, and contradicted none. A wrong
    one costs layers, never the answer, which was built; see `misled`.
    """

    def answer(batch: Batch) -> Search[Outcomes]:
        new = [
            proposal
            for proposal in batch
            if proposal.kind is Kind.JUDGE
            and proposal.samples is trials.samples
            and not trials.outcomes(proposal.plan)
        ]
        # Forecasts of plans that are to be built: only those show whether forecasts are right
        # here.
        if new:
            yield from forecast([proposal.plan for proposal in new], trials)
        confirmation = confirmed(trials)
        forecasts = {
            proposal: trials.forecasts[proposal.plan]
            for proposal in new
            if confirmation.failed >= FEWEST
            and confirmation.stands(trials.forecasts.get(proposal.plan))
        }
        trials.spared.update(proposal.plan for proposal in forecasts)
        rest = tuple(proposal for proposal in batch if proposal not in forecasts)
        built = dict(zip(rest, (yield rest) if rest else (), strict=True))
        return tuple((forecasts | built)[proposal] for proposal in batch)

    return answered(search, answer)


def misled(trials: JudgedTrials) -> bool:
    """Tell whether builds have contradicted forecasts by which a search was spared others."""
    confirmation = confirmed(trials)
    return bool(trials.spared) and confirmation.right < confirmation.builds
