"""Answers as whole modules of the source, which PyTorch can be told to keep.

A module is whole if all layers in it are kept, those of the modules in it among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.errors import counted
from precision_bisect.layer_table import modules_around
from precision_bisect.pipeline.preflight import one
from precision_bisect.pipeline.stability import StabilityCheck
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.runs.results.module_answer import ModuleAnswer
from precision_bisect.trial import Outcome, Phase

MOST_DROPPED = 16
"""Modules of which each is tried to be dropped, where that was not asked for. A bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """The modules of the candidates, in network order; "" is the model itself."""

    of: Sequence[str]

    def around(self, plan: Plan) -> list[str]:
        """Return the innermost modules that hold all kept layers; none if one lies in none."""
        own = dict.fromkeys(self.of[layer] for layer in plan.indices)
        if "" in own:
            return []
        return [name for name in own if own.keys().isdisjoint(modules_around(name)[:-1])]

    def whole(self, names: Sequence[str]) -> Plan:
        """Return the plan that keeps all of these modules."""
        chosen = frozenset(names)
        inside = (not chosen.isdisjoint(modules_around(module)) for module in self.of)
        return Plan.of(layer for layer, held in enumerate(inside) if held)

    def closed(self, plan: Plan) -> Plan:
        """Return the plan with the modules of its layers whole; itself if a layer lies in none."""
        names = self.around(plan)
        return self.whole(names) if names else plan


def by_modules(answer: Plan, holding: StabilityCheck) -> Search[ModuleAnswer | None]:
    """Judge the modules around an answer as one plan, then without each; None if they fail.

    Drops are left out where trials are builds, or many. What is left is judged on copies, too,
    where no build is needed for that.
    """
    problem = holding.problem
    modules = Modules(of=problem.modules)
    names = modules.around(answer) if problem.modules else []
    if not names or len(modules.whole(names)) == problem.size:
        return None
    told = yield from _judged(modules, names)
    if not told.passed:
        return None
    minimal = not problem.builds and len(names) <= MOST_DROPPED
    if minimal:
        names = yield from without_needless(modules, names)
        told = yield from _judged(modules, names)
    plan = modules.whole(names)
    if not problem.builds and holding.copies and plan != answer:
        held = yield from holding.judge(plan, "whole modules, on copies")
        if not held.passed:
            return None
    return ModuleAnswer(names=names, layers=len(plan), error=told.error, minimal=minimal)


def without_needless(modules: Modules, names: Sequence[str]) -> Search[list[str]]:
    """Drop modules one by one, until none can go."""
    left = list(names)
    # From the end, again and again: what failed is known, and asked of the ledger.
    place = len(left)
    while place:
        place -= 1
        fewer = left[:place] + left[place + 1 :]
        if (yield from _judged(modules, fewer)).passed:
            left, place = fewer, len(fewer)
    return left


def _judged(modules: Modules, names: Sequence[str]) -> Search[Outcome]:
    reason = f"{counted(len(names), 'module')} whole"
    return (yield from one(modules.whole(names), Phase.SEARCH, reason))
