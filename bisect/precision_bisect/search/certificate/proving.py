"""What the trials of a run show of each kept layer, read off the ledger.

It is computed from the trials alone, whoever proposed them. So it also holds for a run that was
cut short, and claims nothing that was only planned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from precision_bisect.options import Certify
from precision_bisect.plan import Plan
from precision_bisect.runs.results.certificates import (
    Certificate,
    FailsOn,
    Forecasts,
    Need,
    Uncertified,
)
from precision_bisect.search.certificate.confirmed_forecasts import (
    RISK,
    confirmed,
    sample_of,
    standing,
    wrong_of,
)
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.limits_and_noise import passing_within
from precision_bisect.trial import Outcome, TrialStatus, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a certificate may rest on.

    `uncertified` tells why nothing may be tried, None where something may; `untested` the reason,
    for people. `limit` is the error that the search stayed below, None where that is the
    tolerance. `seed` is the run's.
    """

    mode: Certify
    untested: str
    uncertified: Uncertified | None = None
    limit: float | None = None
    seed: int = 0


def certificate(
    plan: Plan | None, trials: JudgedTrials, names: Sequence[str], terms: Terms
) -> Certificate:
    """Return what trials show of a plan; `names` are the candidates'.

    Trials of exactly the plan without a layer count. With the mode `forecasts` forecasts of it
    count, too, if enough of them were confirmed. With `none` nothing counts.
    """
    if plan is None:
        return Certificate(
            minimal=False, checked=(), unchecked=(), mode=terms.mode, uncertified=terms.uncertified
        )
    stand, drawn = _drawn(trials, plan, terms)
    evidence = [_need(trials, plan, layer, names[layer], terms, stand) for layer in plan.indices]
    checked = [need.layer for need in evidence if need.needed]
    # What rests on forecasts alone is no proof, and is counted apart.
    predicted = sum(need.how == "predicted" for need in evidence)
    confirmation = confirmed(trials)
    return Certificate(
        minimal=len(checked) == len(plan),
        checked=checked,
        unchecked=[n.layer for n in evidence if not n.needed and n.how != "predicted"],
        mode=terms.mode,
        uncertified=terms.uncertified,
        evidence=evidence,
        forecasts=Forecasts(
            builds=confirmation.builds,
            right=confirmation.right,
            drawn=drawn,
            wrong_at_most=min(predicted, wrong_of(len(stand), drawn)),
            confidence=1 - RISK,
        )
        if predicted
        else None,
        limit=terms.limit,
    )


def _drawn(trials: JudgedTrials, plan: Plan, terms: Terms) -> tuple[Sequence[int], int]:
    """Return the layers for which forecasts stand, and how many of them were drawn and built."""
    if terms.mode != "forecasts":
        return (), 0
    stand = standing(trials, plan, terms.seed)
    built = (trials.proof(plan.without((layer,))) is not None for layer in stand)
    drawn = sum(takewhile(bool, built))
    return (stand, drawn) if drawn >= sample_of(len(stand)) else ((), 0)


def _need(
    trials: JudgedTrials, plan: Plan, layer: int, name: str, terms: Terms, stand: Sequence[int]
) -> Need:
    """Return what is known of one layer, by the strongest trial there is."""
    if terms.mode == "none":
        return Need(layer=name, needed=None, reason=terms.untested)
    drop = plan.without((layer,))
    # A build is stronger than any forecast.
    outcome = trials.proof(drop)
    if outcome is not None:
        return _dropped(name, outcome, terms.limit)
    if layer in stand:
        return Need(
            layer=name,
            needed=None,
            reason="without it the plan is forecast to fail",
            how="predicted",
            error=trials.forecasts[drop].error,
        )
    reason, status = _untold(trials, drop) or (terms.untested, None)
    return Need(layer=name, needed=None, reason=reason, status=status)


def _dropped(name: str, outcome: Outcome, limit: float | None) -> Need:
    stability = outcome.evidence.stability
    beyond = passing_within(outcome, limit).failed
    fails_on = _fails_on(outcome) if outcome.failed else None
    if outcome.failed:
        what = "the plan fails"
        if stability is not None and stability.failed:
            what = f"{stability.failed} of {stability.copies} copies of the samples fail"
            what += {"samples": ", as do the samples", "copies": ", and the samples pass"}.get(
                fails_on or "", ""
            )
    elif beyond:
        what = f"the plan passes, but not below {limit:.4g}, where the search stays for the noise"
    else:
        what = "the plan passes, too"
    return Need(
        layer=name,
        needed=outcome.failed,
        needed_at_limit=None if limit is None else beyond,
        reason=f"without it {what}",
        how="dropped",
        fails_on=fails_on,
        error=outcome.error,
    )


def _fails_on(outcome: Outcome) -> FailsOn | None:
    """Tell what a plan failed on; None where the ledger does not have it."""
    stability = outcome.evidence.stability
    if stability is None or stability.samples is Verdict.FAIL:
        return "samples"
    return None if stability.samples is None else "copies"


def _untold(trials: JudgedTrials, drop: Plan) -> tuple[str, TrialStatus | None] | None:
    """Say why a drop that was tried shows nothing, with the status of a trial without a verdict.

    None for one that was not tried.
    """
    outcomes = trials.counting(drop)
    if not outcomes:
        return None
    if any(trials.lucky(outcome) for outcome in outcomes):
        return "without it the samples fail and their copies hold", None
    last = outcomes[-1]
    if last.verdict is not None:
        return "builds disagree on the plan without it", None
    return ": ".join(filter(None, (last.status, last.message))), last.status
