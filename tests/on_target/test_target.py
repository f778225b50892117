"""`target`: a folder for trtexec and a shell alone, and the verdict on what comes back of it."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import tiny
from exports_models import SHELLS
from fake_board import judge, searched, shell_tool, tool
from precision_bisect.commandline.main import main
from precision_bisect.pipeline.on_target.exchange import MANIFEST
from precision_bisect.pipeline.on_target.target_script import SCRIPT
from precision_bisect.runs.results.on_target import OnTarget, TargetStatus
from precision_bisect.runs.runfolder import GOLDEN_INPUTS, REPORT, RESULT, TARGET
from precision_bisect.runs.typed_json import read_or_none
from precision_bisect.trial import Honour

HARD = ["it's", 'a "b"  c', "$(touch pwned)`x`", "line\nbreak", "a,b:c", "-rf *"]
"""Names that shells, trtexec or its JSON would take for something else."""


def saved(graph: onnx.GraphProto, path: Path) -> Path:
    """Save a graph as a model."""
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


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
    assert all(2 == each.samples and 0.5 == each.latency_ms for each in found.points)
    for name, each in points.items():
        assert (back[1] / name / "model.engine").stat().st_size == each.engine_bytes
    assert {"trtexec": "101300", "device": "Orin", "compute_capability": "8.7"} == found.versions
    out = capsys.readouterr().out
    assert 0 == main(["target", str(back[0]), "--read", str(back[1]), "--json"])
    assert capsys.readouterr().out == (back[0] / TARGET).read_text()
    assert out.startswith("Holds: ")
    assert "\n  trtexec 101300, device Orin, compute_capability 8.7\n" in out
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


GONE, HALF = None, b""
DAMAGE: list[tuple[str, str | bytes | None, int, str]] = [
    ("answer/output-1.json", GONE, 1, "no outputs of sample 1: "),
    ("answer/output-1.json", HALF, 1, "output-1.json is damaged"),
    ("answer/output-1.json", '[{"name": 1}]', 1, "missing"),
    ("answer/times-0.json", "[]", 0, "no times"),
    ("answer/layers.json", GONE, 0, "layers.json"),
    ("answer/layers.json", HALF, 0, "layers.json is damaged"),
    ("answer/engine-bytes.txt", "x", 0, "no size"),
    ("all_low", GONE, 0, "all_low: no engine: no log says why"),
    ("answer", GONE, 1, "answer: no engine: no log says why"),
]


@pytest.mark.parametrize(("name", "content", "expected", "said"), DAMAGE)
def test_damage_costs_only_itself(
    name: str,
    content: str | bytes | None,
    expected: int,
    said: str,
    back: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is there is judged, what lacks is said; only outputs of the answer decide."""
    path = back[1] / name
    if content is GONE:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif content == HALF:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_text(str(content))
    code, found = read(*back)
    assert (expected, True) == (code, said in capsys.readouterr().out)
    fp32 = next(each for each in found.points if each.point == "fp32")
    assert (2, True, ()) == (fp32.samples, fp32.passed, tuple(fp32.lacks))


def test_values_that_are_not_finite_fail(back: tuple[Path, Path]) -> None:
    """C++ prints nan and -inf, which are no JSON; they are read, and the answer fails."""
    path = back[1] / "answer/output-0.json"
    told = path.read_text().split('"values" : [ ')
    path.write_text(f'{told[0]}"values" : [ -nan, -inf, {told[1].split(", ", 2)[2]}')
    code, found = read(*back)
    answer = found.answer
    assert answer is not None
    assert (1, False, float("inf"), ()) == (code, answer.passed, answer.error, tuple(answer.lacks))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read"),
        ("{}", "is damaged"),
        ('{"run": "x", "samples": 2, "points": {}}', "was written for another run"),
    ],
)
def test_a_folder_that_is_not_of_this_run_is_refused(
    text: str | None, said: str, back: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so, and nothing is recorded."""
    (back[1] / MANIFEST).unlink()
    if text is not None:
        (back[1] / MANIFEST).write_text(text)
    assert 2 == main(["target", str(back[0]), "--read", str(back[1])])
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (back[0] / TARGET).exists()


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
    fails = "case $PWD,$* in */answer,*--onnx=*) exit 1;; esac"
    ran = judge(folder, shell_tool(tmp_path / "broken", fails), shell)
    assert (1, True) == (ran.returncode, "answer/build.log" in ran.stderr)
    points = ("fp32", "all_low")
    assert all((folder / name / "output-1.json").exists() for name in points)
    again = judge(folder, shell_tool(tmp_path / "bin"), shell)
    assert 0 == again.returncode
    done = [line for line in again.stdout.splitlines() if line.endswith((".engine", ".json"))]
    assert ["answer/model.engine", "answer/output-0.json", "answer/output-1.json"] == done


def test_names_of_the_model_reach_no_shell(tmp_path: Path) -> None:
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
    x = np.full((3, 4), 28.0, np.float32)
    model = saved(graph, home / "it's.onnx")
    run = searched(home, model, {HARD[0]: x, HARD[1]: x})
    folder = home / "board\n2"
    assert 0 == main(["target", str(run), "--write", str(folder)])
    for shell in SHELLS:
        copy = home / f"$(touch pwned) {shell}"
        shutil.copytree(folder, copy)
        ran = judge(copy, shell_tool(tmp_path / shell), shell)
        assert (0, "") == (ran.returncode, ran.stderr)
        told = (copy / "answer/output-0.json").read_text().splitlines()
        loads = "--loadInputs=input_0:../inputs/0-0.bin,input_1:../inputs/0-1.bin"
        assert {loads, "--shapes=input_0:3x4,input_1:3x4"} <= set(told)
    ran = judge(folder, tool(tmp_path / "bin"))
    assert (0, "") == (ran.returncode, ran.stderr)
    code, on_target = read(run, folder)
    assert (0, 1) == (code, on_target.samples)
    assert all(1 == each.samples for each in on_target.points)
    assert not list(tmp_path.rglob("pwned"))


def test_shapes_are_given_where_they_are_open(tmp_path: Path) -> None:
    """An input that gives a shape by its values is given by these, and from no file."""
    text = "(float[n,4] x, int64[2] to) => (float[p,q] y) { t = Tanh(x) y = Reshape(t, to) }"
    model = saved(onnx.parser.parse_graph(f"g {text}"), tmp_path / "m.onnx")
    samples = [
        {"x": np.full((rows, 4), 0.5, np.float32), "to": np.array([4, rows], np.int64)}
        for rows in (2, 3)
    ]
    run, folder = searched(tmp_path, model, *samples), tmp_path / "board"
    assert 0 == main(["target", str(run), "--write", str(folder)])
    script = (folder / SCRIPT).read_text()
    assert "--minShapes=x:2x4,to:4x2 --optShapes=x:3x4,to:4x3 --maxShapes=x:3x4,to:4x3" in script
    for number, rows in ((0, 2), (1, 3)):
        loads = f"--loadInputs=x:../inputs/{number}-0.bin --shapes=x:{rows}x4,to:4x{rows}"
        assert loads in script
    assert [0.5] * 12 == np.fromfile(folder / "inputs/1-0.bin", "<f4").tolist()


@pytest.mark.parametrize(("typing", "holds"), [("strong", True), ("weak", True), ("weak", False)])
def test_each_plan_is_built_as_it_was_judged(
    back: tuple[Path, Path], typing: str, holds: bool, tmp_path: Path
) -> None:
    """All with TF32, which plans without a product do not feel, but FP32 where that fails so."""
    run, folder = back[0], tmp_path / "other"
    result = json.loads((run / RESULT).read_text())
    result["export_point"] = "deploy"
    result["deploy"]["tf32"] = True
    result["deploy"]["kept"] = [*result["kept"], "n0_Abs"]
    result["tf32"] = {"fp32_passed": holds, "passed": True}
    (run / RESULT).write_text(json.dumps(result))
    assert 0 == main(["target", str(run), "--write", str(folder), "--typing", typing])
    assert 0 == judge(folder, shell_tool(tmp_path / "bin")).returncode
    points = json.loads((folder / MANIFEST).read_text())["points"]
    assert {"answer", "fp32"} < {*points}
    for point in points:
        told = (folder / point / "model.engine").read_text().splitlines()
        assert ("--noTF32" in told) is (point == "fp32" and not holds)


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
    graph = onnx.parser.parse_graph("g (float[1,8] x) => (float[1,8] y) { y = Tanh(x) }")
    sample = {"x": np.linspace(-1, 1, 8, dtype=np.float32)[None]}
    run = searched(tmp_path, saved(graph, tmp_path / "m.onnx"), sample, tolerance=1e-6)
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


def test_a_plan_that_is_slower_than_fp32_is_named(
    back: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them, not the answer alone."""
    told(back, "fp32", 1.0, 2.0)
    told(back, "all_low", 1.0, 5.0)
    read(*back)
    assert "\n  all_low: FP32 is faster there\n" in capsys.readouterr().out


def test_a_tool_without_strong_typing_is_refused_at_once(
    exchanged: tuple[Path, Path], tmp_path: Path
) -> None:
    """TensorRT 8.6 would fail at each plan, for a reason in the logs; nothing is built."""
    folder = tmp_path / "board"
    assert 0 == main(["target", str(exchanged[0]), "--write", str(folder)])
    old = "case $* in *--help) echo '[TensorRT v8601] --layerPrecisions'; exit;; esac"
    said = "trtexec (TensorRT v8601) has no strong typing, and these plans need it: "
    said += "write the folder by --typing weak\n"
    for shell in SHELLS:
        ran = judge(folder, shell_tool(tmp_path / shell, old), shell)
        assert (1, "", said) == (ran.returncode, ran.stdout, ran.stderr)
    assert not list(folder.rglob("*.log"))
