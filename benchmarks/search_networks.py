"""The searches against each other on real networks, with the emulator as the engine.

    python tests/minilm.py minilm
    python benchmarks/search_networks.py --out benchmarks/results/search_networks.json
    python benchmarks/search_networks.py --networks nafnet --algorithms guided quickxplain

The searches are not told: builds are the emulator's errors over all inputs, forecasts those over a
few of them. A search is cut off after 1,500 builds. Sizes are numbers of kept layers. Errors are
kept for the process, and a build that two searches ask for is counted for both. `--out` also
writes the tables beside it, as Markdown, after every piece. Rows that are in it stay unless they
are run again; with `--resume` those are not. One process per core, as every emulated trial runs on
one thread.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from search_algorithms import ALGORITHMS
from search_drive import Judge, low_mask, outcome
from search_networks_table import markdown, summary
from search_oracles import Floats, Mask
from search_rows import Row, beginning, labels, lines, load, save, spread
from search_run import Subject, search

from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.trial import Kind, Outcome, Proposal, SampleSet

EXAMPLE = Path(__file__).parents[1] / "examples" / "nafnet"
MOST = 1500
FORECAST_BY = 3
"""Of so many inputs one makes the forecasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A model with its inputs, and three limits; `None` as folder means `--folder`."""

    model: str
    limit: Literal["tol", "atol"]
    limits: tuple[float, float, float]
    folder: Path | None = None
    inputs: str = "inputs"


NETWORKS = {
    "nafnet": Network(model="nafnet.onnx", limit="tol", limits=(3e-3, 1e-2, 3e-2), folder=EXAMPLE),
    "minilm13": Network(model="minilm13.onnx", limit="atol", limits=(1e-4, 2e-4, 3e-4)),
    "minilm17": Network(model="minilm17.onnx", limit="atol", limits=(1e-4, 2e-4, 3e-4)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One algorithm on one network at one limit."""

    network: str
    folder: Path
    limit: float
    algorithm: str
    workers: tuple[int, ...]

    @property
    def case(self) -> str:
        """What the rows are called."""
        return f"{self.network} {NETWORKS[self.network].limit} {self.limit:g}"

    @property
    def names(self) -> frozenset[tuple[str, str]]:
        """The case and algorithm of each of its rows."""
        return frozenset((self.case, label) for label in labels(self.algorithm))


class Emulated:
    """A network whose plans the emulator judges, each once; errors do not depend on the limit.

    Raises a PrecisionBisectError where the model or its inputs cannot be read.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        place = network.folder or folder
        limits = {network.limit: network.limits[0]}
        options = Options(
            model=place / network.model,
            inputs=place / network.inputs,
            backend="emulated",
            threads=1,
            **limits,  # type: ignore[arg-type]
        )
        with tempfile.TemporaryDirectory() as work:
            prepared = prepare(options, ignore, Path(work))
        assert prepared.here is not None
        self.problem: Problem = prepared.problem
        feeds, reference = prepared.case.sets[SampleSet.JUDGED]
        few = feeds[::FORECAST_BY], reference[::FORECAST_BY]
        self._evaluate = Evaluator(
            backend=prepared.here,
            emulator=prepared.here,
            comparator=prepared.case.comparator,
            samples={SampleSet.JUDGED: (feeds, reference), SampleSet.RANKING: few},
            keep=Path(),
        )
        self._errors: dict[tuple[SampleSet, bytes], float] = {}

    def error(self, low: Mask, samples: SampleSet) -> float:
        """Return the error, in the limit's own unit; infinite where there is no verdict."""
        key = samples, np.packbits(low).tobytes()
        if key not in self._errors:
            plan = Plan.of(int(layer) for layer in np.flatnonzero(~low))
            found = self._evaluate(Proposal(plan=plan, samples=samples))
            self._errors[key] = float("inf") if found.error is None else found.error
        return self._errors[key]

    def judge(self, limit: float) -> Judge:
        """Return the judge by a limit; a rebuild is the same as the build."""

        def judged(low: Mask, kind: Kind) -> Outcome:
            samples = SampleSet.RANKING if kind is Kind.PREDICT else SampleSet.JUDGED
            return outcome(self.error(low, samples) / limit)

        return judged

    def correlation(self) -> float:
        """Return the Spearman correlation of the single layers' forecasts and errors."""
        size = self.problem.size
        alone = [low_mask(Plan.all_high(size).without((layer,)), size) for layer in range(size)]
        seen, true = (
            _ranks(np.array([self.error(low, samples) for low in alone]))
            for samples in (SampleSet.RANKING, SampleSet.JUDGED)
        )
        return round(float(np.corrcoef(seen, true)[0, 1]), 3)


def run(task: Task) -> list[Row]:
    """Run a task and return its rows; `kept` is 1, so that the ratio is the number of layers."""
    emulated = _emulated(task.network, task.folder)
    judge = emulated.judge(task.limit)
    searched = Subject(
        problem=replace(emulated.problem, tolerance=1.0, builds=True),
        judge=judge,
        exact=judge,
        most=MOST,
    )
    ranked = ALGORITHMS[task.algorithm].ranked
    rho = emulated.correlation() if ranked else None
    return [
        Row(
            structure=task.case,
            size=emulated.problem.size,
            kept=1,
            rho=rho,
            algorithm=label,
            seeds=1,
            figures=figures,
        )
        for label, figures in search(task.algorithm, searched, task.workers)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for. Returns 2 where there is nothing to run."""
    given = parse(argv)
    rows = load(given.out) if given.out else []
    done = {(row.structure, row.algorithm) for row in rows} if given.resume else set()
    todo = [task for task in tasks(given) if not task.names <= done]
    again = {name for task in todo for name in task.names}
    rows = [row for row in rows if (row.structure, row.algorithm) not in again]
    if not todo and not rows:
        print("nothing to run: no such algorithm", file=sys.stderr)
        return 2
    started = time.perf_counter()
    for found in spread(run, todo, given.jobs):
        rows += found
        print("\n".join(lines(found)), flush=True)
        if given.out:
            save(rows, given.out, markdown(rows))
    print(f"{time.perf_counter() - started:.0f} s, {given.jobs} processes")
    print("\n".join(summary(rows)))
    return 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("minilm"), help="MiniLM's folder")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--limits", nargs="+", type=float, default=None)
    parser.add_argument("--algorithms", nargs="+", default=[""], help="beginnings of names")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the rows")
    parser.add_argument("--resume", action="store_true", help="skip what --out has")
    return parser.parse_args(argv)


def tasks(given: argparse.Namespace) -> list[Task]:
    """Return what to run, network by network, so that a process keeps what it loaded."""
    return [
        Task(
            network=name,
            folder=given.folder,
            limit=limit,
            algorithm=algorithm,
            workers=tuple(given.workers),
        )
        for name in given.networks
        for algorithm in beginning(given.algorithms)
        for limit in given.limits or NETWORKS[name].limits
    ]


@lru_cache(maxsize=1)
def _emulated(name: str, folder: Path) -> Emulated:
    return Emulated(NETWORKS[name], folder)


def _ranks(values: Floats) -> Floats:
    """Return places in ascending order, the mean place among equal ones; shape (layers,)."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts + 1) / 2)[places])


if __name__ == "__main__":
    sys.exit(main())
