"""What a run needs before its first trial: model, inputs, reference, judge, strategy, backend."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from precision_bisect.backends.choose import choose_backend, emulator, sample_shapes
from precision_bisect.engine_settings import EngineSettings
from precision_bisect.errors import UsageError
from precision_bisect.evaluation import Samples
from precision_bisect.events import Observer, Warned
from precision_bisect.ledger.fingerprint import digest_samples
from precision_bisect.loading import Loaded, load
from precision_bisect.model.load import Model
from precision_bisect.options import Certify, Options
from precision_bisect.pinning import (
    pin_formless,
    pinned_remarks,
    settle,
    weights_beyond,
    why_untyped,
)
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Backend, Comparator, Problem, Sample, Strategy
from precision_bisect.quantization.calibration import scales_for
from precision_bisect.quantization.scales import Scales
from precision_bisect.speed.costgraph import CostGraph
from precision_bisect.speed.costs import cost_graph
from precision_bisect.speed.roofline import KERNEL_MS
from precision_bisect.trial import SampleSet

RANKING_SAMPLES = 8
"""So many of the judging samples, spread evenly, rank the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything of a run that exists before its first trial.

    `reference` has the FP32 outputs of `samples`; the last `options.holdout` of both are held out.
    `emulator` predicts; it is the backend itself where there is no engine. `scales` are those of
    what is quantized. `why` says why the backend was chosen, `remarks` what else the report should
    say. `graph` says what plans cost where speed counts.
    """

    options: Options
    model: Model
    samples: Sequence[Sample]
    reference: Sequence[Sample]
    comparator: Comparator
    strategy: Strategy
    backend: Backend
    emulator: Backend
    scales: Scales
    why: str
    remarks: Sequence[str]
    fingerprint: Mapping[str, Any]
    graph: CostGraph | None = None

    @property
    def judging(self) -> int:
        """The number of samples that judge."""
        return len(self.samples) - self.options.holdout

    @property
    def problem(self) -> Problem:
        """What the strategy may know."""
        return Problem(
            names=self.model.table.names,
            tolerance=self.comparator.tolerance,
            seed=self.options.seed,
            predicts=not self.backend.emulated,
            workers=self.options.workers,
            costs=() if self.graph is None else self.graph.alone_ms,
            graph=self.graph,
            speed=self.options.speed if self.options.speed.given else None,
        )

    @property
    def baseline(self) -> Plan | None:
        """The plan beside which others are timed; None where speed does not count."""
        if self.graph is None or self.backend.emulated:
            return None
        return Plan.all_high(len(self.model.table.candidates))

    @property
    def certify(self) -> Certify:
        """How the answer is certified: as asked, else in full where no trial is a build."""
        return self.options.certify or ("full" if self.backend.emulated else "groups")

    @property
    def sample_sets(self) -> Samples:
        """Feeds and reference outputs of each sample set."""
        judging = range(self.judging)
        step = max(1, -(-len(judging) // RANKING_SAMPLES))
        chosen = {
            SampleSet.JUDGED: judging,
            SampleSet.RANKING: judging[::step],
            SampleSet.HELD_OUT: range(self.judging, len(self.samples)),
            SampleSet.ALL: range(len(self.samples)),
        }
        return {
            name: ([self.samples[i] for i in places], [self.reference[i] for i in places])
            for name, places in chosen.items()
        }


def prepare(options: Options, observer: Observer, work: Path) -> Prepared:
    """Read and check everything that the options name; `work` is an empty folder.

    Raises a PrecisionBisectError for anything that cannot work, before anything is written.
    """
    return assemble(load(options, observer), observer, work)


def assemble(
    loaded: Loaded, observer: Observer, work: Path, scales: Scales | None = None
) -> Prepared:
    """Choose the backend for the pair of precisions, and make it; `work` is an empty folder.

    Layers that the model's table pins stay so. `scales` are found by calibration unless they are
    given. Raises a PrecisionBisectError for a pair that cannot work.
    """
    options, samples = loaded.options, loaded.samples
    pair = Pair(low=options.low, high=options.high)
    model = pin_formless(loaded.model, pair)
    if scales is None:
        scales = scales_for(model, pair, loaded.judging, options)
    untyped = why_untyped(model, pair) if options.backend == "auto" else ""
    chosen = choose_backend(options, samples, work, untyped=untyped, scales=scales)
    model, backend = settle(chosen.make, model, options.low)
    if options.speed.given and backend.emulated:
        raise UsageError(
            "--max-latency and --min-speedup need a backend that measures latency, and the "
            "emulator has none",
            "choose --backend onnxruntime (on CUDA), tensorrt or tensorrt-rtx; "
            "`precision-bisect doctor` says which work here",
        )
    for remark in pinned_remarks(model, options.high):
        observer(Warned(message=remark))
    beyond = weights_beyond(model, pair)
    if beyond:
        observer(Warned(message=beyond))
    return Prepared(
        options=options,
        model=model,
        samples=samples,
        reference=loaded.reference,
        comparator=loaded.comparator,
        strategy=loaded.strategy,
        backend=backend,
        emulator=backend if backend.emulated else emulator(model, options, scales),
        scales=scales,
        why=chosen.why,
        remarks=[beyond] if beyond else [],
        fingerprint=_fingerprint(options, model, samples, loaded.comparator, backend),
        graph=_graph(loaded, model, backend),
    )


def _graph(loaded: Loaded, model: Model, backend: Backend) -> CostGraph | None:
    """Return what plans cost for the first sample, where limits or the strategy ask for it.

    Without an engine, no kernel is launched and only operations and traffic count.
    """
    if not (loaded.options.speed.given or getattr(loaded.strategy, "weighs_speed", False)):
        return None
    shapes = {name: array.shape for name, array in loaded.samples[0].items()}
    return cost_graph(model, shapes, 0.0 if backend.emulated else KERNEL_MS)


def _fingerprint(
    options: Options,
    model: Model,
    samples: Sequence[Sample],
    comparator: Comparator,
    backend: Backend,
) -> dict[str, Any]:
    """Return what the verdicts depend on; values are plain JSON."""
    names = "\0".join(model.table.names)
    return {
        "model": model.digest,
        "layers": hashlib.sha256(names.encode()).hexdigest(),
        "inputs": digest_samples(samples),
        "samples": len(samples),
        "shapes": {
            name: [list(shape) for shape in shapes]
            for name, shapes in sample_shapes(samples).items()
        },
        "holdout": options.holdout,
        "low": options.low,
        "high": options.high,
        "fixed": _fixed(model),
        "calibration": options.calibration if options.low == "int8" else None,
        "backend": backend.name,
        "engine": {} if backend.emulated else _plain(options.engine),
        "strategy": options.strategy,
        "seed": options.seed,
        "comparator": dict(comparator.settings()),
        "machine": platform.machine(),
        "versions": {
            "precision-bisect": version("precision-bisect"),
            "polygraphy": version("polygraphy"),
            "numpy": version("numpy"),
            **backend.versions(),
        },
    }


def _fixed(model: Model) -> str:
    """Return a hash of what layers are fixed to, such as by earlier rungs; "" for none."""
    fixed = [f"{layer.name}={layer.fixed}" for layer in model.table.layers if layer.fixed]
    return hashlib.sha256("\0".join(fixed).encode()).hexdigest() if fixed else ""


def _plain(settings: EngineSettings) -> dict[str, Any]:
    """Return the settings that decide what is built, as JSON-able values."""
    plain = asdict(settings)
    del plain["build_timeout_s"]
    return {
        key: {name: list(shape) for name, shape in value.items()}
        if isinstance(value, Mapping)
        else value
        for key, value in plain.items()
    }
