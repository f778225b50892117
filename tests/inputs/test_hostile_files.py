"""Files that are none, or that memory cannot hold: refused before they are read."""

import os
import sqlite3
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

import tiny
from precision_bisect.commandline.main import main
from precision_bisect.errors import InputError, RunFolderError
from precision_bisect.judging.inputs.input_files import read_samples


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with `tiny.onnx`, a pipe, and a device."""
    monkeypatch.chdir(tmp_path)
    tiny.write_with_samples(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("pipe.npz")
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "device.npz").symlink_to("/dev/null")
    (tmp_path / "device.json").symlink_to("/dev/null")
    for name, odd in (("piped", "ledger.sqlite"), ("pipes", "status.json")):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / odd)
    return tmp_path


CASES = {
    "model, a pipe": ["pipe"],
    "model, a device": ["device"],
    "layers of a pipe": ["layers", "pipe"],
    "inputs, a pipe": ["tiny.onnx", "--inputs", "pipe.npz"],
    "inputs, a device": ["tiny.onnx", "--inputs", "device.npz"],
    "inputs, a device as JSON": ["tiny.onnx", "--inputs", "device.json"],
    "baseline, a pipe": ["tiny.onnx", "--baseline", "pipe"],
    "baseline, a device": ["tiny.onnx", "--baseline", "device"],
    "status of a pipe": ["status", "pipe"],
    "status, a pipe": ["status", "pipes"],
    "ledger, a pipe": ["report", "piped"],
    "ledger, a pipe, to go on with": ["tiny.onnx", "--out", "piped", "--resume"],
    "jobs, a pipe": ["batch", "pipe"],
    "jobs, a device": ["batch", "device"],
    "comparison with a device": ["compare", "device", "device"],
    "export of a device": ["export", "tiny.onnx", "device"],
}


@pytest.mark.parametrize("case", CASES)
def test_pipes_and_devices_are_no_files(
    case: str, work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody is waited for, nothing is read: one line, exit code 2."""
    assert 2 == main(CASES[case])
    *_, line = capfd.readouterr().err.splitlines()
    assert line.startswith("precision-bisect: ")


def test_what_nothing_asks_for_is_not_decompressed(tmp_path: Path) -> None:
    """An array under an unknown name is named; its 4 MB are not made."""
    np.savez_compressed(tmp_path / "in.npz", z=np.zeros(10**6, np.float32))
    tracemalloc.start()
    with pytest.raises(InputError, match="has z, and not x"):
        read_samples(tmp_path / "in.npz", ["x"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_what_memory_cannot_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header tells: nothing of that size is begun."""
    np.save(tmp_path / "x.npy", np.zeros((1, 8), np.float32))
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=16))
    with pytest.raises(InputError, match="of memory are free"):
        read_samples(tmp_path, ["x"])


def test_values_of_no_bytes_are_refused(tmp_path: Path) -> None:
    """Their number says nothing of their size."""
    header = {"descr": "|S0", "fortran_order": False, "shape": (1, 8)}
    with (tmp_path / "x.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
    with pytest.raises(InputError, match="values of no bytes"):
        read_samples(tmp_path, ["x"])


def test_inputs_too_large_to_make_up(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What all samples need together is bounded, not what each does."""
    model = onnx.load("tiny.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2**25
    onnx.save(model, "wide.onnx")
    assert 2 == main(["wide.onnx", "--synthetic", "4"])
    assert "too large to make up" in capfd.readouterr().err


def test_samples_that_hold_nothing(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Zero-size inputs are refused: libraries may end the process over them."""
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
