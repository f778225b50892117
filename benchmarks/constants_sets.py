"""What `constants.py` runs: sets of cases, and what each came to.

| set | what runs |
|---|---|
| `search` | `guided` on 36 simulated networks of 200 layers (`search_oracles.py`) |
| `large` | the same on six networks of 1,000 layers |
| `verdicts` | 18 of them where plans only pass or fail, without figures |
| `emulated` | six of 1,000 layers where the emulator judges, too |
| `workers` | `guided` and `probdd` with 4 workers, counted in rounds |
| `probdd`, `hierarchical` | these strategies, the latter on layers without scopes |
| `course` | whole runs on a simulated engine whose builds differ (`simulated_builds.py`) |
| `speed` | whole runs under a limit on speed, on a simulated clock (`tests/paced.py`) |
| `pareto` | `pareto` on the same clock |
| `models` | the main command on small models of the tests, from the file to the advice |
| `nafnet` | the main command on the example |
"""

import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

from search_drive import TOLERANCE, Bench, certified, low_mask, problem, simulated
from search_oracles import STRUCTURES, instance
from simulated_builds import Engine, generated

import precision_bisect
from precision_bisect.explaining.diagnosis.findings import read_diagnosis
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import SpeedLimits
from precision_bisect.plugins import load_strategy
from precision_bisect.protocols import Strategy
from precision_bisect.search.limits_and_noise import below_noise
from precision_bisect.trial import Kind
from precision_bisect_strategies.guided import Guided

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import ladder_model
import oracles
from advice.test_advice import PIECES
from diagnosis.test_selections import keypoints
from field_cases import FIELD_CASES
from models import normal, parse, save
from norm_spellings import large
from paced import Clock, case, chain, run
from reported_models import attention, detector, stretched
from simulated import by

ROOT = Path(__file__).parents[1]
KEPT, RHOS, SEEDS = 20, (0.98, 0.9, 0.6), 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one case came to; `told` are causes and advice, `ms` is the answer's latency."""

    builds: float
    forecasts: float = 0.0
    kept: float = 0.0
    wrong: bool = False
    answer: Any = None
    told: Any = None
    ms: float = 0.0


def searched(
    name: str,
    structure: str,
    rho: float,
    seed: int,
    *,
    size: int = 200,
    workers: int = 1,
    without: Literal["", "names", "figures", "builds"] = "",
) -> Figures:
    """Search one simulated network; with several workers `builds` are rounds.

    `without` names the layers have no scopes, without `figures` plans only pass or fail, without
    `builds` the emulator judges.
    """
    network = instance(structure, size, KEPT, rho, seed)
    asked = problem(size, workers=workers, noise=network.noise, seed=seed)
    asked, judge = below_noise(asked, 0.0), simulated(network)
    if without == "names":
        asked = replace(asked, names=[f"layer{layer}" for layer in range(size)])
    if without == "builds":
        asked = replace(asked, builds=False)
        network = replace(network, truth=network.emulator, exact=network.emulator)
        judge = simulated(network)
    if without == "figures":
        asked = replace(asked, tolerance=None)
        bench = Bench(judge=lambda *plan: replace(judge(*plan), error=None), size=size)
    else:
        bench = Bench(judge=judge, size=size)
    plan = certified(load_strategy(name).search, bench, asked, "forecasts")
    return Figures(
        builds=bench.rounds(workers),
        forecasts=bench.forecasts,
        kept=len(plan),
        wrong=network.exact.error(low_mask(plan, size)) > TOLERANCE,
        answer=plan.key,
    )


def coursed(name: str, seed: int) -> Figures:
    """Do a whole run on a generated network whose builds differ."""
    subject = generated(name, seed)
    engine = Engine(subject, seed)
    course = Course(certify="forecasts", copies=True, curve=True)
    ending = engine.run(flow(subject.problem, Guided(), course))
    assert ending.plan is not None
    return Figures(
        builds=engine.builds,
        kept=len(ending.plan),
        wrong=subject.exact(low_mask(ending.plan, subject.problem.size)) > 1.0,
        answer=ending.plan.key,
    )


def paced(seed: int, size: int, strategy: Callable[[], Strategy], needed: float | None) -> Figures:
    """Do a whole run on a simulated clock, under a limit on speed if one is `needed`."""
    luck = random.Random(seed)
    errors = [luck.lognormvariate(0.0, 2.0) for _ in range(size)]
    errors = [2.0 * oracles.TOLERANCE * each / sum(errors) for each in errors]
    graph = chain([luck.choice((0.01, 0.2, 1.0)) for _ in range(size)], 0.1)
    limits = None if needed is None else SpeedLimits(min_speedup=needed)
    clock = Clock(graph, noise=0.005)
    asked = case(by(oracles.additive(errors)), graph, limits, clock, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        ending, driver = run(asked, Path(folder), strategy=strategy())
        kinds = [trial.proposal.kind for trial in driver.trials]
    plan = Plan.all_high(size) if ending.plan is None else ending.plan
    return Figures(
        builds=sum(kind is not Kind.PREDICT for kind in kinds),
        forecasts=kinds.count(Kind.PREDICT),
        kept=len(plan),
        wrong=ending.plan is None or not oracles.additive(errors)(plan.kept).passed,
        answer=plan.key,
        ms=clock.true_ms(plan),
    )


def modelled(proto: Any, feeds: Sequence[Any], options: Mapping[str, Any]) -> Figures:
    """Do what the main command does on a small model."""
    with tempfile.TemporaryDirectory() as folder:
        return main_command(save(proto, Path(folder)), {"inputs": feeds, **options})


def main_command(path: Path, options: Mapping[str, Any]) -> Figures:
    """Do what the main command does; `builds` are its trials."""
    usual = {"inputs": path.parent / "inputs", "tol": 1e-2, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = precision_bisect.find(path, out=out, **{**usual, **options})
        findings = read_diagnosis(out)
    return Figures(
        builds=result.trials,
        kept=len(result.kept),
        wrong=result.status not in ("found", "nothing_to_keep"),
        answer=tuple(result.kept),
        told=(
            tuple((each.layer, each.cause, each.kept) for each in findings.layers),
            tuple((each.id, each.passed) for each in result.advice),
        ),
    )


@cache
def models() -> Sequence[tuple[Any, Sequence[Any], Mapping[str, Any]]]:
    """Return the small models, their samples and options."""
    found: list[tuple[Any, Sequence[Any], Mapping[str, Any]]] = []
    for make in FIELD_CASES.values():
        field = make()
        found.append((field.model, field.samples, {"tol": field.tolerance}))
    for text, scale, tol in PIECES.values():
        found.append((parse(text), large(scale), {"tol": tol}))
    for made in (detector, keypoints):
        found.append((*made(), {"tol": 1e-3}))
    found.append((*attention(), {}))
    int8 = {"low": "int8", "tol": 0.1, "backend": "emulated"}
    many = [{"x": normal(8, 32, seed=seed)} for seed in range(24)]
    for largest in (400.0, 30.0):
        proto, few = stretched(largest)
        found.append((proto, few, int8))
        found.append((proto, many, {**int8, "tol": 0.03, "calibration": "percentile"}))
    rungs = ("int8", "fp16", "fp32")
    for tol in (0.1, 0.03):
        asked = {"ladder": rungs, "tol": tol, "backend": "emulated"}
        found.append((ladder_model.model(), ladder_model.samples(), asked))
    found.append((ladder_model.model(), many, {"tol": 3e-4, "risk": 0.1, "holdout": 4}))
    return found


ALL = list(product(STRUCTURES, RHOS, range(SEEDS)))
FIRST = [each for each in ALL if each[1:] == (0.9, 0)]
SETS: Mapping[str, Callable[[], Sequence[Callable[[], Figures]]]] = {
    "search": lambda: [partial(searched, "guided", *each) for each in ALL],
    "large": lambda: [partial(searched, "guided", s, 0.98, 0, size=1000) for s in STRUCTURES],
    "verdicts": lambda: [
        partial(searched, "guided", *each, without="figures") for each in ALL if each[2] == 0
    ],
    "emulated": lambda: [
        partial(searched, "guided", s, 0.98, 0, size=1000, without="builds") for s in STRUCTURES
    ],
    "workers": lambda: [
        partial(searched, name, *each, workers=4)
        for name in ("guided", "probdd")
        for each in FIRST
    ],
    "probdd": lambda: [partial(searched, "probdd", *each) for each in ALL if each[2] == 0],
    "hierarchical": lambda: [
        partial(searched, "hierarchical", *each, without="names") for each in FIRST
    ],
    "course": lambda: [partial(coursed, n, s) for n in ("culprits", "additive") for s in range(6)],
    "speed": lambda: [partial(paced, seed, 24, Guided, 2.0) for seed in range(12)],
    "pareto": lambda: [
        partial(paced, seed, 48, partial(load_strategy, "pareto"), None) for seed in range(4)
    ],
    "models": lambda: [partial(modelled, *each) for each in models()],
    "nafnet": lambda: [partial(main_command, ROOT / "examples" / "nafnet" / "nafnet.onnx", {})],
}


def ran(one: str) -> list[Figures]:
    """Run a set."""
    return [run_one() for run_one in SETS[one]()]
