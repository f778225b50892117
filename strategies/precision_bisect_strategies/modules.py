"""The layers of a network in groups, from coarse to fine, by the modules that they belong to."""

from collections.abc import Sequence
from typing import TypeAlias

from precision_bisect.errors import first_of
from precision_bisect.layer_table import modules_around
from precision_bisect.protocols import Problem

Group: TypeAlias = tuple[int, ...]

BLOCKS = (256, 16)
"""Sizes of the blocks of consecutive layers for layers without a module, coarse and fine. Half and
double change no more than chance does in benchmarks/constants.py."""


def levels(problem: Problem) -> list[list[Group]]:
    """Return partitions of the layers, each finer than the one before, single layers last.

    A layer of the module `encoder.0.norm` is in the groups `encoder`, `encoder.0` and
    `encoder.0.norm`. Groups are in network order of their first layer.
    """
    modules = problem.modules or [""] * problem.size
    paths = [_path(module, index) for index, module in enumerate(modules)]
    partitions: list[list[Group]] = []
    for depth in range(max(map(len, paths), default=0)):
        groups: dict[str | int, list[int]] = {}
        for layer, path in enumerate(paths):
            groups.setdefault(path[depth] if depth < len(path) else layer, []).append(layer)
        level = [tuple(group) for group in groups.values()]
        # A level that separates nothing new would ask the same questions again.
        if level not in partitions[-1:]:
            partitions.append(level)
    return partitions


def _path(module: str, index: int) -> list[str | int]:
    """Return the groups around a layer, and then the layer itself."""
    around = modules_around(module) or [f"{size}:{index // size}" for size in BLOCKS]
    return [*around, index]


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
