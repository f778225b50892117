"""The searches that the benchmark compares, by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from search_drive import Certificate
from search_peers import (
    one_at_a_time,
    onnxconverter,
    polygraphy,
    quickxplain_by_singles,
    ranked_prefix,
)

from precision_bisect.plan import Plan
from precision_bisect.plugins import load_strategy
from precision_bisect.protocols import Problem, Search

Start = Callable[[Problem], Search[Plan]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A search and how it is run.

    `ranked` tells that it asks the emulator; the others are given one to which all layers are the
    same. `proves` that it ends 1-minimal where keeping
    more never hurts, by its own account or by one of the `certificates`. `parallel` that it is
    really run with several workers; others are credited with speculation (`Bench.speculated`).
    """

    start: Start
    ranked: bool = False
    proves: bool = False
    parallel: bool = False
    certificates: tuple[Certificate, ...] = ()


def _ours(name: str, *, ranked: bool, parallel: bool = True) -> Algorithm:
    """Return an installed strategy, loaded when it starts; it ends 1-minimal by itself."""

    def start(asked: Problem) -> Search[Plan]:
        return load_strategy(name).search(asked)

    return Algorithm(start=start, ranked=ranked, proves=True, parallel=parallel)


def _polygraphy(
    mode: Literal["bisect", "linear"], direction: Literal["forward", "reverse"]
) -> Algorithm:
    return Algorithm(start=lambda asked: polygraphy(asked.size, mode, direction))


ALGORITHMS: dict[str, Algorithm] = {
    "guided": replace(_ours("guided", ranked=True), certificates=("forecasts", "full")),
    "quickxplain": _ours("quickxplain", ranked=True),
    "probdd": _ours("probdd", ranked=True),
    "hierarchical": _ours("hierarchical", ranked=True),
    "singles quickxplain": Algorithm(
        start=lambda asked: quickxplain_by_singles(asked.size), ranked=True, proves=True
    ),
    "ranked prefix": Algorithm(start=lambda asked: ranked_prefix(asked.size), ranked=True),
    "unranked quickxplain": _ours("quickxplain", ranked=False),
    "unranked probdd": _ours("probdd", ranked=False),
    "ddmin": _ours("ddmin", ranked=False, parallel=False),
    "onnxconverter-common": Algorithm(start=lambda asked: onnxconverter(asked.size), proves=True),
    "one at a time": Algorithm(start=lambda asked: one_at_a_time(asked.size)),
    "polygraphy bisect forward": _polygraphy("bisect", "forward"),
    "polygraphy bisect reverse": _polygraphy("bisect", "reverse"),
    "polygraphy linear forward": _polygraphy("linear", "forward"),
    "polygraphy linear reverse": _polygraphy("linear", "reverse"),
}
