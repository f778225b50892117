"""ProbDD: delta debugging by the probability that each layer is needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.search.sensitivity import rank
from precision_bisect.trial import Outcome
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.speculation import speculate

NEVER = 0.1
"""Layers that would be needed if none seemed to be: the least prior is `NEVER` / layers. Half and
double change no more than chance does in benchmarks/constants.py."""
SURELY = 0.9
"""The largest prior: an emulator may be wrong of a layer, so none is certain. Half and double
change nothing in benchmarks/constants.py."""


class ProbDD:
    """Drops the group of layers of which most are expected to go.

    Wang et al., Probabilistic Delta Debugging, ESEC/FSE 2021, section 3. The group maximizes |D|
    prod(1 - p). If it cannot go, each p in it becomes p / (1 - prod(1 - p)). A layer that could
    not go alone stays, so the end is 1-minimal if passing is monotone. A group without a verdict
    says nothing of its layers: it is halved, and a single layer without a verdict stays.

    The priors come from the ranking: e / (e + tolerance) for a layer of emulated error e. The
    paper's equal priors took 4 to 14 times the trials in simulations with a ranking of rank
    correlation 0.98, and 0.9 to 1.7 times with a ranking in random order.
    """

    name: ClassVar[str] = "probdd"
    assumption: ClassVar[str] = (
        "each layer is needed, or not, independently of the others; all cost the same"
    )
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        scores = (yield from rank(problem)).scores
        chances = _priors(scores, problem.tolerance or 0.0)
        kept = problem.top
        undecided = tuple(sorted((chances[layer], layer) for layer in kept.kept))
        start = _Beliefs(kept=kept, undecided=undecided)
        end = yield from speculate(problem, _drop_a_group, start)
        return end.kept


def _priors(scores: Sequence[float], tolerance: float) -> list[float]:
    """Return how likely each layer is needed, from its error when it alone is low."""
    # An infinite score has the share 1; written as e / (e + tolerance) it would be NaN.
    shares = (1 - tolerance / (score + tolerance) if score > 0 else 0.0 for score in scores)
    return [min(max(share, NEVER / len(scores)), SURELY) for share in shares]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beliefs:
    """A plan that passed, and how likely each undecided layer of it is needed, least likely first.

    `halves` are groups that are tried before any other.
    """

    kept: Plan
    undecided: tuple[tuple[float, int], ...]
    halves: tuple[tuple[int, ...], ...] = ()

    def after(self, group: tuple[int, ...], outcome: Outcome) -> "_Beliefs":
        """Return the beliefs after the outcome of dropping a group."""
        single = len(group) == 1
        if outcome.passed or single:
            kept = self.kept.without(group) if outcome.passed else self.kept
            undecided = tuple(pair for pair in self.undecided if pair[1] not in group)
            return replace(self, kept=kept, undecided=undecided)
        if not outcome.failed:
            half = len(group) // 2
            return replace(self, halves=(group[:half], group[half:], *self.halves))
        members = frozenset(group)
        # Bayes: given that at least one of the group is needed.
        needed = 1 - math.prod(1 - chance for chance, layer in self.undecided if layer in members)
        updated = (
            (min(chance / needed, 1.0) if layer in members else chance, layer)
            for chance, layer in self.undecided
        )
        return replace(self, undecided=tuple(sorted(updated)))


def _drop_a_group(now: _Beliefs) -> Search[_Beliefs]:
    """Try to drop the next half, or the group with the largest expected gain."""
    if not now.undecided:
        return now
    if now.halves:
        group, now = now.halves[0], replace(now, halves=now.halves[1:])
    else:
        group = _most_gain(now.undecided)
    outcome = yield from ask(
        now.kept.without(group),
        f"drop {len(group)} of {len(now.kept)}",
        narrowed_to=len(now.kept),
        about_left=len(now.undecided),
    )
    return now.after(group, outcome)


def _most_gain(undecided: Sequence[tuple[float, int]]) -> tuple[int, ...]:
    """Return the likeliest droppable layers, as many as maximize |D| prod(1 - p)."""
    largest, gain, stays = 1, 0.0, 1.0
    for size, (chance, _) in enumerate(undecided, 1):
        # The gain rises to one maximum along the sorted chances, so the first fall ends it.
        stays *= 1 - chance
        if size * stays <= gain:
            break
        largest, gain = size, size * stays
    return tuple(layer for _, layer in undecided[:largest])
