"""The layers of a network in groups, from coarse to fine, by their names."""

from collections.abc import Sequence
from typing import TypeAlias

Group: TypeAlias = tuple[int, ...]

BLOCKS = (256, 16)
"""Layers without a name scope are put into blocks of so many consecutive ones."""


def levels(names: Sequence[str]) -> list[list[Group]]:
    """Return partitions of the layers, each finer than the one before, single layers last.

    A name such as `/encoder/layer.0/norm/Pow` puts its layer into the groups `/encoder`,
    `/encoder/layer.0` and `/encoder/layer.0/norm`, as exporters write modules into names. Groups
    are in network order of their first layer.
    """
    paths = [_path(name, index) for index, name in enumerate(names)]
    found: list[list[Group]] = []
    for depth in range(1, max(map(len, paths), default=0) + 1):
        groups: dict[tuple[str, ...], list[int]] = {}
        for layer, path in enumerate(paths):
            groups.setdefault(path[:depth], []).append(layer)
        level = [tuple(group) for group in groups.values()]
        if level not in found[-1:]:
            found.append(level)
    return found


def _path(name: str, index: int) -> tuple[str, ...]:
    """Return the scopes of a layer and then itself, which no other layer's path equals."""
    scopes = [scope for scope in name.split("/")[:-1] if scope]
    if not scopes:
        scopes = [f"{size}:{index // size}" for size in BLOCKS]
    return (*scopes, f"layer:{index}")
