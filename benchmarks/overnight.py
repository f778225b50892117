"""What the driver adds to a thousand trials, and whether it grows.

    python benchmarks/overnight.py examples/nafnet/nafnet.onnx

Random plans of the model are evaluated by the emulator, one after the other, through a driver with
all that a run has: a ledger on disk, the log of events, the live status. Once in this process and
once in a child, each in a process of its own. So many made-up inputs judge that a trial takes
about 40 ms. Overhead is the time that the driver spends on a trial, over the time that its
evaluation takes where that happens; what handing it to a child takes is told apart. Sizes are
taken after 100 trials and at the end. Exit code 1 tells that a limit was exceeded.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engine import machine
from overnight_figures import Figures, Sizes
from overnight_spec import Timed, TimedSpec

from precision_bisect.execution.process_evaluator import Isolated
from precision_bisect.machine.workdir import workdir
from precision_bisect.options import Options
from precision_bisect.pipeline.evaluators import evaluators
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.plan import Plan
from precision_bisect.protocols import Search
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.runs.monitoring.attend import Attended
from precision_bisect.runs.monitoring.events import (
    Event,
    RunStarted,
    TrialFinished,
    ignore,
    tell_all,
)
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.search.budget import Budget
from precision_bisect.search.driver import Driver
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.search.workers import Workers
from precision_bisect.settings.worker_options import Isolate
from precision_bisect.trial import Outcome, Proposal

WARM = 100
"""After so many trials everything that is made once is there."""
TRIAL_S = 0.040
WHERE: Sequence[Isolate] = ("never", "always")
PACKAGES = ("numpy", "onnx", "onnxruntime", "loky", "precision-bisect")


class Clock:
    """Adds up the seconds of evaluations, here and where they happen; takes the first sizes."""

    def __init__(self, evaluate: Callable[[Proposal], Outcome]) -> None:
        self._evaluate = evaluate
        self._trials = 0
        self.asked_s = self.evaluated_s = 0.0
        self.warm: Sizes | None = None

    def __call__(self, proposal: Proposal) -> Outcome:
        """Evaluate a proposal."""
        begun = time.perf_counter()
        outcome = self._evaluate(proposal)
        self.asked_s += time.perf_counter() - begun
        self.evaluated_s += outcome.wall_s
        return outcome

    def observe(self, event: Event) -> None:
        """Take an event of the driver."""
        self._trials += isinstance(event, TrialFinished)
        if self._trials == WARM and self.warm is None:
            self.warm = Sizes.now()


def random_plans(candidates: int, count: int) -> Search[None]:
    """Propose so many plans, each once; about half of the layers are kept."""
    rng, seen = random.Random(0), set[Plan]()
    while len(seen) < count:
        seen.add(Plan(rng.getrandbits(candidates)))
    for plan in sorted(seen):
        yield (Proposal(plan=plan, reason="a plan by chance"),)


def measure(prepared: Prepared, folder: RunFolder, trials: int) -> Figures:
    """Have random plans evaluated, and return what that took."""
    options = prepared.case.options
    with ExitStack() as held:
        ledger = held.enter_context(open_ledger(folder.ledger, prepared.fingerprint, resume=False))
        workers = held.enter_context(evaluators(prepared, folder.path))
        clock = Clock(timed(workers, prepared))
        workers = replace(workers, evaluate=clock)
        attended = held.enter_context(Attended(folder.path, ignore))
        driver = Driver(workers, ledger, Budget(), tell_all(attended, clock.observe))
        attended(_started(prepared))
        # The first trial waits for the child.
        driver.consider_all((Proposal(plan=prepared.everything),))
        clock.asked_s = clock.evaluated_s = 0.0
        load, begun = os.getloadavg()[0], time.perf_counter()
        driver.run(random_plans(len(prepared.case.model.table.candidates), trials))
        wall_s, end = time.perf_counter() - begun, Sizes.now()
    return Figures(
        isolate=options.isolate,
        trials=trials,
        inputs=len(prepared.case.samples),
        wall_s=round(wall_s, 3),
        asked_s=round(clock.asked_s, 3),
        evaluated_s=round(clock.evaluated_s, 3),
        warm=clock.warm or end,
        end=end,
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
    )


def _started(prepared: Prepared) -> RunStarted:
    """Return what opens the log and the live status."""
    return RunStarted(
        model=str(prepared.case.options.model),
        backend=prepared.backend.name,
        why="",
        strategy="random plans",
        assumption="none",
        candidates=len(prepared.case.model.table.candidates),
        layers_total=len(prepared.case.model.table.layers),
        samples=len(prepared.case.samples),
        held_out=0,
        tolerance=prepared.case.comparator.tolerance,
        resumed_trials=0,
    )


def timed(workers: Workers, prepared: Prepared) -> Callable[[Proposal], Outcome]:
    """Return what the workers evaluate with, timed where that happens."""
    if isinstance(workers.evaluate, Isolated):
        TimedSpec.of(prepared.spec).save(workers.evaluate.slots[0].spec)
        return workers.evaluate
    assert isinstance(workers.evaluate, Evaluator)
    return Timed.of(workers.evaluate)


def session(model: Path, folder: Path, isolate: Isolate, trials: int, inputs: int) -> Figures:
    """Measure trials of a model; with `inputs` 0 so many judge that a trial takes 40 ms."""
    asked = Options(
        model=model,
        out=folder,
        tol=1e9,
        low="bf16",  # Nothing overflows, so that all inputs are run.
        backend="emulated",
        isolate=isolate,
        synthetic=max(1, inputs),
        threads=1,
    )
    with workdir() as work:
        prepared = prepare(asked, ignore, work)
        if not inputs:
            first = prepare(replace(asked, isolate="never"), ignore, work)
            return session(model, folder, isolate, trials, _enough(first))
        return measure(prepared, RunFolder(folder), trials)


def _enough(prepared: Prepared) -> int:
    """Return how many inputs a trial of 40 ms runs."""
    evaluator = prepared.spec.evaluator(prepared.work)
    rounds, proposal = 20, Proposal(plan=Plan.of(()))
    evaluator(proposal)
    begun = time.perf_counter()
    for _ in range(rounds):
        evaluator(proposal)
    return max(1, round(TRIAL_S * rounds / (time.perf_counter() - begun)))


def main() -> int:
    """Measure both ways, print the figures, and write them where that is asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--inputs", type=int, default=0, help="0: as many as take 40 ms (0)")
    parser.add_argument("--isolate", choices=WHERE, help="measure this one, in this process")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.isolate:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            found = session(given.model, run, given.isolate, given.trials, given.inputs)
        print(json.dumps(found.to_json()))
        return 0
    rows = [_apart(each) for each in WHERE]
    text = json.dumps(
        {
            "model": given.model.name,
            "machine": machine(),
            "versions": {name: version(name) for name in PACKAGES},
            "sessions": rows,
        },
        indent=2,
    )
    print(text)
    if given.out is not None:
        given.out.write_text(f"{text}\n")
    return int(not all(row["within"] for row in rows))


def _apart(isolate: Isolate) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, *sys.argv, "--isolate", isolate]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
