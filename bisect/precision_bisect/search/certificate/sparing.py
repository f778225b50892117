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


def forecast(plans: Iterable[Plan], seen: JudgedTrials) -> Search[None]:
    """Have some plans forecast, and all that were built to compare, unless builds are faster."""
    asked = tuple(
        Proposal(plan=plan, kind=Kind.PREDICT, phase=Phase.PREDICTION, reason="before a build")
        for plan in dict.fromkeys([*plans, *seen.built])
        if plan not in seen.forecasts
    )
    if asked and not seen.dear:
        yield asked


def sparing(search: Search[T], seen: JudgedTrials) -> Search[T]:
    """Return the same search; plans that are forecast to fail by far count as built and failed.

    That is so once builds have confirmed `FEWEST` such forecasts, and contradicted none. A wrong
    one costs layers, never the answer, which was built; see `misled`.
    """

    def answer(batch: Batch) -> Search[Outcomes]:
        new = [
            each
            for each in batch
            if each.kind is Kind.JUDGE
            and each.samples is seen.samples
            and not seen.outcomes(each.plan)
        ]
        if new:
            yield from forecast([each.plan for each in new], seen)
        known = confirmed(seen)
        told = {
            each: seen.forecasts[each.plan]
            for each in new
            if known.failed >= FEWEST and known.stands(seen.forecasts.get(each.plan))
        }
        seen.spared.update(each.plan for each in told)
        asked = tuple(each for each in batch if each not in told)
        built = dict(zip(asked, (yield asked) if asked else (), strict=True))
        return tuple((told | built)[each] for each in batch)

    return answered(search, answer)


def misled(seen: JudgedTrials) -> bool:
    """Tell whether builds have contradicted forecasts by which a search was spared others."""
    known = confirmed(seen)
    return bool(seen.spared) and known.right < known.builds
