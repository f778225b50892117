"""What a run needs before its first trial: model, inputs, reference, judge, strategy, backend."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from precision_bisect.backends.choose import choose_backend, sample_shapes
from precision_bisect.backends.emulation.backend import EmulatedBackend
from precision_bisect.comparators.choose import choose_comparator
from precision_bisect.driver import Samples
from precision_bisect.engine_settings import EngineSettings
from precision_bisect.errors import InputError, ModelError, UsageError
from precision_bisect.events import Observer, Warned
from precision_bisect.inputs.check import check_samples
from precision_bisect.inputs.files import read_samples
from precision_bisect.inputs.synthetic import synthetic_samples
from precision_bisect.ledger.fingerprint import digest_samples
from precision_bisect.model.load import Model, load_model
from precision_bisect.options import Options
from precision_bisect.pinning import pinned_layers, settle, weights_beyond, why_untyped
from precision_bisect.plugins import load_strategy
from precision_bisect.protocols import Backend, Comparator, Problem, Sample, Strategy
from precision_bisect.reference import reference_outputs
from precision_bisect.trial import SampleSet

RANKING_SAMPLES = 8
"""So many of the judging samples, spread evenly, rank the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything of a run that exists before its first trial.

    `reference` has the FP32 outputs of `samples`; the last `options.holdout` of both are held out.
    `emulator` predicts; it is the backend itself where there is no engine. `why` says why the
    backend was chosen, `remarks` what else the report should say.
    """

    options: Options
    model: Model
    samples: Sequence[Sample]
    reference: Sequence[Sample]
    comparator: Comparator
    strategy: Strategy
    backend: Backend
    emulator: Backend
    why: str
    remarks: Sequence[str]
    fingerprint: Mapping[str, Any]

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
        )

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
    strategy = load_strategy(options.strategy)
    model = load_model(options.model)
    if not model.table.candidates:
        raise ModelError(
            f"{options.model} has no FP32 layers to decide on",
            "list them with `precision-bisect layers`; give the FP32 model, not a converted one",
        )
    if strategy.largest is not None and len(model.table.candidates) > strategy.largest:
        raise UsageError(
            f"--strategy {options.strategy} takes at most {strategy.largest} layers, "
            f"{options.model} has {len(model.table.candidates)}",
            "choose --strategy guided",
        )
    comparator = choose_comparator(options, [output.name for output in model.outputs])
    samples = _samples(options, model, observer)
    if options.holdout >= len(samples):
        raise InputError(
            f"--holdout {options.holdout} of {len(samples)} samples leaves none to search with",
            "give more samples, or hold out fewer",
        )
    reference = reference_outputs(model, samples, options.threads)
    untyped = why_untyped(model, options.low) if options.backend == "auto" else ""
    chosen = choose_backend(options, samples, work, untyped=untyped)
    model, backend = settle(chosen.make, model, options.low)
    for name, reason in pinned_layers(model).items():
        observer(Warned(message=f"{name} stays {options.high.upper()}: {reason}"))
    beyond = weights_beyond(model, options.low)
    if beyond:
        observer(Warned(message=beyond))
    return Prepared(
        options=options,
        model=model,
        samples=samples,
        reference=reference,
        comparator=comparator,
        strategy=strategy,
        backend=backend,
        emulator=backend
        if backend.emulated
        else EmulatedBackend(model, options.low, options.threads),
        why=chosen.why,
        remarks=[beyond] if beyond else [],
        fingerprint=_fingerprint(options, model, samples, comparator, backend),
    )


def _samples(options: Options, model: Model, observer: Observer) -> list[Sample]:
    names = [spec.name for spec in model.inputs]
    for name in options.input_shapes:
        if name not in names:
            raise UsageError(
                f"--input-shapes names {name!r}, which is no input of the model",
                f"its inputs are {', '.join(names) or 'none'}",
            )
    if options.inputs is None:
        observer(
            Warned(
                message="no --inputs given: synthetic inputs may not reach the ranges that real "
                "ones do, so layers that overflow in use can be missed"
            )
        )
        count = options.synthetic + options.holdout
        found = synthetic_samples(model, options.input_shapes, count, options.seed)
    elif isinstance(options.inputs, Path):
        found = read_samples(options.inputs, names)
    elif isinstance(options.inputs, Mapping) or not options.inputs:
        raise InputError(
            "inputs is no list of samples", "each sample is a dict from input name to array"
        )
    else:
        found = list(options.inputs)
    return check_samples(model, found)


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
