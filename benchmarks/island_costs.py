"""What islands of kept layers are said to save, and what engines without them save.

    python benchmarks/island_costs.py MODEL INPUTS RUN [--islands 3] [--rounds 11]

RUN is the folder of a finished run of MODEL with these inputs, on ONNX Runtime on CUDA. Its answer
is profiled as a run does it. Then the answer, every layer low, the answer without each of the
dearest islands, and without all of these, are opened as they are deployed, and timed in turns.
Prints JSON: milliseconds; `predicted` by kernels scaled to the answer's latency, `unscaled` by
kernels as they were profiled, `saved` the quartiles of what was measured, over the rounds.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from precision_bisect.layer_table import LayerName
from precision_bisect.options import Options
from precision_bisect.pipeline.deploying import profiling
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.plan import Plan
from precision_bisect.protocols import Engine, Sample
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_result
from precision_bisect.runs.runfolder import RESULT

PROFILE_S = 600.0


def compared(
    prepared: Prepared,
    plan: Plan,
    build: Callable[[Plan], Engine],
    *,
    islands: int = 3,
    rounds: int = 11,
) -> dict[str, Any]:
    """Return what the dearest islands of a plan are said to save, and what they do save.

    `build` opens a plan as it is deployed.
    """
    with profiling(prepared) as profiled:
        raw = profiled(plan, None, PROFILE_S)
    names = prepared.case.model.table.names
    dearest = [
        [names.index(LayerName(layer)) for layer in each.layers] for each in raw.islands[:islands]
    ]
    whole = [layer for each in dearest for layer in each]
    plans = {
        "answer": plan,
        "all low": Plan.of(()),
        **{str(place): plan.without(each) for place, each in enumerate(dearest)},
        "without all": plan.without(whole),
    }
    times = in_turns(plans, build, prepared.case.samples[0], rounds)
    answer = statistics.median(times["answer"])
    scale = answer / raw.total_ms if raw.total_ms else 1.0
    rows = [
        {
            "layers": len(each.layers),
            "name": each.name,
            "predicted": each.saves_ms * scale,
            "unscaled": each.saves_ms,
            "casts": each.casts_ms,
            "saved": spread(times["answer"], times[str(place)]),
        }
        for place, each in enumerate(raw.islands[:islands])
    ]
    return {
        "latency": {name: statistics.median(found) for name, found in times.items()},
        "profiled": {"answer": raw.total_ms, "low": raw.low_ms, "other": raw.other_ms},
        "scale": scale,
        "islands": len(raw.islands),
        "dearest": rows,
        "together": {
            "predicted": scale * sum(each.saves_ms for each in raw.islands[:islands]),
            "saved": spread(times["answer"], times["without all"]),
        },
    }


def in_turns(
    plans: Mapping[str, Plan], build: Callable[[Plan], Engine], feed: Sample, rounds: int
) -> Mapping[str, list[float]]:
    """Return the median latency of each plan in each of the rounds, all engines open."""
    times: dict[str, list[float]] = {name: [] for name in plans}
    with ExitStack() as held:
        engines = {name: held.enter_context(build(plan)) for name, plan in plans.items()}
        for engine in engines.values():
            engine.run(feed)
        for _ in range(rounds):
            for name, engine in engines.items():
                if latency := engine.time(feed):
                    times[name].append(latency.median_ms)
    return times


def spread(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Return the quartiles of the differences, round by round."""
    return statistics.quantiles((a - b for a, b in zip(before, after, strict=True)), n=4)


def of_run(model: Path, inputs: Path, run: Path, work: Path) -> tuple[Prepared, Plan]:
    """Return what the run was prepared from, and the plan of its answer."""
    result: Result = read_result(run / RESULT, "")
    options = Options(
        model=model,
        inputs=inputs,
        tol=result.tolerance if isinstance(result.tolerance, float) else 1.0,
        low=result.low,
        high=result.high,
        backend=result.backend,
        out=work / "run",
    )
    prepared = prepare(options, ignore, work)
    kept = set(result.kept)
    names = prepared.case.model.table.names
    return prepared, Plan.of(index for index, name in enumerate(names) if name in kept)


def main() -> None:
    """Compare, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--islands", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=11)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepared, plan = of_run(asked.model, asked.inputs, asked.run, Path(folder))
        timed = Path(folder) / "timed"
        timed.mkdir()
        backend = prepared.spec.made(timed).backend
        found = compared(
            prepared,
            plan,
            lambda each: backend.build(each, afresh=True),
            islands=asked.islands,
            rounds=asked.rounds,
        )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
