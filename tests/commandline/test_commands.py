"""Doctor, and what verify and export say to what they cannot use."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import tiny
from precision_bisect.backends.backend_plugin import availabilities, choose_builder
from precision_bisect.backends.tensorrt import tensorrt_plugin
from precision_bisect.backends.tensorrt.flavour import Flavour, FlavourName
from precision_bisect.commandline.doctor import examine
from precision_bisect.commandline.main import main
from precision_bisect.settings.engine_settings import EngineSettings


def test_doctor_says_what_auto_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """The backends are listed in the order of `auto`, which takes the first that works."""
    assert 0 == main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    names = ["tensorrt", "tensorrt-rtx", "onnxruntime", "emulated", "remote"]
    assert names == [entry["name"] for entry in found["backends"]]
    assert next(entry["name"] for entry in found["backends"] if entry["usable"]) == found["auto"]
    assert all(entry["why"] for entry in found["backends"])


def test_doctor_gives_advice() -> None:
    """Both onnxruntime packages at once, and none of them, are told with what to do."""
    found = examine()
    for line in found.advice:
        assert line in found.to_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('ABI of\\nnumpy')", "does not load: RuntimeError: ABI of numpy"),
        ("x = 1", "does not load: "),
        ("import elsewhere_gone", "does not load: No module named 'elsewhere_gone'"),
    ],
)
def test_doctor_survives_broken_packages(tmp_path: Path, text: str, said: str) -> None:
    """Whatever importing a library raises is one line beside its backend."""
    for module in ("onnxruntime", "tensorrt", "tensorrt_rtx"):
        (tmp_path / f"{module}.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-m", "precision_bisect", "doctor"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in ran.stdout.splitlines() if "cannot run: " in line]
    assert ["onnxruntime", "tensorrt", "tensorrt-rtx"] == sorted(line.split()[0] for line in lines)
    assert all(said in line for line in lines)


def test_rtx_that_cannot_run_is_refused_as_backend(
    rtx: Flavour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search on TensorRT-RTX without its GPU ends in one line that says what can be done."""
    if rtx.can_run:
        pytest.skip("this GPU runs TensorRT-RTX")
    model = tiny.write_model(tmp_path / "m.onnx")
    code = main([str(model), "--backend", "tensorrt-rtx", "--out", str(tmp_path / "run")])
    captured = capsys.readouterr()
    assert (2, "") == (code, captured.out)
    line = captured.err.splitlines()[-1]
    assert "--backend tensorrt-rtx cannot run plans here: no GPU" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
def test_a_backend_that_is_missing_is_one_line(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot run here says why, with exit code 2, and leaves nothing behind."""
    if next(entry for entry in availabilities() if entry.name == backend).usable:
        pytest.skip(f"{backend} works here")
    model = tiny.write_model(tmp_path / "m.onnx")
    assert 2 == main([str(model), "--backend", backend, "--out", str(tmp_path / "run")])
    assert f"--backend {backend} cannot run plans here: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["verify", "export"])
def test_without_a_run_there_is_nothing_to_do(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan that does not exist is one line that says where it was looked for."""
    model = tiny.write_model(tmp_path / "m.onnx")
    assert 2 == main([command, str(model), "--plan", str(tmp_path / "nowhere")])
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere" in line


def no_gpu(name: FlavourName, targets: tuple[str, ...]) -> Flavour:
    """Return a library that can build for these targets, and run nothing here."""
    return Flavour(
        name=name,
        module=ModuleType("x"),
        version="1",
        weak=False,
        strong=True,
        targets=targets,
        device=None,
        compute_capability=None,
        why_not="this GPU cannot run it",
    )


def test_auto_builds_with_the_library_that_can_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU a TensorRT that needs one is passed over, and doctor does not praise it."""
    rtx = no_gpu("tensorrt-rtx", ("8.6",))
    full = no_gpu("tensorrt", ())
    found = {"tensorrt": full, "tensorrt-rtx": rtx}
    monkeypatch.setattr(tensorrt_plugin, "load_flavour", lambda name: found[name])
    assert "tensorrt-rtx" == choose_builder("auto", EngineSettings()).name
    assert "tensorrt" == choose_builder("tensorrt", EngineSettings()).name
    builds = {entry.name: entry.builds for entry in availabilities()}
    assert (False, True) == (builds["tensorrt"], builds["tensorrt-rtx"])


def test_verify_builds_for_another_gpu_where_this_one_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU that the library does not serve is no worse than none."""
    rtx = replace(no_gpu("tensorrt-rtx", ("8.6", "12.0")), device="H200", compute_capability="9.0")
    monkeypatch.setattr(tensorrt_plugin, "load_flavour", lambda _: rtx)
    remark = choose_builder("auto", EngineSettings()).remark
    assert "built for compute capability 8.6" in remark


def test_ctrl_c_says_what_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one, while the result is written, does not claim that nothing was searched."""

    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    model = str(tiny.write_model(tmp_path / "m.onnx"))
    monkeypatch.setattr("precision_bisect.pipeline.run.conclude", interrupted)
    command = [model, "--backend", "emulated", "--max-trials", "1", "--out", str(tmp_path / "run")]
    assert 130 == main(command)
    assert "--resume writes it again" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.setattr("precision_bisect.commandline.doctor.examine", interrupted)
    assert 130 == main(["doctor"])
    assert "precision-bisect: interrupted" == capsys.readouterr().err.strip()
