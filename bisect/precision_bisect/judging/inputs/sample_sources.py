"""Where samples come from: the path that `--inputs` names, read as its kind wants it.

Raw files are as trtexec's --loadInputs takes them: the values alone, without type or shape.
"""

import glob
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError, UsageError
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.image_files import (
    IMAGES,
    of_model,
    read_images,
    treatment_words,
    treatments,
)
from precision_bisect.judging.inputs.input_files import (
    by_input,
    held,
    is_pattern,
    listed_files,
    placed_samples,
    refuse_several,
)
from precision_bisect.judging.inputs.input_shapes import Shapes, concrete_shape, show
from precision_bisect.judging.inputs.loader_script import NeedsLoader, loader_script
from precision_bisect.machine.plain_files import plain_size, too_large
from precision_bisect.options import Options
from precision_bisect.protocols import Sample
from precision_bisect.settings.flags import flag_name
from precision_bisect.settings.sample_options import ImageOptions, given_image_flags

RAW = ".bin"


def raw_files(path: Path, specs: Sequence[TensorSpec]) -> Mapping[str, Mapping[str, Path]]:
    """Return the raw files of each input, by where the sample lies; nothing for other paths.

    `path` is a folder of `<input>_<number>.bin`, a pattern of such, one .bin for one input, or
    trtexec's `<input>:<file>,<input>:<file>`. Raises InputError for what fits no input.
    """
    names = [spec.name for spec in specs]
    if path.is_dir() or is_pattern(path):
        files = [file for file in listed_files(path) if file.suffix == RAW]
        if len(names) == 1:
            return {str(file): {names[0]: file} for file in files}
        return by_input(path, files, names)
    if path.suffix.lower() == RAW and path.exists():
        if len(names) != 1:
            raise InputError(
                f"{path} is one array, and the model has the inputs {', '.join(names)}",
                f"write --inputs {names[0]}:FILE,{names[-1]}:FILE" if names else "",
            )
        return {str(path): {names[0]: path}}
    # What exists is a file of another kind, for other readers.
    return {} if path.exists() else _named(str(path), names)


def _named(text: str, names: Sequence[str]) -> Mapping[str, Mapping[str, Path]]:
    """Return the files that trtexec's words name, nothing where these are no such words."""
    files: dict[str, Path] = {}
    for part in text.split(","):
        fitting = [name for name in names if part.startswith(f"{name}:")]
        name, colon, file = part.rpartition(":")
        if fitting:
            # Names may hold colons, so that one may be the beginning of another.
            name = max(fitting, key=len)
            file = part[len(name) + 1 :]
        elif not colon:
            return {}
        if not fitting or name in files:
            wrong = "twice" if fitting else "which is no input of the model"
            raise InputError(
                f"--inputs {text} names {name!r}, {wrong}",
                f"the inputs are {', '.join(names) or 'none'}, each as NAME:FILE",
            )
        files[name] = Path(file)
    return {text: files}


def read_raw(specs: Sequence[TensorSpec], shapes: Shapes, files: Mapping[str, Path]) -> Sample:
    """Return the sample of some files, by input, in their types and shapes. Raises InputError."""
    return {
        spec.name: _read(files[spec.name], spec, shapes) for spec in specs if spec.name in files
    }


def _read(file: Path, spec: TensorSpec, shapes: Shapes) -> NDArray[np.generic]:
    dtype = _dtype(spec)
    try:
        nbytes = plain_size(file)
        if trouble := too_large(nbytes):
            raise InputError(f"{file} holds {trouble}", "give smaller files")
        shape = _shape(spec, shapes, file, nbytes / dtype.itemsize)
        values: NDArray[np.generic] = np.fromfile(file, dtype)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}", "check the path") from error
    return values.reshape(shape)


def _dtype(spec: TensorSpec) -> np.dtype[np.generic]:
    if spec.dtype in (None, "object"):
        raise InputError(f"input {spec.name!r} holds no numbers", "give a .npz")
    # ml_dtypes, which reads the model's weights, has told numpy of bfloat16.
    dtype: np.dtype[np.generic] = np.dtype(spec.dtype)
    return dtype


def _shape(spec: TensorSpec, shapes: Shapes, file: Path, count: float) -> tuple[int, ...]:
    """Return the shape of so many values: one open dimension follows, an open first one is 1."""
    dims = [*(concrete_shape(spec, shapes) if spec.name in shapes else spec.shape or ())]
    unknown = [n for n, size in enumerate(dims) if not isinstance(size, int)]
    if len(unknown) > 1 and unknown[0] == 0:
        dims[0] = 1
        del unknown[0]
    product = math.prod(size for size in dims if isinstance(size, int))
    if len(unknown) == 1 and product and not count % product:
        dims[unknown[0]] = int(count // product)
    shape = tuple(size for size in dims if isinstance(size, int))
    if len(shape) < len(dims) or math.prod(shape) != count or spec.shape is None:
        raise InputError(
            f"{file} has {count:g} values of {spec.dtype}, and input {spec.name!r} is "
            f"{show(spec.shape)}",
            f"check type and shape, or give --input-shapes {spec.name}:1x3x224x224",
        )
    return shape


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
            # A model of a fixed batch takes no smaller one.
            files[number % len(files)]
            for number in range(first, first + pixels.batch)
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
    """Return the files that a path stands for, of a folder without samples the images below it.

    That is how classes are kept apart, each in a folder of its name. Raises InputError.
    """
    files = [file for file in listed_files(path) if file.is_file()]
    if not path.is_dir():
        if not files and is_pattern(path):
            raise InputError(f"the pattern {path} matches no file", "check it; '**' is any depth")
        return files
    images = any(file.suffix.lower() in IMAGES for file in files)
    if not images and any(file.suffix.lower() in _ARRAYS for file in files):
        return files
    # Beside images only the next level could hold classes; without any, they may lie deeper.
    depth = "*/*" if images else "*/**/*"
    below = [
        file
        for file in listed_files(Path(glob.escape(str(path)), depth))
        if file.suffix.lower() in IMAGES and file.is_file()
    ]
    if below and images:
        raise InputError(
            f"{path} has images, and so have its folders", f"name those meant: '{path}/**/*'"
        )
    return below or files


def _refuse_shapes(options: Options, path: Path) -> None:
    if options.input_shapes:
        raise UsageError(
            f"--input-shapes is for made-up inputs and {RAW} files, and --inputs {path} has none",
            "leave one out",
        )


_ARRAYS = (".npz", ".npy", ".json", RAW)
# Files that are read where they are named, and not as part of a folder.
_ALONE = (".py",)
