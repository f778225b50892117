"""Checks what the guided search is meant to achieve against the rows of the benchmark.

A peer is comparable where its mean size is at most 1% above guided's and its answers pass without
noise at least as often; counted apart, with noise, when they are built afresh, too. A peer that
does not end 1-minimal is compared by guided's builds until the plan of the final size had passed:
it proves nothing, so guided's certificate is left out.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from search_algorithms import ALGORITHMS
from search_rows import Row

GUIDED = "guided forecasts"
SAME_SIZE = 1.01
Compare: TypeAlias = Callable[[Row, Sequence[Row]], "Cell | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of an aim: `excess` is the figure over what is allowed, at most 1 where it held."""

    excess: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """An aim and the cells that it was checked in."""

    name: str
    cells: Sequence[Cell] = field(default_factory=list)

    @property
    def missed(self) -> Sequence[Cell]:
        """The cells in which it was missed, worst first."""
        return sorted((c for c in self.cells if c.excess > 1.0), key=lambda c: -c.excess)

    def line(self, shown: int = 1) -> str:
        """Say in how many cells it held, and where it was missed most, or held most narrowly."""
        if not self.cells:
            return f"not checked  {self.name}: no cells"
        count = f"{len(self.cells) - len(self.missed)} of {len(self.cells)} cells"
        worst = self.missed[:shown] or [max(self.cells, key=lambda cell: cell.excess)]
        what = "NOT held" if self.missed else "held"
        return "\n    ".join(
            [f"{what}  {self.name}: {count}", *(f"worst: {cell.text}" for cell in worst)]
        )


def aims(rows: Sequence[Row]) -> list[Aim]:
    """Check every aim on the cells that the rows cover."""
    guided = [row for row in rows if row.algorithm == GUIDED]

    def at(*rhos: float) -> list[Row]:
        return [row for row in guided if row.rho in rhos]

    def of(some: Sequence[Row], *structures: str) -> list[Row]:
        return [row for row in some if row.structure in structures]

    small = [row for row in at(0.98) if row.size == 500]
    within = "(a) certified within 2(k+1) builds, n=500, rho 0.98"
    summed = ("B", "C", "CL")
    lasting = "in D, of peers whose answers pass as often when built afresh"
    return [
        checked(f"{within}, A B C", of(small, "A", "B", "C"), rows, certified_within),
        checked(f"{within}, CL", of(small, "CL"), rows, certified_within),
        checked("(b) a fifth fewer builds than the best peer, rho 0.8", at(0.8), rows, fewer(0.8)),
        checked("(c) size within 5%, rho >= 0.98", of(at(0.98, 1.0), *summed), rows, sized(1.05)),
        checked("(c) size within 30%, rho 0.8", of(at(0.8), *summed), rows, sized(1.30)),
        checked("(d) no peer with as small a set takes fewer builds", guided, rows, fewer(1.0)),
        checked(f"(d) {lasting}", of(guided, "D"), rows, fewer(1.0, again=True)),
        checked("(e) 1.10 x plain QuickXplain's builds, rho 0", at(0.0), rows, like_quickxplain),
        checked("(f) 4 workers: at most 60% of the rounds", guided, rows, in_rounds(4, 0.6)),
        checked("(f) 16 workers: at most 40% of the rounds", guided, rows, in_rounds(16, 0.4)),
        checked("(g) 95% of the answers pass without noise, D", of(guided, "D"), rows, honest),
    ]


def checked(name: str, chosen: Iterable[Row], rows: Sequence[Row], compare: Compare) -> Aim:
    """Check an aim in the chosen rows of guided, each against its peers among all rows."""
    return Aim(name=name, cells=list(_compared(chosen, rows, compare)))


def certified_within(row: Row, peers: Sequence[Row]) -> Cell | None:
    """Compare the builds with twice the certificate's."""
    del peers
    allowed = 2 * (row.kept + 1)
    return _cell(row, row.figures.calls, allowed, f"{row.figures.calls:.1f} builds of {allowed}")


def sized(most: float) -> Compare:
    """Compare the size with the optimum."""

    def compare(row: Row, peers: Sequence[Row]) -> Cell | None:
        del peers
        return _cell(row, row.figures.ratio, most, f"{row.figures.ratio:.3f} x the optimum")

    return compare


def fewer(share: float, *, again: bool = False) -> Compare:
    """Compare the builds with a share of those of the best comparable peer.

    With `again` only of peers whose answers pass as often when they are built afresh.
    """

    def compare(row: Row, peers: Sequence[Row]) -> Cell | None:
        rivals = [
            (_builds(row, peer) / peer.figures.calls, peer)
            for peer in _like(row, peers)
            if not again or peer.figures.again >= row.figures.again
        ]
        if not rivals:
            return None
        ratio, peer = max(rivals, key=lambda rival: rival[0])
        sizes = f"sizes {row.figures.ratio:.3f}, {peer.figures.ratio:.3f}"
        builds = f"{_builds(row, peer):.1f} builds, {peer.algorithm} {peer.figures.calls:.1f}"
        return _cell(row, ratio, share, f"{builds} ({sizes})")

    return compare


def honest(row: Row, peers: Sequence[Row]) -> Cell | None:
    """Compare the share of answers that pass without noise with 95%."""
    del peers
    share = row.figures.true
    return _cell(row, 0.95, max(share, 1e-9), f"{share:.0%} of the answers pass without noise")


def like_quickxplain(row: Row, peers: Sequence[Row]) -> Cell | None:
    """Compare with QuickXplain in network order where its sets are no larger, nor less true."""
    for peer in peers:
        if (
            peer.algorithm == "unranked quickxplain"
            and peer.figures.ratio <= 1.05 * row.figures.ratio
            and peer.figures.true >= row.figures.true
        ):
            text = f"{row.figures.calls:.1f} builds, QuickXplain {peer.figures.calls:.1f}"
            sizes = f" (sizes {row.figures.ratio:.3f}, {peer.figures.ratio:.3f})"
            return _cell(row, row.figures.calls / peer.figures.calls, 1.10, text + sizes)
    return None


def in_rounds(workers: int, share: float) -> Compare:
    """Compare the rounds with several workers to those with one, from 20 on."""

    def compare(row: Row, peers: Sequence[Row]) -> Cell | None:
        del peers
        rounds = row.figures.rounds
        if workers not in rounds or rounds.get(1, 0.0) < 20:
            return None
        text = f"{rounds[workers]:.1f} rounds instead of {rounds[1]:.1f}"
        return _cell(row, rounds[workers] / rounds[1], share, text)

    return compare


def information(size: int, kept: int) -> float:
    """Return log2 of the number of sets: the outcomes that tell one of them from the others."""
    return math.log2(math.comb(size, kept))


def _compared(chosen: Iterable[Row], rows: Sequence[Row], compare: Compare) -> Iterator[Cell]:
    cells: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        if not row.algorithm.startswith("guided"):
            cells.setdefault((row.structure, row.size, row.kept), []).append(row)
    for row in chosen:
        here = cells.get((row.structure, row.size, row.kept), [])
        cell = compare(row, [peer for peer in here if peer.rho in (None, row.rho)])
        if cell is not None:
            yield cell


def _like(row: Row, peers: Sequence[Row]) -> list[Row]:
    """Return the peers whose answers are as small and as true."""
    return [
        peer
        for peer in peers
        if peer.figures.ratio <= SAME_SIZE * row.figures.ratio
        and peer.figures.true >= row.figures.true
    ]


def _builds(row: Row, peer: Row) -> float:
    """Return guided's builds to compare with a peer's."""
    return row.figures.calls if ALGORITHMS[peer.algorithm].proves else row.figures.answer


def _cell(row: Row, figure: float, allowed: float, text: str) -> Cell:
    where = f"{row.structure} n={row.size} k={row.kept} rho={row.rho}"
    return Cell(excess=figure / allowed, text=f"{where}: {text}")
