"""Judges and times a network's packed models on a GPU, at its samples' batch and at a full one."""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from gpu_fronts_runs import FULL, OWN, TF32, WITHOUT_TF32, search
from gpu_job import gpu_query
from gpu_packing import SPEC, unpacked
from gpu_turns import Bound, in_turns, opened_for

from zoo.judge import load

RANDOM_LABEL = "random"
BEFORE = ", without TF32"


def measure(given: argparse.Namespace) -> None:
    """Judge and time every packed model at both batches; write after each network."""
    import onnxruntime as ort

    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    deadline = time.monotonic() + given.seconds
    figures: dict[str, Any] = {"rows": [], "runs": []}
    if given.out.exists():
        figures = json.loads(given.out.read_text())
    rows = figures["rows"]
    figures |= {"machine": _machine(), "onnxruntime": ort.__version__}
    with tempfile.TemporaryDirectory() as temporary:
        folders = [
            folder
            for archive in given.packed
            for folder in unpacked(archive, Path(temporary) / archive.name)
        ]
        for folder in folders:
            wanted = json.loads((folder / SPEC).read_text())["network"] in given.search
            for full in batches(folder, given.at) if wanted else ():
                if time.monotonic() + given.search_s < deadline:
                    took = search(folder, given.search_s, given.backend, full=full)
                    figures["runs"].append(took)
                    _write(figures, given.out)
                    print(took, flush=True)
        for random in (False, True):
            rounds = [(folder, full) for folder in folders for full in batches(folder, given.at)]
            for place, (folder, full) in enumerate(rounds):
                now = time.monotonic()
                # Of what is left each has its share, which the next ones get if it needs less.
                until = now + max(deadline - now, 0.0) / (len(rounds) - place)
                bench = Bench(
                    folder,
                    full=full,
                    only=tuple(given.only),
                    provider=given.provider,
                    until=until if random else deadline,
                )
                rows += bench.measured(rows, random=random)
                _write(figures, given.out)
                print(f"{bench.title}: {len(rows)} rows, {deadline - now:.0f} s left", flush=True)


def batches(folder: Path, at: Sequence[str]) -> Sequence[bool]:
    """Return the batches to measure `at`: the samples' own is False, a full one True."""
    spec = json.loads((folder / SPEC).read_text())
    alike = spec["batch"] == rows_of(load(folder / "samples")[0])
    return [full for full in (False, *[True] * (not alike)) if (OWN, FULL)[full] in at]


def rows_of(sample: Mapping[str, Any]) -> int:
    """Return the size of a sample's batch."""
    return next(len(array) for array in sample.values() if array.ndim)


class Bench:
    """A network's models with its samples as they are, or at a `full` batch.

    Of them those whose labels begin with one of `only`.
    """

    def __init__(
        self, folder: Path, *, full: bool, only: tuple[str, ...], provider: str, until: float
    ) -> None:
        spec = json.loads((folder / SPEC).read_text())
        self._folder, self._full, self._until = folder, full, until
        models, batch = spec.pop("models"), spec.pop("batch")
        self._models = [each for each in models if each.get(FULL, full) == full]
        self._models += [*_as_before(self._models)]
        self._only = only
        self._judged = spec.pop("judged")
        self._samples = load(folder / "samples")
        self._wanted = [list(outputs.values()) for outputs in load(folder / "references")]
        self._provider = provider
        own = rows_of(self._samples[0])
        self._parts = batch // own if full else 1
        self._shared = {**spec, "batch": batch if full else own}
        self.title = f"{spec['network']}, batch {self._shared['batch']}"

    def measured(self, known: Sequence[Mapping[str, Any]], *, random: bool) -> list[Any]:
        """Return rows of the tools' models, or of random plans, without those that are known."""
        done = {
            row["label"]
            for row in known
            if all(row[key] == value for key, value in self._shared.items())
        }
        models = [
            model
            for model in self._models
            if model["label"] not in done
            and model["label"].startswith(RANDOM_LABEL) is random
            and model["label"].startswith(self._only)
        ]
        if not models or time.monotonic() > self._until:
            return []
        rows: list[dict[str, Any]] = []
        figures: dict[tuple[int, str], dict[str, Any]] = {}
        baseline = self._opened(self._models[0])
        for model in models:
            if time.monotonic() > self._until:
                break
            same = model["model"], json.dumps(model["options"])
            if same not in figures:
                figures[same] = self._figures(model, baseline)
            rows.append({**self._shared, "label": model["label"], **figures[same]})
        return rows

    def _figures(self, model: Mapping[str, Any], baseline: Bound) -> dict[str, Any]:
        begun = time.monotonic()
        try:
            bound = self._opened(model)
            errors = bound.errors(self._shared["limit"], self._parts)[: len(self._samples)]
            latency = in_turns(bound, baseline)
        except Exception as problem:  # Whatever the library says of a tool's model.
            return {"failed": f"{type(problem).__name__}: {problem}"[:300]}
        fresh = errors[self._judged :]
        return {
            "graph": bound.graph,
            "options": model["options"].get("provider_options", {}),
            "error": told(max(errors[: self._judged])),
            "fresh": len(fresh),
            "fresh_over": sum(not error <= self._shared["bound"] for error in fresh),
            "fresh_error": told(max(fresh)),
            "latency": latency,
            "seconds": round(time.monotonic() - begun, 1),
        }

    def _opened(self, model: Mapping[str, Any]) -> Bound:
        path = self._folder / f"{model['model']}.batch.onnx"
        if not (self._full and path.exists()):
            path = self._folder / f"{model['model']}.onnx"
        samples = stacks(self._samples, self._parts)
        wanted = stacks([dict(enumerate(outputs)) for outputs in self._wanted], self._parts)
        outputs = [list(each.values()) for each in wanted]
        return opened_for(path, model["options"], samples, outputs, self._provider)


def _as_before(models: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the fewest layers opened without TF32, as commit 3263d67e had its answers opened."""
    for model in models:
        label, options = model["label"], model["options"].get("provider_options", {})
        if label.endswith(": fewest") and options.get(TF32) != "0":
            without = {**options, **WITHOUT_TF32["provider_options"]}
            before = {**model["options"], "provider_options": without}
            yield {**model, "label": f"{label}{BEFORE}", "options": before}


def stacks(samples: Sequence[Mapping[Any, Any]], count: int) -> list[Mapping[Any, Any]]:
    """Return samples that are `count` of these each; the last one is filled from the first on."""
    if count == 1:
        return list(samples)
    turns = cycle(samples)
    made: list[Mapping[Any, Any]] = []
    for _ in range(-(-len(samples) // count)):
        taken = list(islice(turns, count))
        made.append(
            {
                name: np.concatenate([sample[name] for sample in taken]) if array.ndim else array
                for name, array in taken[0].items()
            }
        )
    return made


def told(error: float) -> float | str:
    """Return an error as JSON has it: infinity as a string."""
    return error if np.isfinite(error) else str(error)


def _write(figures: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(figures, indent=1) + "\n")


def _machine() -> Mapping[str, Any]:
    gpus = gpu_query("name", "driver_version") or []
    return {"gpus": gpus, "python": platform.python_version()}
