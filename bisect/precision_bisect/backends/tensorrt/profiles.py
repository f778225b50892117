"""Dynamic shapes: from flags and samples to the one optimisation profile of a build."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from math import prod

from precision_bisect.backends.backend_plugin import SampleShapes
from precision_bisect.errors import UsageError
from precision_bisect.graphs.types import TensorSpec, value_count
from precision_bisect.settings.engine_settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange:
    """The shapes that an engine takes for one input, and the one that it is tuned for.

    If the input gives a shape by its values, these are the values, in a row.
    """

    least: tuple[int, ...]
    best: tuple[int, ...]
    most: tuple[int, ...]

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether the engine takes an input of this shape."""
        return len(shape) == len(self.least) and all(
            low <= size <= high
            for low, size, high in zip(self.least, shape, self.most, strict=True)
        )


def shape_ranges(
    inputs: Sequence[TensorSpec],
    settings: EngineSettings,
    samples: SampleShapes,
    values: Set[str] = frozenset(),
) -> dict[str, ShapeRange]:
    """Return the range of each dynamic input: as the settings say, else as the samples need.

    Several sample shapes span the range, and the engine is tuned for the largest. Inputs whose
    `values` give a shape have values in place of sizes, in settings and samples as well. They are
    tuned for the values of one sample, since a mixture of several need not fit the model.

    Raises UsageError for settings that name no input, contradict the model or leave out a sample,
    and for an input of which neither settings nor samples say anything.
    """
    specs = {
        spec.name: replace(spec, shape=(None,) * value_count(spec))
        if spec.name in values
        else spec
        for spec in inputs
    }
    for name in (*settings.min_shapes, *settings.opt_shapes, *settings.max_shapes):
        if name not in specs:
            raise UsageError(
                f"--opt-shapes names {name!r}, which is no input",
                f"the model's inputs are {', '.join(specs)}",
            )
        if name not in settings.opt_shapes:
            raise UsageError(
                f"--min-shapes or --max-shapes gives {name!r}, but not --opt-shapes",
                "give all three, as to trtexec",
            )
    # The engine that is timed at another batch is the one that is judged: its range holds both.
    if settings.time_batch is not None:
        samples = _with_batch(samples, settings.time_batch, values)
    ranges = {}
    for name, spec in specs.items():
        if name in settings.opt_shapes:
            ranges[name] = _given(spec, settings, samples.get(name, ()))
        elif not is_static(spec):
            ranges[name] = _spanned(name, samples.get(name, ()))
            # Largest by element would mix the values of several samples.
            if name in values:
                ranges[name] = replace(ranges[name], best=max(samples[name], key=prod))
    return ranges


def refuse_fixed_batch(inputs: Sequence[TensorSpec], settings: EngineSettings) -> None:
    """Raise UsageError where another batch is to be timed than the model fixes for an input."""
    batch = settings.time_batch
    for spec in inputs:
        own = spec.shape[0] if spec.shape else None
        if batch is not None and isinstance(own, int) and own != batch:
            raise UsageError(
                f"--time-batch {batch}: the model fixes the batch of {spec.name!r} to {own}, and "
                "TensorRT builds that one",
                "export it with a batch axis that is left open, or judge by --backend onnxruntime",
            )


def _with_batch(samples: SampleShapes, batch: int, values: Set[str]) -> SampleShapes:
    """Return the shapes of the samples, and the same at the batch that is timed."""
    return {
        name: sizes
        if name in values
        else [*sizes, *((batch, *size[1:]) for size in sizes if size)]
        for name, sizes in samples.items()
    }


def is_static(spec: TensorSpec) -> bool:
    """Whether all sizes of an input are numbers, so that no range is to be given."""
    return spec.shape is not None and all(isinstance(size, int) for size in spec.shape)


def _given(
    spec: TensorSpec, settings: EngineSettings, samples: Sequence[tuple[int, ...]]
) -> ShapeRange:
    best = settings.opt_shapes[spec.name]
    bounds = ShapeRange(
        least=settings.min_shapes.get(spec.name, best),
        best=best,
        most=settings.max_shapes.get(spec.name, best),
    )
    if not (bounds.holds(bounds.least) and bounds.holds(best) and bounds.holds(bounds.most)):
        raise UsageError(
            f"the shapes of {spec.name!r} are out of order: "
            f"{_text(bounds.least)} to {_text(best)} to {_text(bounds.most)}",
            "each size must not shrink from --min-shapes over --opt-shapes to --max-shapes",
        )
    for shape in (bounds.least, best, bounds.most):
        if not _fits(shape, spec):
            raise UsageError(
                f"{_text(shape)} is no shape of {spec.name!r}, which the model gives as "
                f"{_text(spec.shape or ())}",
                "only dynamic sizes can be chosen",
            )
    for shape in samples:
        if not bounds.holds(shape):
            raise UsageError(
                f"a sample of {spec.name!r} has shape {_text(shape)}, outside "
                f"{_text(bounds.least)} to {_text(bounds.most)}",
                "widen --min-shapes and --max-shapes, or give other inputs",
            )
    return bounds


def _spanned(name: str, samples: Sequence[tuple[int, ...]]) -> ShapeRange:
    if not samples or len({len(shape) for shape in samples}) > 1:
        raise UsageError(
            f"input {name!r} has dynamic sizes, and nothing says which to build for",
            f"give --opt-shapes {name}:1x3x224x224, or as its sizes are",
        )
    least = tuple(min(sizes) for sizes in zip(*samples, strict=True))
    most = tuple(max(sizes) for sizes in zip(*samples, strict=True))
    return ShapeRange(least=least, best=most, most=most)


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    if spec.shape is None:
        return True
    return len(shape) == len(spec.shape) and all(
        not isinstance(dim, int) or dim == size
        for size, dim in zip(shape, spec.shape, strict=True)
    )


def _text(shape: Sequence[int | str | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape) or "scalar"
