"""The ranking: the error of each layer when it alone runs low.

Two levels: blocks of consecutive layers first, then the single layers of the blocks that matter.
Most blocks do not matter, so a large model takes far fewer inferences than layers.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet

BLOCKS_FROM = 64
"""Layers from which on blocks are measured first. A bound. Half and double change nothing in
benchmarks/constants.py."""
BLOCK = 8
LARGE = 512
LARGE_BLOCK = 16
"""Layers in a block, and in a block of models with more than `LARGE` layers. On NAFNet (300
layers) blocks of 8 take 213 forecasts instead of 410, with the same answer. Large blocks of twice
the size took 22% more builds in benchmarks/constants.py, give or take 16."""
SINGLES = 512
SINGLES_FOR_BUILDS = 1536
"""Layers of large models that are measured alone, at most; more where trials are builds, of which
one costs more than many forecasts. Half: forecasts -15%; double: no more than chance, in
benchmarks/constants.py."""
SAVED = 100
"""Builds whose time the ranking may take: with a rank correlation of 0 a search takes 28 to 219
builds more than with 0.98 (500 layers, 20 of them kept, six structures,
benchmarks/results/search.json)."""
NEGLIGIBLE = 0.1
NEGLIGIBLE_FOR_BUILDS = 0.01
"""Blocks are not looked into while the root of the sum of their squared errors stays below this
share of the tolerance. A bound. Half: forecasts +8%; double: forecasts -16%, in
benchmarks/constants.py."""


class Sensitivity(NamedTuple):
    """One figure per layer, in network order: larger is more sensitive.

    It is the error with that layer alone low. `shared` names the layers that were not measured
    alone, with the size of their block or kernel. Such a layer has error / sqrt(size), since
    independent errors add up as the root of the sum of their squares; in a model with more blocks
    that matter than are looked into, the part that layers of its role suggest.
    """

    scores: list[float]
    shared: Mapping[int, int]


def _nothing_between(blocks: Sensitivity) -> Search[None]:
    """Ask for nothing."""
    del blocks
    yield from ()


def rank(
    problem: Problem, between: Callable[[Sensitivity], Search[None]] = _nothing_between
) -> Search[Sensitivity]:
    """Measure blocks of consecutive layers, then the single layers of those that matter.

    Single layers are measured as long as there is time, those of the worst blocks first. What is
    one kernel counts as one layer. `between` both is asked for what the blocks alone suggest.
    """
    units = _units(problem)
    if problem.size < BLOCKS_FROM:
        errors = yield from measure_groups(problem, units)
        scores = [0.0] * problem.size
        _share_out(scores, units, errors)
        return Sensitivity(scores, {i: len(unit) for unit in units for i in unit if unit[1:]})
    size = BLOCK if problem.size <= LARGE else LARGE_BLOCK
    blocks = _blocks(units, size)

    def single_units(measured: Sequence[Outcome]) -> float:
        """Guess how many units will be measured alone: of other blocks as of those so far."""
        part = len(measured) / len(blocks)
        negligible, most = _limits_of_singles(problem, measured, len(blocks) - len(measured))
        errors = [figure_of(outcome) for outcome in measured]
        matter = _worst(errors, negligible * math.sqrt(part), len(errors))
        return len(units) / len(blocks) * min(len(matter) / part, most // size)

    measured = yield from _outcomes(problem, blocks, single_units)
    joint = [figure_of(outcome) for outcome in measured]
    scores = [0.0] * problem.size
    _share_out(scores, blocks, joint)
    by_block = {i: len(block) for block in blocks for i in block}
    yield from between(Sensitivity([*scores], by_block))
    negligible, most = _limits_of_singles(problem, measured)
    worst = _worst(joint, negligible, most // size)
    looked_into = frozenset(layer for number in worst for layer in blocks[number])
    singles = [unit for unit in units if looked_into.issuperset(unit)]
    errors = yield from measure_groups(problem, singles)
    _share_out(scores, singles, errors)
    alone = frozenset(unit[0] for unit in singles if len(unit) == 1)
    # Blocks that matter are left: what repeats their layers tells which of them matter.
    if len(worst) == most // size and (kinds := problem.roles()):
        others = [block for block in blocks if not looked_into.issuperset(block)]
        _share_by_role(scores, others, kinds, alone)
    shared = {i: len(block) for block in blocks for i in block if i not in looked_into}
    shared |= {i: len(unit) for unit in singles for i in unit if i not in alone}
    return Sensitivity(scores, shared)


def _limits_of_singles(
    problem: Problem, measured: Sequence[Outcome], others: int = 0
) -> tuple[float, int]:
    """Return the joint error of layers that are not measured alone, and how many are at most.

    The measured blocks have just shown how long a forecast takes; `others` are still to come.
    """
    most = SINGLES_FOR_BUILDS if problem.builds else SINGLES
    share = NEGLIGIBLE_FOR_BUILDS if problem.builds else NEGLIGIBLE
    return share * (problem.tolerance or 0.0), _affordable(problem, measured, most, others)


def _units(problem: Problem) -> list[tuple[int, ...]]:
    """Return the layers in network order, those of a kernel together."""
    # The first counts: others are parts of it.
    kernels = reversed(problem.together)
    kernel_of = {layer: tuple(kernel) for kernel in kernels for layer in kernel}
    return list(dict.fromkeys(kernel_of.get(i, (i,)) for i in range(problem.size)))


def _blocks(units: Sequence[tuple[int, ...]], size: int) -> list[tuple[int, ...]]:
    """Return blocks of whole units, each filled until it has `size` layers."""
    blocks: list[tuple[int, ...]] = []
    for unit in units:
        if blocks and len(blocks[-1]) < size:
            blocks[-1] += unit
        else:
            blocks.append(unit)
    return blocks


def _share_out(
    scores: list[float], groups: Sequence[Sequence[int]], errors: Sequence[float]
) -> None:
    """Give each layer of a group its part of the group's error."""
    for group, error in zip(groups, errors, strict=True):
        for layer in group:
            scores[layer] = error / math.sqrt(len(group))


def _share_by_role(
    scores: list[float],
    blocks: Iterable[Sequence[int]],
    roles: Sequence[object],
    alone: Iterable[int],
) -> None:
    """Share the error of each block in proportion to what layers of its roles have `alone`.

    That is the median of their squares, and of a role that is not among them that of all.
    """
    squares: dict[object, list[float]] = {}
    for layer in alone:
        squares.setdefault(roles[layer], []).append(scores[layer] ** 2)
    typical = {role: median(some) for role, some in squares.items()}
    other = median(typical.values()) if typical else 0.0
    for block in blocks:
        parts = [typical.get(roles[layer], other) for layer in block]
        whole, error = sum(parts), math.hypot(*(scores[layer] for layer in block))
        if 0 < whole < math.inf and error < math.inf:
            for layer, part in zip(block, parts, strict=True):
                scores[layer] = error * math.sqrt(part / whole)


def by_sensitivity(scores: Sequence[float]) -> list[int]:
    """Return the layers, most sensitive first; equal ones in network order."""
    return sorted(range(len(scores)), key=lambda layer: (-scores[layer], layer))


def _worst(errors: Sequence[float], negligible: float, most: int) -> list[int]:
    """Return the places of the largest errors, in order; those that are `negligible` go first."""
    places = sorted(range(len(errors)), key=lambda place: (errors[place], place))
    spent, small = 0.0, 0
    for place in places:
        # The smallest are summed first, so their joint error stays below `negligible`.
        spent = math.hypot(spent, errors[place])
        if spent > negligible:
            break
        small += 1
    return sorted(places[max(small, len(places) - most) :])


def measure_groups(problem: Problem, groups: Sequence[Sequence[int]]) -> Search[list[float]]:
    """Return the emulator's error with each group low and every other layer high."""
    outcomes = yield from _outcomes(problem, groups)
    return [figure_of(outcome) for outcome in outcomes]


def _outcomes(
    problem: Problem,
    groups: Sequence[Sequence[int]],
    later: Callable[[Sequence[Outcome]], float] = lambda _: 0.0,
) -> Search[list[Outcome]]:
    """Measure the groups; `later` guesses by the outcomes so far how many forecasts follow."""
    everything = Plan.all_high(problem.size)
    outcomes: list[Outcome] = []
    # In batches of the workers, so that what is told of time left is true.
    for start in range(0, len(groups), problem.workers):
        following = math.ceil(later(outcomes)) if outcomes else 0
        outcomes += yield tuple(
            Proposal(
                plan=everything.without(group),
                phase=Phase.RANKING,
                samples=SampleSet.RANKING,
                kind=Kind.PREDICT,
                reason=f"{number + 1} of {len(groups)}",
                about_left=len(groups) - number + following,
            )
            for number, group in enumerate(groups[start : start + problem.workers], start)
        )
    return outcomes


def bounded(problem: Problem, high: Outcome) -> Problem:
    """Return the problem with a ranking that takes no longer than the builds that it saves.

    `high` is the outcome of the build with every layer high; its wall time stands for any build's.
    """
    if not problem.builds:
        return problem
    return replace(problem, forecast_s=min(problem.forecast_s, SAVED * high.wall_s))


def _affordable(problem: Problem, measured: Sequence[Outcome], most: int, others: int) -> int:
    """Return how many forecasts there is still time for, by the pace so far, after `others`."""
    spent = sum(outcome.wall_s for outcome in measured) / problem.workers
    # The median: with the first one the emulator opens.
    pace = median(outcome.wall_s for outcome in measured) / problem.workers
    if math.isinf(problem.forecast_s) or not pace:
        return most
    return min(most, max(0, int((problem.forecast_s - spent) / pace) - others))


def figure_of(outcome: Outcome) -> float:
    """Return the error; without a figure 0 for a pass and infinity for anything else."""
    if outcome.error is not None and not math.isnan(outcome.error):
        return outcome.error
    return 0.0 if outcome.passed else math.inf
