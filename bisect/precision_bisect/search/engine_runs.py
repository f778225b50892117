"""What an engine makes of samples, and how its error goes on from step to step of a loop."""

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.graphs.fp32_outputs import in_fp32, non_finite
from precision_bisect.judging.comparators.script import judge_outputs
from precision_bisect.judging.inputs.copies import Refers
from precision_bisect.judging.inputs.loops import CannotFeed, Loop
from precision_bisect.machine.threads import side_by_side
from precision_bisect.protocols import (
    BackendFailure,
    Comparator,
    Engine,
    Sample,
    Several,
    dropping,
)
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, TrialStatus

TOLD_BY_STEP = 4
"""Samples that tell it, at most: each costs its loop twice more. A bound."""


Outputs: TypeAlias = Sequence[Sequence[Sample]]
"""The outputs of an engine in each of its ways, sample by sample."""


def ways_of(engine: Engine) -> Sequence[Engine]:
    """Return the engines that one stands for, itself where it is one."""
    return engine.ways if isinstance(engine, Several) else [engine]


def outputs_of(engine: Engine, loop: Loop, feeds: Sequence[Sample], count: int) -> Outputs:
    """Return the outputs by sample, up to the first that is not finite, in each way.

    So many samples run at the same time. Raises what the engine and the loop raise.
    """
    return [_of_way(way, loop, feeds, count) for way in ways_of(engine)]


def _of_way(engine: Engine, loop: Loop, feeds: Sequence[Sample], count: int) -> Sequence[Sample]:
    outputs: list[Sample] = []
    # Few are computed in vain after the first that is not finite.
    try:
        for sample in side_by_side(partial(loop, engine.run), feeds, count):
            outputs.append(in_fp32(sample))
            if non_finite([sample]) or dropping([sample]):
                break
    except CannotFeed as error:
        failed = Outcome(status=TrialStatus.RUN_FAILED, message=str(error))
        raise BackendFailure(failed) from error
    return outputs


def tells_steps(proposal: Proposal) -> bool:
    """Tell whether a trial has errors by step: that of an answer, and of every layer low."""
    all_low = proposal.kind is Kind.JUDGE and not proposal.plan.kept
    return proposal.phase is Phase.RECHECK or (proposal.phase is Phase.PREFLIGHT and all_low)


def errors_by_step(
    loop: Loop,
    comparator: Comparator,
    ways: Sequence[Engine],
    refer: Refers | None,
    feeds: Sequence[Sample],
) -> list[float]:
    """Return the error of each step's outputs, of all ways and the first samples the largest.

    None are there for a check without a figure, one that cannot judge a single step, or a
    reference that was given. Both loops go their own way, so a later error holds the former ones.
    """
    if refer is None or comparator.tolerance is None:
        return []
    worst: list[float] = []
    for feed in feeds[:TOLD_BY_STEP]:
        for engine in ways:
            try:
                errors = _errors(loop, comparator, engine, refer, feed)
            except (PrecisionBisectError, RuntimeError):
                return []
            longest = max(len(worst), len(errors))
            both = ([*some, *[0.0] * (longest - len(some))] for some in (worst, errors))
            worst = [*map(max, *both)]
    return worst


def _errors(
    loop: Loop, comparator: Comparator, engine: Engine, refer: Refers, feed: Sample
) -> list[float]:
    """Return them for one sample, up to the first step whose outputs are not finite."""
    errors: list[float] = []
    pairs = zip(loop.each_of(engine.run, feed), loop.each_of(refer.step, feed), strict=False)
    for outputs, expected in pairs:
        judgement = judge_outputs(comparator, [in_fp32(outputs)], [expected])
        errors.append(judgement.error or 0.0)
        if non_finite([outputs]):
            break
    return errors
