"""Do answers hold where builds differ? Whole runs on simulated networks that tell no noise.

`python benchmarks/search_holds.py OUT.json` drives the flow of a run (preflight, search,
certificate, re-check; nothing is told of the noise) on structures of the search benchmark whose
builds multiply the error by lognormal noise of 0, 3 and 10%. It prints one row per structure and
noise: builds, layers kept over the optimum, the share of answers that pass without noise, that of
50 fresh builds that pass, and how many runs ended infeasible.
"""

import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import search_oracles
from search_drive import low_mask, outcome, problem
from search_oracles import Network, Noisy, instance

from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search, T
from precision_bisect.runs.results.endings import Status
from precision_bisect.trial import Evidence, Identity, Kind, Outcome, Proposal, Stability
from precision_bisect_strategies.guided import Guided

STRUCTURES, NOISES, SEEDS = "ABC", (0.0, 0.03, 0.1), 8
SIZE, KEPT, RHO = 200, 20, 0.98
FRESH = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Means over the seeds; see the module."""

    structure: str
    noise: float
    builds: float
    ratio: float
    true: float
    fresh: float
    infeasible: int


class Bench:
    """Answers proposals by a network; every build of a plan, and every draw, is another one."""

    def __init__(self, truth: Network, emulator: Network) -> None:
        self._truth = truth
        self._emulator = emulator
        self._known: dict[Identity, Outcome] = {}
        self._built: dict[Plan, int] = {}
        self.builds = 0

    def run(self, search: Search[T]) -> T:
        """Feed a search until it ends, and return its result."""
        try:
            batch = next(search)
            while True:
                batch = search.send(tuple(map(self._answer, batch)))
        except StopIteration as end:
            result: T = end.value
            return result

    def _answer(self, proposal: Proposal) -> Outcome:
        if proposal.identity not in self._known:
            low = low_mask(proposal.plan, SIZE)
            if proposal.kind is Kind.PREDICT:
                error = self._emulator.error(low)
            else:
                draw = self._built[proposal.plan] = self._built.get(proposal.plan, -1) + 1
                error = self._truth.error(low, draw)
                self.builds += 1
                if proposal.kind is Kind.REPEAT:
                    error = abs(error - self._truth.error(low, 0))
            found = outcome(error)
            if proposal.draw:
                found = replace(found, evidence=Evidence(stability=_of_one_build(found)))
            self._known[proposal.identity] = found
        return self._known[proposal.identity]


def _of_one_build(found: Outcome) -> Stability:
    """Return what copies tell within one build: its noise is that of the build alone."""
    return Stability(
        copies=16,
        failed=0 if found.passed else 16,
        error_median=found.error,
        error_max=found.error,
        jitter=0.0,
    )


def held(structure: str, noise: float) -> Held:
    """Run every seed of one structure at one noise."""
    search_oracles.NOISE = noise
    found: list[tuple[int, tuple[float, bool, float] | None, Status]] = []
    for seed in range(SEEDS):
        network = instance(structure, SIZE, KEPT, RHO, seed)
        truth = Noisy(network=network.exact, seed=seed) if noise else network.exact
        bench = Bench(truth, network.emulator)
        asked = replace(problem(SIZE, seed=seed), noise=0.0)
        ending = bench.run(
            flow(asked, Guided(), Course(certify="forecasts", copies=True, curve=True))
        )
        if ending.plan is None:
            found.append((bench.builds, None, ending.status))
            continue
        low = low_mask(ending.plan, SIZE)
        fresh = fmean(truth.error(low, 1000 + i) <= 1.0 for i in range(FRESH))
        figures = len(ending.plan) / KEPT, network.exact.error(low) <= 1.0, fresh
        found.append((bench.builds, figures, ending.status))
    answers = [figures for _, figures, _ in found if figures is not None]
    return Held(
        structure=structure,
        noise=noise,
        builds=fmean(builds for builds, _, _ in found),
        ratio=fmean(ratio for ratio, _, _ in answers),
        true=fmean(true for _, true, _ in answers),
        fresh=fmean(fresh for _, _, fresh in answers),
        infeasible=sum(status is Status.INFEASIBLE for _, _, status in found),
    )


def rows() -> Iterator[Held]:
    """Yield one row per structure and noise, printing each."""
    for structure in STRUCTURES:
        for noise in NOISES:
            row = held(structure, noise)
            print(
                f"{row.structure} {row.noise:4.0%}  builds {row.builds:5.1f}  "
                f"kept {row.ratio:4.2f}  true {row.true:4.0%}  fresh {row.fresh:4.0%}  "
                f"infeasible {row.infeasible} of {SEEDS}",
                flush=True,
            )
            yield row


def main(out: Path) -> None:
    """Run the grid and write it."""
    grid = {"size": SIZE, "kept": KEPT, "rho": RHO, "seeds": SEEDS, "fresh": FRESH}
    found = {
        "grid": grid,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "command": "python benchmarks/search_holds.py benchmarks/results/holds.json",
        "rows": [asdict(row) for row in rows()],
    }
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
