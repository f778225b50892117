"""Raw files as trtexec takes them, and the loader that is printed for what nothing reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from models import load_text, normal
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode, PrecisionBisectError
from precision_bisect.judging.inputs.input_check import CheckedSamples, check_samples
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.judging.inputs.loader_script import loader_script
from precision_bisect.judging.inputs.sample_sources import open_source
from precision_bisect.options import Options
from precision_bisect.protocols import Sample

TWO = "(float[2, 3] a, int64[2] ids) => (float[2, 3] y) { y = Relu(a) }"


def opened(path: Path, folder: Path, signature: str = TWO, **flags: Any) -> list[Sample]:
    """Return the samples of a path, for a model of this signature, checked."""
    model = load_text(signature, folder)
    placed = open_source(Options(model=model.path, inputs=path, **flags), path, model).placed
    return [*CheckedSamples(model, placed)]


def refused(path: Path, folder: Path, signature: str = TWO, **flags: Any) -> str:
    """Return the line that opening a path ends with."""
    with pytest.raises(PrecisionBisectError) as caught:
        opened(path, folder, signature, **flags)
    assert caught.value.hint
    return caught.value.one_line()


def test_the_words_of_trtexec(tmp_path: Path) -> None:
    """NAME:FILE, comma separated, one sample; a name may hold a colon."""
    a, ids = normal(2, 3), np.array([4, 5])
    a.tofile(tmp_path / "a.bin")
    ids.tofile(tmp_path / "i:d.raw")
    words = f"ids:{tmp_path}/i:d.raw,a:{tmp_path}/a.bin"
    (sample,) = opened(Path(words), tmp_path)
    np.testing.assert_array_equal(a, sample["a"])
    np.testing.assert_array_equal(ids, sample["ids"])
    assert "names 'a', twice" in refused(Path("a:1.bin,a:2.bin"), tmp_path)
    assert "'b', which is no input of the model" in refused(Path("b:1.bin"), tmp_path)
    assert "lacks ids" in refused(Path(f"a:{tmp_path}/a.bin"), tmp_path)
    assert "cannot read none.bin" in refused(Path("a:none.bin"), tmp_path)
    assert "no such file or folder: none" in refused(Path("none"), tmp_path)


def test_folders_of_raw_files(tmp_path: Path) -> None:
    """They are named after the inputs, or anyhow where there is one."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        normal(2, 3, seed=number).tofile(folder / f"a_{number}.bin")
        np.array([number, 7]).tofile(folder / f"ids_{number}.bin")
    first, second = opened(folder, tmp_path)
    np.testing.assert_array_equal(normal(2, 3, seed=1), second["a"])
    assert [0, 7] == first["ids"].tolist()
    one = "(float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }"
    (sample,) = opened(folder / "a_0.bin", tmp_path, one)
    np.testing.assert_array_equal(first["a"], sample["x"])
    assert "write --inputs a:FILE,ids:FILE" in refused(folder / "a_0.bin", tmp_path)


@examples(25)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    unknown=st.sets(st.integers(0, 3)),
    told=st.booleans(),
    dtype=st.sampled_from(["float", "float16", "bfloat16", "double", "int64", "uint8", "bool"]),
)
def test_shapes_of_raw_files(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    unknown: set[int],
    told: bool,
    dtype: str,
) -> None:
    """One open dimension follows from the file, a first one is 1; others are asked for."""
    folder = tmp_path_factory.mktemp("raw")
    open_ = {axis for axis in unknown if axis < len(sizes)}
    if len(open_) > 1 and 0 in open_ and not told:
        sizes[0] = 1
    dims = ", ".join(f"d{axis}" if axis in open_ else str(n) for axis, n in enumerate(sizes))
    signature = f"({dtype}[{dims}] x) => (float[{dims}] y) {{ y = Cast<to = 1>(x) }}"
    (spec,) = load_text(signature, folder).inputs
    values = np.random.default_rng(0).integers(0, 2, sizes).astype(spec.dtype)
    values.tofile(folder / "x.bin")
    flags = {"input_shapes": {"x": tuple(sizes)}} if told else {}
    asked_for = len(open_ - ({0} if len(open_) > 1 else set())) > 1
    if told or not asked_for:
        (sample,) = opened(folder / "x.bin", folder, signature, **flags)
        assert tuple(sizes) == sample["x"].shape
        np.testing.assert_array_equal(values.astype(np.float64), sample["x"].astype(np.float64))
    if told or asked_for or not open_:
        np.append(values, values).tofile(folder / "x.bin")
        line = refused(folder / "x.bin", folder, signature, **flags)
        assert "check type and shape, or give --input-shapes x:" in line


def test_what_is_not_read_gets_a_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is there; the script after it runs as it is, as the line says."""
    monkeypatch.chdir(tmp_path)
    load_text(TWO, tmp_path)
    folder = tmp_path / "sounds"
    folder.mkdir()
    for name in ("1.wav", "2.wav", "read.py"):
        (folder / name).touch()
    assert ExitCode.USAGE == main(["model.onnx", "--inputs", "sounds"])
    line, *script = capsys.readouterr().err.splitlines()
    assert line.startswith("precision-bisect: sounds has files that are not read: 2 .wav, 1 .py;")
    assert "fill in this as load_data.py, and give --inputs load_data.py" in line
    Path("load_data.py").write_text("\n".join(script))
    (sample, _) = opened(Path("load_data.py"), tmp_path)
    assert {"a": (2, 3), "ids": (2,)} == {name: array.shape for name, array in sample.items()}
    image = folder / "1.jpg"
    image.touch()
    assert ExitCode.USAGE == main(["model.onnx", "--inputs", "sounds/1.jpg"])
    said = capsys.readouterr().err
    assert "images are for one input, and the model's are a, ids" in said
    assert "'*.jpg'" in said and "def load_data():" in said


NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=8)


@examples(15)
@given(
    name=NAMES,
    dtype=st.sampled_from(["float", "float16", "bfloat16", "int64", "bool", "string"]),
    shape=st.lists(st.integers(1, 3) | st.just(0), max_size=3),
    folder=NAMES,
)
def test_a_loader_is_python_whatever_the_names(
    tmp_path_factory: pytest.TempPathFactory, name: str, dtype: str, shape: list[int], folder: str
) -> None:
    """It gives samples that pass the checks; names and paths are untrusted."""
    work = tmp_path_factory.mktemp("loader")
    dims = ", ".join(str(size) if size else "?" for size in shape)
    model = load_text(f"({dtype}[{dims}] x) => ({dtype}[{dims}] y) {{ y = Identity(x) }}", work)
    (work / "one.txt").touch()
    script = loader_script(Path(name), model.inputs, work, "*.txt")
    assert (
        f"{folder!r}" in loader_script(model.path, model.inputs, Path(folder), "*")
        or "/" in folder
    )
    (work / "load_data.py").write_text(script, encoding="utf-8", errors="replace")
    (sample,) = check_samples(model, read_samples(work / "load_data.py", ["x"]))
    assert tuple(size or 1 for size in shape) == sample["x"].shape
