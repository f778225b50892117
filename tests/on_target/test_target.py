"""`target`: a folder for trtexec and a shell alone, and the verdict on what comes back of it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tiny
from exports_models import SHELLS, words
from precision_bisect.commandline.main import main
from precision_bisect.pipeline.on_target.target_folder import MANIFEST, SCRIPT
from precision_bisect.runs.results.on_target import OnTarget, TargetStatus
from precision_bisect.runs.runfolder import GOLDEN_INPUTS, REPORT, RESULT, TARGET
from precision_bisect.runs.typed_json import read_or_none
from precision_bisect.trial import Honour

TESTS = Path(__file__).parents[1]
HARD = ["it's", 'a "b"  c', "$(touch pwned)`x`", "line\nbreak", "a,b:c", "-rf *"]
"""Names that shells, trtexec or its JSON would take for something else."""
ERROR = "[11/26/2026-10:00:00] [E] Error[10]: no kernel"


def tool(folder: Path, begins: str = "") -> Path:
    """Write a trtexec that works without any variable of ours; return its folder."""
    folder.mkdir(parents=True)
    path = ":".join([str(TESTS), *filter(None, sys.path)])
    script = folder / "trtexec"
    script.write_text(
        f"#!/bin/sh\n{begins}\nPYTHONPATH='{path}' exec {sys.executable} "
        f'{TESTS / "fake_trtexec.py"} "$@"\n'
    )
    script.chmod(0o755)
    return folder


def judge(folder: Path, tools: Path, shell: str = "sh") -> "subprocess.CompletedProcess[str]":
    """Run the script as on a machine that has a shell and trtexec, from another folder."""
    path = f"PATH={tools}:/usr/bin:/bin"
    called = ["env", "-i", path, *words(shell), str(folder / SCRIPT)]
    return subprocess.run(called, cwd="/", capture_output=True, text=True, check=False)


def searched(folder: Path, scale: float = 1.0) -> Path:
    """Search the model of 20 layers that needs four; return the run."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny.write_model(folder / "model.onnx", scale)
    run = folder / "run"
    inputs = folder / "inputs"
    inputs.mkdir()
    for number in range(3):
        x = np.linspace(-1 - number, 2, 8, dtype=np.float32).reshape(1, 8)
        np.savez(inputs / f"{number}.npz", x=x)
    flags = ["--inputs", str(inputs), "--tol", "1e-2", "--backend", "emulated"]
    assert 0 == main([str(model), *flags, "--out", str(run)])
    return run


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and its folder as it came back."""
    home = tmp_path_factory.mktemp("exchanged")
    run, folder = searched(home), home / "board"
    assert 0 == main(["target", str(run), "--write", str(folder)])
    ran = judge(folder, tool(home / "bin"))
    assert (0, "") == (ran.returncode, ran.stderr)
    return run, folder


@pytest.fixture
def back(exchanged: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A run, and its folder as it came back, to be damaged."""
    copies = tmp_path / "run", tmp_path / "board"
    for source, copy in zip(exchanged, copies, strict=True):
        shutil.copytree(source, copy)
    shutil.copy(exchanged[0].parent / "model.onnx", tmp_path)
    return copies


def read(run: Path, folder: Path) -> tuple[int, OnTarget]:
    """Judge what came back; return the exit code and the record in the run."""
    code = main(["target", str(run), "--read", str(folder)])
    found = read_or_none(OnTarget, run / TARGET)
    assert found is not None
    return code, found


def test_the_answer_is_judged_as_by_the_run(
    back: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """All low fails there as here, the answer holds; record, screen and report say so."""
    code, found = read(*back)
    points = {each.point: each for each in found.points}
    assert 0 == code
    assert {"answer": True, "fp32": True, "all_low": False} == {
        name: points[name].passed for name in ("answer", "fp32", "all_low")
    }
    predicted = json.loads((back[0] / RESULT).read_text())["error"]
    assert points["answer"].error == pytest.approx(predicted, rel=0.5)
    assert all(3 == each.samples and 0.5 == each.latency_ms for each in found.points)
    for name, each in points.items():
        assert (back[1] / name / "model.engine").stat().st_size == each.engine_bytes
    out = capsys.readouterr().out
    assert out.startswith("Holds: ")
    assert "On the target, answer" in (back[0] / REPORT).read_text()


def test_honoured_layers_are_those_of_the_engine(back: tuple[Path, Path]) -> None:
    """Real layers of an engine are laid over the plan; a kernel in the low type is a demotion."""
    pytest.importorskip("tensorrt_rtx")
    _, found = read(*back)
    (answer,) = (each for each in found.points if each.point == "answer")
    assert set(tiny.KEPT) <= {each.layer for each in answer.layers}
    assert Honour.DEMOTED not in {each.honoured for each in answer.layers}
    entry = {"Datatype": "Half", "Dimensions": [1, 8], "Name": "t", "Format": "Row major"}
    layer = {
        "Name": "n4_Mul",
        "LayerType": "ElementWise",
        "Inputs": [entry],
        "Outputs": [entry | {"Name": "u"}],
        "Metadata": "[ONNX Layer: n4_Mul]",
    }
    (back[1] / "answer/layers.json").write_text(json.dumps({"Layers": [layer]}))
    _, found = read(*back)
    (answer,) = (each for each in found.points if each.point == "answer")
    demoted = [each.layer for each in answer.layers if each.honoured is Honour.DEMOTED]
    assert ["n4_Mul"] == demoted


DAMAGE: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "no output": (lambda b: (b / "answer/output-1.json").unlink(), 1, "sample 1"),
    "cut output": (lambda b: cut(b / "answer/output-1.json"), 1, "output-1.json is damaged"),
    "other JSON": (
        lambda b: (b / "answer/output-1.json").write_text('[{"name": 1}]'),
        1,
        "missing",
    ),
    "no times": (lambda b: (b / "answer/times-0.json").write_text("[]"), 0, "no times"),
    "no layers": (lambda b: (b / "answer/layers.json").unlink(), 0, "layers.json"),
    "cut layers": (lambda b: cut(b / "answer/layers.json"), 0, "layers.json is damaged"),
    "no size": (lambda b: (b / "answer/engine-bytes.txt").write_text("x"), 0, "no size"),
    "a point": (lambda b: shutil.rmtree(b / "all_low"), 0, "all_low: no engine, and no log"),
    "the answer": (lambda b: shutil.rmtree(b / "answer"), 1, "no engine, and no log"),
}


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_costs_only_itself(
    damage: str, back: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """What is there is judged, what lacks is said; only outputs of the answer decide."""
    harm, expected, said = DAMAGE[damage]
    harm(back[1])
    code, found = read(*back)
    assert (expected, True) == (code, said in capsys.readouterr().out)
    fp32 = next(each for each in found.points if each.point == "fp32")
    assert (3, True, ()) == (fp32.samples, fp32.passed, tuple(fp32.lacks))


def test_values_that_are_not_finite_fail(back: tuple[Path, Path]) -> None:
    """C++ prints nan and -inf, which are no JSON; they are read, and the answer fails."""
    path = back[1] / "answer/output-0.json"
    told = path.read_text().split('"values" : [ ')
    path.write_text(f'{told[0]}"values" : [ -nan, -inf, {told[1].split(", ", 2)[2]}')
    code, found = read(*back)
    answer = found.answer
    assert answer is not None
    assert (1, False, float("inf"), ()) == (code, answer.passed, answer.error, tuple(answer.lacks))


@pytest.mark.parametrize("text", [None, "", "{}", '{"run": "x", "samples": 3, "points": {}}'])
def test_a_folder_that_is_not_of_this_run_is_refused(
    text: str | None, back: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so, and nothing is recorded."""
    (back[1] / MANIFEST).unlink()
    if text is not None:
        (back[1] / MANIFEST).write_text(text)
    assert 2 == main(["target", str(back[0]), "--read", str(back[1])])
    assert 1 == capsys.readouterr().err.count("\n")
    assert not (back[0] / TARGET).exists()


def test_the_folder_of_another_run_is_refused(
    exchanged: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of the same names, with another constant, is another run."""
    other = searched(tmp_path, scale=1.5)
    capsys.readouterr()
    assert 2 == main(["target", str(other), "--read", str(exchanged[1])])
    assert "was written for another run" in capsys.readouterr().err


def test_a_folder_that_has_not_been_there_is_said(
    exchanged: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the script has run there is nothing to judge; a folder in use is not written to."""
    folder = tmp_path / "board"
    assert 0 == main(["target", str(exchanged[0]), "--write", str(folder)])
    assert 2 == main(["target", str(exchanged[0]), "--read", str(folder)])
    assert 2 == main(["target", str(exchanged[0]), "--write", str(folder)])
    said = capsys.readouterr().err.splitlines()
    assert 2 == len(said)
    assert "nothing of the target" in said[0]
    assert "is not empty" in said[1]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_goes_on_and_can_be_called_again(
    shell: str, exchanged: tuple[Path, Path], tmp_path: Path
) -> None:
    """Where builds of one plan fail the others are built; later only what lacks is done."""
    folder = tmp_path / "board"
    assert 0 == main(["target", str(exchanged[0]), "--write", str(folder)])
    broken = tool(tmp_path / "broken", f"case $* in *onnx=answer/*) echo '{ERROR}'; exit 1;; esac")
    ran = judge(folder, broken, shell)
    assert (1, True) == (ran.returncode, "answer/build.log" in ran.stderr)
    code, found = read(exchanged[0], folder)
    answer = found.answer
    assert answer is not None
    assert (1, ["no engine: Error[10]: no kernel"]) == (code, list(answer.lacks))
    assert all(3 == each.samples for each in found.points if each.point != "answer")
    again = judge(folder, tool(tmp_path / "bin"), shell)
    assert 0 == again.returncode
    done = [line for line in again.stdout.splitlines() if line.endswith((".engine", ".json"))]
    assert {"answer"} == {line.partition("/")[0] for line in done}
    assert 0 == read(exchanged[0], folder)[0]


@pytest.mark.parametrize("shell", SHELLS)
def test_names_of_the_model_reach_no_shell(shell: str, tmp_path: Path) -> None:
    """Whatever inputs, outputs and layers are called, and the folders: all are judged."""
    home = tmp_path / "a 'b' $c"
    home.mkdir()
    shape: list[str | int | None] = ["n", 4]
    value = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    nodes = [
        onnx.helper.make_node("Mul", [HARD[0], HARD[1]], ["t"], name=HARD[2]),
        onnx.helper.make_node("Mul", ["t", "t"], [HARD[3]], name=HARD[4]),
        onnx.helper.make_node("Sqrt", [HARD[3]], [HARD[5]], name=HARD[3]),
    ]
    inputs = [value(HARD[0], kind, shape), value(HARD[1], kind, shape)]
    outputs = [value(HARD[5], kind, shape), value(HARD[3], kind, shape)]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = home / "it's.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), model)
    (home / "inputs").mkdir()
    for rows in (2, 3):
        x = np.full((rows, 4), 25.0 + rows, np.float32)
        arrays: dict[str, Any] = {HARD[0]: x, HARD[1]: x}
        np.savez(home / f"inputs/{rows}.npz", **arrays)
    flags = ["--inputs", str(home / "inputs"), "--tol", "1e-2", "--backend", "emulated"]
    assert 0 == main([str(model), *flags, "--out", str(home / "run")])
    folder = home / "board\n2"
    assert 0 == main(["target", str(home / "run"), "--write", str(folder)])
    ran = judge(folder, tool(tmp_path / "bin"), shell)
    assert (0, "") == (ran.returncode, ran.stderr)
    code, found = read(home / "run", folder)
    assert (0, 2) == (code, found.samples)
    assert all(2 == each.samples for each in found.points)
    assert not list(tmp_path.rglob("pwned"))


def test_shapes_are_given_where_they_are_open(tmp_path: Path) -> None:
    """An input that gives a shape by its values is given by these, and from no file."""
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto
    nodes = [
        onnx.helper.make_node("Tanh", ["x"], ["t"], name="low"),
        onnx.helper.make_node("Reshape", ["t", "to"], ["y"], name="shape"),
    ]
    inputs = [value("x", kind.FLOAT, ["n", 4]), value("to", kind.INT64, [2])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, [value("y", kind.FLOAT, ["p", "q"])])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx"
    )
    (tmp_path / "inputs").mkdir()
    for rows in (2, 3):
        x = np.full((rows, 4), 0.5, np.float32)
        np.savez(tmp_path / f"inputs/{rows}.npz", x=x, to=np.array([4, rows], np.int64))
    flags = ["--inputs", str(tmp_path / "inputs"), "--tol", "1e-2", "--backend", "emulated"]
    run, folder = tmp_path / "run", tmp_path / "board"
    assert 0 == main([str(tmp_path / "m.onnx"), *flags, "--out", str(run)])
    assert 0 == main(["target", str(run), "--write", str(folder)])
    script = (folder / SCRIPT).read_text()
    assert "--minShapes=x:2x4,to:4x2 --optShapes=x:3x4,to:4x3 --maxShapes=x:3x4,to:4x3" in script
    for number, rows in ((0, 2), (1, 3)):
        assert f"--loadInputs=x:inputs/{number}-0.bin --shapes=x:{rows}x4,to:4x{rows}" in script
    raw = np.fromfile(folder / "inputs/1-0.bin", "<f4")
    assert [0.5] * 12 == raw.tolist()


def test_what_cannot_be_judged_is_said(
    back: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Samples that are missing or would be rounded, or another answer since: one line each."""
    run, folder = back
    assert 2 == main(["target", str(run), "--write", str(run / "b"), "--io-types", "fp16"])
    result = json.loads((run / RESULT).read_text())
    kept = result["kept"]
    (run / RESULT).write_text(json.dumps(result | {"kept": kept[1:]}))
    assert 2 == main(["target", str(run), "--read", str(folder)])
    (run / RESULT).write_text(json.dumps(result))
    (run / GOLDEN_INPUTS).unlink()
    assert 2 == main(["target", str(run), "--read", str(folder)])
    rounds, gone_on, no_samples = capsys.readouterr().err.splitlines()
    assert "not what the run has judged" in rounds
    assert "has gone on since" in gone_on
    assert "has no samples to judge by" in no_samples


def test_an_answer_that_keeps_all_is_nothing_to_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no layer may run low there is no model to build but the user's own."""
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    nodes = [onnx.helper.make_node("Tanh", ["x"], ["y"], name="low")]
    ends = [value(name, kind, [1, 8]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), model)
    run = tmp_path / "run"
    main([str(model), "--tol", "1e-6", "--backend", "emulated", "--out", str(run)])
    capsys.readouterr()
    assert 2 == main(["target", str(run), "--write", str(tmp_path / "board")])
    assert "nothing to judge" in capsys.readouterr().err
    assert not (tmp_path / "board").exists()


def told(back: tuple[Path, Path], point: str, factor: float, ms: float) -> None:
    """Have a point come back with its outputs multiplied, and with such times."""
    for path in (back[1] / point).glob("output-*.json"):
        outputs = json.loads(path.read_text())
        for output in outputs:
            output["values"] = [factor * value for value in output["values"]]
        path.write_text(json.dumps(outputs))
    for path in (back[1] / point).glob("times-*.json"):
        path.write_text(json.dumps([{"computeMs": ms + each} for each in (-0.1, 0, 0.1)]))


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_control_that_fails_is_no_precision_problem(
    factor: float, back: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where FP32 itself is off there, nothing is said of the answer, whether it passes or not."""
    told(back, "fp32", 2.0, 1.0)
    told(back, "answer", factor, 0.5)
    code, found = read(*back)
    assert (1, TargetStatus.NOT_PRECISION) == (code, found.status)
    said = capsys.readouterr().out.splitlines()[0]
    assert said.startswith("Not a precision problem: the comparison itself fails on the target")
    control = next(each for each in found.points if each.point == "fp32")
    assert control.error is not None
    assert f"FP32 is off by {control.error:.3g}" in said
    assert said[:40] in (back[0] / REPORT).read_text()


@pytest.mark.parametrize(
    ("answer_ms", "fp32_ms", "status", "said"),
    [
        (5.0, 2.0, TargetStatus.SLOWER, "Holds, but FP32 is faster there: 2 ms, the answer 5 ms"),
        (2.05, 2.0, TargetStatus.NO_FASTER, "it is no faster than FP32 there: 2 ms, the answer"),
        (
            2.0,
            2.05,
            TargetStatus.NO_FASTER,
            "it is no faster than FP32 there: 2.05 ms",
        ),
        (2.0, 5.0, TargetStatus.HOLDS, "Holds: the answer is within the limits on the target"),
    ],
)
def test_an_answer_that_gains_nothing_is_said_to(
    answer_ms: float,
    fp32_ms: float,
    status: TargetStatus,
    said: str,
    back: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It holds, and the target runs FP32 as fast: the first line says so, beyond the spread."""
    told(back, "answer", 1.0, answer_ms)
    told(back, "fp32", 1.0, fp32_ms)
    code, found = read(*back)
    assert (0, status) == (code, found.status)
    first = capsys.readouterr().out.splitlines()[0]
    assert said in first
    assert (status is TargetStatus.HOLDS) == ("FP32" not in first)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_tool_without_strong_typing_is_refused_at_once(
    shell: str, exchanged: tuple[Path, Path], tmp_path: Path
) -> None:
    """TensorRT 8.6 would fail at each plan, for a reason in the logs; nothing is built."""
    folder = tmp_path / "board"
    assert 0 == main(["target", str(exchanged[0]), "--write", str(folder)])
    ran = judge(folder, tool(tmp_path / "bin", "TENSORRT=8.6.1; export TENSORRT"), shell)
    assert (1, "") == (ran.returncode, ran.stdout)
    said = "trtexec (TensorRT v8601) has no strong typing, and these plans need it: TensorRT 10\n"
    assert said == ran.stderr
    assert not list(folder.rglob("*.log"))


def test_json_is_the_record(
    exchanged: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """--json prints what the run folder keeps."""
    assert 0 == main(["target", str(exchanged[0]), "--read", str(exchanged[1]), "--json"])
    assert capsys.readouterr().out == (exchanged[0] / TARGET).read_text()
