"""The command line against changed files and flags, thousands of cases a class.

`python tests/fuzz/fuzz_run.py --cases 10000 --seed 7` prints the table of outcomes. A case is made
by its class, the seed and its number alone, so `--only models:123` makes it again and shows it.

The generator is a plain seeded one, not Hypothesis or atheris. A case has to run in a process of
its own, since it may hang it or end it by a signal; there neither coverage nor shrinking come back
for free, while a seed and a number make any case again. Changes are few, so cases are small.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import fuzz_forked
import fuzz_models
import fuzz_others
import onnx
from fuzz_forked import Ended
from fuzz_outcomes import FAULTS, Kind, kind

CLASSES = ("models", "inputs", "folders", "batches", "jobs", "settings", "flags")
_CHUNK = 25
_VERSIONS = ("numpy", "onnx", "onnxruntime", "polygraphy", "rich", "precision-bisect")


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its class and number, the arguments, and what came of it."""

    name: str
    number: int
    arguments: list[str]
    kind: Kind
    ended: Ended


def finished_run(folder: Path) -> Path:
    """Return the folder of a finished run, made once for all cases that change one.

    A finished batch lies beside it.
    """
    onnx.save(fuzz_models.norms(), folder / "m.onnx")
    logs = folder / "logs"
    logs.mkdir()
    quick = "--synthetic 1 --threads 1 --copies 0 --seed 0"
    job = quick.replace(" --", "\n").replace("--", "").replace(" ", " = ")
    (folder / "jobs.toml").write_text(f'[[job]]\nname = "one"\nmodel = "m.onnx"\n{job}\n')
    for arguments in (f"m.onnx --out run {quick}", "batch jobs.toml --out batch"):
        ended = fuzz_forked.run(arguments.split(), folder, logs, limit_s=600)
        if ended.code != 0:
            raise RuntimeError(f"the run to change did not end well: {ended}")
    return folder / "run"


def try_case(name: str, seed: int, number: int, finished: Path, keep: Path | None = None) -> Case:
    """Make one case in a folder of its own, run it, and tell its outcome."""
    rng = random.Random(f"{name}/{seed}/{number}")
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    folder, logs = root / "work", root / "logs"
    folder.mkdir()
    logs.mkdir()
    try:
        arguments = makers(finished)[name](rng, folder)
        if keep is not None:
            shutil.copytree(folder, keep, symlinks=True, ignore=_pipes, dirs_exist_ok=True)
        ended = fuzz_forked.run(arguments, folder, logs)
        return Case(name, number, arguments, kind(ended), ended)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def makers(finished: Path) -> Mapping[str, Callable[[random.Random, Path], list[str]]]:
    """Return what writes the files of a case, by class."""
    return {
        "models": fuzz_models.write,
        "inputs": fuzz_others.inputs,
        "folders": fuzz_others.Folders(finished).write,
        "batches": fuzz_others.Batches(finished).write,
        "jobs": fuzz_others.jobs,
        "settings": fuzz_others.settings,
        "flags": fuzz_others.flags,
    }


def run_all(
    names: tuple[str, ...], cases: int, seed: int, workers: int, seconds: float = float("inf")
) -> list[Case]:
    """Run so many cases of each class and return what came of them; none begins after so long."""
    until = time.monotonic() + seconds
    fuzz_forked.warm()
    found = []
    with tempfile.TemporaryDirectory() as text:
        finished = finished_run(Path(text))
        chunks = [
            (name, seed, tuple(range(start, min(start + _CHUNK, cases))), finished, until)
            for start in range(0, cases, _CHUNK)
            for name in names
        ]
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            for done in as_completed([pool.submit(_chunk, chunk) for chunk in chunks]):
                found += done.result()
                for case in done.result():
                    _tell(case)
    return found


def _tell(case: Case) -> None:
    """Print a case that shows a fault, as soon as it does."""
    if case.kind in FAULTS:
        last = (case.ended.err.strip().splitlines() or [""])[-1]
        what = f"{case.name}:{case.number} {case.kind} {case.ended.code} {case.arguments[:3]}"
        print(f"  {what} {last[:150]!r} {case.ended.notes[:2]}", flush=True)


def _chunk(chunk: tuple[str, int, tuple[int, ...], Path, float]) -> list[Case]:
    name, seed, numbers, finished, until = chunk
    return [
        try_case(name, seed, number, finished) for number in numbers if time.monotonic() < until
    ]


def _pipes(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if (Path(folder) / name).is_fifo()}


def table(found: list[Case]) -> dict[str, dict[str, int]]:
    """Return how many cases of each class came to what; zeros too."""
    return {
        name: {
            each.value: Counter(case.kind for case in found if case.name == name)[each]
            for each in Kind
        }
        for name in dict.fromkeys(case.name for case in found)
    }


def main() -> int:
    """Run the cases and print the table; 1 where one shows a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=2000, help="of each class")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--classes", default=",".join(CLASSES))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after")
    parser.add_argument("--only", help="CLASS:NUMBER, one case, with all that it prints")
    parser.add_argument("--keep", type=Path, help="where the files of that case go")
    parser.add_argument("--json", type=Path, help="write the table there, with what it was run on")
    asked = parser.parse_args()
    if asked.only:
        return _only(asked)
    begun = time.monotonic()
    names = tuple(asked.classes.split(","))
    found = run_all(names, asked.cases, asked.seed, asked.workers, asked.seconds)
    seconds = time.monotonic() - begun
    counted = table(found)
    for name, row in counted.items():
        print(f"{name}: {', '.join(f'{count} {what}' for what, count in row.items() if count)}")
    print(f"{len(found)} cases in {seconds:.0f} s, seed {asked.seed}")
    if asked.json:
        _save(asked.json, counted, asked, seconds)
    return 1 if any(case.kind in FAULTS for case in found) else 0


def _only(asked: argparse.Namespace) -> int:
    name, _, number = asked.only.partition(":")
    fuzz_forked.warm()
    with tempfile.TemporaryDirectory() as text:
        case = try_case(name, asked.seed, int(number), finished_run(Path(text)), asked.keep)
    print(case.arguments, case.kind, case.ended.code, *case.ended.notes, sep="\n")
    print(case.ended.out[-2000:], case.ended.err[-6000:], sep="\n")
    return 0


def _save(
    path: Path, counted: dict[str, dict[str, int]], asked: argparse.Namespace, s: float
) -> None:
    told = {
        "command": f"python tests/fuzz/fuzz_run.py --cases {asked.cases} --seed {asked.seed}",
        "seconds": round(s),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _VERSIONS},
        },
        "outcomes": counted,
    }
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
