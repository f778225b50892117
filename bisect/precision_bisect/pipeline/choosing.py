"""Few samples choose, all judge: which samples a search works on, and what the others decide.

A search works on at most `CHOSEN` samples. Its answer is judged on all others, one by one. Those
that fail join the chosen, the answer is widened until it holds on them, and the others judge
again. Nothing but trials decides, so a resumed run chooses the same samples.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import NamedTuple

from precision_bisect.errors import counted
from precision_bisect.pipeline.stability import StabilityCheck, first_found, one
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.runs.results.unseen import Calibrating, Unseen
from precision_bisect.search.combinators import mapped
from precision_bisect.search.sample_sets import CHOSEN, SampleSets
from precision_bisect.trial import Kind, OneByOne, Outcome, Phase, Proposal, SampleSet, Trial


def hardest(judgements: Iterable[OneByOne], before: Sequence[int] = ()) -> Sequence[int]:
    """Return the samples to choose, the hardest first: this rule alone says which.

    Plans take turns, each with the sample of its largest error. Those chosen `before` come last.
    """
    turns = zip_longest(*(_by_error(judgement) for judgement in judgements))
    ordered = dict.fromkeys(n for n in (*chain(*turns), *before) if n is not None)
    return [*ordered][:CHOSEN]


def _by_error(judgement: OneByOne) -> Sequence[int]:
    errors = dict(zip(judgement.numbers, judgement.errors, strict=True))
    judged = [n for n in judgement.numbers if n not in judgement.unjudged]
    # A failure without a figure is the worst; `sorted` is stable, so equal ones stay in order.
    worst = {n: math.inf if n in judgement.failed else 0.0 for n in judged}
    key = {n: worst[n] if errors[n] is None else errors[n] or 0.0 for n in judged}
    return sorted(judged, key=lambda n: -key[n])


def first_chosen(problem: Problem, pool: Sequence[int]) -> Search[SampleSet]:
    """Return the samples of the pool with the largest errors, of all layers low and of few high.

    Forecasts tell these, where trials are builds.
    """
    if len(pool) <= CHOSEN:
        return SampleSet.chosen(pool) if pool else SampleSet.JUDGED
    first = [Plan.of(())]
    beyond_range = problem.beyond_range()
    if beyond_range is not None and len(beyond_range) < problem.size:
        # Samples that overflow hide all others with every layer low: with those layers high, the
        # rest show.
        first.append(beyond_range)
    outcomes = yield tuple(
        Proposal(
            plan=plan,
            phase=Phase.PREFLIGHT,
            samples=SampleSet.POOL,
            kind=Kind.PREDICT,
            reason="which samples are hardest",
        )
        for plan in first
    )
    judgements = [outcome.evidence.one_by_one for outcome in outcomes]
    return SampleSet.chosen(hardest(filter(None, judgements), pool))


def on_samples(
    samples: SampleSet, search: Search[T], ranking: SampleSet | None = None
) -> Search[T]:
    """Return the same search; these samples judge, not JUDGED, and rank unless others do."""
    if samples == SampleSet.JUDGED:
        return search
    sets = {SampleSet.JUDGED: samples, SampleSet.RANKING: ranking or samples}
    return mapped(
        search,
        ask=lambda proposal: replace(
            proposal, samples=sets.get(proposal.samples, proposal.samples)
        ),
    )


class JudgedByOthers(NamedTuple):
    """A plan and what it came to on all others than the samples that chose it.

    `spread` is that of an `Ending`.
    """

    plan: Plan
    chosen: SampleSet
    spread: str | None
    outcome: Outcome


def judged_by_others(
    plan: Plan, holding: StabilityCheck, chosen: SampleSet, *, widen: bool
) -> Search[JudgedByOthers]:
    """Judge a plan on all samples that were not chosen; widen it until none of them fails.

    Without `widen`, and where no more layers help, it stays as it is.
    """
    while True:
        outcome = yield from _one_by_one(
            holding.rebuilds, plan, chosen.others, "all other samples"
        )
        one_by_one = outcome.evidence.one_by_one
        judged = JudgedByOthers(plan, chosen, holding.spread, outcome)
        if not widen or one_by_one is None or not one_by_one.failed:
            return judged
        errors = dict(zip(one_by_one.numbers, one_by_one.errors, strict=True))
        failing = replace(
            one_by_one,
            numbers=one_by_one.failed,
            errors=[errors[n] for n in one_by_one.failed],
            unjudged=(),
        )
        joined = SampleSet.chosen(hardest([failing]))
        # What has failed joins; what was hardest before is not forgotten.
        wanted = SampleSet.chosen(hardest([failing], chosen.numbers or ()))
        again = holding.renewed()
        again.spread = _over(plan, one_by_one) if holding.spread is None else holding.spread
        wider = yield from on_samples(wanted, _holds(plan, outcome, again), joined)
        if wider is None:
            return judged
        plan, chosen, holding = wider, wanted, again


def _over(plan: Plan, judgement: OneByOne) -> str:
    judged = len(judgement.numbers) - len(judgement.unjudged)
    failed = f"{len(judgement.failed)} of {counted(judged, 'sample')} that did not choose them"
    return f"the answer was widened, since {first_found(plan)} fails on {failed}"


def _holds(plan: Plan, refuted: Outcome, holding: StabilityCheck) -> Search[Plan | None]:
    """Return the plan widened until it passes a draw that had no part in choosing it."""
    wider = yield from holding.widened(plan, refuted)
    while wider is not None and (holding.copies or holding.rebuilds):
        recheck = yield from holding.judge(wider, "the wider answer, judged afresh")
        if recheck.passed:
            return wider
        # Without a verdict (a crash, a timeout) more layers are no cure.
        if recheck.verdict is None:
            return None
        wider = yield from holding.widened(wider, recheck)
    return wider


def judged_by_held_out(plan: Plan, *, builds: bool) -> Search[Outcome]:
    """Judge a plan on the samples held out, which decide nothing."""
    return (yield from _one_by_one(builds, plan, SampleSet.HELD_OUT, "the samples held out"))


def _one_by_one(builds: bool, plan: Plan, samples: SampleSet, reason: str) -> Search[Outcome]:
    kind = Kind.REBUILD if builds else Kind.JUDGE
    return (yield from one(plan, Phase.RECHECK, reason, kind=kind, samples=samples))


def error_of_others(trials: Sequence[Trial], plan: Plan) -> float:
    """Return the largest error on samples that did not choose a plan, if it passes on all."""
    outcomes = [
        trial.outcome
        for trial in trials
        if trial.proposal.plan == plan
        and trial.proposal.samples.singly
        and trial.proposal.phase is Phase.RECHECK
        and trial.proposal.samples != SampleSet.HELD_OUT
    ]
    return max((outcome.error or 0.0 for outcome in outcomes if outcome.passed), default=0.0)


def promised(
    trials: Sequence[Trial], plan: Plan, sets: SampleSets, *, calibrated: bool = False
) -> Unseen | None:
    """Return what samples that took no part say of a plan; None where a check judges all at once.

    Where scales were `calibrated`, all that judge have taken part in them.

    An earlier answer may have failed on some of them: they joined, or pass with this plan. Both
    count as failures in the bound. Samples that are near each other count as one, and as none
    where one of them took part, unless it fails.
    """
    if not sets.each:
        return None
    pool = sets.judging_numbers if calibrated else sets.pool
    part, before, chose = {*pool}, set[int](), {*sets.pool}
    joining, own = set[int](), dict[bool, OneByOne]()
    for trial in trials:
        proposal, judgement = trial.proposal, trial.outcome.evidence.one_by_one
        if proposal.samples.judges:
            joining.update(proposal.samples.numbers or ())
            part |= joining if proposal.plan == plan else set()
        one_by_one = proposal.samples.singly and proposal.samples != SampleSet.POOL
        if judgement is None or proposal.phase is not Phase.RECHECK or not one_by_one:
            continue
        held_out = proposal.samples == SampleSet.HELD_OUT
        # What was refused once the answer stood, such as a plan to deploy, is no former answer.
        if not held_out and (proposal.plan == plan or False not in own):
            before.update(judgement.failed)
        if proposal.plan == plan:
            own[held_out] = judgement
            # What joined later has found no better plan.
            part |= joining
            chose |= joining
    judged, failed, unjudged = (
        {n for judgement in own.values() for n in getattr(judgement, name)} - part
        for name in ("numbers", "failed", "unjudged")
    )
    others = own.get(False, OneByOne(numbers=(), errors=()))
    scaled = {n for n in others.numbers if n not in chose and n not in others.unjudged}
    of = sets.new.of
    calibrating = Calibrating(judged=len(of(scaled)), failed=len(of(scaled & {*others.failed})))
    over, joined = of(failed), of(before & part - {*pool})
    return Unseen(
        judged=len(of(judged - unjudged) - of(part) | over),
        failed=len(over),
        took_part=len(of(part)),
        joined=len(joined),
        passed_later=len(of(before & judged) - over - joined),
        unjudged=len(of(unjudged)),
        calibrating=calibrating if calibrated else None,
    )
