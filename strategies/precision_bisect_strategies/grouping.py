"""Cuts layers into a few groups, which are the variables of a search that can have only few."""

from collections.abc import Sequence

from precision_bisect.errors import first_of
from precision_bisect.protocols import Problem
from precision_bisect_strategies.modules import Group, levels


def few_groups(layers: Sequence[int], problem: Problem, most: int) -> list[Group]:
    """Cut layers into groups, as many as there are layers but at most `most`.

    They are the modules of the deepest level with few enough of them. If that leaves room, the
    largest are halved.
    """
    chosen = frozenset(layers)
    parts = [tuple(sorted(chosen))] if chosen else []
    for level in levels(problem):
        cut = [part for group in level if (part := tuple(i for i in group if i in chosen))]
        if len(cut) > most:
            break
        parts = cut
    while len(parts) < min(most, len(chosen)):
        # `-place`: of equally large groups the first, so that the same layers give the same
        # groups.
        place = max(range(len(parts)), key=lambda place: (len(parts[place]), -place))
        part, middle = parts[place], len(parts[place]) // 2
        parts[place : place + 1] = [part[:middle], part[middle:]]
    return parts


def label(number: int, group: Group, names: Sequence[str]) -> str:
    """Return a name for a group: unique by its number, with its first layer."""
    return f"{number:02d} {first_of([names[layer] for layer in group])}"
