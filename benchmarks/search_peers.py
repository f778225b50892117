"""Other people's searches, each driven by its own classes where there are any.

All of them are generators as our strategies are, so that the same bench counts them. Libraries
are imported when a search begins.
"""

import math
from collections.abc import Sequence
from typing import Literal

from precision_bisect.machine.polygraphy_quiet import quiet
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.trial import Kind, Proposal
from precision_bisect_strategies.asking import ask

AT_ONCE = 16
"""Builds of one batch where a search has any number of them that do not depend on each other."""


def polygraphy(
    size: int, mode: Literal["bisect", "linear"], direction: Literal["forward", "reverse"]
) -> Search[Plan]:
    """Search by the marker classes of `polygraphy debug precision` (polygraphy 0.53)."""
    from polygraphy.tools.debug.subtool.precision import BisectMarker, LinearMarker

    marker = (BisectMarker if mode == "bisect" else LinearMarker)(size, direction)
    done = False
    while not done:
        with quiet():
            selected = marker.select_layers()
        found = yield from ask(Plan.of(selected), f"polygraphy {mode} {direction}")
        with quiet():
            done = marker.step(found.passed)
    good = min(marker.good, size)
    return Plan.of(range(good) if direction == "forward" else range(size - good, size))


def onnxconverter(size: int) -> Search[Plan]:
    """Search by the segments of onnxconverter-common's `auto_convert_mixed_precision` (1.16)."""
    from onnxconverter_common.auto_mixed_precision import SegmentList

    segments = SegmentList(range(size))
    while (segment := segments.get_largest()) is not None:
        found = yield from ask(Plan.of(segments.get_nodes(segment)), "onnxconverter-common")
        if found.passed:
            segment.good = True
        elif segment.size == 1:
            segment.bad = True
        else:
            segment.split()
    return Plan.of(segments.get_nodes())


def one_at_a_time(size: int) -> Search[Plan]:
    """Build each layer alone low, rank by that, bisect the ranking (AIMET's mixed precision)."""
    return (yield from _prefix((yield from _by_singles(size, Kind.JUDGE))))


def ranked_prefix(size: int) -> Search[Plan]:
    """Do the same with the emulator's errors of single layers, which cost no builds."""
    return (yield from _prefix((yield from _by_singles(size, Kind.PREDICT))))


def quickxplain_by_singles(size: int) -> Search[Plan]:
    """Search by QuickXplain (Junker, AAAI 2004) along the emulator's errors of single layers.

    Our own strategy forecasts whole blocks of large models first; this one never does, so that
    guided has a rival that knows as much. The most sensitive layers rather stay.
    """

    def needed(kept: list[int], grew: bool, rest: Sequence[int]) -> Search[list[int]]:
        if grew and (yield from ask(Plan.of(kept), "QuickXplain")).passed:
            return []
        if len(rest) == 1:
            return list(rest)
        first, second = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        late = yield from needed([*kept, *first], True, second)
        early = yield from needed(kept + late, bool(late), first)
        return early + late

    order = yield from _by_singles(size, Kind.PREDICT)
    return Plan.of((yield from needed([], False, order)))


def _by_singles(size: int, kind: Kind) -> Search[list[int]]:
    """Return the layers by their errors when they alone are low, largest first."""
    errors: list[float] = []
    everything = Plan.all_high(size)
    for start in range(0, size, AT_ONCE):
        layers = range(start, min(start + AT_ONCE, size))
        batch = (Proposal(plan=everything.without((layer,)), kind=kind) for layer in layers)
        outcomes = yield tuple(batch)
        errors.extend(math.inf if found.error is None else found.error for found in outcomes)
    return sorted(range(size), key=lambda layer: (-errors[layer], layer))


def _prefix(order: Sequence[int]) -> Search[Plan]:
    """Keep the fewest first layers of an order that pass, by bisection."""
    fails, passes = 0, len(order)
    while passes - fails > 1:
        middle = (fails + passes) // 2
        found = yield from ask(Plan.of(order[:middle]), "ranked prefix")
        fails, passes = (fails, middle) if found.passed else (middle, passes)
    return Plan.of(order[:passes])
