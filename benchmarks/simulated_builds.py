r"""What a certificate costs where a build takes a minute: whole runs on a simulated engine.

    python tests/minilm.py minilm
    python benchmarks/simulated_builds.py --out benchmarks/results/simulated_builds.json
    python benchmarks/simulated_builds.py --networks nafnet culprits additive \
        --certify forecasts --workers 1 8 64 --out benchmarks/results/simulated_fleet.json

A build takes 60 s, a forecast 0.04 s (NAFNet's on an H100); nobody waits for either. Each build
multiplies the error by lognormal noise of 5% of its own. NAFNet and MiniLM are judged by the
emulator over all inputs; `generated` has the other two networks. The flow of a run is driven as it
is: preflight, curve, search, certificate, re-check. One row per network, certificate and seed of
the noise: seconds and builds until the answer had passed, and until the end. An answer that is
widened, as it does not hold, is not certified. `drops_built` counts the kept layers without which
the plan was built and failed, `needless` those without which it passes but for the noise. Builds
of one batch run side by side on the `--workers`, forecasts one after the other; `busy` is the
share of the workers' time in which they built.
"""

import argparse
import itertools
import json
import math
import platform
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from search_drive import low_mask, outcome, problem
from search_networks import NETWORKS, Emulated
from search_oracles import Mask

from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.protocols import Problem, Search, T
from precision_bisect.trial import (
    Evidence,
    Identity,
    Kind,
    Outcome,
    Proposal,
    SampleSet,
    Stability,
)
from precision_bisect_strategies.guided import Guided

BUILD_S, FORECAST_S, NOISE = 60.0, 0.04, 0.05
REAL = {"nafnet": 3e-3, "minilm13": 2e-4, "minilm17": 2e-4}
GENERATED = {"culprits": b"c", "additive": b"a"}
SIZE, KEPT, OFF = 500, 20, 0.1
COPIES = 16

Errors: TypeAlias = Callable[[Mask], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A network: the engine's error of a plan without noise, and the emulator's."""

    problem: Problem
    exact: Errors
    forecast: Errors


class Engine:
    """Answers proposals and counts the seconds that they would take.

    `passed` has the builds and seconds at which a plan first passed, without those of its batch;
    `failed` what failed in one.
    """

    def __init__(self, subject: Subject, seed: int, workers: int = 1) -> None:
        self._subject = subject
        self._workers = workers
        self._seed = seed
        self._known: dict[Identity, Outcome] = {}
        self.builds, self.seconds = 0, 0.0
        self.passed: dict[Plan, tuple[int, float]] = {}
        self.failed: set[Plan] = set()

    def run(self, search: Search[T]) -> T:
        """Feed a search until it ends, and return its result."""
        try:
            batch = next(search)
            while True:
                before = self.builds
                answers = tuple(map(self._answer, batch))
                self.seconds += BUILD_S * -(-(self.builds - before) // self._workers)
                batch = search.send(answers)
        except StopIteration as end:
            result: T = end.value
            return result

    def _answer(self, proposal: Proposal) -> Outcome:
        if proposal.identity not in self._known:
            found = self._known[proposal.identity] = self._evaluate(proposal)
            if found.passed and proposal.kind is not Kind.PREDICT:
                self.passed.setdefault(proposal.plan, (self.builds, self.seconds))
            elif proposal.kind is not Kind.PREDICT:
                self.failed.add(proposal.plan)
        return self._known[proposal.identity]

    def _evaluate(self, proposal: Proposal) -> Outcome:
        low = low_mask(proposal.plan, self._subject.problem.size)
        if proposal.kind is Kind.PREDICT:
            self.seconds += FORECAST_S
            return replace(outcome(self._subject.forecast(low)), wall_s=FORECAST_S)
        self.builds += 1
        luck = random.Random(f"{self._seed}:{proposal.identity}").gauss()
        error = self._subject.exact(low) * math.exp(NOISE * luck)
        found = replace(outcome(0.0 if proposal.kind is Kind.REPEAT else error), wall_s=BUILD_S)
        if not proposal.draw:
            return found
        # Copies run in one build, whose noise they share.
        failed = 0 if found.passed else COPIES
        stability = Stability(
            copies=COPIES, failed=failed, error_median=error, error_max=error, jitter=0.0
        )
        return replace(found, evidence=Evidence(stability=stability))


def real(name: str, folder: Path) -> Subject:
    """Return a real network; errors are in units of its limit."""
    emulated = Emulated(NETWORKS[name], folder)
    limit = REAL[name]

    def error(low: Mask) -> float:
        return emulated.error(low, SampleSet.JUDGED) / limit

    asked = replace(emulated.problem, tolerance=1.0, builds=True)
    return Subject(problem=asked, exact=error, forecast=error)


def generated(name: str, seed: int) -> Subject:
    """Return a generated network, another one for each seed.

    Independent errors add up to the power 2. Of `culprits` 20 layers each break the limit, by up
    to 30 times; `additive` errors are lognormal (sigma 2), and 20 layers are too many. Forecasts
    of layers are off by 10% (lognormal), as on real kernels.
    """
    rng = np.random.default_rng([seed, *GENERATED[name]])
    if name == "culprits":
        errors = np.exp(rng.standard_normal(SIZE))
        errors *= 0.5 / math.sqrt((errors**2).sum())
        errors[rng.choice(SIZE, KEPT, replace=False)] = np.geomspace(1.2, 30.0, KEPT)
    else:
        errors = np.sort(np.exp(2.0 * rng.standard_normal(SIZE)))
        errors /= math.sqrt((errors[:-KEPT] ** 2).sum() + errors[-KEPT] ** 2 / 2)
        rng.shuffle(errors)
    forecasts = errors * np.exp(OFF * rng.standard_normal(SIZE))
    return Subject(
        problem=problem(SIZE, seed=seed),
        exact=lambda low: math.sqrt(float((errors[low] ** 2).sum())),
        forecast=lambda low: math.sqrt(float((forecasts[low] ** 2).sum())),
    )


def row(name: str, seed: int, subject: Subject, mode: Any, workers: int) -> dict[str, Any]:
    """Run one network with one seed of the noise, and return its figures."""
    engine = Engine(subject, seed, workers)
    course = Course(certify=mode, copies=True, curve=True)
    asked = replace(subject.problem, workers=workers)
    ending = engine.run(flow(asked, Guided(), course))
    found: dict[str, Any] = {"network": name, "seed": seed, "certify": mode, "workers": workers}
    found["busy"] = round(engine.builds * BUILD_S / (workers * engine.seconds), 3)
    found |= {"status": ending.status.value, "widened": bool(ending.spread)}
    found |= {"builds": engine.builds, "seconds": round(engine.seconds)}
    if ending.plan is None:
        return found
    builds, seconds = engine.passed[ending.plan]
    drops = {layer: ending.plan.without((layer,)) for layer in ending.plan.indices}
    needless = {
        layer
        for layer, drop in drops.items()
        if subject.exact(low_mask(drop, subject.problem.size)) <= 1.0
    }
    unbuilt = {layer for layer, drop in drops.items() if drop not in engine.failed}
    found |= {"answer_builds": builds, "answer_s": round(seconds), "kept": len(drops)}
    found |= {"drops_built": len(drops) - len(unbuilt), "needless": len(needless)}
    return found | {"needless_unbuilt": len(needless & unbuilt)}


def rows(
    names: Sequence[str], seeds: int, folder: Path, modes: Sequence[str], workers: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield one row per network, certificate, workers and seed, printing each."""
    for name in names:
        subject = real(name, folder) if name in REAL else None
        for mode, count, seed in itertools.product(modes, workers, range(seeds)):
            found = row(name, seed, subject or generated(name, seed), mode, count)
            print(json.dumps(found), flush=True)
            yield found


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=[*REAL, *GENERATED])
    parser.add_argument("--folder", type=Path, default=Path("minilm"), help="MiniLM's folder")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--certify", nargs="+", default=["forecasts", "full"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1])
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    found = list(rows(asked.networks, asked.seeds, asked.folder, asked.certify, asked.workers))
    if asked.out:
        about = {
            "build_s": BUILD_S,
            "forecast_s": FORECAST_S,
            "noise": NOISE,
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "rows": found,
        }
        asked.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
