"""Algorithms as their papers write them, for comparison: recursive, sequential, without care."""

from itertools import pairwise

from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect_strategies.asking import ask


def quickxplain(order: list[int]) -> Search[Plan]:
    """Search by QuickXplain (Junker, AAAI 2004): the first layers of the order preferably stay."""

    def needed(kept: list[int], grew: bool, rest: list[int]) -> Search[list[int]]:
        if grew:
            outcome = yield from ask(Plan.of(kept), "QuickXplain")
            if outcome.passed:
                return []
        if len(rest) == 1:
            return rest
        first, second = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        late = yield from needed(kept + first, True, second)
        early = yield from needed(kept + late, bool(late), first)
        return early + late

    return Plan.of((yield from needed([], False, order)))


def ddmin(kept: list[int], chunks: int = 2) -> Search[Plan]:
    """Search by ddmin (Zeller, Hildebrandt, TSE 2002): subsets, complements, then finer."""
    if len(kept) == 1:
        return Plan.of(kept)
    bounds = [len(kept) * i // chunks for i in range(chunks + 1)]
    subsets = [kept[start:end] for start, end in pairwise(bounds)]
    for subset in subsets:
        outcome = yield from ask(Plan.of(subset), "a subset")
        if outcome.passed:
            return (yield from ddmin(subset, 2))
    for subset in subsets if chunks > 2 else ():
        complement = [layer for layer in kept if layer not in subset]
        outcome = yield from ask(Plan.of(complement), "a complement")
        if outcome.passed:
            return (yield from ddmin(complement, max(chunks - 1, 2)))
    if chunks < len(kept):
        return (yield from ddmin(kept, min(2 * chunks, len(kept))))
    return Plan.of(kept)


def probdd(chances: dict[int, float]) -> Search[Plan]:
    """Search by ProbDD (Wang et al., ESEC/FSE 2021): `chances` say how likely each is needed."""
    kept, decided = set(chances), set[int]()
    while open_ := sorted((chances[layer], layer) for layer in kept - decided):
        gains, stay = [], 1.0
        for size, (chance, _) in enumerate(open_, 1):
            stay *= 1 - chance
            gains.append(size * stay)
        size = gains.index(max(gains)) + 1
        group = {layer for _, layer in open_[:size]}
        outcome = yield from ask(Plan.of(kept - group), "a group")
        if outcome.passed:
            kept -= group
        elif len(group) == 1:
            decided |= group
        else:
            stay = 1.0
            for chance, _ in open_[:size]:
                stay *= 1 - chance
            chances = chances | {layer: chances[layer] / (1 - stay) for layer in group}
    return Plan.of(kept)
