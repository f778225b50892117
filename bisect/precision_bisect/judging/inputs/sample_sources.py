"""Where samples come from: the path that `--inputs` names, read as its kind wants it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from precision_bisect.errors import InputError, UsageError
from precision_bisect.graphs.load import Model
from precision_bisect.judging.inputs.image_files import (
    IMAGES,
    of_model,
    read_images,
    treatment_words,
    treatments,
)
from precision_bisect.judging.inputs.input_files import (
    held,
    placed_samples,
    refuse_several,
)
from precision_bisect.judging.inputs.loader_script import NeedsLoader, loader_script
from precision_bisect.judging.inputs.raw_files import RAW, raw_files, read_raw
from precision_bisect.options import Options
from precision_bisect.protocols import Sample
from precision_bisect.settings.flags import flag_name
from precision_bisect.settings.image_options import ImageOptions, given_image_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Samples by where they lie, and remarks on how they were read.

    Of images, the options have what was left open, too.
    """

    placed: Mapping[str, Sample]
    options: Options
    images: ImageOptions | None = None
    remarks: Sequence[str] = ()


def open_source(options: Options, path: Path, model: Model) -> Source:
    """Return the samples that a path holds; those of many files are read when they are asked for.

    Raises InputError for what cannot be read, UsageError for flags of another kind of files.
    """
    files = _files(path)
    images = [file for file in files if file.suffix.lower() in IMAGES]
    suffixes = Counter(file.suffix.lower() for file in files)
    arrays = [suffix for suffix in (".npz", ".npy", RAW) if suffix in suffixes]
    refuse_several(path, [*(["image"] if images else []), *arrays])
    try:
        if images:
            _refuse_shapes(options, path)
            return _of_images(options, images, model)
        _refuse_unknown(path, suffixes)
        for name in given_image_flags(options):
            raise UsageError(
                f"{flag_name(name)} is for images, and {path} has none", "leave it out"
            )
        if raw := raw_files(path, model.inputs):
            read = partial(read_raw, model.inputs, options.input_shapes)
            return Source(placed=held(raw, read), options=options)
    except NeedsLoader as error:
        folder = path if path.is_dir() else path.parent
        pattern = "".join(("*", *(kind for kind, _ in suffixes.most_common(1))))
        error.further = loader_script(model.path, model.inputs, folder, pattern)
        raise
    _refuse_shapes(options, path)
    placed = placed_samples(path, [spec.name for spec in model.inputs])
    return Source(placed=placed, options=options)


def _of_images(options: Options, files: Sequence[Path], model: Model) -> Source:
    """Return a sample of each image, or of a batch of them, the last filled up by the first."""
    pixels = of_model(model.inputs, options)
    files_by_treatment = treatments(files, pixels)
    batches = {
        str(files[first]): [
            files[number % len(files)] for number in range(first, first + pixels.batch)
        ]
        for first in range(0, len(files), pixels.batch)
    }
    settings = {
        option.name: getattr(pixels.options, option.name) for option in fields(ImageOptions)
    }
    return Source(
        placed=held(batches, partial(read_images, pixels)),
        options=replace(options, **settings),
        images=pixels.options,
        remarks=[treatment_words(*item, len(files)) for item in files_by_treatment.items()],
    )


def _refuse_unknown(path: Path, suffixes: Counter[str]) -> None:
    """Raise NeedsLoader for a file, or for a folder of files, of which none is read."""
    readable = _ARRAYS if path.is_dir() else (*_ARRAYS, *_ALONE)
    if not suffixes or not suffixes.keys().isdisjoint(readable):
        return
    if not path.is_dir():
        raise NeedsLoader(f"cannot tell what {path} is")
    counted = ", ".join(f"{n} {kind or 'without ending'}" for kind, n in suffixes.most_common(3))
    raise NeedsLoader(f"{path} has files that are not read: {counted}")


def _files(path: Path) -> Sequence[Path]:
    """Return the files of a folder, or the one that the path is. Raises InputError."""
    try:
        listed = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "check the path") from error
    return [file for file in listed if file.is_file() and not file.name.startswith(".")]


def _refuse_shapes(options: Options, path: Path) -> None:
    if options.input_shapes:
        raise UsageError(
            f"--input-shapes is for made-up inputs and {RAW} files, and --inputs {path} has none",
            "leave one out",
        )


_ARRAYS = (".npz", ".npy", ".json", RAW)
_ALONE = (".py",)
"""Files that are read where they are named, and not as part of a folder."""
