"""Answers as whole modules of the source, which PyTorch can be told to keep.

A module is whole if all layers in it are kept, those of the modules in it among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from precision_bisect.errors import counted
from precision_bisect.layer_table import SETTLED, Exclusion, LayerTable, modules_around
from precision_bisect.pipeline.stability import StabilityCheck, one
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import STARTED, Problem, Search, Strategy
from precision_bisect.runs.results.module_answer import ModuleAnswer
from precision_bisect.search.combinators import mapped, searched_by
from precision_bisect.trial import Outcome, Phase

MOST_DROPPED = 16
"""Modules of which each is tried to be dropped, where that was not asked for. A bound."""
# What stays high whatever the plan is.
_HIGH = (*SETTLED, Exclusion.CONTROL_FLOW, Exclusion.CUSTOM, Exclusion.UNTYPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """The modules of the candidates, in network order; "" is the model itself.

    The modules `high` hold layers that are high in every plan, so PyTorch has to keep them, too.
    """

    of: Sequence[str]
    high: Sequence[str] = ()

    @classmethod
    def in_table(cls, table: LayerTable, pair: Pair) -> "Modules":
        """Return those of a model's layers, for a search with this pair of types."""
        high = (
            layer.module
            for layer in table.layers
            if layer.exclusion in _HIGH
            or (layer.exclusion is Exclusion.ASKED and layer.fixed == pair.high_form)
        )
        of = tuple(layer.module for layer in table.candidates)
        return cls(of=of, high=tuple(dict.fromkeys(high)))

    def around(self, plan: Plan) -> list[str]:
        """Return the innermost modules that hold all kept layers; none if one lies in none."""
        own = dict.fromkeys((*(self.of[layer] for layer in plan.indices), *self.high))
        if "" in own:
            return []
        return [name for name in own if own.keys().isdisjoint(modules_around(name)[:-1])]

    def units(self) -> list[list[int]]:
        """Return the layers of each module that lie in none inside it; those of none alone."""
        layers_by_module: dict[str | int, list[int]] = {}
        for layer, name in enumerate(self.of):
            layers_by_module.setdefault(name or layer, []).append(layer)
        return list(layers_by_module.values())

    def whole(self, names: Sequence[str]) -> Plan:
        """Return the plan that keeps all of these modules."""
        chosen = frozenset(names)
        inside = (not chosen.isdisjoint(modules_around(module)) for module in self.of)
        return Plan.of(layer for layer, is_inside in enumerate(inside) if is_inside)

    def closed(self, plan: Plan) -> Plan:
        """Return the plan with the modules of its layers whole; itself if a layer lies in none."""
        names = self.around(plan)
        return self.whole(names) if names else plan


def searched_by_module(problem: Problem, strategy: Strategy, modules: Modules) -> Search[Plan]:
    """Search with a strategy that decides on modules; end with whole ones, none of which can go.

    What it drops or keeps at once are the layers that lie in a module and in none inside it. The
    end has other layers only where one of the model's own, in no module, has to be kept.
    """
    units = modules.units()

    def layers(plan: Plan) -> Plan:
        return Plan.of(layer for unit in plan.indices for layer in units[unit])

    def around(plan: Plan | None) -> Plan | None:
        kept = frozenset() if plan is None else plan.kept
        outer = Plan.of(i for i, unit in enumerate(units) if not kept.isdisjoint(unit))
        return outer if kept else None

    start = around(problem.passing)
    passes = start and (yield from one(layers(start), Phase.SEARCH, STARTED)).passed
    names = [modules.of[unit[0]] for unit in units]
    module_problem = replace(
        problem,
        names=names,
        modules=names,
        # The strategy knows modules alone, each with what its layers cost together.
        costs=[sum(problem.costs[i] for i in unit) for unit in units] if problem.costs else (),
        graph=None,
        passing=start if passes else None,
        start=None,
        together=(),
        beyond_range=lambda: around(problem.beyond_range()),
        overflowing=lambda: around(problem.overflowing()),
        settled=False,
    )
    search = searched_by(strategy, module_problem)
    answer = yield from mapped(
        search, ask=lambda proposal: replace(proposal, plan=layers(proposal.plan))
    )
    whole = modules.around(layers(answer))
    if not whole or not (yield from _judged(modules, whole)).passed:
        return layers(answer)
    return modules.whole((yield from without_needless(modules, whole)))


def by_modules(
    answer: Plan, modules: Modules, holding: StabilityCheck, *, every: bool = False
) -> Search[ModuleAnswer | None]:
    """Judge the modules around an answer as one plan, then without each; None if they fail.

    Drops are left out where trials are builds, or many, unless `every` one is asked for. What is
    left is judged on copies, too, where no build is needed for that.
    """
    problem = holding.problem
    names = modules.around(answer)
    if not names or len(modules.whole(names)) == problem.size:
        return None
    outcome = yield from _judged(modules, names)
    if not outcome.passed:
        return None
    minimal = every or (not problem.builds and len(names) <= MOST_DROPPED)
    if minimal:
        needed = yield from without_needless(modules, names)
        # The samples alone may need none where copies, or a risk, did: then all of them stay.
        minimal, names = bool(needed), needed or names
        outcome = yield from _judged(modules, names)
    plan = modules.whole(names)
    if not problem.builds and holding.copies and plan != answer:
        # What nobody asked for is judged as a point of the curve is.
        phase = Phase.RECHECK if every else Phase.CURVE
        on_copies = yield from holding.judge(plan, "whole modules, on copies", phase=phase)
        if not on_copies.passed:
            return None
    return ModuleAnswer(names=names, layers=len(plan), error=outcome.error, minimal=minimal)


def without_needless(modules: Modules, names: Sequence[str]) -> Search[list[str]]:
    """Drop modules one by one, until none can go but those that must be high."""
    remaining = list(names)
    fixed = {name for module in modules.high for name in modules_around(module)}
    # From the end, again and again: what failed is known, and asked of the ledger.
    place = len(remaining)
    while place:
        place -= 1
        fewer = remaining[:place] + remaining[place + 1 :]
        if remaining[place] in fixed:
            continue
        if (yield from _judged(modules, fewer)).passed:
            remaining, place = fewer, len(fewer)
    return remaining


def _judged(modules: Modules, names: Sequence[str]) -> Search[Outcome]:
    reason = f"{counted(len(names), 'module')} whole"
    return (yield from one(modules.whole(names), Phase.SEARCH, reason))
