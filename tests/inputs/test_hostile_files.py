"""Files that have no end, or far more in them than they seem: refused before they are read."""

import os
import sqlite3
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import tiny
from precision_bisect.commandline.main import main
from precision_bisect.errors import InputError, RunFolderError
from precision_bisect.judging.inputs.input_files import read_samples

NO_ELEMENTS = b"{'descr': '|S0', 'fortran_order': False, 'shape': (2305843009213693952, 2), }"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with `tiny.onnx`, a pipe, and a device without end."""
    monkeypatch.chdir(tmp_path)
    tiny.write_with_samples(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("pipe.npz")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name, odd in (("piped", "ledger.sqlite"), ("pipes", "status.json")):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / odd)
    return tmp_path


CASES = {
    "model, a pipe": ["pipe"],
    "model, a device": ["zero"],
    "layers of a pipe": ["layers", "pipe"],
    "inputs, a pipe": ["tiny.onnx", "--inputs", "pipe.npz"],
    "inputs, a device": ["tiny.onnx", "--inputs", "zero.npz"],
    "inputs, a device as JSON": ["tiny.onnx", "--inputs", "zero.json"],
    "baseline, a pipe": ["tiny.onnx", "--baseline", "pipe"],
    "baseline, a device": ["tiny.onnx", "--baseline", "zero"],
    "status of a pipe": ["status", "pipe"],
    "status, a pipe": ["status", "pipes"],
    "ledger, a pipe": ["report", "piped"],
    "ledger, a pipe, to go on with": ["tiny.onnx", "--out", "piped", "--resume"],
    "jobs, a pipe": ["batch", "pipe"],
    "jobs, a device": ["batch", "zero"],
    "comparison with a device": ["compare", "zero", "zero"],
    "export of a device": ["export", "tiny.onnx", "zero"],
}


@pytest.mark.parametrize("case", CASES)
def test_pipes_and_devices_are_no_files(
    case: str, work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody is waited for, nothing without an end is read: one line, exit code 2."""
    assert 2 == main(CASES[case])
    *_, line = capfd.readouterr().err.splitlines()
    assert line.startswith("precision-bisect: ")


def header(text: bytes) -> bytes:
    """Return an .npy file of this header, and no data."""
    line = text.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


def bomb(folder: Path, name: str) -> Path:
    """Write an archive of 200 KB whose one array has 200 MB."""
    with (
        zipfile.ZipFile(folder / "in.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{name}.npy", "w") as stream,
    ):
        stream.write(header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (200000000,), }"))
        for _ in range(200):
            stream.write(b"\0" * 1_000_000)
    return folder / "in.npz"


def test_what_nothing_asks_for_is_not_decompressed(tmp_path: Path) -> None:
    """An array under an unknown name is named; its 200 MB are not made."""
    tracemalloc.start()
    with pytest.raises(InputError, match="has z, and not x"):
        read_samples(bomb(tmp_path, "z"), ["x"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24


def huge(folder: Path) -> Path:
    """Write an .npy that is a hole of 64 TiB."""
    with (folder / "x.npy").open("wb") as stream:
        stream.write(
            header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (70368744177664,), }")
        )
        stream.truncate(2**43)
    return folder


def empty_values(folder: Path) -> Path:
    """Write an .npy of 2**62 texts of no bytes each."""
    (folder / "x.npy").write_bytes(header(NO_ELEMENTS))
    return folder


@pytest.mark.parametrize(
    ("write", "expected"), [(huge, "of memory are free"), (empty_values, "values of no bytes")]
)
def test_what_memory_cannot_hold_is_refused(
    write: Callable[[Path], Path], expected: str, tmp_path: Path
) -> None:
    """The header tells: nothing of that size is begun."""
    with pytest.raises(InputError, match=expected):
        read_samples(write(tmp_path), ["x"])


def test_inputs_too_large_to_make_up(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What all samples need together is bounded, not what each does."""
    model = onnx.load("tiny.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2**25
    onnx.save(model, "wide.onnx")
    assert 2 == main(["wide.onnx", "--synthetic", "4"])
    assert "too large to make up" in capfd.readouterr().err


def test_samples_that_hold_nothing(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Zero-size inputs are refused: an LSTM over them ends the process by SIGABRT."""
    model = onnx.load("tiny.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, "open.onnx")
    np.savez("none.npz", x=np.empty((0, 8), np.float32))
    assert 2 == main(["open.onnx", "--inputs", "none.npz"])
    assert "holds nothing" in capfd.readouterr().err


def test_a_ledger_whose_tables_are_no_text(work: Path) -> None:
    """A schema that is no UTF-8 is one line, to read and to go on with."""
    tiny.search(work / "tiny.onnx", work / "run")
    ledger = work / "run" / "ledger.sqlite"
    with sqlite3.connect(ledger) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    broken = ledger.read_bytes().replace(b"trials (", b"trials )")
    ledger.write_bytes(broken.replace(b"trials", b"tr\xff\xfels"))
    for command in (["report", "run"], ["tiny.onnx", "--out", "run", "--resume"]):
        assert 2 == main(command)
    with pytest.raises(RunFolderError, match="damaged"):
        tiny.search(work / "tiny.onnx", work / "run", resume=True)
