"""How sensitive each layer is: the error when it alone runs low."""

import math
from collections.abc import Iterable, Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet

BLOCKS_FROM = 512
"""From this many layers on, whole blocks are measured first."""
BLOCK = 16


def rank(problem: Problem) -> Search[Sequence[float]]:
    """Return one figure per layer, in network order: larger is more sensitive.

    It is the error with that layer alone low. Large models are measured in blocks of consecutive
    layers first. The mildest blocks, as many as together stay within the tolerance, share their
    joint error among their layers; only the others are measured layer by layer.
    """
    everything = frozenset(range(problem.size))
    if problem.size < BLOCKS_FROM:
        return (yield from _measure(everything, [(layer,) for layer in range(problem.size)]))
    blocks = [
        tuple(range(start, min(start + BLOCK, problem.size)))
        for start in range(0, problem.size, BLOCK)
    ]
    joint = yield from _measure(everything, blocks)
    scores = [
        error / len(block) for block, error in zip(blocks, joint, strict=True) for _ in block
    ]
    singles = [
        layer for number in _beyond(joint, problem.tolerance or 0.0) for layer in blocks[number]
    ]
    errors = yield from _measure(everything, [(layer,) for layer in singles])
    for layer, error in zip(singles, errors, strict=True):
        scores[layer] = error
    return scores


def by_sensitivity(scores: Sequence[float]) -> list[int]:
    """Return the layers, most sensitive first; equal ones in network order."""
    return sorted(range(len(scores)), key=lambda layer: (-scores[layer], layer))


def _beyond(errors: Sequence[float], tolerance: float) -> list[int]:
    """Return the places of the errors that remain when the smallest have used the tolerance."""
    spent = 0.0
    left = []
    for place in sorted(range(len(errors)), key=lambda place: (errors[place], place)):
        spent += errors[place]
        if spent > tolerance:
            left.append(place)
    return sorted(left)


def _measure(
    everything: frozenset[int], groups: Iterable[Sequence[int]]
) -> Search[Sequence[float]]:
    """Return the error with each group low and everything else high."""
    errors = []
    groups = list(groups)
    for number, group in enumerate(groups):
        (outcome,) = yield (
            Proposal(
                plan=Plan(everything.difference(group)),
                phase=Phase.RANKING,
                samples=SampleSet.RANKING,
                kind=Kind.PREDICT,
                reason=f"{number + 1} of {len(groups)}",
                about_left=len(groups) - number,
            ),
        )
        errors.append(_figure(outcome))
    return errors


def _figure(outcome: Outcome) -> float:
    """Return the error; without a figure 0 for a pass and infinity for anything else."""
    if outcome.error is not None and not math.isnan(outcome.error):
        return outcome.error
    return 0.0 if outcome.passed else math.inf
