"""Hierarchical delta debugging: whole modules first, then the inside of those that must stay."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

from precision_bisect.errors import counted
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search
from precision_bisect.search.sensitivity import figure_of
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, SampleSet
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.modules import Group, levels
from precision_bisect_strategies.speculation import speculate


class Hierarchical:
    """Drops modules, then the modules in those that stay, down to single layers.

    HDD (Misherghi, Su, ICSE 2006, section 3) over the tree of modules; layers without one
    form blocks of consecutive ones. The groups of a level are dropped many at a time (adaptive
    group testing: Hwang, JASA 1972). First go those whose errors the emulator forecasts to be
    within the tolerance together, then more, least sensitive first, doubling on a pass and halving
    on a failure. A group that could not go alone is opened at the next level. The end is 1-minimal
    if passing is monotone.
    """

    name: ClassVar[str] = "hierarchical"
    assumption: ClassVar[str] = (
        "the layers to keep lie in few modules, as their names tell; all cost the same"
    )
    minimal: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    def search(self, problem: Problem) -> Search[Plan]:
        kept = problem.top
        stuck: frozenset[Group] = frozenset()
        answers: dict[Plan, Outcome] = {}
        for level in levels(problem):
            groups = [tuple(layer for layer in group if layer in kept.kept) for group in level]
            # A group that could not go and has no finer parts would fail again.
            groups = [group for group in groups if group and group not in stuck]
            if not groups:
                continue
            now, *errors = yield from _forecasts(kept, groups)
            # An infinite forecast leaves nothing to compare with; every group then adds its own
            # error.
            now = now if math.isfinite(now) else 0.0
            line = sorted(zip(errors, groups, strict=True), reverse=True)
            added = [error - now for error, _ in line]
            start = _Level(
                kept=kept,
                pending=tuple(group for _, group in line),
                size=_harmless(added, (problem.tolerance or 0.0) - now),
            )
            end = yield from speculate(problem, _drop_some, start, answers)
            kept, stuck = end.kept, stuck | end.stuck
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """A plan that passed, and the groups of one level that may yet go, the mildest ones last.

    `size` is the number of groups dropped at a time. The last `suspect` groups are known not to go
    together, 0 for none. `stuck` groups cannot go alone.
    """

    kept: Plan
    pending: tuple[Group, ...]
    size: int
    suspect: int = 0
    stuck: frozenset[Group] = frozenset()

    @property
    def count(self) -> int:
        """How many groups are dropped next."""
        return (self.suspect + 1) // 2 if self.suspect else min(self.size, len(self.pending))

    def after(self, dropped: Sequence[int], outcome: Outcome) -> "_Level":
        """Return the level after the outcome of dropping the next groups."""
        count = self.count
        if not outcome.passed:
            return replace(self, suspect=count)._without_culprit()
        level = replace(
            self,
            kept=self.kept.without(dropped),
            pending=self.pending[:-count],
            size=2 * count,
            # Some of the suspects went, so the culprit is among the others.
            suspect=max(self.suspect - count, 0),
        )
        return level._without_culprit()

    def _without_culprit(self) -> "_Level":
        """Return the level in which a group that alone is suspect stays."""
        if self.suspect != 1:
            return self
        return replace(
            self,
            pending=self.pending[:-1],
            size=1,
            suspect=0,
            stuck=self.stuck | {self.pending[-1]},
        )


def _drop_some(now: _Level) -> Search[_Level]:
    """Try to drop the mildest groups that are pending."""
    if not now.pending:
        return now
    groups = now.pending[-now.count :]
    layers = [layer for group in groups for layer in group]
    outcome = yield from ask(
        now.kept.without(layers),
        f"drop {len(groups)} of {counted(len(now.pending), 'group')}, "
        f"{counted(len(layers), 'layer')}",
        narrowed_to=len(now.kept),
        about_left=len(now.pending),
    )
    return now.after(layers, outcome)


def _forecasts(kept: Plan, groups: Sequence[Group]) -> Search[list[float]]:
    """Return the emulated error of the plan, then of the plan without each group."""
    outcomes = yield tuple(
        Proposal(
            plan=kept.without(group),
            phase=Phase.RANKING,
            samples=SampleSet.RANKING,
            kind=Kind.PREDICT,
            reason=f"{number} of {len(groups)} groups",
            about_left=len(groups) - number + 1,
        )
        for number, group in enumerate([(), *groups])
    )
    return [figure_of(outcome) for outcome in outcomes]


def _harmless(added: Sequence[float], slack: float) -> int:
    """Return how many of the last errors fit into the slack together, at least 1."""
    count = sum(total <= slack for total in accumulate(reversed(added)))
    return max(count, 1)
