"""Samples from what people have: .npz, folders, Polygraphy's JSON, data-loader scripts."""

import errno
import glob
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from precision_bisect.errors import InputError
from precision_bisect.judging.inputs.input_check import own_sample
from precision_bisect.machine.plain_files import plain_size, too_large
from precision_bisect.machine.polygraphy_quiet import quiet
from precision_bisect.machine.user_scripts import (
    ScriptFailed,
    first_line,
    load_function,
    running_script,
)
from precision_bisect.protocols import Sample

_READABLE = (
    "give a folder of images, .npz, .npy or .bin, one such file, Polygraphy's .json, or a .py with"
    " load_data()"
)
MOST_HELD = 64
"""Files of a folder that are read once and held. A limit on memory."""
_SAMPLE = "each sample is a dict of name to array"


def is_pattern(path: Path) -> bool:
    """Tell whether a path that nothing lies at is a pattern such as photos/*/*.jpg."""
    return glob.has_magic(str(path)) and not path.exists()


def listed_files(path: Path) -> Sequence[Path]:
    """Return what a folder holds, or a pattern matches, or the one file that the path is.

    Files that are hidden are left out. Raises InputError for a folder that cannot be read.
    """
    try:
        if is_pattern(path):
            listed = [Path(file) for file in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        else:
            listed = [*path.iterdir()] if path.is_dir() else [path]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "check the path") from error
    return sorted(entry for entry in listed if not entry.name.startswith("."))


def read_samples(path: Path, input_names: list[str]) -> list[Sample]:
    """Return the samples that `path` holds, as `placed_samples` does."""
    return list(placed_samples(path, input_names).values())


def placed_samples(path: Path, input_names: list[str]) -> Mapping[str, Sample]:
    """Return the samples that `path` holds, in a fixed order, by where each lies, in words.

    A .npz is one sample, and so is a .npy where the model has one input; a folder holds one sample
    per file in name order, and so does a pattern. In a folder of .npy, files are named after the
    input (`ids_0.npy`, `mask_0.npy`), or anything where the model has one input. Of many files
    each is read whenever its sample is asked for. Raises InputError for what cannot be read, and
    for an empty result.
    """
    samples: Mapping[str, Sample]
    if path.is_dir() or is_pattern(path):
        samples = _read_several(path, input_names)
    elif not path.exists():
        raise InputError(f"no such file or folder: {path}", _READABLE)
    elif path.suffix.lower() not in _READERS:
        raise InputError(f"cannot tell what {path} is", _READABLE)
    else:
        samples = _of_file(path, input_names)
    if not samples:
        raise InputError(f"{path} holds no samples", _READABLE)
    if isinstance(samples, ReadAnew):
        return samples
    return {place: _with_bytes(sample, place) for place, sample in samples.items()}


def _with_bytes(sample: Sample, place: str) -> Sample:
    for name, array in sample.items():
        if array.size and not array.dtype.itemsize:
            raise InputError(f"{name} in {place} has values of no bytes", "give arrays of numbers")
    return sample


_From = TypeVar("_From")


@dataclass(frozen=True, slots=True)
class ReadAnew(Mapping[str, Sample], Generic[_From]):
    """Samples by where they lie, each read whenever it is asked for."""

    files: Mapping[str, _From]
    read: Callable[[_From], Sample]

    def __getitem__(self, place: str) -> Sample:
        return _with_bytes(self.read(self.files[place]), place)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def held(files: Mapping[str, _From], read: Callable[[_From], Sample]) -> Mapping[str, Sample]:
    """Return the samples of few files read and held, those of many as they are asked for."""
    anew = ReadAnew(files, read)
    return anew if len(files) > MOST_HELD else dict(anew)


def refuse_several(folder: Path, kinds: Sequence[str]) -> None:
    """Raise InputError for a folder of several kinds of files, each of which could be meant."""
    if len(kinds) > 1:
        raise InputError(f"{folder} has both {' and '.join(kinds)} files", "keep one kind")


def _of_one(input_names: list[str], file: Path) -> Sample:
    """Return the sample of a file that holds just one."""
    (sample,) = _of_file(file, input_names).values()
    return sample


def _single(path: Path, input_names: list[str]) -> list[Sample]:
    """Return the one array of a .npy as a sample, where the model has one input."""
    if len(input_names) != 1:
        raise InputError(
            f"{path} is one array, and the model has the inputs {', '.join(input_names)}",
            "save all of them in one .npz, with numpy.savez and these names",
        )
    return [{input_names[0]: _read_npy(path)}]


def _read_several(folder: Path, input_names: list[str]) -> Mapping[str, Sample]:
    files = listed_files(folder)
    kinds = {
        kind: [file for file in files if file.suffix == kind] for kind in (".npz", ".npy", ".json")
    }
    refuse_several(folder, [kind for kind, files in kinds.items() if files])
    if kinds[".npy"] and len(input_names) != 1:
        groups = by_input(folder, kinds[".npy"], input_names)
        return held(groups, _read_group)
    if arrays := kinds[".npy"] or kinds[".npz"]:
        return held({str(file): file for file in arrays}, partial(_of_one, input_names))
    samples: dict[str, Sample] = {}
    for file in kinds[".json"]:
        samples |= _of_file(file, input_names)
    return samples


def _read_group(files: Mapping[str, Path]) -> Sample:
    return {name: _read_npy(file) for name, file in files.items()}


def _of_file(file: Path, input_names: list[str]) -> dict[str, Sample]:
    """Return the samples of a file. Raises InputError where no name in it is one of these."""
    samples = _READERS[file.suffix.lower()](file, input_names)
    for sample in samples:
        if sample and input_names and not set(sample).intersection(input_names):
            has = ", ".join(map(str, sample))
            raise InputError(
                f"{file} has {has}, and not {', '.join(input_names)}",
                "save its arrays under the names that the model has",
            )
    if len(samples) == 1:
        return {str(file): samples[0]}
    return {f"sample {number} of {file}": sample for number, sample in enumerate(samples)}


def by_input(
    folder: Path, files: Sequence[Path], input_names: Sequence[str]
) -> dict[str, dict[str, Path]]:
    """Group files named `<input>`, `<input>_<k>`, `<input>-<k>` or `<input>.<k>` by k.

    Returns the file of each input by where the sample lies, in words. Raises InputError.
    """
    groups: defaultdict[str, dict[str, Path]] = defaultdict(dict)
    for file in files:
        fitting = [n for n in input_names if re.fullmatch(re.escape(n) + r"([._-].*)?", file.stem)]
        if not fitting:
            raise InputError(
                f"{file} is named after none of the inputs {', '.join(input_names)}",
                f"name the files <input>_<number>{file.suffix}, or use .npz",
            )
        name = max(fitting, key=len)
        groups[file.stem[len(name) :].lstrip("._-")][name] = file
    return {
        f"sample {key} of {folder}" if key else str(folder): groups[key] for key in sorted(groups)
    }


def _read_npz(path: Path, input_names: list[str]) -> list[Sample]:
    """Return the one sample; arrays that nothing asks for are named, and not decompressed."""
    try:
        _check_size(path)
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.zip.infolist()}
            wanted = [name for name in archive.files if name in input_names]
            _refuse_too_large(sum(sizes.get(f"{name}.npy", 0) for name in wanted))
            sample = {
                name: archive[name] if name in wanted else np.empty(0) for name in archive.files
            }
    except InputError:
        raise
    except Exception as error:  # zip, zlib, numpy and the system each raise their own
        # What is no archive numpy takes for a pickle, and advises to load it.
        why = (
            "it is no archive of arrays" if "pickled (object)" in str(error) else first_line(error)
        )
        raise InputError(f"cannot read {path}: {why}", "save it again with numpy.savez") from error
    others = [name for name, array in sample.items() if not isinstance(array, np.ndarray)]
    if others:
        raise InputError(f"{others[0]} in {path} is no array", "save it again with numpy.savez")
    return [sample]


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        _check_size(path)
        with path.open("rb") as stream:
            array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    except InputError:
        raise
    except Exception as error:  # as above
        raise InputError(
            f"cannot read {path}: {first_line(error)}", "save it again with numpy.save"
        ) from error
    return array


def _check_size(path: Path) -> None:
    """Raise OSError for what is no plain file, or does not fit into memory.

    Raises InputError for a file that this user may not read.
    """
    _refuse_too_large(plain_size(path))
    if not os.access(path, os.R_OK):
        why = os.strerror(errno.EACCES)
        raise InputError(f"cannot read {path}: {why}", "see who may read it")


def _refuse_too_large(nbytes: int) -> None:
    if trouble := too_large(nbytes):
        raise OSError(errno.EFBIG, f"it holds {trouble}")


def _read_polygraphy_json(path: Path, input_names: list[str]) -> list[Sample]:
    """Read a list of feed dicts, or the one that each file of a Polygraphy folder holds."""
    with quiet():
        from polygraphy.json import load_json

        try:
            _check_size(path)
            feeds = load_json(str(path))
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # anything can be wrong with a foreign JSON file
            raise InputError(
                f"cannot read {path}: {first_line(error)}",
                "it should come from `polygraphy run --save-inputs` or `--save-outputs`",
            ) from error
        return _checked(_sample_list(feeds, path), path)


def _sample_list(loaded: Any, path: Path) -> Any:
    """Return what Polygraphy stores as a list: one feed, feeds, or the outputs of one runner."""
    from polygraphy.comparator import RunResults

    if isinstance(loaded, RunResults):
        if len(loaded) != 1:
            names = ", ".join(loaded.keys())
            raise InputError(f"{path} has outputs of several runners: {names}", "save one alone")
        (outputs,) = loaded.values()
        return [dict(iteration.items()) for iteration in outputs]
    return [loaded] if isinstance(loaded, Mapping) else loaded


def _read_script(path: Path, input_names: list[str]) -> list[Sample]:
    load_data = load_function(path, "load_data")
    try:
        with running_script(path):
            feeds = load_data()
            if isinstance(feeds, Iterable) and not isinstance(feeds, Mapping | str):
                feeds = [own_sample(feed) for feed in feeds]
    except ScriptFailed as failed:
        raise InputError(
            f"load_data() in {path} failed: {failed}", "run it on its own first"
        ) from failed
    return _checked(feeds, path)


def _checked(feeds: Any, path: Path) -> list[Sample]:
    if not isinstance(feeds, list):
        raise InputError(f"{path} is no list of samples", _SAMPLE)
    return [_checked_sample(feed, path) for feed in feeds]


def _checked_sample(feed: Any, path: Path) -> Sample:
    if not isinstance(feed, Mapping):
        raise InputError(f"a sample in {path} is no dict of name to array", _SAMPLE)
    try:
        # Polygraphy keeps arrays in wrappers that have to be asked for them.
        return {
            str(name): np.asarray(array.load() if hasattr(array, "load") else array)
            for name, array in feed.items()
        }
    except InputError:
        raise
    except Exception as error:  # foreign array types raise what they like
        raise InputError(
            f"a sample in {path} holds something that is no array: {first_line(error)}", _SAMPLE
        ) from error


_READERS: Mapping[str, Callable[[Path, list[str]], list[Sample]]] = {
    ".npz": _read_npz,
    ".npy": _single,
    ".json": _read_polygraphy_json,
    ".py": _read_script,
}
