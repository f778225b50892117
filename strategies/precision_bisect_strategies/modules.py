"""The layers of a network in groups, from coarse to fine, by their names.

Exporters write the modules of the source into node names, so names hold the structure that an ONNX
graph has lost.
"""

from collections.abc import Sequence
from typing import TypeAlias

Group: TypeAlias = tuple[int, ...]

BLOCKS = (256, 16)
"""Sizes of the blocks of consecutive layers for layers without a name scope, coarse and fine. Half
and double change no more than chance does in benchmarks/constants.py."""


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
        # A level that separates nothing new would ask the same questions again.
        if level not in found[-1:]:
            found.append(level)
    return found


def _path(name: str, index: int) -> tuple[str, ...]:
    """Return the scopes of a layer and then the layer itself, unique among all paths."""
    scopes = [scope for scope in name.split("/")[:-1] if scope]
    if not scopes:
        scopes = [f"{size}:{index // size}" for size in BLOCKS]
    return (*scopes, f"layer:{index}")
