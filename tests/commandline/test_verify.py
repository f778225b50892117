"""`verify` on real engines of TensorRT-RTX: what it says, keeps, and ends with."""

import json
import os
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import run_folders
import tiny
from models import parse, save, with_weights
from precision_bisect.backends.cuda.building import TypedSessions
from precision_bisect.backends.cuda.cuda_engine import SessionEngine
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.commandline.main import main
from precision_bisect.exports.finished import read_finished
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.pipeline.verifying.one_build import looked_into, seen
from precision_bisect.plan import Plan
from precision_bisect.precisions import LowName, Pair
from precision_bisect.protocols import BackendFailure
from precision_bisect.runs.locking import RunLock
from precision_bisect.runs.results.result import Rung
from precision_bisect.runs.results.verification import (
    Verification,
)
from precision_bisect.runs.runfolder import (
    LOCK,
    REPORT,
    RESULT,
    STATUS,
    VERIFIED,
    VERIFIED_ENGINE,
    VERIFIED_LOG,
)
from precision_bisect.runs.typed_json import read_or_none
from precision_bisect.trial import Honour
from precision_bisect_reports.html.source import read_source
from precision_bisect_reports.html.view import view_of

pytestmark = pytest.mark.usefixtures("rtx")
SQUARE = "(float[4] x) => (float[4] y) { a = Exp(x) [k] b = Mul(a, a) y = Tanh(b) }"
LONE = "(float[16, 32] x) => (float[16, 32] y) { a = Exp(x) [k] b = MatMul(a, w) y = Tanh(b) }"
UNSEEN = "(float[4] x) => (float[4] y) { a = Exp(x) [k] b = Max(a) y = Tanh(b) }"
UNKNOWN = "(float[3, 3] x) => (float y) { a = Exp(x) [k] b = Mul(a, a) y = Det(b) }"
WEIGHT = {"w": np.full((32, 32), 0.01, np.float32)}


def finished(
    folder: Path, body: str, kept: list[str], low: LowName = "fp16", **changed: Any
) -> Path:
    """Write a model, and beside it the folder of a run that keeps these layers; return that.

    Of what is changed, `backend` and `engine` are what built, and the rest is the fingerprint's.
    """
    graph = parse(body)
    path = save(with_weights(graph, WEIGHT) if "w)" in body else graph, folder)
    model = load_model(path)
    names = [str(name) for name in model.table.names]
    result = run_folders.result_of(
        names,
        [names.index(name) for name in kept],
        fingerprint={**run_folders.FINGERPRINT, "model": model.digest, **changed},
        backend=changed.get("backend", "emulated"),
        emulated="backend" not in changed,
        options={**run_folders.OPTIONS, "low": low, "engine": changed.get("engine", {})},
        low=low,
        rungs=[
            Rung(precision="fp32", layers=kept, count=len(kept)),
            Rung(precision=low, layers=None, count=len(names) - len(kept)),
        ],
    )
    run = folder / "run"
    run.mkdir()
    (run / RESULT).write_text(result.to_text())
    run_folders.write_status(run, str(path), state="finished")
    return run


def asked(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `verify` and what it prints as JSON."""
    code = main(["verify", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of the tiny model, which lies beside it."""
    folder = tmp_path_factory.mktemp("searched")
    tiny.search(tiny.write_model(folder / "m.onnx"), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def verified(searched: Path) -> dict[str, Any]:
    """Return what was found in the engine of its answer, which lies in the folder, too."""
    with redirect_stdout(StringIO()) as printed:
        main(["verify", str(searched), "--json"])
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


def test_a_run_folder_is_enough(
    searched: Path, verified: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Folder, result.json, and model with plan are one; what is found is kept, and reported."""
    code, found = asked(capsys, searched)
    assert (0, verified) == (code, found)
    assert 0 == found["exit_code"]
    assert tiny.KEPT == [entry["layer"] for entry in found["layers"]]
    assert found == json.loads((searched / VERIFIED).read_text())
    assert "Datatype: Half" in (searched / VERIFIED_ENGINE).read_text()
    assert (searched / VERIFIED_LOG).exists()
    assert (0, found) == asked(capsys, searched / RESULT)
    assert (0, found) == asked(capsys, searched.parent / "m.onnx", "--plan", searched)
    page = view_of(read_source(searched), searched)
    assert page["answer"]["honoured"] is True
    assert found["summary"] in page["answer"]["seen"]
    assert {"honoured"} == {row["honoured"] for row in page["kept"]}
    assert found["summary"] in (searched / REPORT).read_text()


def test_an_input_that_gives_a_shape_has_the_values_of_the_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine is built for their range, which the result tells."""
    body = (
        "(float[4,6] x, int64[2] s) => (float[M,N] y)"
        " { a = Exp(x) r = Reshape(a, s) [k] b = Mul(r, r) y = Tanh(b) }"
    )
    run = finished(tmp_path, body, ["k"], shapes={"x": [[4, 6]], "s": [[-1, 8], [6, 4]]})
    assert 0 == asked(capsys, run)[0]
    assert "Dimensions: [-1,-1]" in (run / VERIFIED_ENGINE).read_text()


def test_a_report_knows_only_what_was_seen_of_its_own_answer(
    searched: Path, verified: dict[str, Any], tmp_path: Path
) -> None:
    """After another answer, or with a file that is none, nothing was looked into."""
    run = Path(shutil.copytree(searched, tmp_path / "run"))
    for text in (json.dumps({**verified, "kept": []}), "{}", "["):
        (run / VERIFIED).write_text(text)
        answer = view_of(read_source(run), run)["answer"]
        assert (None, "") == (answer["honoured"], answer["seen"])
    assert read_or_none(Verification, run / VERIFIED) is None


def test_a_run_that_moved_finds_its_model_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that is gone, and a folder that is no run's, are one line with what to type."""
    run = finished(tmp_path, SQUARE, ["k"])
    run_folders.write_status(run, "/gone/model.onnx")
    assert 0 == asked(capsys, run)[0]
    (tmp_path / "model.onnx").rename(tmp_path / "other.onnx")
    assert 2 == main(["verify", str(run)])
    assert f"name it beside the run: MODEL --plan {run}" in capsys.readouterr().err
    (run / STATUS).unlink()
    assert 2 == main(["verify", str(run)])
    assert "does not say which model it is of" in capsys.readouterr().err
    os.mkfifo(run / STATUS)
    assert 2 == main(["verify", str(run)])
    assert "does not say which model it is of" in capsys.readouterr().err
    assert 2 == main(["verify", str(run), "--plan", str(run)])
    assert "leave --plan out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "kept", "flags", "code", "said"),
    [
        (LONE, ["k"], [], 0, "1 kept: 1 honoured, 0 demoted, 0 not observable"),
        (LONE, ["k"], ["--no-guard-islands"], 1, "1 kept: 0 honoured, 1 demoted, "),
        (UNSEEN, ["k"], [], 5, "1 kept: 0 honoured, 0 demoted, 1 not observable (1 in no engine"),
        (UNKNOWN, ["k"], [], 4, "every layer in FP32 does not build either, so it is not the"),
    ],
)
def test_exit_codes_can_be_trusted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    body: str,
    kept: list[str],
    flags: list[str],
    code: int,
    said: str,
) -> None:
    """Only what is seen to be honoured is a success; that an engine is missing has its own."""
    run = finished(tmp_path, body, kept)
    ended, found = asked(capsys, run, *flags)
    assert code == ended
    assert said in found["summary"]


UNGUARDED: dict[str, Any] = {"backend": "tensorrt-rtx", "engine": {"guard_islands": False}}
SCRIPTED = {"backend": "tensorrt-rtx", "engine": {"config_script": "flags.py:make"}}


def test_it_builds_as_the_run_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without guards is verified without, unless a flag says otherwise, which is told."""
    run = finished(tmp_path, LONE, ["k"], **UNGUARDED)
    code, found = asked(capsys, run)
    assert (1, False) == (code, found["honoured"])
    assert not found["unlike"]
    code, found = asked(capsys, run, "--guard-islands", "--tf32", "on")
    assert (0, True) == (code, found["honoured"])
    assert ["guard_islands", "tf32"] == found["unlike"]


@pytest.mark.parametrize(
    ("fingerprint", "said"),
    [
        ({**UNGUARDED, "versions": {"typing": "weak"}}, "cannot mark layers"),
        ({"backend": "tensorrt"}, "the run used tensorrt, as verify does: tensorrt is not inst"),
        (SCRIPTED, "the run built with 'flags.py'; give it by --trt-config-postprocess-script"),
        ({"engine": {"plugins": ["a.so"]}}, "'a.so'; give it by --plugins"),
        ({"engine": {"plugins": 3}}, "is damaged: options: expected `array`, got `int`"),
        ({"engine": {"config_script": []}}, "is damaged: options: expected `str`, got `array`"),
        ({"backend": "a\x1b[31m"}, "there is no backend 'a\\x1b[31m'"),
        ({"engine": 3}, "is damaged: options: expected `object`, got `int`"),
        ({"engine": {"colour": 3}}, "is damaged: options: engine: there is no option 'colour'"),
        ({"engine": {"typing": ["weak"]}}, "options: engine: typing: expected `str`, got `array`"),
        ({"engine": {"guard_islands": "no"}}, "guard_islands: expected `bool`, got `str`"),
        ({"engine": {"workspace_mib": 10**40}}, "is damaged: options: --workspace 1000000000"),
        ({"engine": {"optimization_level": 9}}, "options: --builder-optimization-level 9 is"),
        ({"engine": {"compute_capability": "8.6\n"}}, "--compute-capability cannot be '8.6\\n'"),
        ({"engine": {"opt_shapes": {"x": [2, -1]}}}, "is damaged: options: --opt-shapes has (2,"),
        ({"engine": {"ort_options": {"user_compute_stream": "1"}}}, "is no option of ONNX"),
    ],
)
def test_what_a_run_tells_of_its_engines_is_checked(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fingerprint: dict[str, Any],
    said: str,
) -> None:
    """What cannot be followed here, and what no run has written, is one line."""
    run = finished(tmp_path, SQUARE, ["k"], **fingerprint)
    assert 2 == main(["verify", str(run)])
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_plan_that_does_not_build_is_at_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BF16 does not build for compute capability 7.5, and FP32 does."""
    run = finished(tmp_path, SQUARE, ["k"], low="bf16")
    code, found = asked(capsys, run, "--compute-capability", "7.5")
    assert (1, "plan", None) == (code, found["fault"], found["fp32_failure"])
    assert "HW-specific datatypes: b16" in found["failure"]
    assert found["honoured"] is None
    assert "[ERROR] IBuilder::buildSerializedNetwork" in (run / VERIFIED_LOG).read_text()


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (("--build-memory", "60M"), "60 are allowed, and was killed; --build-memory allows more"),
        (("--build-timeout", "0.01s"), "longer than 0.01 s; --build-timeout allows more"),
    ],
)
def test_a_build_has_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: tuple[str, str], said: str
) -> None:
    """One that takes more is ended, and it is not the plan that needs so much."""
    code, found = asked(capsys, finished(tmp_path, LONE, ["k"]), *limit)
    assert (4, "model") == (code, found["fault"])
    assert said in found["summary"]


def test_a_build_that_ends_its_process_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the process printed is in the log, and the command lives on."""
    script = tmp_path / "flags.py"
    script.write_text(
        "import os\n"
        "def postprocess_config(builder, network, config):\n"
        "    os.write(2, b'last words\\n')\n"
        "    os.abort()\n"
    )
    run = finished(tmp_path, SQUARE, ["k"])
    code, found = asked(capsys, run, "--trt-config-postprocess-script", script)
    assert (4, "model") == (code, found["fault"])
    assert "its process ended by SIGABRT (Aborted)" in found["failure"]
    assert 2 == (run / VERIFIED_LOG).read_text().count("last words")


ILLEGAL = (
    "1: [cudaResources.cpp::~ScopedCudaEvent::24] Error Code 1: Cuda Runtime (an illegal memory "
    "access was encountered)"
)


@pytest.mark.parametrize(("said", "again"), [(ILLEGAL, True), ("", False)])
def test_a_build_in_which_cuda_failed_is_tried_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, again: bool
) -> None:
    """In another process; both logs are kept. What Myelin refuses is not tried again.

    BF16 does not build for compute capability 7.5; the error of CUDA is put into the log.
    """
    script = tmp_path / "flags.py"
    script.write_text(
        "import pathlib, tensorrt_rtx\n"
        "from polygraphy.backend.trt import get_trt_logger\n"
        "def postprocess_config(builder, network, config):\n"
        "    tried = pathlib.Path(__file__).with_name('tried')\n"
        "    if not tried.exists():\n"
        "        tried.touch()\n"
        "        config.set_compute_capability(tensorrt_rtx.ComputeCapability.SM75, 0)\n"
        f"        if {said!r}:\n"
        f"            get_trt_logger().log(tensorrt_rtx.ILogger.ERROR, {said!r})\n"
    )
    run = finished(tmp_path, SQUARE, ["k"], low="bf16")
    code, found = asked(capsys, run, "--trt-config-postprocess-script", script)
    assert (0 if again else 1) == code
    assert again == (found["failure"] is None)
    assert again == ("once more, after CUDA failed" in (run / VERIFIED_LOG).read_text())


def test_an_engine_that_does_not_run_is_no_fault_of_the_plan(tmp_path: Path) -> None:
    """It was built; that it does not show what it computes is a remark."""
    body = (
        "(int64[1] s, float[4] x) => (float[m] y) { [k] a = Exp(x) b = Reshape(a, s) y = Tanh(b) }"
    )
    run = finished(tmp_path, body, ["k"])
    model = load_model(tmp_path / "model.onnx")
    opener = Opener(providers=[CPU], profiles=tmp_path / "profile")
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    sessions = TypedSessions(writer, opener, tmp_path / "typed")
    result = read_finished(run, model)
    with SessionEngine(sessions.open(Plan.all_high(2)), "cpu") as engine:
        built = seen(engine, model, result)
        assert ((), None) == (built.evidence.honours, built.facts)
        assert "a look into it failed: " in built.evidence.notes[-1]
        with pytest.raises(BackendFailure):
            looked_into(engine, model, result)


def test_a_result_in_no_run_folder_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A baseline in a repository gets no company."""
    run = finished(tmp_path, SQUARE, ["k"])
    baseline = tmp_path / "committed" / RESULT
    baseline.parent.mkdir()
    baseline.write_bytes((run / RESULT).read_bytes())
    assert 0 == asked(capsys, tmp_path / "model.onnx", "--plan", baseline)[0]
    assert [baseline] == list(baseline.parent.iterdir())


def test_a_folder_in_use_costs_only_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding is printed with its exit code, and one line says that it is not recorded."""
    run = finished(tmp_path, SQUARE, ["k"])
    (run / LOCK).touch()
    with RunLock(run):
        assert 0 == main(["verify", str(run)])
    said = capsys.readouterr()
    assert "1 kept: 1 honoured" in said.out
    assert "warning: not recorded: " in said.err
    assert "--out" not in said.err
    assert not (run / VERIFIED).exists()


def test_an_engine_that_shows_itself_only_in_a_run_is_run(tmp_path: Path) -> None:
    """ONNX Runtime's kernels are seen after one inference, whose inputs are made up."""
    run = finished(tmp_path, SQUARE, ["k"])
    model = load_model(tmp_path / "model.onnx")
    opener = Opener(providers=[CPU], profiles=tmp_path / "profile")
    sessions = TypedSessions(
        TypedWriter(model, Pair(low="fp16", high="fp32")), opener, tmp_path / "typed"
    )
    with SessionEngine(sessions.open(Plan.all_high(3)), "cpu") as engine:
        assert () == engine.evidence().honours
        evidence = looked_into(engine, model, read_finished(run, model))
    assert [Honour.HONOURED] * 3 == [entry.honoured for entry in evidence.honours]
