"""Ways to make a plan faster that a cost graph suggests.

*Filling* keeps more layers high: cheap ones beside kept layers, if that removes Casts that cost
more. *Swapping* lets an expensive kept layer run low, or an island of a few whose Casts cost most,
and keeps cheaper layers instead. The emulator forecasts whether those do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.errors import counted
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.protocols import Search
from precision_bisect.search.speed.forecast import ForecastLimit, emulated_outcomes
from precision_bisect.trial import Outcome

LARGEST_GAP = 8
"""Connected low layers that are filled in together, at most. A bound. Half and double change
nothing in benchmarks/constants.py."""
LARGEST_ISLAND = 4
"""Connected kept layers that are swapped together, at most. A bound. Half and double change no
more than chance does in benchmarks/constants.py."""
PARTS = 24
"""Groups that the possible substitutes are forecast in, at most; then the layers of the best three
one by one. A bound on forecasts."""
HALF = 0.5
"""Share of the error that substitutes were forecast to save elsewhere: if they save less here,
they are looked for anew. Half and double change no more than chance does in
benchmarks/constants.py."""
LONGER = 3
"""Further layers that are added if those that should suffice do not. Half and double change
nothing in benchmarks/constants.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A plan that the graph says is faster by `gain_ms`, with what it changes."""

    plan: Plan
    gain_ms: float
    reason: str


Worth = tuple[float, float, tuple[int, ...]]
"""Error saved over added cost, error saved, and the group of layers to keep."""


@dataclass(slots=True)
class Substitutes:
    """What keeping other layers was forecast to save, the most worth first; None if never asked.

    The forecasts are made beside the first layers of a plan that substitutes are looked for. They
    are reused beside others: every plan that is made of them is forecast itself.
    """

    worth: list[Worth] | None = None


def fillings(graph: CostGraph, plan: Plan) -> list[Move]:
    """Return plans that keep more layers: all that gain at once, then each part, best first."""
    closed = filled(graph, plan.kept)
    added = closed - plan.kept
    if not added:
        return []
    parts = [plan.kept.union(part) for part in graph.clusters(added)]
    moves = [
        Move(
            plan=Plan.of(kept),
            gain_ms=graph.gain(plan.kept, kept),
            reason=f"fill {counted(len(kept) - len(plan), 'layer')} in between kept ones",
        )
        for kept in dict.fromkeys((closed, *parts))
    ]
    # All at once first: if that passes, the parts need no builds.
    everything, *rest = moves
    rest.sort(key=lambda move: (-move.gain_ms, move.plan))
    return [move for move in (everything, *rest) if move.gain_ms > 0]


def swappable(graph: CostGraph, plan: Plan) -> list[tuple[int, ...]]:
    """Return kept layers worth swapping, alone or together; those that cost most come first."""
    singles = [(layer,) for layer in plan.indices]
    several = [part for part in graph.clusters(plan.kept) if 1 < len(part) <= LARGEST_ISLAND]
    savings = {
        part: graph.gain(plan.kept, plan.without(part).kept) for part in (*singles, *several)
    }
    return sorted(
        (part for part, saving in savings.items() if saving > 0),
        key=lambda part: (-savings[part], part),
    )


def swap(
    graph: CostGraph,
    plan: Plan,
    dropped: Sequence[int],
    forecasts: ForecastLimit,
    others: Substitutes,
) -> Search[Move | None]:
    """Return a plan that lets `dropped` run low and is forecast to pass; None if there is none.

    Substitutes are kept in the order of the error that each is forecast to save over what it
    costs, until the forecast is within the limit. `others` are looked for if they are not known
    yet, or save less than half of what they should. No substitute exists for a layer without which
    the outputs are not finite, or errors are no figures.
    """
    bare = plan.without(dropped)
    (outcome,) = yield from emulated_outcomes([bare], f"without {counted(len(dropped), 'layer')}")
    if forecasts.passes(outcome):
        return _swapped(graph, plan, bare, dropped)
    if outcome.error is None or not math.isfinite(outcome.error):
        return None
    if others.worth is not None:
        # Known substitutes are checked by one forecast instead of one each.
        promised = others.worth[: _enough(others.worth, outcome.error, forecasts.limit)]
        now = yield from _instead(bare, promised)
        saved = outcome.error - (math.inf if now.error is None else now.error)
        if saved < HALF * sum(saving for _, saving, _ in promised):
            others.worth = None
    if others.worth is None:
        low = [i for i in range(graph.size) if i not in plan.kept]
        others.worth = yield from _substitutes(graph, bare, outcome.error, low)
    worth = others.worth
    least = _enough(worth, outcome.error, forecasts.limit)
    for count in range(least, min(least + LONGER, len(worth)) + 1):
        kept = _with(bare, worth[:count])
        # More layers only cost more: no use in going on.
        if graph.gain(plan.kept, kept) <= 0:
            return None
        now = yield from _instead(bare, worth[:count])
        if forecasts.passes(now):
            return _swapped(graph, plan, Plan.of(kept), dropped)
    return None


def _with(bare: Plan, worth: Sequence[Worth]) -> frozenset[int]:
    return bare.kept.union(*(part for _, _, part in worth))


def _instead(bare: Plan, worth: Sequence[Worth]) -> Search[Outcome]:
    (outcome,) = yield from emulated_outcomes([Plan.of(_with(bare, worth))], "with others instead")
    return outcome


def _substitutes(
    graph: CostGraph, bare: Plan, error: float, low: Sequence[int]
) -> Search[list[Worth]]:
    """Return what single layers save; of many layers only those in the best groups."""
    groups = _parts(low)
    worth = yield from _worth(graph, bare, error, groups)
    if len(groups) == len(low):
        return worth
    best = [layer for _, _, part in worth[:3] for layer in part]
    return (yield from _worth(graph, bare, error, [(layer,) for layer in best]))


def filled(graph: CostGraph, kept: frozenset[int]) -> frozenset[int]:
    """Return the layers with every gap and every neighbour added that lowers the cost."""
    low = [layer for layer in range(graph.size) if layer not in kept]
    # Gaps first: filling one layer of a gap moves its Casts, filling all of it removes them.
    for gap in graph.clusters(low):
        if len(gap) <= LARGEST_GAP and graph.gain(kept, kept.union(gap)) > 0:
            kept = kept.union(gap)
    for fusion in graph.fusions:
        whole = kept.union(fusion.layers)
        if not kept.isdisjoint(fusion.layers) and graph.gain(kept, whole) > 0:
            kept = whole
    grown = True
    while grown:
        grown = False
        beside = {near for layer in kept for near in graph.neighbours[layer]} - kept
        for layer in sorted(beside):
            if graph.gain(kept, kept | {layer}) > 0:
                kept, grown = kept | {layer}, True
    return kept


def _parts(low: Sequence[int]) -> list[tuple[int, ...]]:
    """Cut layers into at most `PARTS` runs of consecutive ones."""
    length = max(1, -(-len(low) // PARTS))
    return [tuple(low[i : i + length]) for i in range(0, len(low), length)]


def _worth(
    graph: CostGraph, bare: Plan, error: float, groups: Sequence[tuple[int, ...]]
) -> Search[list[Worth]]:
    """Return the groups that save error, the most worth first."""
    plans = [bare.with_(group) for group in groups]
    outcomes = yield from emulated_outcomes(plans, "what keeping others saves")
    entries = []
    for group, plan, outcome in zip(groups, plans, outcomes, strict=True):
        if outcome.error is None or not outcome.error < error:
            continue
        saved = error - outcome.error
        cost = -graph.gain(bare.kept, plan.kept)
        entries.append((saved / cost if cost > 0 else math.inf, saved, group))
    return sorted(entries, key=lambda entry: (-entry[0], -entry[1], entry[2]))


def _enough(worth: Sequence[Worth], error: float, limit: float | None) -> int:
    """Return how many of the first groups suffice if their savings add up; all if none do."""
    for count, (_, saved, _) in enumerate(worth, 1):
        error -= saved
        if limit is None or error <= limit:
            return count
    return len(worth)


def _swapped(graph: CostGraph, plan: Plan, instead: Plan, dropped: Sequence[int]) -> Move | None:
    gain_ms = graph.gain(plan.kept, instead.kept)
    added = len(instead.kept - plan.kept)
    reason = (
        f"swap {counted(len(dropped), 'layer')} for {added}" if added else f"drop {len(dropped)}"
    )
    return Move(plan=instead, gain_ms=gain_ms, reason=reason) if gain_ms > 0 else None
