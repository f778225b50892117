"""One cell of the search benchmark: an algorithm on several simulated networks of a kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from search_algorithms import ALGORITHMS
from search_oracles import instance
from search_rows import FIGURES, Name, Row, labels
from search_run import Figures, search, subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One algorithm on the networks of one structure and size, for every correlation.

    It is run with several workers on the first `parallel` of the networks; the mean rounds are
    those of these networks.
    """

    structure: str
    size: int
    kept: int
    rhos: tuple[float, ...]
    seeds: int
    algorithm: str
    workers: tuple[int, ...]
    parallel: int

    @property
    def cell(self) -> tuple[str, int, int]:
        """The structure, the number of layers and the optimum."""
        return self.structure, self.size, self.kept

    @property
    def names(self) -> frozenset[Name]:
        """What its rows are named."""
        return frozenset((*self.cell, label) for label in labels(self.algorithm))


def run(task: Task) -> list[Row]:
    """Run a task and return its rows."""
    rows = []
    ranked = ALGORITHMS[task.algorithm].ranked
    for rho in task.rhos if ranked else task.rhos[:1]:
        found: dict[str, list[Figures]] = {}
        for seed in range(task.seeds):
            network = instance(task.structure, task.size, task.kept, rho, seed)
            workers = task.workers if seed < task.parallel else task.workers[:1]
            for label, figures in search(task.algorithm, subject(network), workers):
                if len(workers) < len(task.workers):
                    figures.rounds, figures.calls_with = {}, {}
                found.setdefault(label, []).append(figures)
        rows += [
            Row(
                structure=task.structure,
                size=task.size,
                kept=task.kept,
                rho=rho if ranked else None,
                algorithm=label,
                seeds=task.seeds,
                figures=mean(several),
            )
            for label, several in found.items()
        ]
    return rows


def mean(several: Sequence[Figures]) -> Figures:
    """Return the mean of every figure."""

    def over(values: Sequence[dict[int, float]]) -> dict[int, float]:
        some = [value for value in values if value]
        return {key: fmean(value[key] for value in some) for key in (some or [{}])[0]}

    singles = [name for name in FIGURES if name not in ("rounds", "calls_with")]
    return Figures(
        **{name: fmean(getattr(figures, name) for figures in several) for name in singles},
        rounds=over([figures.rounds for figures in several]),
        calls_with=over([figures.calls_with for figures in several]),
    )
