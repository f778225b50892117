"""The certificate's trials: each kept layer must have one that fails without it.

A failing plan proves that a kept layer is needed if it keeps all other layers of the answer. It
may keep exactly these, or more besides if keeping more never hurts. k kept layers need k failing
plans either way. The failing plans of the search count, too, so few trials are left to make.
"""

import math
from collections.abc import Sequence

from precision_bisect.certificate.monotone import breaks
from precision_bisect.certificate.proving import shown_needed
from precision_bisect.options import Certify
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.search.combinators import mapped
from precision_bisect.search.limits_and_noise import clearly_failed, passing_within
from precision_bisect.trial import (
    JUDGED_KINDS,
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
    Verdict,
)

FAR = 10.0
"""Multiple of the tolerance that the emulator must forecast without a layer for it to count as far
beyond. Of taste: the median ratio of forecast and engine is 1.0 (NAFNet on an H200)."""
FEWEST = 24
"""Layers far beyond the limit that are dropped together, at least: one build replaces them all. A
bound of taste."""


class JudgedTrials:
    """The judged trials of a search, as far as a certificate can rest on them.

    They are noted with the comparator's verdicts, by its `tolerance`. Where a search stays below a
    `limit` of its own, a plan that passed above that limit counts as failed.
    """

    def __init__(self, tolerance: float | None) -> None:
        self._tolerance = tolerance
        self._builds: dict[Plan, dict[Kind, Trial]] = {}

    def note(self, proposal: Proposal, outcome: Outcome) -> None:
        """Note the first outcome of a proposal that is judged."""
        judged = proposal.kind in JUDGED_KINDS and proposal.samples is SampleSet.JUDGED
        if judged and not proposal.draw:
            trial = Trial(proposal=proposal, outcome=outcome)
            self._builds.setdefault(proposal.plan, {}).setdefault(proposal.kind, trial)

    def clear(self, limit: float | None) -> "JudgedTrials":
        """Return the trials that need no copies to be believed: failures by `limit` and more."""
        found = JudgedTrials(self._tolerance)
        for builds in self._builds.values():
            for trial in builds.values():
                if clearly_failed(trial.outcome, limit):
                    found.note(trial.proposal, trial.outcome)
        return found

    def tried(self, plan: Plan, limit: float | None) -> bool:
        """Tell whether a plan was judged and did not pass. One that did is asked for again."""
        builds = self._builds.get(plan, {}).values()
        return any(not passing_within(trial.outcome, limit).passed for trial in builds)

    def passed(self, plan: Plan, limit: float | None) -> bool:
        """Tell whether every build of a plan passed, and there was one."""
        builds = self._builds.get(plan, {}).values()
        return bool(builds) and all(passing_within(each.outcome, limit).passed for each in builds)

    def failed(self, limit: float | None) -> list[Plan]:
        """Return the plans that failed in every build."""
        found = []
        for plan, builds in self._builds.items():
            told = {passing_within(trial.outcome, limit).verdict for trial in builds.values()}
            # A build without a verdict proves nothing, but it takes nothing back either.
            if told - {None} == {Verdict.FAIL}:
                found.append(plan)
        return found

    def missed(self, plan: Plan) -> dict[int, float]:
        """Return, for a layer of `plan`, the least error of failing plans that lack it alone."""
        found: dict[int, float] = {}
        for tried, builds in self._builds.items():
            layer = shown_needed(plan, tried)
            errors = [
                trial.outcome.error
                for trial in builds.values()
                if trial.outcome.failed and trial.outcome.error is not None
            ]
            if layer is not None and errors:
                found[layer] = min(*errors, found.get(layer, math.inf))
        return found

    def monotone(self, noise: float) -> bool:
        """Tell whether no trial refutes that keeping more never hurts; see `monotone.breaks`."""
        trials = [trial for builds in self._builds.values() for trial in builds.values()]
        found = breaks(trials, SampleSet.JUDGED, self._tolerance, noise)
        return all(each.noise for each in found)


def noting(search: Search[T], seen: JudgedTrials) -> Search[T]:
    """Return the same search; the judged plans' outcomes are noted in `seen`."""

    def tell(proposal: Proposal, outcome: Outcome) -> Outcome:
        seen.note(proposal, outcome)
        return outcome

    return mapped(search, tell=tell)


def certify(
    problem: Problem, plan: Plan, mode: Certify, seen: JudgedTrials | None = None
) -> Search[Plan]:
    """Try to drop every kept layer, and drop those that can go; return what is left.

    With `groups` a layer is not tried if a plan of `seen` failed that keeps all others and perhaps
    more. Layers that the emulator forecasts far beyond the limit are dropped together first; if
    that fails they are not tried one by one. With `full` the plan without each layer is tried. So
    it is with `groups` if keeping more was seen to hurt: an implied proof is worth nothing then. A
    layer whose drop has no verdict stays.
    """
    seen = seen or JudgedTrials(problem.tolerance)
    if mode == "none":
        return plan
    # The implied proofs first, in both modes: they may shrink the plan for few trials, and each
    # drop from a smaller plan is judged again anyway.
    plan = yield from noting(_every(problem, plan, seen, together=mode == "groups"), seen)
    if mode == "full" or not seen.monotone(problem.noise):
        plan = yield from noting(_one_by_one(problem, plan, seen), seen)
    return plan


def _every(problem: Problem, plan: Plan, seen: JudgedTrials, *, together: bool) -> Search[Plan]:
    """Drop each layer that no failing plan proves needed; the plan may shrink on the way."""
    settled: frozenset[int] = frozenset()
    if together and problem.builds:
        settled = yield from _far_beyond(problem, plan, seen)
    others: list[int] = []
    # After each drop the failing plans are looked at again, since one may prove more of the
    # smaller plan than it did of the larger.
    while waiting := _open(plan, seen, problem.tolerance, settled):
        plan, others, _ = yield from _dropped(problem, plan, waiting, others)
    return plan


def _open(
    plan: Plan, seen: JudgedTrials, limit: float | None, settled: frozenset[int] = frozenset()
) -> list[int]:
    """Return the kept layers of which nothing is known, or whose drop is known to have passed."""
    drops = {i: plan.without((i,)) for i in plan.indices if i not in settled}
    # Once a step, over all failing plans: there may be hundreds of them.
    needed = {shown_needed(plan, failed) for failed in seen.failed(limit)}
    return [
        layer
        for layer, drop in drops.items()
        if seen.passed(drop, limit) or (layer not in needed and not seen.tried(drop, limit))
    ]


def _one_by_one(problem: Problem, plan: Plan, seen: JudgedTrials) -> Search[Plan]:
    """Drop each kept layer from exactly the plan; those that came closest to passing first."""
    missed = seen.missed(plan)
    others: list[int] = []
    while True:
        drops = {i: plan.without((i,)) for i in plan.indices}
        waiting = [i for i, drop in drops.items() if not seen.tried(drop, problem.tolerance)]
        if not waiting:
            return plan
        waiting.sort(key=lambda layer: missed.get(layer, 0.0))
        plan, others, told = yield from _dropped(problem, plan, waiting, others)
        for layer, outcome in told.items():
            missed[layer] = math.inf if outcome.error is None else outcome.error


def _dropped(
    problem: Problem, plan: Plan, waiting: Sequence[int], others: Sequence[int]
) -> Search[tuple[Plan, list[int], dict[int, Outcome]]]:
    """Drop the first layers that wait, each alone, and `others` together if they are several.

    Returns three things. The plan, without the layer whose drop passed by most or without
    `others`. The layers whose drops passed besides, which are the next `others`. The outcome of
    each drop alone.
    """
    group = others if len(others) > 1 else ()
    # The group takes one of the workers.
    alone = [i for i in waiting if i not in group][: problem.workers - bool(group)]
    drops = [*([group] if group else []), *((layer,) for layer in alone)]
    outcomes = yield tuple(_drop(plan, drop, len(waiting)) for drop in drops)
    told = dict(zip(alone, outcomes[bool(group) :], strict=True))
    passed = sorted((told[layer].error or 0.0, layer) for layer in alone if told[layer].passed)
    # Drops that pass one by one need not pass together, so only one goes; the next step tries the
    # rest as a group.
    if group and outcomes[0].passed:
        gone = frozenset(group)
    else:
        gone = frozenset(layer for _, layer in passed[:1])
    return plan.without(gone), [layer for _, layer in passed if layer not in gone], told


def _far_beyond(problem: Problem, plan: Plan, seen: JudgedTrials) -> Search[frozenset[int]]:
    """Drop together what the emulator forecasts far beyond the limit; return it if that fails."""
    waiting = _open(plan, seen, problem.tolerance)
    if problem.tolerance is None or len(waiting) < FEWEST:
        return frozenset()
    forecasts = yield tuple(
        Proposal(plan=plan.without((i,)), kind=Kind.PREDICT, phase=Phase.PREDICTION)
        for i in waiting
    )
    far = [
        layer
        for layer, forecast in zip(waiting, forecasts, strict=True)
        if forecast.error is not None and forecast.error > FAR * problem.tolerance
    ]
    if len(far) < FEWEST:
        return frozenset()
    # A failure proves that at least one of them is needed, not each: the certificate says so.
    (outcome,) = yield (_drop(plan, far, len(waiting)),)
    return frozenset(far) if outcome.failed else frozenset()


def _drop(plan: Plan, layers: Sequence[int], left: int) -> Proposal:
    what = f"drop one of {len(plan)}" if len(layers) == 1 else f"drop {len(layers)} of {len(plan)}"
    return Proposal(
        plan=plan.without(layers),
        phase=Phase.CERTIFICATE,
        reason=what,
        narrowed_to=len(plan),
        about_left=left,
    )
