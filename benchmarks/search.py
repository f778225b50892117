"""The searches against each other on simulated networks: builds, sizes, rounds.

    python benchmarks/search.py --out benchmarks/results/search.json     # the full table
    python benchmarks/search.py --quick                                  # under a minute
    python benchmarks/search.py --structures A B --n 500 --k 20 --rho 0.8 --algorithms guided

Seeds are fixed: 12 networks per cell up to 500 layers, 3 of 2,000, 2 of 5,000, or `--seeds`.
Strategies that can are run with several workers on 2 of these, on 1 from 2,000 layers on, and of
5,000 guided alone.
Prints a line per algorithm and cell, and which aims of the guided search held (`search_aims.py`).
Where only some algorithms run, the aims take the others' rows from `--against`. `--out` also
writes the tables beside it, as Markdown; it is written after every piece. Rows that are in it stay
unless they are run again; with `--resume` those are not.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from search_aims import aims
from search_algorithms import ALGORITHMS
from search_cells import Task, run
from search_oracles import STRUCTURES
from search_rows import Row, beginning, lines, load, named, save, spread
from search_table import markdown

SIZES = (100, 500, 2000, 5000)
KEPT = (1, 5, 20, 60)
RHOS = (1.0, 0.98, 0.8, 0.5, 0.0)
SEEDS = {100: 12, 500: 12, 2000: 3, 5000: 2}
FEW, MANY = 500, 2000
RESULTS = Path(__file__).parent / "results" / "search.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for. Returns 2 where it names no cells."""
    given = parse(argv)
    todo = tasks(given)
    if not todo:
        print("nothing to run: no such algorithm, or k is not below n/2", file=sys.stderr)
        return 2
    rows = load(given.out) if given.out else []
    waiting = [task for task in todo if not (given.resume and task.names <= {*map(named, rows)})]
    again = {name for task in waiting for name in task.names}
    rows = [row for row in rows if named(row) not in again]
    started = time.perf_counter()
    for found in spread(run, waiting, given.jobs):
        rows += found
        if given.out:
            save(rows, given.out, markdown(rows))
    print("\n".join(lines(rows)))
    print(f"{time.perf_counter() - started:.0f} s, {given.jobs} processes")
    for aim in aims(with_peers(rows, load(given.against), todo)):
        print(aim.line(given.worst))
    return 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 layers, 2 networks per cell")
    parser.add_argument("--structures", nargs="+", choices=STRUCTURES, default=STRUCTURES)
    parser.add_argument("--n", nargs="+", type=int, default=None)
    parser.add_argument("--k", nargs="+", type=int, default=None)
    parser.add_argument("--rho", nargs="+", type=float, default=None)
    parser.add_argument("--algorithms", nargs="+", default=[""], help="beginnings of names")
    parser.add_argument("--seeds", type=int, default=None, help="networks per cell")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--worst", type=int, default=3, help="cells to show of an aim missed")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the rows")
    parser.add_argument("--resume", action="store_true", help="skip what --out has")
    parser.add_argument("--against", type=Path, default=RESULTS, help="rows of other algorithms")
    return parser.parse_args(argv)


def tasks(given: argparse.Namespace) -> list[Task]:
    """Return what to run, the longest first."""
    return [
        Task(
            structure=structure,
            size=size,
            kept=kept,
            rhos=tuple(given.rho or ((0.98, 0.5) if given.quick else RHOS)),
            seeds=given.seeds or (2 if given.quick else SEEDS.get(size, 2)),
            algorithm=name,
            workers=tuple(given.workers),
            parallel=_parallel(name, size),
        )
        for size in sorted(given.n or ([100] if given.quick else SIZES), reverse=True)
        for kept in sorted(given.k or ([1, 5] if given.quick else KEPT), reverse=True)
        if kept < size / 2
        for name in beginning(given.algorithms)
        for structure in given.structures
    ]


def _parallel(algorithm: str, size: int) -> int:
    """Return on how many networks an algorithm is run with several workers, too."""
    if not ALGORITHMS[algorithm].parallel:
        return max(SEEDS.values())
    if size > MANY and algorithm != "guided":
        return 0
    return 2 if size <= FEW else 1


def with_peers(rows: Sequence[Row], others: Sequence[Row], todo: Sequence[Task]) -> list[Row]:
    """Return the rows, and those of other algorithms that were not run in the same cells."""
    cells = {task.cell for task in todo}
    ran = {row.algorithm for row in rows}
    return [
        *rows,
        *(
            row
            for row in others
            if (row.structure, row.size, row.kept) in cells and row.algorithm not in ran
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
