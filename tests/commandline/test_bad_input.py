"""Bad input: each one line on stderr, exit code 2, no traceback, nothing written."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from precision_bisect.api import errors_in_python
from precision_bisect.commandline.internal_errors import internal_errors
from precision_bisect.commandline.main import main
from precision_bisect.errors import UsageError

FLOAT = onnx.TensorProto.FLOAT


def model_bytes(op_type: str = "Mul", domain: str = "", kind: int = FLOAT) -> bytes:
    """Return a model that squares its input `x` of shape (1, 4) into `y`."""
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "x"], ["y"], name="square", domain=domain)],
        "tiny",
        [helper.make_tensor_value_info("x", kind, [1, 4])],
        [helper.make_tensor_value_info("y", kind, [1, 4])],
    )
    opsets = [helper.make_opsetid("", 17)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    proto: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return proto


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a fresh working folder that holds `model.onnx`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(model_bytes())
    return tmp_path


def feed(**arrays: NDArray[Any]) -> Callable[[Path], None]:
    """Return a preparation that writes `in.npz` with these arrays."""

    def write(folder: Path) -> None:
        np.savez(folder / "in.npz", **arrays)  # type: ignore[arg-type]  # no allow_pickle

    return write


def file(name: str, content: bytes) -> Callable[[Path], None]:
    """Return a preparation that writes one file."""

    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def nothing(folder: Path) -> None:
    """Prepare nothing."""


def folder_of_inputs(folder: Path) -> None:
    """Write two samples, the second in another type."""
    (folder / "in").mkdir()
    for number, kind in enumerate((np.float32, np.float64)):
        np.savez(folder / "in" / f"{number}.npz", x=np.ones((1, 4), kind))


def sequence_model() -> bytes:
    """Return a model whose input is a sequence of tensors."""
    nodes = [
        helper.make_node("ConcatFromSequence", ["q"], ["c"], axis=0),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    ends = (
        helper.make_tensor_sequence_value_info("q", FLOAT, None),
        helper.make_tensor_value_info("y", FLOAT, None),
    )
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    serialized: bytes = proto.SerializeToString()
    return serialized


ONES = np.ones((1, 4), np.float32)
INPUTS = ["model.onnx", "--inputs", "in.npz"]

CASES: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "no such file": (nothing, ["absent.onnx"], "no such file: absent.onnx"),
    "a folder": (lambda f: (f / "dir").mkdir(), ["dir"], "dir is a folder"),
    "not onnx": (file("m.onnx", b"hello, world\n" * 9), ["m.onnx"], "not an ONNX model"),
    "unknown operator": (file("m.onnx", model_bytes("Frobnicate")), ["m.onnx"], "Frobnicate"),
    "unknown domain": (
        file("m.onnx", model_bytes("Mul", "acme")),
        ["m.onnx"],
        "its nodes: not a standard ONNX operator; stays high (1); `precision-bisect layers m",
    ),
    "extra name": (feed(x=ONES, z=ONES), INPUTS, "in.npz has z, no input"),
    "several samples": (
        feed(x=np.tile(ONES, (8, 1))),
        INPUTS,
        "each sample by itself",
    ),
    "pixels": (feed(x=ONES.astype(np.uint8)), INPUTS, "scale pixels to the range"),
    "wrong shape": (feed(x=ONES[:, :3]), INPUTS, "shape (1, 3)"),
    "wrong type in a folder": (
        folder_of_inputs,
        ["model.onnx", "--inputs", "in"],
        "input 'x' of in/1.npz is float64",
    ),
    "sequence": (file("m.onnx", sequence_model()), ["m.onnx"], "'q' is a sequence"),
    "model for jobs": (
        file("m.onnx", b"\x08\x96"),
        ["batch", "m.onnx"],
        "m.onnx is no jobs file, which is TOML; one model alone",
    ),
    "no inputs file": (nothing, INPUTS, "no such file or folder"),
    "broken npz": (file("in.npz", b"PK\3\4junk"), INPUTS, "cannot read in.npz"),
    "zero tolerance": (nothing, ["model.onnx", "--tol", "0"], "not above zero"),
    "copies without end": (nothing, ["model.onnx", "--copies", "1000000000"], "above 10000"),
    "no number": (nothing, ["model.onnx", "--tol", "small"], "cannot read 'small'"),
    "no model": (nothing, ["--tol", "1"], "model"),
    "unknown flag": (nothing, ["model.onnx", "--tolerance", "1"], "--tolerance"),
    "unknown strategy": (nothing, ["model.onnx", "--strategy", "guide"], "did you mean guided"),
    "bad time": (nothing, ["model.onnx", "--max-time", "soon"], "soon"),
    "everything held out": (feed(x=ONES), [*INPUTS, "--holdout", "1"], "--holdout 1"),
    "resume and overwrite": (nothing, ["model.onnx", "--resume", "--overwrite"], "exclude"),
    "tolerance given twice": (nothing, ["model.onnx", "--tol", "1e-2,1e-3"], "given twice"),
    "shape beside inputs": (feed(x=ONES), [*INPUTS, "--input-shapes", "x:1x4"], "--inputs"),
    "empty folder name": (nothing, ["model.onnx", "--out", ""], "--out"),
    "two judges": (nothing, ["model.onnx", "--metric", "l2", "--check", "m.py:f"], "exclude"),
    "layers of nothing": (nothing, ["layers", "absent.onnx"], "no such file"),
    "out is a file": (file("taken", b""), ["model.onnx", "--out", "taken"], "taken"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_two(
    case: str, work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message names what is wrong, in one line beside the usual warning and a loader."""
    prepare, arguments, expected = CASES[case]
    prepare(work)
    code = main(arguments)
    captured = capfd.readouterr()
    assert 2 == code
    assert "" == captured.out
    lines = [line for line in captured.err.splitlines() if not line.startswith("Warning: ")]
    line, *loader = lines
    assert line.startswith("precision-bisect: ")
    assert ("def load_data():" in loader) == bool(loader)
    assert expected in line
    assert "Traceback" not in captured.err
    assert not (work / "model.onnx.precision-bisect" / "result.json").exists()


def test_names_with_control_characters_cannot_reach_the_terminal(
    work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences in a model's names are shown as replacement characters."""
    (work / "m.onnx").write_bytes(model_bytes("Frob\x1b[31m\nnicate"))
    assert 2 == main(["m.onnx"])
    assert "\x1b" not in capfd.readouterr().err


def test_a_strategy_too_small_for_the_model_leaves_nothing_behind(
    work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The refusal comes before the run folder, so that the next command is not refused."""
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(20)]
    ends = [helper.make_tensor_value_info(name, FLOAT, [1, 4]) for name in ("v0", "v20")]
    graph = helper.make_graph(nodes, "long", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, work / "long.onnx")
    assert 2 == main(["long.onnx", "--strategy", "exhaustive"])
    assert "at most 16 layers" in capfd.readouterr().err
    assert not (work / "long.onnx.precision-bisect").exists()
    assert 0 == main(["long.onnx"])


def test_lost_output_is_one_line(work: Path) -> None:
    """A full disk behind stdout is exit code 2, a closed stderr is no traceback either."""
    program = [sys.executable, "-m", "precision_bisect", "layers", "model.onnx"]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    assert 2 == ran.returncode
    assert "cannot write the output" in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr
    shell = " ".join(program) + " 2>&-"
    assert 0 == subprocess.run(shell, shell=True, stdout=subprocess.DEVNULL).returncode


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "numpy/ma/__init__.py"), "ulimit -n"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "ulimit -u"),
        (MemoryError(), "ulimit -v"),
    ],
)
def test_what_a_process_may_not_have_is_no_internal_error(error: Exception, says: str) -> None:
    """Whoever wants it: the limit of the process is what to raise."""
    with pytest.raises(UsageError, match=says), internal_errors():
        raise error
    with pytest.raises(UsageError, match=says), errors_in_python():
        raise error


@pytest.mark.parametrize("name", ["in.npz", "in.npy", "in.json"])
def test_samples_of_others_are_no_damaged_ones(
    work: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What this user may not read is whole: nothing has to be saved again."""
    file(name, b"")(work)
    # To root every file is readable.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert 2 == main(["model.onnx", "--inputs", name])
    assert f"cannot read {name}: Permission denied; see who may read it" in capfd.readouterr().err


def test_a_stream_that_takes_no_more_lacks_no_processes() -> None:
    """Standard output may be a pipe that does not wait, whose reader is slow."""
    stuck = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), 0)
    with pytest.raises(BlockingIOError), internal_errors():
        raise stuck


def test_what_a_users_script_prints_does_not_break_json(
    work: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A print in a check or a data loader goes to stderr, once however often it is called."""
    (work / "mine.py").write_text(
        "import sys\n"
        "import numpy\n"
        "print('imported')\n"
        "def load_data():\n"
        "    print('loading')\n"
        "    return [{'x': numpy.full((1, 4), 3, 'float32')}]\n"
        "def judge(outputs, reference):\n"
        "    print('judging')\n"
        "    return numpy.allclose(outputs[0]['y'], reference[0]['y'], 0.01)\n"
        "def loop(run, inputs):\n"
        "    print('looping', end='')\n"
        "    sys.stdout.buffer.flush()\n"
        "    return run(inputs)\n"
    )
    command = ["model.onnx", "--inputs", "mine.py", "--check", "mine.py:judge", "--json"]
    command += ["--loop", "mine.py:loop", "--isolate", "never"]
    assert 0 == main(command)
    captured = capfd.readouterr()
    assert "nothing_to_keep" == json.loads(captured.out)["status"]
    lines = captured.err.splitlines()
    assert {"loading": 1, "judging": 1, "looping": 1} == {
        line: lines.count(line) for line in ("loading", "judging", "looping")
    }
    assert "imported" in lines
