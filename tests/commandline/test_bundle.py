"""`doctor --bundle`: what goes into the archive that users send, and what never does."""

import base64
import json
import os
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import precision_bisect
from models import parse, save, with_weights
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.commandline.main import main
from precision_bisect.runs.runfolder import (
    LOGS,
    RESULT,
    STATUS,
    VERIFIED,
    VERIFIED_ENGINE,
    VERIFIED_LOG,
)

NAMED = (RESULT, STATUS, "layers.json", "events.jsonl", "layerPrecisions.txt", "trtexec.sh")


def write_model(folder: Path, rng: np.random.Generator) -> Path:
    """Write a model that overflows FP16 in a square, with weights that occur nowhere else."""
    body = (
        "(float[4, 16] x) => (float[4, 16] y) <float scale = {0.0031415926}> { a = MatMul(x, w)"
        " [square] b = Mul(a, a) [root] c = Sqrt(b) d = Mul(c, scale) y = Add(d, v) }"
    )
    weights = {
        "w": rng.uniform(60, 90, (16, 16)).astype(np.float32),
        "v": rng.normal(size=16).astype(np.float32),
    }
    return save(with_weights(parse(body), weights), folder)


def traces(array: NDArray[np.generic]) -> list[bytes]:
    """Return what would tell that values of an array are there: bytes, base64, hex, decimals."""
    raw = [array.tobytes(), array.astype(np.float16).tobytes()]
    pieces = [data[i : i + 6] for data in raw for i in range(0, len(data) - 5, 6)]
    found = [*pieces, *(base64.b64encode(data)[:24] for data in raw)]
    found += [data.hex()[:16].encode() for data in raw]
    found += [f"{value:.9g}"[:8].encode() for value in array.ravel()]
    return [trace for trace in found if len(trace) >= 6]


def unpacked(path: Path) -> dict[str, bytes]:
    """Return the files of an archive, by their names below its one folder."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert all(each.isfile() and each.uid == 0 and not each.uname for each in members)
        parts = [each.name.split("/", 1) for each in members]
        assert {"precision-bisect-bundle"} == {root for root, _ in parts}
        return {
            name: (archive.extractfile(each) or pytest.fail()).read()
            for each, (_, name) in zip(members, parts, strict=True)
        }


@pytest.fixture(scope="module")
def run(rtx: Flavour, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run whose engine was looked into; model and inputs are beside it."""
    folder = tmp_path_factory.mktemp("home")
    rng = np.random.default_rng(7)
    model = write_model(folder, rng)
    feeds = [{"x": rng.uniform(0.3, 0.9, (4, 16)).astype(np.float32)} for _ in range(2)]
    np.savez(folder / "inputs.npz", x=feeds[0]["x"])
    # The plan to deploy keeps nodes without names of their own, which no list can name.
    precision_bisect.find(
        model,
        inputs=feeds,
        out=folder / "run",
        backend="emulated",
        tol=1e-2,
        objective="fewest",
    )
    assert 0 == main(["verify", str(folder / "run")])
    logs = folder / "run" / LOGS
    logs.mkdir()
    (logs / "000001-crashed.log").write_bytes(b"segfault in " + str(folder).encode() + b"\x00\xff")
    return folder / "run"


def test_it_has_what_tells_how_a_run_went(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Versions, result, plan, logs, what verify found and the library's words on the engine."""
    out = tmp_path / "b.tar.gz"
    assert 0 == main(["doctor", str(run), "--bundle", str(out)])
    files = unpacked(out)
    said = capsys.readouterr().out
    assert f"Written: {out}, {len(files)} files" in said
    assert "without" not in said
    for name in (*NAMED, VERIFIED, VERIFIED_ENGINE, VERIFIED_LOG, f"{LOGS}/000001-crashed.log"):
        assert name in files
    assert json.loads((run / RESULT).read_text()) == json.loads(files[RESULT])
    assert b"Datatype: Half" in files[VERIFIED_ENGINE]
    assert "tensorrt_rtx" in json.loads(files["machine.json"])["packages"]
    assert b"--backend auto takes" in files["doctor.txt"]


def test_no_weight_and_no_sample_is_in_it(run: Path, tmp_path: Path) -> None:
    """Neither as bytes of FP32 or FP16, nor as base64, hex or decimals; and all of it is text."""
    out = tmp_path / "b.tar.gz"
    assert 0 == main(["doctor", str(run), "--bundle", str(out)])
    files = unpacked(out)
    graphs = [onnx.load(run.parent / "model.onnx"), onnx.load(run / "model.mixed.onnx")]
    arrays = [numpy_helper.to_array(each) for graph in graphs for each in graph.graph.initializer]
    arrays += list(np.load(run.parent / "inputs.npz").values())
    assert sum(array.size for array in arrays) > 500
    for name, data in files.items():
        assert "\x00" not in data.decode("utf-8")
        for array in arrays:
            assert [] == [trace for trace in traces(array) if trace in data], name
    known = (run / "model.mixed.onnx").read_bytes()
    assert any(trace in known for array in arrays for trace in traces(array))


def test_it_names_no_folders_and_no_machine(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home, run and model are called so; the host has no name."""
    host = json.loads((run / STATUS).read_text())["host"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "cuda"))
    out = tmp_path / "b.tar.gz"
    assert 0 == main(["doctor", str(run), "--bundle", str(out)])
    files = unpacked(out)
    everything = b"".join(files.values()).decode()
    assert str(run.parent) not in everything
    assert str(tmp_path) not in everything
    assert f'"{host}"' not in everything
    assert "~/cuda" == json.loads(files["machine.json"])["environment"]["LD_LIBRARY_PATH"]
    assert b"segfault in MODELS" in files[f"{LOGS}/000001-crashed.log"]


def test_it_names_no_folder_by_another_path(
    rtx: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that the run was told by a relative path or a link, nor that of plugins."""
    (tmp_path / "über secret").mkdir()
    (tmp_path / "plug-secret").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "über secret")
    rng = np.random.default_rng(7)
    model = write_model(tmp_path / "über secret", rng).relative_to(tmp_path)
    np.savez(tmp_path / "inputs.npz", x=rng.uniform(0.3, 0.9, (4, 16)).astype(np.float32))
    source = tmp_path / "none.c"
    source.write_text("int held;")
    library = tmp_path / "plug-secret" / "libown.so"
    subprocess.run(["cc", "-shared", "-o", str(library), str(source)], check=True)
    monkeypatch.chdir(tmp_path)
    flags = ["--inputs", "inputs.npz", "--tol", "1e-2", "--backend", "emulated"]
    flags += ["--plugins", "plug-secret/libown.so"]
    for told, out in ((model, "run"), (Path("link") / model.name, "linked")):
        assert 0 == main([str(told), *flags, "--out", out])
        assert 0 == main(["doctor", out, "--bundle", f"{out}.tgz"])
        files = unpacked(tmp_path / f"{out}.tgz")
        everything = b"".join(files.values()).decode()
        assert [] == [word for word in ("secret", "link/", str(tmp_path)) if word in everything]
        assert b"LIBRARIES/libown.so" in files["trtexec.sh"]
        assert "MODELS/model.onnx" == json.loads(files[STATUS])["run"]["model"]


def test_links_and_odd_names_are_left_out(tmp_path: Path) -> None:
    """A run folder that somebody else made takes no file from elsewhere into the archive."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    run = tmp_path / "run"
    (run / LOGS).mkdir(parents=True)
    (run / RESULT).write_text("{}")
    (run / STATUS).symlink_to(secret)
    (run / LOGS / "000002-crashed.log").symlink_to(secret)
    (run / LOGS / "..evil.log").write_text("secret")
    os.mkfifo(run / VERIFIED)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "000001-crashed.log").write_text("secret")
    (run / "rung-1-int8").mkdir()
    (run / "rung-1-int8" / LOGS).symlink_to(tmp_path / "elsewhere")
    out = tmp_path / "b.tgz"
    assert 0 == main(["doctor", str(run), "--bundle", str(out)])
    assert {"doctor.txt", "doctor.json", "machine.json", RESULT} == set(unpacked(out))


def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No model is written over, and no folder taken for a run's; without one it is the machine."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model.onnx"
    model.write_text("precious")
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        (["--bundle", str(model)], "no name of an archive"),
        ([str(tmp_path / "empty"), "--bundle"], "is no run folder"),
        ([str(tmp_path / "empty")], "add --bundle"),
        (["--bundle", "gone/b.tar.gz"], "cannot write gone/b.tar.gz"),
    ):
        assert 2 == main(["doctor", *arguments])
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert "precious" == model.read_text()
    (tmp_path / "dir.tar.gz").mkdir()
    assert 2 == main(["doctor", "--bundle", "dir.tar.gz"])
    assert {"dir.tar.gz", "empty", "model.onnx"} == {path.name for path in tmp_path.iterdir()}
    assert 0 == main(["doctor", "--bundle", "--json"])
    told = json.loads(capsys.readouterr().out)["bundle"]
    assert ["doctor.txt", "doctor.json", "machine.json"] == told["files"]
    assert set(told["files"]) == set(unpacked(tmp_path / "precision-bisect-bundle.tar.gz"))
