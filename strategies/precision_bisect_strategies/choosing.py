"""The plan that the emulator would choose: several ways, the smallest plan of them.

A plan of which no single layer can be dropped may still be several times too large, and which way
finds a small one depends on the network: dropping what a ranking keeps needlessly wins where few
layers matter, adding what helps most (forward selection) where many errors add up. The ways look
at the few ranking samples; what they find must hold on all judging samples, as small sets can live
on errors that cancel by chance.
"""

import math
from collections.abc import Sequence

from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.sensitivity import by_sensitivity
from precision_bisect.trial import SampleSet
from precision_bisect_strategies.asking import ask
from precision_bisect_strategies.bisection import shortest_prefix
from precision_bisect_strategies.prediction import predicted
from precision_bisect_strategies.shrinking import shrink

WIDTH = 2
"""Forward selection looks at so many times as many layers as the plan to beat keeps."""
WIDEST = 256
"""It looks at no more layers than this."""
EXCHANGES = 300
"""About so many evaluations are spent on exchanging one layer for several others."""


def chosen(problem: Problem, scores: Sequence[float], limit: float | None) -> Search[Plan]:
    """Return the smallest plan found that passes on the emulator within `limit`."""
    order = by_sensitivity(scores)
    guess = _additive(order, scores, limit)
    first = yield from _few(_shrunk(order, guess), limit)
    found = [first]
    if limit is not None and len(first) > 2:
        near = order[: min(WIDTH * len(first), WIDEST)]
        forward = yield from _few(_forward(problem, near, len(first)), limit)
        if forward is not None:
            found.append((yield from _few(shrink(_in_order(forward, order)), limit)))
        found.append((yield from _few(_exchanged(min(found), near), limit)))
    for plan in sorted(set(found)):
        outcome = yield from predicted(ask(plan, f"the {len(plan)} chosen"), limit)
        if outcome.passed:
            return plan
    return (yield from predicted(_shrunk(order, len(first)), limit))


def narrowed(order: Sequence[int], plan: Plan, limit: float) -> Search[Plan]:
    """Return a plan that passes on the emulator within another limit, starting from `plan`.

    Layers are added along `order`, most sensitive first, until it passes, and dropped again.
    """
    inside = _in_order(plan, order)
    others = [layer for layer in order if layer not in plan.kept]
    outcome = yield from predicted(ask(plan, "the same within another limit"), limit)
    if not outcome.passed:
        length = yield from predicted(
            shortest_prefix(others, "add the most sensitive", 1, inside), limit
        )
        inside = [*inside, *others[:length]]
    kept = frozenset(inside)
    return (yield from predicted(shrink([i for i in order if i in kept]), limit))


def _few(search: Search[T], limit: float | None) -> Search[T]:
    return (yield from predicted(search, limit, SampleSet.RANKING))


def _additive(order: Sequence[int], scores: Sequence[float], limit: float | None) -> int:
    """Return how many of the most sensitive layers to keep if errors just add up."""
    left = math.inf if limit is None else limit
    for kept in range(len(order), 0, -1):
        left -= scores[order[kept - 1]]
        if not left > 0:
            return kept
    return 1


def _shrunk(order: list[int], guess: int) -> Search[Plan]:
    length = yield from shortest_prefix(order, "keep the most sensitive", guess)
    return (yield from shrink(order[:length]))


def _forward(problem: Problem, near: Sequence[int], fewer: int) -> Search[Plan | None]:
    """Add the layer that lowers the error most until it passes, to fewer than `fewer` layers.

    Lazy greedy selection (Minoux 1978): a layer's gain is measured again only when it leads.
    Returns None where that many are not enough, or the error is not finite to begin with.
    """
    kept: tuple[int, ...] = ()
    error = math.inf
    for layer in near[:fewer]:
        outcome = yield from ask(Plan.of(kept), "the error to begin with")
        error = math.inf if outcome.error is None else outcome.error
        if math.isfinite(error):
            break
        kept = (*kept, layer)
    if not math.isfinite(error):
        return None
    gains = {layer: (math.inf, -1) for layer in near if layer not in kept}
    while gains and len(kept) < fewer - 1:
        layer = max(gains, key=lambda each: (gains[each][0], -each))
        outcome = yield from ask(Plan.of((*kept, layer)), "what adding a layer gains")
        if gains[layer][1] != len(kept):
            gain = error - (math.inf if outcome.error is None else outcome.error)
            gains[layer] = (gain, len(kept))
            continue
        kept, error = (*kept, layer), outcome.error or 0.0
        del gains[layer]
        if outcome.passed:
            return Plan.of(kept)
    return None


def _exchanged(plan: Plan, near: Sequence[int]) -> Search[Plan]:
    """Add one layer and drop what can go then, for the most sensitive layers left out."""
    if not plan:
        return plan
    order = [layer for layer in near if layer in plan.kept]
    others = [layer for layer in near if layer not in plan.kept]
    for layer in others[: 1 + EXCHANGES // len(plan) // 8]:
        smaller = yield from shrink([layer, *order])
        if len(smaller) < len(plan):
            plan, order = smaller, [each for each in (layer, *order) if each in smaller.kept]
    return plan


def _in_order(plan: Plan, order: Sequence[int]) -> list[int]:
    return [layer for layer in order if layer in plan.kept]
