"""What the trials of a run prove of each kept layer, read off the ledger.

It is computed from the trials alone, whoever proposed them. So it also holds for a run that was
cut short, and claims nothing that was only planned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from precision_bisect.certificate.monotone import judged
from precision_bisect.options import Certify
from precision_bisect.plan import Plan
from precision_bisect.results.result import Certificate, Need
from precision_bisect.search.limits_and_noise import clearly_failed, passing_within
from precision_bisect.trial import Kind, Outcome, SampleSet, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a certificate may rest on.

    `monotone` tells that no trial of the run refutes that keeping more never hurts. `untested` is
    the reason why layers were not tried, for people. `limit` is the error that the search stayed
    below, None where that is the tolerance. With `copies` two sorts of trials count: those on
    copies, of which `allowed` may fail, and failures on the samples by errors of `clear` and more.
    """

    mode: Certify
    monotone: bool
    untested: str
    limit: float | None = None
    copies: bool = False
    clear: float | None = None
    allowed: int = 0


def certificate(
    plan: Plan | None,
    trials: Sequence[Trial],
    samples: SampleSet,
    names: Sequence[str],
    terms: Terms,
) -> Certificate:
    """Return what the trials on a sample set prove of a plan; `names` are the candidates'.

    With the mode `full` only trials of exactly the plan without a layer count. With `groups`
    failing plans that kept more count, too, unless monotonicity was seen broken. With `none`
    nothing counts.
    """
    if plan is None:
        return Certificate(minimal=False, checked=(), unchecked=(), mode=terms.mode)
    lucky: frozenset[Plan] = frozenset()
    if terms.copies:
        trials, lucky = _on_copies(trials, terms)
    records = _Records(plan, trials, samples, terms, lucky)
    evidence = [records.need(layer, names[layer]) for layer in plan.indices]
    checked = [need.layer for need in evidence if need.needed]
    implied = any(need.above and need.how == "implied" for need in evidence)
    return Certificate(
        minimal=len(checked) == len(plan) and not implied,
        checked=checked,
        unchecked=[need.layer for need in evidence if not need.needed],
        mode=terms.mode,
        evidence=evidence,
        assumes="monotone" if implied else None,
        limit=terms.limit,
    )


def _on_copies(trials: Sequence[Trial], terms: Terms) -> tuple[Sequence[Trial], frozenset[Plan]]:
    """Return the trials that count where copies judge, as if they had no draw.

    Also returns the plans that failed on the samples though enough of their copies held.
    """
    counting: list[Trial] = []
    lucky: set[Plan] = set()
    for trial in trials:
        stability = trial.outcome.evidence.stability
        if not trial.proposal.draw:
            if clearly_failed(trial.outcome, terms.clear):
                counting.append(trial)
        elif trial.outcome.failed and stability and stability.failed <= terms.allowed:
            lucky.add(trial.proposal.plan)
        else:
            # Trials are looked up by plan and kind: the draw has done its work and would only hide
            # them.
            counting.append(replace(trial, proposal=replace(trial.proposal, draw=0)))
    return counting, frozenset(lucky)


class _Records:
    """The trials of a run as far as they speak of one plan."""

    def __init__(
        self,
        plan: Plan,
        trials: Sequence[Trial],
        samples: SampleSet,
        terms: Terms,
        lucky: frozenset[Plan],
    ) -> None:
        self._plan = plan
        self._lucky = lucky
        self._terms = terms
        # `judged` leaves out plans that two builds disagree on; `_tried` still knows them, to say
        # so.
        self._verdicts = {t.proposal.plan: t.outcome for t in judged(trials, samples)}
        self._tried = {
            t.proposal.plan: t.outcome
            for t in trials
            if t.proposal.samples is samples and t.proposal.kind is Kind.JUDGE
        }
        failed = [each for each, outcome in self._verdicts.items() if outcome.failed]
        # What fails by the tolerance shows more than what only exceeds the limit.
        above = [
            each
            for each, outcome in self._verdicts.items()
            if outcome.passed and passing_within(outcome, terms.limit).failed
        ]
        self._smallest: dict[int | None, Plan] = {}
        for each in (*failed, *above):
            self._smallest.setdefault(shown_needed(plan, each), each)
        within = (each for each in failed if each.kept < plan.kept)
        # Plans come smallest first, so reversed the groups that were dropped come smallest first.
        self._groups = [plan.without(each.kept) for each in reversed(list(within))]
        self._numbers: dict[Plan, int] = {}

    def need(self, layer: int, name: str) -> Need:
        """Return what is known of one layer, by the strongest trial there is."""
        if self._terms.mode == "none":
            return Need(layer=name, needed=None, reason=self._terms.untested)
        alone = self._plan.without((layer,))
        verdict = self._verdicts.get(alone)
        if verdict is not None:
            return _dropped(name, verdict, self._terms.limit)
        implied = self._implied(layer, name, alone)
        if implied is not None and implied.above:
            return implied
        return self._grouped(layer, name) or implied or self._untested(name, alone)

    def _implied(self, layer: int, name: str, alone: Plan) -> Need | None:
        """Return what the smallest failing plan proves that lacks only this layer of the plan."""
        smallest = self._smallest.get(layer)
        if smallest is None:
            return None
        outcome, limit = self._verdicts[smallest], self._terms.limit
        more = len(smallest) - len(alone)
        reason = f"a plan without it that keeps {more} more {_verb(outcome, limit)}"
        counts = self._terms.mode == "groups" and self._terms.monotone
        if not counts:
            seen = "keeping more has failed elsewhere" if self._terms.mode == "groups" else ""
            reason += f", which does not count: {seen or '--certify full wants its own drop'}"
        return Need(
            layer=name,
            needed=True if counts and outcome.failed else None,
            needed_at_limit=True if counts and limit is not None else None,
            reason=reason,
            how="implied",
            error=outcome.error,
            more_kept=more,
        )

    def _grouped(self, layer: int, name: str) -> Need | None:
        """Return what the smallest failing group with the layer proves: one of it is needed.

        The group of all layers is left out: that the whole plan cannot go is known beforehand.
        """
        if self._terms.mode != "groups":
            return None
        for group in self._groups:
            if layer in group.kept and len(group) < len(self._plan):
                return Need(
                    layer=name,
                    needed=None,
                    reason=f"{len(group)} layers were dropped together and failed: "
                    "at least one of them is needed",
                    how="group",
                    error=self._verdicts[self._plan.without(group.kept)].error,
                    group=self._numbers.setdefault(group, len(self._numbers)),
                )
        return None

    def _untested(self, name: str, alone: Plan) -> Need:
        if alone in self._lucky:
            reason = "without it the samples fail and their copies hold"
            return Need(layer=name, needed=None, reason=reason)
        tried = self._tried.get(alone)
        reason = self._terms.untested if tried is None else _unresolved(tried)
        return Need(layer=name, needed=None, reason=reason)


def _dropped(name: str, outcome: Outcome, limit: float | None) -> Need:
    beyond = passing_within(outcome, limit).failed
    stability = outcome.evidence.stability
    if stability is not None and stability.failed:
        copies = f"{stability.failed} of {stability.copies} copies of the samples fail"
        return Need(
            layer=name,
            needed=True,
            needed_at_limit=None if limit is None else True,
            reason=f"without it {copies}",
            how="dropped",
            error=outcome.error,
        )
    what = f"the plan {_verb(outcome, limit)}" if beyond else "the plan passes, too"
    return Need(
        layer=name,
        needed=outcome.failed,
        needed_at_limit=None if limit is None else beyond,
        reason=f"without it {what}",
        how="dropped",
        error=outcome.error,
    )


def _verb(outcome: Outcome, limit: float | None) -> str:
    """Say how a plan failed, or that it exceeds only the limit."""
    if outcome.failed:
        return "fails"
    return f"passes, but not below {limit:.4g}, where the search stays for the noise"


def _unresolved(outcome: Outcome) -> str:
    """Say why a drop that was tried shows nothing: no verdict, or two that differ."""
    if outcome.verdict is not None:
        return "builds disagree on the plan without it"
    return f"{outcome.status}: {outcome.message}" if outcome.message else outcome.status


def shown_needed(plan: Plan, failing: Plan) -> int | None:
    """Return the layer of `plan` that a failing plan shows to be needed, None where it shows none.

    It is the one layer of `plan` that the failing plan lacks. Where the failing plan keeps exactly
    the others, that proves the need; where it keeps further layers, the proof assumes that
    keeping more never hurts.
    """
    lacking = plan.mask & ~failing.mask
    alone = lacking and not lacking & (lacking - 1)  # one bit of the mask
    return lacking.bit_length() - 1 if alone else None
