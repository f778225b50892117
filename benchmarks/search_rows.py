"""Rows of the search benchmarks: in order, as lines for a terminal, as JSON; and their making."""

import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from search_algorithms import ALGORITHMS
from search_run import Figures

T = TypeVar("T")
Name: TypeAlias = tuple[str, int, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The mean figures of an algorithm in a cell; `rho` is None where it plays no part."""

    structure: str
    size: int
    kept: int
    rho: float | None
    algorithm: str
    seeds: int
    figures: Figures

    @property
    def cell(self) -> tuple[int, int]:
        """The number of layers and the optimum."""
        return self.size, self.kept


CELL = tuple(field.name for field in fields(Row) if field.name != "figures")
FIGURES = tuple(field.name for field in fields(Figures))


def beginning(beginnings: Sequence[str]) -> list[str]:
    """Return the algorithms whose names begin with one of these."""
    return [name for name in ALGORITHMS if name.startswith(tuple(beginnings))]


def labels(algorithm: str) -> list[str]:
    """Return what the rows of an algorithm are called: one per certificate."""
    return [f"{algorithm} {mode}" for mode in ALGORITHMS[algorithm].certificates] or [algorithm]


def named(row: Row) -> Name:
    """Return the row's structure, numbers of layers and of its optimum, and algorithm."""
    return row.structure, row.size, row.kept, row.algorithm


def spread(
    function: Callable[[T], list[Row]], tasks: Sequence[T], jobs: int
) -> Iterator[list[Row]]:
    """Yield the rows of each task as it ends, with so many processes."""
    if jobs == 1:
        yield from map(function, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(function, tasks)


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield one line per row."""
    for row in ordered(rows):
        rho = "any " if row.rho is None else f"{row.rho:.2f}"
        f = row.figures
        rounds = "/".join(f"{f.rounds[workers]:.1f}" for workers in sorted(f.rounds))
        yield (
            f"{row.structure:2} n={row.size:<4} k={row.kept:<2} rho={rho} {row.algorithm:25} "
            f"calls {f.calls:7.1f}  size {f.ratio:6.3f}  answer {f.answer:7.1f}  "
            f"1-min {f.minimal:4.0%}  true {f.true:4.0%}  again {f.again:4.0%}  "
            f"rounds {rounds:>17}  forecasts {f.forecasts:7.0f}  cpu {f.seconds:6.2f} s"
        )


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return the rows by cell, ranked ones first, and algorithms in their usual order."""
    names = list(ALGORITHMS)

    def place(row: Row) -> tuple[Any, ...]:
        name = "guided" if row.algorithm.startswith("guided") else row.algorithm
        rho = -1.0 if row.rho is None else row.rho
        return row.structure, row.size, row.kept, -rho, names.index(name)

    return sorted(rows, key=place)


def save(rows: Sequence[Row], path: Path, tables: str) -> None:
    """Write the rows as JSON, names of the columns first, and the tables as Markdown beside it."""
    entries = [json.dumps(_packed(row), separators=(",", ":")) for row in ordered(rows)]
    head = json.dumps([*CELL, *FIGURES])
    path.write_text(f"[\n{head},\n" + ",\n".join(entries) + "\n]\n", encoding="utf-8")
    path.with_suffix(".md").write_text(tables, encoding="utf-8")


def load(path: Path) -> list[Row]:
    """Read rows; none where there is no such file."""
    if not path.exists():
        return []
    rows = []
    for entry in json.loads(path.read_text(encoding="utf-8"))[1:]:
        figures = dict(zip(FIGURES, entry[len(CELL) :], strict=True))
        for name in ("rounds", "calls_with"):
            figures[name] = {int(key): value for key, value in figures[name].items()}
        cell = dict(zip(CELL, entry[: len(CELL)], strict=True))
        rows.append(Row(**cell, figures=Figures(**figures)))
    return rows


def _packed(row: Row) -> list[Any]:
    cell = [getattr(row, name) for name in CELL]
    return cell + [_rounded(getattr(row.figures, name)) for name in FIGURES]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return int(value) if value == int(value) else round(value, 4)
