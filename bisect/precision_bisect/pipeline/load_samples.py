"""The samples of a run: made up, given as arrays, or read from where `--inputs` says."""

from collections.abc import Collection, Sequence
from pathlib import Path

from precision_bisect.errors import InputError, UsageError, errors_of_inputs
from precision_bisect.graphs.load import Model
from precision_bisect.judging.inputs.input_check import (
    CheckedSamples,
    check_samples,
    figures,
    oddities,
    own_sample,
    refuse_raw_pixels,
)
from precision_bisect.judging.inputs.sample_sources import Source, open_source
from precision_bisect.judging.inputs.synthetic import synthetic_samples
from precision_bisect.options import Options
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import Observer, SamplesRead, Warned
from precision_bisect.settings.flags import flag_name
from precision_bisect.settings.sample_options import (
    ENGINE_REFERENCE,
    given_image_flags,
    unnormalized,
)


def refuse_inputs(options: Options, model: Model) -> None:
    """Raise UsageError for flags that name no input of the model, or are for images alone."""
    names = [spec.name for spec in model.inputs]
    for name, shape in options.input_shapes.items():
        if not all(isinstance(size, int) for size in shape):
            raise UsageError(f"input_shapes has {shape!r} for {name!r}", "give whole numbers")
    for flag, named in (
        ("--input-shapes", options.input_shapes),
        ("--range", options.ranges),
        ("--opt-shapes", options.engine.opt_shapes),
    ):
        for name in named:
            if name not in names:
                raise UsageError(
                    f"{flag} names {name!r}, which is no input of the model",
                    f"its inputs are {', '.join(names) or 'none'}",
                )
    # Before any sample is read or made up: a flag's mistake costs no minute.
    for name in () if isinstance(options.inputs, Path) else given_image_flags(options):
        raise UsageError(
            f"{flag_name(name)} is for images", "give their folder by --inputs, or leave it out"
        )
    if options.reference not in (None, ENGINE_REFERENCE) and options.inputs is None:
        raise UsageError("--reference is of samples that are given", "give them by --inputs")


def load_samples(
    options: Options, model: Model, observer: Observer, fed: Collection[str] = ()
) -> tuple[Options, Sequence[Sample], SamplesRead | None, Sequence[str]]:
    """Return the samples, what was read, and remarks on it; nothing is said of made-up ones.

    In the options are also the image flags that were left open. A loop has `fed` some inputs.
    Raises InputError for no samples.
    """
    inputs = options.inputs
    if inputs is None:
        observer(
            Warned(
                message="no --inputs given: synthetic inputs may not reach the ranges that real "
                "ones do, so layers that overflow in use can be missed"
            )
        )
        count = options.synthetic + options.holdout
        synthetic = synthetic_samples(model, options.input_shapes, count, options.seed)
        return options, check_samples(model, synthetic), None, ()
    if isinstance(inputs, Path):
        source = open_source(options, inputs, model)
        samples: Sequence[Sample] = CheckedSamples(model, source.placed, fed)
        if isinstance(source.placed, dict):
            samples = list(samples)
    else:
        # A list holds all of its samples; what yields them may make each anew in one buffer.
        own = (lambda sample: sample) if isinstance(inputs, list | tuple) else own_sample
        with errors_of_inputs():
            placed = {f"sample {number}": own(sample) for number, sample in enumerate(inputs)}
            if not placed:
                raise InputError("inputs hold no sample", "give dicts from input name to array")
            source = Source(placed=placed, options=options)
            samples = list(CheckedSamples(model, placed, fed))
    path = str(inputs) if isinstance(inputs, Path) else ""
    read = figures(samples, model.inputs, path, source.images)
    if source.images is not None and unnormalized(options):
        refuse_raw_pixels(model, read)
    return source.options, samples, read, [*oddities(model, samples, read), *source.remarks]
