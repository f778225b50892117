"""Plans judged by both the engine and the emulator, and how far they agree."""

import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_bisect.backends.backend_plugin import choose_backend
from precision_bisect.backends.emulation.emulator_plugin import forecaster
from precision_bisect.graphs.fp32_outputs import non_finite, reference_outputs
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.pinning import pin_formless, pin_unbuildable
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Backend, BackendFailure, Comparator, Sample

MOST_SINGLES = 150
RANDOM_PLANS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model file with its inputs and limits, and the backend that judges."""

    path: Path
    samples: Sequence[Sample]
    limits: Mapping[str, float]
    backend: str

    @property
    def options(self) -> Options:
        """The options of a run of this setting."""
        return Options(model=self.path, backend=self.backend, **self.limits)  # type: ignore[arg-type]

    def settle(self, work: Path) -> tuple[Model, Backend]:
        """Return a backend, and the model without the layers that it cannot run low."""
        chosen = choose_backend(self.options, self.samples, work)
        pair = Pair(low=self.options.low, high="fp32")
        model = pin_formless(load_model(self.path), pair)
        model = pin_unbuildable(model, chosen.make(model), self.options.low)
        return model, chosen.make(model)

    def comparator(self, model: Model) -> Comparator:
        """Return what judges outputs of the model."""
        return choose_comparator(self.options, [output.name for output in model.outputs])


class Judge:
    """Judges plans of a setting; the engine's on several threads, each with its own backend."""

    def __init__(self, setting: Setting, workers: int) -> None:
        self._setting = setting
        self._workers = workers
        with tempfile.TemporaryDirectory() as work:
            self.model, _ = setting.settle(Path(work))
        self._comparator = setting.comparator(self.model)
        self._reference = reference_outputs(self.model, setting.samples)
        self._emulator = forecaster(self.model, setting.options, Scales())
        self._judging = threading.Lock()
        self.failures: list[str] = []

    def emulated(self, plans: Sequence[Plan]) -> list[float | None]:
        """Return the emulator's errors."""
        return [self._error(self._emulator, plan) for plan in plans]

    def real(self, plans: Sequence[Plan], seconds: float) -> list[float | None]:
        """Return the engine's errors; None for a plan without a verdict or out of time."""
        deadline = time.monotonic() + seconds
        with self._backends() as idle, ThreadPoolExecutor(self._workers) as pool:

            def judged(plan: Plan) -> float | None:
                if time.monotonic() > deadline:
                    return None
                backend = idle.get()
                try:
                    return self._error(backend, plan)
                finally:
                    idle.put(backend)

            return list(pool.map(judged, plans))

    @contextmanager
    def _backends(self) -> "Iterator[queue.SimpleQueue[Backend]]":
        idle: queue.SimpleQueue[Backend] = queue.SimpleQueue()
        with tempfile.TemporaryDirectory() as work:
            for number in range(self._workers):
                folder = Path(work) / str(number)
                folder.mkdir()
                chosen = choose_backend(self._setting.options, self._setting.samples, folder)
                idle.put(chosen.make(self.model))
            yield idle

    def _error(self, backend: Backend, plan: Plan) -> float | None:
        try:
            with backend.build(plan) as engine:
                outputs = [engine.run(sample) for sample in self._setting.samples]
        except BackendFailure as failure:
            self.failures.append(f"{failure.outcome.status}: {failure.outcome.message}")
            return None
        if non_finite(outputs):
            return float("inf")
        with self._judging:  # Polygraphy's logger, which is silenced meanwhile, is global
            return self._comparator.judge(outputs, self._reference).error


def stratified(model: Model) -> list[int]:
    """Return up to `MOST_SINGLES` candidates, spread evenly over operators and the network."""
    layers = model.table.candidates
    order = sorted(range(len(layers)), key=lambda i: (layers[i].op_type, i))
    step = max(1.0, len(order) / MOST_SINGLES)
    return [order[int(place)] for place in np.arange(0, len(order), step)]


def subsets(count: int) -> list[Plan]:
    """Return random plans (seed 0) that keep between none and all of the layers."""
    rng = np.random.default_rng(0)
    return [
        Plan.of(int(i) for i in np.flatnonzero(rng.random(count) < share))
        for share in rng.random(RANDOM_PLANS)
    ]


def agreement(judge: Judge, plans: Sequence[Plan], seconds: float) -> dict[str, Any]:
    """Return how the emulator's errors compare with the engine's over some plans.

    Plans are judged in a random order (seed 0), so that those left out by the time limit are a
    random part. `spearman` is the rank correlation, `median_ratio` that of engine to emulator.
    """
    shuffled = [plans[i] for i in np.random.default_rng(0).permutation(len(plans))]
    failed = len(judge.failures)
    real = judge.real(shuffled, seconds)
    done = [(plan, error) for plan, error in zip(shuffled, real, strict=True) if error is not None]
    emulated = judge.emulated([plan for plan, _ in done])
    pairs = np.array(
        [(predicted, error) for predicted, (_, error) in zip(emulated, done, strict=True)], float
    ).reshape(-1, 2)
    usable = np.isfinite(pairs).all(axis=1) & (pairs > 0).all(axis=1)
    ratios = pairs[usable, 1] / pairs[usable, 0]
    return {
        "plans": len(plans),
        "judged": len(done),
        "spearman": spearman(pairs[:, 0], pairs[:, 1]),
        "median_ratio": round(float(np.median(ratios)), 4) if ratios.size else None,
        "failures": sorted(set(judge.failures[failed:]))[:5],
        "emulated_and_engine": [[f"{a:.4g}", f"{b:.4g}"] for a, b in pairs],
    }


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Return the rank correlation of two series, equal values sharing their mean rank."""
    if len(a) < 3 or len(np.unique(a)) < 2 or len(np.unique(b)) < 2:
        return None
    return round(float(np.corrcoef(_ranks(a), _ranks(b))[0, 1]), 4)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return means
