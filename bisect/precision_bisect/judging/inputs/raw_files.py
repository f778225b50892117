"""Raw files, as trtexec's --loadInputs takes them: the values alone, without type or shape."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError
from precision_bisect.graphs.types import TensorSpec
from precision_bisect.judging.inputs.input_files import by_input
from precision_bisect.judging.inputs.input_shapes import Shapes, concrete_shape, show
from precision_bisect.machine.plain_files import plain_size, too_large
from precision_bisect.protocols import Sample

RAW = ".bin"


def raw_files(path: Path, specs: Sequence[TensorSpec]) -> Mapping[str, Mapping[str, Path]]:
    """Return the raw files of each input, by where the sample lies; nothing for other paths.

    `path` is a folder of `<input>_<number>.bin`, one .bin for one input, or trtexec's
    `<input>:<file>,<input>:<file>`. Raises InputError for what fits no input.
    """
    names = [spec.name for spec in specs]
    if path.is_dir():
        files = sorted(path.glob(f"*{RAW}"))
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
    return {} if path.exists() else _named(str(path), names)


def _named(text: str, names: Sequence[str]) -> Mapping[str, Mapping[str, Path]]:
    """Return the files that trtexec's words name, nothing where these are no such words."""
    files: dict[str, Path] = {}
    for part in text.split(","):
        fitting = [name for name in names if part.startswith(f"{name}:")]
        name, colon, file = part.rpartition(":")
        if fitting:
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
