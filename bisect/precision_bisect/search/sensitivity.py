"""How sensitive each layer is: the error when it alone runs low."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet

BLOCKS_FROM = 64
"""From this many layers on, whole blocks are measured first."""
BLOCK = 8
LARGE = 512
LARGE_BLOCK = 16
"""The size of blocks, and that of models of more than `LARGE` layers."""
SINGLES = 512
SINGLES_FOR_BUILDS = 1536
"""So many layers of large models are measured alone; more where trials are builds, which cost
more than what a better ranking takes."""
SAVED = 100
"""A ranking may take as long as so many builds, which it saves: 0.98 beside 0 as its correlation
(500 layers of which 20 stay, benchmarks/results/search.json)."""
NEGLIGIBLE = 0.1
NEGLIGIBLE_FOR_BUILDS = 0.01
"""Blocks whose errors come to this share of the tolerance (the root of the sum of their squares)
are not looked into."""


class Sensitivity(NamedTuple):
    """One figure per layer, in network order: larger is more sensitive.

    It is the error with that layer alone low. `shared` are the layers that were not measured one
    by one, each with the size of its block: it stands for the same part of the block's error, as
    independent errors add up.
    """

    scores: list[float]
    shared: Mapping[int, int]


def rank(problem: Problem) -> Search[Sensitivity]:
    """Measure the layers, in blocks of consecutive layers first.

    The layers of the blocks that matter are measured one by one, as many as there is time for.
    """
    if problem.size < BLOCKS_FROM:
        scores = yield from measure(problem, [(layer,) for layer in range(problem.size)])
        return Sensitivity(scores, {})
    size = BLOCK if problem.size <= LARGE else LARGE_BLOCK
    blocks = [
        tuple(range(start, min(start + size, problem.size)))
        for start in range(0, problem.size, size)
    ]
    measured = yield from _outcomes(problem, blocks)
    joint = [_figure(outcome) for outcome in measured]
    scores = [
        error / math.sqrt(len(block))
        for block, error in zip(blocks, joint, strict=True)
        for _ in block
    ]
    most = SINGLES_FOR_BUILDS if problem.predicts else SINGLES
    share = NEGLIGIBLE_FOR_BUILDS if problem.predicts else NEGLIGIBLE
    most = _affordable(problem, measured, most)
    worst = _worst(joint, share * (problem.tolerance or 0.0), most // size)
    singles = [layer for number in worst for layer in blocks[number]]
    errors = yield from measure(problem, [(layer,) for layer in singles])
    for layer, error in zip(singles, errors, strict=True):
        scores[layer] = error
    alone = frozenset(singles)
    shared = {i: len(block) for block in blocks for i in block if i not in alone}
    return Sensitivity(scores, shared)


def by_sensitivity(scores: Sequence[float]) -> list[int]:
    """Return the layers, most sensitive first; equal ones in network order."""
    return sorted(range(len(scores)), key=lambda layer: (-scores[layer], layer))


def _worst(errors: Sequence[float], negligible: float, most: int) -> list[int]:
    """Return the places of the largest errors, in order, without those that are `negligible`."""
    places = sorted(range(len(errors)), key=lambda place: (errors[place], place))
    spent, small = 0.0, 0
    for place in places:
        spent = math.hypot(spent, errors[place])
        if spent > negligible:
            break
        small += 1
    return sorted(places[max(small, len(places) - most) :])


def measure(problem: Problem, groups: Sequence[Sequence[int]]) -> Search[list[float]]:
    """Return what the emulator says is the error with each group low and everything else high."""
    outcomes = yield from _outcomes(problem, groups)
    return [_figure(outcome) for outcome in outcomes]


def _outcomes(problem: Problem, groups: Sequence[Sequence[int]]) -> Search[list[Outcome]]:
    everything = Plan.all_high(problem.size)
    found: list[Outcome] = []
    for start in range(0, len(groups), problem.workers):
        found += yield tuple(
            Proposal(
                plan=everything.without(group),
                phase=Phase.RANKING,
                samples=SampleSet.RANKING,
                kind=Kind.PREDICT,
                reason=f"{number + 1} of {len(groups)}",
                about_left=len(groups) - number,
            )
            for number, group in enumerate(groups[start : start + problem.workers], start)
        )
    return found


def bounded(problem: Problem, high: Outcome) -> Problem:
    """Return the problem with a ranking that takes no longer than the builds that it saves.

    `high` is the build of every layer high.
    """
    if not problem.predicts:
        return problem
    return replace(problem, forecast_s=min(problem.forecast_s, SAVED * high.wall_s))


def _affordable(problem: Problem, measured: Sequence[Outcome], most: int) -> int:
    """Return for how many more forecasts there is time, by what those so far took."""
    spent = sum(outcome.wall_s for outcome in measured) / problem.workers
    if math.isinf(problem.forecast_s) or not spent:
        return most
    return min(most, max(0, int((problem.forecast_s - spent) * len(measured) / spent)))


def _figure(outcome: Outcome) -> float:
    """Return the error; without a figure 0 for a pass and infinity for anything else."""
    if outcome.error is not None and not math.isnan(outcome.error):
        return outcome.error
    return 0.0 if outcome.passed else math.inf
