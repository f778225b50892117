"""How much faster a search is with several GPUs than with one.

    python benchmarks/gpus.py model.onnx --inputs inputs --gpus 0,1,2,3 --atol 2e-4 --out gpus.json

Runs the main job twice, with a child process on the first GPU and with one on each, and writes
down builds, rounds and seconds. A round is what takes as long as one build: a batch of b proposals
takes b / workers of them, rounded up. Seconds are from the first build to the end of the last.
`--backend emulated` runs it without a GPU, with children that share the processor.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from engine import machine

import precision_bisect
from precision_bisect.options import Certify
from precision_bisect.runs.monitoring.events import Event, TrialFinished, TrialStarted
from precision_bisect.trial import Kind, Proposal


class Rounds:
    """Observes a run with some workers; counts builds, rounds and the seconds of both."""

    def __init__(self, workers: int) -> None:
        self.builds = 0
        self.rounds = 0
        self.unresolved = 0
        self._workers = workers
        self._flying = 0
        self._batch = 0
        self._first: float | None = None
        self._last = 0.0

    def __call__(self, event: Event, /) -> None:
        """Take one event."""
        if isinstance(event, TrialStarted) and _builds(event.proposal):
            self._first = self._first or time.perf_counter()
            self._flying += 1
            self._batch += 1
        elif isinstance(event, TrialFinished) and _builds(event.proposal) and not event.recalled:
            self._last = time.perf_counter()
            self.builds += 1
            self.unresolved += event.outcome.verdict is None
            self._flying -= 1
            if self._flying == 0:
                self.rounds += math.ceil(self._batch / self._workers)
                self._batch = 0

    @property
    def seconds(self) -> float:
        """From the start of the first build to the end of the last."""
        return 0.0 if self._first is None else self._last - self._first


def _builds(proposal: Proposal) -> bool:
    return proposal.kind is not Kind.PREDICT


def search(asked: argparse.Namespace, gpus: Sequence[str]) -> dict[str, Any]:
    """Search once with a worker on each of these GPUs; return what it took."""
    rounds = Rounds(len(gpus))
    backend: str = asked.backend
    limits = {"atol": asked.atol} if asked.atol else {"tol": asked.tol}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = precision_bisect.find(
            asked.model,
            inputs=asked.inputs,
            out=Path(folder) / "run",
            backend=backend,
            workers=len(gpus),
            gpus=() if backend == "emulated" else tuple(gpus),
            isolate="always",
            threads=asked.threads,
            certify=asked.certify,
            max_time_s=asked.seconds,
            observer=rounds,
            **limits,
        )
    return {
        "workers": len(gpus),
        "gpus": list(gpus),
        "status": result.status.value,
        "kept": len(result.kept),
        "candidates": result.candidates,
        "error": result.error,
        "minimal": result.certificate.minimal,
        "certificate": result.certificate.mode,
        "builds": rounds.builds,
        "unresolved": rounds.unresolved,
        "rounds": rounds.rounds,
        "seconds_building": round(rounds.seconds, 1),
        "seconds_all": round(time.perf_counter() - started, 1),
        "versions": result.fingerprint["versions"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--gpus", default="0,1,2,3", help="the GPUs of the second run")
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--atol", type=float)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--certify", choices=get_args(Certify))
    parser.add_argument("--seconds", type=float, default=400.0, help="limit on each run")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(argv)
    gpus = asked.gpus.split(",")
    runs = []
    for some in (gpus[:1], gpus):
        runs.append(search(asked, some))
        print(json.dumps(runs[-1]), flush=True)
    found = {
        "command": " ".join(
            ["python benchmarks/gpus.py", *(sys.argv[1:] if argv is None else argv)]
        ),
        "model": asked.model.name,
        "limits": {"atol": asked.atol} if asked.atol else {"tol": asked.tol},
        "machine": machine(),
        "cores": os.cpu_count(),
        "runs": runs,
        "fewer_rounds": round(runs[0]["rounds"] / max(1, runs[1]["rounds"]), 2),
        "faster": round(runs[0]["seconds_building"] / max(0.1, runs[1]["seconds_building"]), 2),
    }
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if asked.out:
        asked.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
