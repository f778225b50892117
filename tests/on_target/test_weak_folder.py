"""`target --typing weak`: plans for boards without strong typing, and what boards say."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import tiny
from effort import examples
from exports_models import chain, export_of
from fake_board import judge, searched, shell_tool, tool
from precision_bisect.commandline.main import main
from precision_bisect.exports.export import NotWritable
from precision_bisect.exports.trtexec import weak_flags
from precision_bisect.pipeline.on_target.target_script import REFERENCES, SCRIPT, SHARED_MODEL
from precision_bisect.runs.results.on_target import BuildTrouble, OnTarget
from precision_bisect.runs.runfolder import TARGET, TIMING_CACHE
from precision_bisect.runs.typed_json import read_or_none
from trtexec_oracle import NAMES, trtexec_selects

BY_NAME = ("--layerPrecisions", "--layerOutputTypes")


def read(run: Path, folder: Path) -> OnTarget:
    """Judge what came back, whatever the verdict; return the record in the run."""
    main(["target", str(run), "--read", str(folder)])
    on_target = read_or_none(OnTarget, run / TARGET)
    assert on_target is not None
    return on_target


@pytest.fixture(scope="module")
def weak(exchanged: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of weak plans, as it is written."""
    folder = tmp_path_factory.mktemp("weak") / "board"
    assert 0 == main(["target", str(exchanged[0]), "--write", str(folder), "--typing", "weak"])
    return folder


@pytest.mark.parametrize("version", ["8.5.3", "8.6.1", "10.3.0"])
def test_a_board_is_judged_by_names_of_layers(
    version: str, exchanged: tuple[Path, Path], weak: Path, tmp_path: Path
) -> None:
    """JetPack 5 and 6 build the model as given; all builds read and write one timing cache."""
    folder = tmp_path / "board"
    shutil.copytree(weak, folder)
    ran = judge(folder, tool(tmp_path / "bin"), version=version)
    assert (0, "") == (ran.returncode, ran.stderr)
    on_target = read(exchanged[0], folder)
    points = {point.point: point for point in on_target.points}
    assert {"answer": True, "fp32": True, "all_low": False} == {
        name: points[name].passed for name in ("answer", "fp32", "all_low")
    }
    assert len(points) == len((folder / TIMING_CACHE).read_text().splitlines())
    major, minor, patch = map(int, version.split("."))
    number = major * (10_000 if major >= 10 else 1000) + minor * 100 + patch
    assert str(number) == on_target.versions["trtexec"]
    assert not list(folder.rglob("*.part"))


def test_the_plan_is_said_by_the_rules_of_each_version(weak: Path) -> None:
    """Both strings of the answer select its layers, whether a star is a pattern or a character."""
    (line,) = [
        line for line in (weak / SCRIPT).read_text().splitlines() if line.startswith("    answer)")
    ]
    told = [word for word in shlex.split(line) if word.startswith(BY_NAME)]
    names = [node.name for node in onnx.load(weak / SHARED_MODEL).graph.node]
    assert 2 == len(told)
    for argument, flag in zip(told, BY_NAME, strict=True):
        for patterns in (True, False):
            selected = trtexec_selects(argument, names, flag, patterns=patterns)
            assert set(tiny.KEPT) == selected


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=NAMES.filter(all), data=st.data())
def test_strings_that_are_given_out_mean_the_same_to_8_and_10(
    names: list[str], data: st.DataObject, tmp_path: Path
) -> None:
    """Whatever layers are called: a version to which a star is no pattern selects the plan."""
    kept = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    onnx.save(chain(names), tmp_path / "m.onnx")
    try:
        told = list(weak_flags(export_of(tmp_path / "m.onnx", kept)))
    except NotWritable as why:
        assert str(why)
        return
    for argument in told:
        flag = argument.partition("=")[0]
        if flag in BY_NAME:
            by_8, by_10 = (
                trtexec_selects(argument, names, flag, patterns=patterns)
                for patterns in (False, True)
            )
            assert set(kept) == by_8 == by_10


def test_a_plan_that_names_cannot_say_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parser makes several layers of a Gemm with a bias: the answer's only way is types."""
    graph = onnx.parser.parse_graph(
        """g (float[1,8] x) => (float[1,8] y)
        { [in] t = Tanh(x) [fc] h = Gemm(t, w, b) [down] s = Mul(h, c) [out] y = Tanh(s) }"""
    )
    weights = {
        "w": np.eye(8, dtype=np.float32) * 1e5,
        "b": np.zeros(8, np.float32),
        "c": np.array(1e-5, np.float32),
    }
    graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    opsets = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    run = searched(tmp_path, path, {"x": np.linspace(1, 2, 8, dtype=np.float32)[None]})
    capsys.readouterr()
    board = ["--write", str(tmp_path / "board"), "--typing", "weak"]
    assert 2 == main(["target", str(run), *board])
    (line,) = capsys.readouterr().err.splitlines()
    assert "no weak plan says the answer: TensorRT builds 'fc' (Gemm) of several layers" in line
    assert not (tmp_path / "board").exists()


def test_what_lacks_weak_typing_is_refused_at_once(weak: Path, tmp_path: Path) -> None:
    """TensorRT 11 ends with unknown options at each plan; nothing is built."""
    folder = tmp_path / "board"
    shutil.copytree(weak, folder)
    ran = judge(folder, tool(tmp_path / "bin"), version="11.1.0")
    said = "trtexec (TensorRT v110100) has no --layerPrecisions, which these plans need: "
    assert (1, f"{said}write the folder by --typing strong\n") == (ran.returncode, ran.stderr)
    assert not list(folder.rglob("*.log"))


def test_the_board_itself_gives_a_verdict(exchanged: tuple[Path, Path], tmp_path: Path) -> None:
    """trtexec 11.1 compares with the references; what it calls within the limits is."""
    run, folder = exchanged[0], tmp_path / "board"
    assert 0 == main(["target", str(run), "--write", str(folder)])
    assert 8 * 4 == (folder / REFERENCES / "0-0.bin").stat().st_size
    ran = judge(folder, tool(tmp_path / "bin"), version="11.1.0")
    assert (0, "") == (ran.returncode, ran.stderr)
    assert "\nanswer by trtexec's own comparison: within the limits\n" in ran.stdout
    assert "\nall_low by trtexec's own comparison: over half of the limits" in ran.stdout
    passed = {point.point: point.passed for point in read(run, folder).points}
    assert passed["answer"] and passed["all_low"] is False


def test_nan_is_not_within_the_limits_on_the_board(
    exchanged: tuple[Path, Path], tmp_path: Path
) -> None:
    """To trtexec's comparison NaN is beyond no limit."""
    folder = tmp_path / "board"
    assert 0 == main(["target", str(exchanged[0]), "--write", str(folder)])
    passes = """\
case $* in *--help) echo --loadRefOutputs; exit;; esac
echo 'Accuracy loss for tensor y (L0): 0.000000'
for word do
    case $word in --save*=* | --export*=*) echo '"values" : [ 1, nan ]' > "${word#*=}";; esac
done
exit"""
    ran = judge(folder, shell_tool(tmp_path / "bin", passes))
    assert 0 == ran.returncode
    assert "within the limits" not in ran.stdout
    assert "\nanswer by trtexec's own comparison: over half of the limits" in ran.stdout


@pytest.mark.parametrize(
    ("log", "trouble", "said"),
    [
        (
            "[E] Error[10]: No implementation of layer n4 obeys the requested constraints. I.e.",
            BuildTrouble.NOT_OBEYED,
            "no kernel obeys the precisions asked for: ",
        ),
        ("[E] Unknown option: --fp8", BuildTrouble.UNKNOWN_OPTION, "lacks an option: "),
        (
            "[E] Error[10]: Could not find any implementation for node n4.",
            BuildTrouble.NO_KERNEL,
            "no kernel is found: ",
        ),
        ("[I] Starting", BuildTrouble.CUT_OFF, "the log breaks off"),
        ("[E] Error[2]: OutOfMemory (Cuda out of memory)", BuildTrouble.OUT_OF_MEMORY, "memory"),
    ],
)
def test_why_a_build_failed_is_typed(
    log: str, trouble: BuildTrouble, said: str, exchanged: tuple[Path, Path], tmp_path: Path
) -> None:
    """The record has the kind and trtexec's own words, the screen both in a line."""
    run, folder = tmp_path / "run", tmp_path / "board"
    for source, copy in zip(exchanged, (run, folder), strict=True):
        shutil.copytree(source, copy)
    shutil.copy(exchanged[0].parent / "model.onnx", tmp_path)
    for name in ("model.engine", "engine-bytes.txt"):
        (folder / "all_low" / name).unlink()
    (folder / "all_low/build.log").write_text(f"&&&& RUNNING TensorRT.trtexec # trtexec\n{log}\n")
    all_low = next(point for point in read(run, folder).points if point.point == "all_low")
    assert all_low.failed is not None
    assert trouble is all_low.failed.trouble
    assert any(said in lack for lack in all_low.lacks)


def test_the_script_says_why_a_build_failed(weak: Path, tmp_path: Path) -> None:
    """On the board the reason stands beside the log's name, not in it alone."""
    folder = tmp_path / "board"
    shutil.copytree(weak, folder)
    fails = """\
case $* in
*--onnx=*)
    printf '%s\\n' '[01/01/2026-10:00:00] [E] [TRT] --- Begin node ---'
    printf '%s\\n' '[01/01/2026-10:00:00] [E] [TRT] Error[10]: no kernel for n4'
    exit 1
    ;;
esac"""
    ran = judge(folder, shell_tool(tmp_path / "bin", fails))
    assert 1 == ran.returncode
    assert "  failed: Error[10]: no kernel for n4 (answer/build.log)\n" in ran.stderr


def test_a_folder_that_cannot_be_made_names_the_flag(
    exchanged: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """What to choose otherwise is --write, not a run's --out."""
    assert 2 == main(["target", str(exchanged[0]), "--write", "/proc/board"])
    assert "; name another folder by --write" in capsys.readouterr().err


@pytest.mark.parametrize("typing", ["strong", "weak"])
def test_nothing_of_this_machine_is_in_the_folder(typing: str, tmp_path: Path) -> None:
    """Neither where the run lies nor what an exporter noted of its own files."""
    home = tmp_path / "of-this-machine"
    home.mkdir()
    path = tiny.write_model(home / "model.onnx")
    proto = onnx.load(path)
    proto.ir_version = 10
    trace = f'File "{home}/net.py", line 7, in forward'
    proto.doc_string = proto.graph.doc_string = trace
    for node in proto.graph.node:
        node.doc_string = trace
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    onnx.save(proto, path)
    run = searched(home, path, {"x": np.linspace(-1, 2, 8, dtype=np.float32)[None]})
    folder = tmp_path / "board"
    assert 0 == main(["target", str(run), "--write", str(folder), "--typing", typing])
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if b"of-this-machine" in file.read_bytes()]


def test_the_profile_of_the_user_holds_every_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shapes are handed on as given; a profile in which a sample does not fit is refused here."""
    graph = onnx.parser.parse_graph("g (float[n,4] x) => (float[n,4] y) { y = Tanh(x) }")
    opsets = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    run = searched(tmp_path, path, {"x": np.full((3, 4), 0.5, np.float32)})
    command = ["target", str(run), "--typing", "weak"]
    shapes = ["--min-shapes", "x:1x4", "--opt-shapes", "x:2x4", "--max-shapes", "x:8x4"]
    assert 0 == main([*command, "--write", str(tmp_path / "board"), *shapes])
    script = (tmp_path / "board" / SCRIPT).read_text()
    assert "--minShapes=x:1x4 --optShapes=x:2x4 --maxShapes=x:8x4" in script
    capsys.readouterr()
    small = [*command, "--write", str(tmp_path / "small"), "--opt-shapes", "x:2x4"]
    assert 2 == main(small)
    assert "a sample of 'x' has shape 3x4, outside 2x4 to 2x4" in capsys.readouterr().err
