"""What the constants that were set by hand change: each is halved and doubled.

    python benchmarks/constants.py --out benchmarks/results/constants.json
    python benchmarks/constants.py --only beliefs beginning --out benchmarks/results/constants.json

Each change runs its sets anew, with the same seeds, and is compared case by case with the value as
it is. Builds, forecasts, kept layers and milliseconds: the mean change in percent (geometric, 1
added to each figure), and its standard error over the cases. Then how many answers differ, how
many more fail on the oracle, and in how many cases other causes or advice are told. A share above
1/2 has its distance from 1 halved and doubled instead, a percentile that from 100; of powers the
exponents are, and of prior weights all but the first.

`constants_sets.py` has the sets. The file has one entry for each constant, written as it ends;
those that it has are not run again.
"""

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from constants_sets import Figures, ran

CORE, STRATEGIES = "precision_bisect", "precision_bisect_strategies"
CONSTANTS: Sequence[tuple[str, str, str]] = [
    (f"{STRATEGIES}.beliefs", "search course", "MISSING RIGHT FARTHEST_MISS EXPONENTS"),
    (f"{STRATEGIES}.beliefs", "search course", "UNKNOWN_SCALE MEASURED"),
    (f"{STRATEGIES}.beliefs", "search verdicts", "UNKNOWN_COUNT SURPRISE WIDE_FACTOR"),
    (f"{STRATEGIES}.demotion", "search course", "CHANCE_SHARE LEAST_KNOWN_SHARE WORTH"),
    (f"{STRATEGIES}.probdd", "probdd", "NEVER SURELY"),
    (f"{STRATEGIES}.speculation", "workers", "MEMORY"),
    (f"{STRATEGIES}.modules", "hierarchical", "BLOCKS"),
    (f"{STRATEGIES}.pareto", "pareto", "FURTHER_TRIALS+MOST_ASKED NEAR_GROUPS LOW_GROUPS"),
    (f"{CORE}.search.sensitivity", "search course", "BLOCKS_FROM BLOCK"),
    (f"{CORE}.search.sensitivity", "large", "LARGE LARGE_BLOCK SINGLES_FOR_BUILDS"),
    (f"{CORE}.search.sensitivity", "search large course", "NEGLIGIBLE_FOR_BUILDS"),
    (f"{CORE}.search.sensitivity", "emulated", "SINGLES NEGLIGIBLE"),
    (f"{CORE}.search.rounding_law", "course", "LEAST_STEP LEAST_LEFT"),
    (f"{CORE}.search.precision_curve", "course models", "FILLED LEAST_GAIN"),
    (f"{CORE}.search.curve_points", "course models", "FILLED_BY_BUILDS WIDE_RATIO FAR_DOWN FEW"),
    (f"{CORE}.search.certificate.confirmed_forecasts", "search course", "RISK WRONG FLOOR"),
    (f"{CORE}.search.speed.moves", "speed", "LARGEST_GAP LARGEST_ISLAND HALF LONGER"),
    (f"{CORE}.search.speed.meet_limits", "speed", "MOST_BUILDS PATIENCE SWAPPED"),
    (f"{CORE}.search.evaluation", "models", "CURVE_COPIES"),
    (f"{CORE}.search.sample_sets", "models", "RANKING_SAMPLES"),
    (f"{CORE}.pipeline.stability", "course", "SPARE"),
    (f"{CORE}.pipeline.best_known", "models", "FAR_BETTER FEW_MORE FEW_MORE_SHARE"),
    (f"{CORE}.pipeline.risk", "models", "KINDS_APART"),
    (f"{CORE}.pipeline.input_ranges", "models", "TOLD"),
    (f"{CORE}.pipeline.ladder.climb", "models", "RUNG_SHARE"),
    (f"{CORE}.judging.comparators.steadiness", "models", "SHARE"),
    (f"{CORE}.graphs.quantization.calibration", "models", "_PERCENTILE"),
    (f"{CORE}.explaining.diagnosis.causes.underflow", "models", "FLUSHED_SHARE"),
    (f"{CORE}.explaining.diagnosis.causes.cancellation", "models", "LOST_BITS"),
    (f"{CORE}.explaining.diagnosis.diagnose", "models", "ROUNDINGS"),
    (f"{CORE}.pipeline.explanation", "models", "NEAR_SHARE"),
    (f"{CORE}.explaining.diagnosis.causes.clipping", "models", "CUT_SHARE"),
    (f"{CORE}.explaining.diagnosis.causes.outliers", "models", "OUTLIER_RATIO"),
    (f"{CORE}.explaining.diagnosis.causes.underflow", "models", "FLUSHED_OPERAND_SHARE"),
    (f"{CORE}.explaining.diagnosis.causes.outliers", "models", "CHANNEL_RATIO"),
    (f"{CORE}.explaining.advice.variants", "models", "FEWEST_VARIANTS"),
]
"""Module, sets, and names; names joined by + are changed together."""
LIMITS = [
    f"{CORE}.explaining.diagnosis.instrument:AT_ONCE_BYTES+_UNKNOWN_BYTES",
    f"{CORE}.graphs.typed.typed_graph:_CHUNK",
    f"{CORE}.graphs.weights:INLINE_BYTES",
    f"{CORE}.graphs.ort:_PREPACK_BYTES+_PREPACK_NODES",
    f"{CORE}.backends.emulation.segments:KEPT_BYTES+KEPT_SHARE",
    f"{CORE}.backends.emulation.switched:_LARGEST_KERNEL",
    f"{CORE}.backends.emulation.segments:SWITCHES+REPEATED_WEIGHTS",
    f"{CORE}.judging.inputs.input_files:MOST_HELD",
]
"""Limits on memory and of what is worth a step, which are changed all at once: no answer may
depend on them."""


SHARES = {"RIGHT": 1.0, "MEMORY": 1.0, "SURELY": 1.0, "_PERCENTILE": 100.0}
"""Constants whose distance from the whole is halved and doubled."""


def scaled(name: str, value: Any, by_: float) -> Any:
    """Return a value times a factor; the module's docstring has what that means."""
    if isinstance(value, tuple):
        return tuple(scaled(name, each, by_) for each in value)
    if isinstance(value, dict):
        return {key: scaled(name, each, by_) for key, each in value.items()}
    if isinstance(value, list):
        return [(power**by_, weight) for power, weight in value]
    if isinstance(value, np.ndarray):
        return np.append(value[:1], value[1:] * by_)
    if isinstance(value, int):
        return max(1, round(value * by_))
    whole = SHARES.get(name, 0.0)
    return whole + (value - whole) * by_


@contextmanager
def changed(keys: Sequence[str], by_: float) -> Iterator[list[Any]]:
    """Set constants to so many times their values, wherever they were imported to."""
    with ExitStack() as undo:
        found = []
        each_name = [(key.split(":")[0], n) for key in keys for n in key.split(":")[1].split("+")]
        for module, name in each_name:
            value = getattr(import_module(module), name)
            found.append(scaled(name, value, by_))
            for each in [*sys.modules.values()]:
                if str(each.__name__).startswith(CORE) and vars(each).get(name) is value:
                    setattr(each, name, found[-1])
                    undo.callback(setattr, each, name, value)
        yield found


def compared(usual: Sequence[Figures], now: Sequence[Figures]) -> dict[str, Any]:
    """Compare the cases of a set: mean changes in percent, with their standard errors."""
    pairs = list(zip(usual, now, strict=True))
    found: dict[str, Any] = {"cases": len(pairs)}
    for name in ("builds", "forecasts", "kept", "ms"):
        before, after = (
            np.array([getattr(each, name) for each in some], np.float64) for some in (usual, now)
        )
        logs = np.log1p(after) - np.log1p(before)
        if logs.any():
            error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
            found[name] = [
                round(100 * float(each), 2) for each in (math.expm1(logs.mean()), error)
            ]
    counts = {
        "answers": sum(one.answer != two.answer for one, two in pairs),
        "wrong": sum(two.wrong for _, two in pairs) - sum(one.wrong for one, _ in pairs),
        "told": sum(one.told != two.told for one, two in pairs),
    }
    return found | {name: count for name, count in counts.items() if count}


def measured(
    keys: Sequence[str], sets: str, usual: Callable[[str], Sequence[Figures]]
) -> dict[str, Any]:
    """Halve and double constants at once; return what changes."""
    found: dict[str, Any] = {"constant": " ".join(keys)}
    for label, by_ in (("half", 0.5), ("double", 2.0)):
        before = [usual(one) for one in sets.split()]
        with changed(keys, by_) as values:
            now = [ran(one) for one in sets.split()]
        found[label] = {"values": [*map(repr, values)]}
        for one, *both in zip(sets.split(), before, now, strict=True):
            found[label][one] = compared(*both)
    return found


def todo() -> list[tuple[list[str], str]]:
    """Return what is changed at once, and its sets."""
    each = [(f"{module}:{n}", sets) for module, sets, names in CONSTANTS for n in names.split()]
    return [*(([key], sets) for key, sets in each), (LIMITS, "models nafnet")]


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of MODULE:NAME")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    done = {row["constant"] for row in rows}

    usual = cache(ran)
    for keys, sets in todo():
        key = " ".join(keys)
        if key in done or not any(part in key for part in given.only):
            continue
        started = time.perf_counter()
        rows.append(measured(keys, sets, usual))
        print(round(time.perf_counter() - started), json.dumps(rows[-1]), flush=True)
        given.out.write_text(written(rows))


def written(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the file: what it was measured with, and a line for each constant."""
    packages = ("numpy", "onnx", "onnxruntime", "optuna")
    head = {
        "command": "python benchmarks/constants.py --out benchmarks/results/constants.json",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, no GPU",
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{json.dumps(head)[:-1]},\n"rows": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    main()
