"""Samples from files: what can be read, and one line with a hint for what cannot."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from models import normal, parse, save
from precision_bisect.errors import InputError, PrecisionBisectError
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.machine.polygraphy_quiet import quiet


def refused(path: Path, names: list[str] | None = None) -> str:
    """Return the line that reading the path ends with."""
    with pytest.raises(PrecisionBisectError) as caught:
        read_samples(path, names or ["x"])
    line = caught.value.one_line()
    assert "\n" not in line
    assert caught.value.hint
    return line


def test_an_archive_is_one_sample(tmp_path: Path) -> None:
    """A .npz is one sample with all its arrays."""
    np.savez(tmp_path / "a.npz", x=normal(2), y=normal(3))
    (sample,) = read_samples(tmp_path / "a.npz", ["x", "y"])
    assert sorted(sample) == ["x", "y"]


def test_a_folder_of_archives_is_read_in_name_order(tmp_path: Path) -> None:
    """Each archive of a folder is one sample, in the order of the names."""
    for k in (2, 0, 1):
        np.savez(tmp_path / f"{k}.npz", x=np.full(1, k))
    samples = read_samples(tmp_path, ["x"])
    assert [int(sample["x"][0]) for sample in samples] == [0, 1, 2]


def test_a_folder_of_arrays(tmp_path: Path) -> None:
    """For one input any name will do; for several the file is named after its input."""
    np.save(tmp_path / "ids_0.npy", np.full(1, 0))
    np.save(tmp_path / "ids_1.npy", np.full(1, 1))
    assert len(read_samples(tmp_path, ["x"])) == 2
    np.save(tmp_path / "ids_mask_0.npy", np.full(1, 10))
    np.save(tmp_path / "ids_mask_1.npy", np.full(1, 11))
    samples = read_samples(tmp_path, ["ids", "ids_mask"])
    assert [{n: int(a[0]) for n, a in s.items()} for s in samples] == [
        {"ids": 0, "ids_mask": 10},
        {"ids": 1, "ids_mask": 11},
    ]
    np.save(tmp_path / "stray.npy", np.full(1, 0))
    assert "named after none" in refused(tmp_path, ["ids", "ids_mask"])


FEEDS = [{"x": normal(1, seed=k), "n": np.array([k])} for k in range(2)]


def _save_by_polygraphy(path: Path, folder: Path) -> None:
    """Run a model in Polygraphy and have it save its inputs, as `--save-inputs` does."""
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator

    model = save(parse("(float[1] x, int64[1] n) => (float[1] y) { y = Exp(x) }"), folder)
    runner = OnnxrtRunner(SessionFromOnnx(str(model)))
    Comparator.run([runner], data_loader=FEEDS, save_inputs_path=str(path))


def _save_wrapped(path: Path, folder: Path) -> None:
    """Save the wrappers that Polygraphy keeps arrays in."""
    from polygraphy.comparator.struct import LazyArray
    from polygraphy.json import save_json

    wrapped = [{name: LazyArray(array) for name, array in feed.items()} for feed in FEEDS]
    save_json(wrapped, str(path))


@pytest.mark.parametrize(
    ("writer", "name"),
    [(_save_by_polygraphy, "in.json"), (_save_by_polygraphy, "in"), (_save_wrapped, "in.json")],
)
def test_polygraphy_files(tmp_path: Path, writer: Callable[[Path, Path], None], name: str) -> None:
    """What Polygraphy saves, in one file or in a folder, comes back with its types."""
    with quiet():
        writer(tmp_path / name, tmp_path)
    samples = read_samples(tmp_path / name, ["x", "n"])
    assert len(samples) == len(FEEDS)
    for feed, sample in zip(FEEDS, samples, strict=True):
        np.testing.assert_array_equal(sample["x"], feed["x"])
        assert sample["n"].dtype == np.int64


def test_mixed_empty_and_missing(tmp_path: Path) -> None:
    """Folders of two kinds, folders of none, and paths to nothing are refused."""
    assert "no such file" in refused(tmp_path / "nothing")
    assert "no samples" in refused(tmp_path)
    np.save(tmp_path / "a.npy", normal(1))
    np.savez(tmp_path / "a.npz", x=normal(1))
    assert "both .npz and .npy" in refused(tmp_path)
    (tmp_path / "a.csv").write_text("1,2")
    assert "cannot tell" in refused(tmp_path / "a.csv")


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    """Arrays of objects would run code when loaded, so they are refused."""
    hostile = np.array([{"a": 1}], dtype=object)
    folder = tmp_path / "folder"
    folder.mkdir()
    np.save(folder / "x.npy", hostile, allow_pickle=True)
    assert "allow_pickle=False" in refused(folder)
    np.savez(tmp_path / "a.npz", x=hostile)
    assert "allow_pickle=False" in refused(tmp_path / "a.npz")


def test_files_that_are_not_what_their_name_says(tmp_path: Path) -> None:
    """An array called archive, an archive called array, and a folder called archive."""
    buffer = io.BytesIO()
    np.save(buffer, normal(1))
    (tmp_path / "a.npz").write_bytes(buffer.getvalue())
    assert "cannot read" in refused(tmp_path / "a.npz")
    folder = tmp_path / "folder"
    (folder / "b.npz").mkdir(parents=True)
    assert "cannot read" in refused(folder)
    other = tmp_path / "other"
    other.mkdir()
    np.savez(other / "b.npz", x=normal(1))
    (other / "b.npz").rename(other / "b.npy")
    assert "cannot read" in refused(other)


@examples(15)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.booleans())
def test_damaged_archives(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int, cut: bool
) -> None:
    """A damaged archive is read or refused, never anything else."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=normal(4))
    data = bytearray(buffer.getvalue())
    data[place % len(data)] = value
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    path.write_bytes(bytes(data[: place % len(data)] if cut else data))
    try:
        read_samples(path, ["x"])
    except InputError as error:
        assert "\n" not in error.one_line()


def test_an_archive_whose_member_is_no_array(tmp_path: Path) -> None:
    """A zip of something else is refused by the check of its contents."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"not an array")
    assert "is no array" in refused(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "text",
    ["", "{", "3", '"text"', "null", "[1, 2]", '["a"]', '{"a": "b"'],
    ids=repr,
)
def test_bad_json(tmp_path: Path, text: str) -> None:
    """JSON that holds no feeds is refused."""
    (tmp_path / "a.json").write_text(text)
    refused(tmp_path / "a.json")


def test_one_array_is_a_sample_of_one_input(tmp_path: Path) -> None:
    """With several inputs it says which, and how to save them."""
    np.save(tmp_path / "a.npy", normal(2))
    (sample,) = read_samples(tmp_path / "a.npy", ["x"])
    assert ["x"] == list(sample)
    line = refused(tmp_path / "a.npy", ["x", "y"])
    assert "is one array, and the model has the inputs x, y; save all of them in one .npz" in line


def test_names_that_are_all_others_are_told(tmp_path: Path) -> None:
    """The file, what it has, and what the model wants; one of a folder as well."""
    np.savez(tmp_path / "a.npz", image=normal(2))
    for path in (tmp_path / "a.npz", tmp_path):
        line = refused(path, ["x", "y"])
        assert f"{tmp_path / 'a.npz'} has image, and not x, y; save its arrays under" in line
