"""The last check: exported files by themselves, in a fresh process."""

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import psutil
import pytest

from models import load_text, normal
from precision_bisect.backends.cuda.opening import opening_without
from precision_bisect.backends.cuda.provider import deployed_provider
from precision_bisect.exports import write as mixed
from precision_bisect.exports.export import Export
from precision_bisect.exports.judging import Judge
from precision_bisect.exports.recheck import (
    Check,
    from_script,
    judging,
    standing_by,
)
from precision_bisect.exports.rerun import Expected, Feeds, differing
from precision_bisect.exports.write import write_deployed
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.typed_graph import TypedGraph
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator, Tolerance
from precision_bisect.machine.forked import copies_allowed
from precision_bisect.machine.stopping import Stopped, until
from precision_bisect.precisions import Pair
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.deployment import ByDefaults, Recheck, SessionOptions
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import (
    GOLDEN_INPUTS,
    GOLDEN_OUTPUTS,
    MIXED_MODEL,
    RUN_SCRIPT,
    RunFolder,
)
from precision_bisect.settings.engine_settings import EngineSettings
from tiny import search, write_model

TEXT = "(float[n,4] x) => (float[n,4] y) { a = Sigmoid(x) y = Tanh(a) }"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the exports of a model whose layers run low, and two samples."""
    model = load_text(TEXT, tmp_path)
    samples = [{"x": normal(n, 4)} for n in (1, 3)]
    session = Session(model.proto, model.weights)
    judge = Judge(
        samples=samples,
        reference=[session.run(feed) for feed in samples],
        limits={"metric": "elementwise", "atol": {"y": 0.1}, "rtol": {"y": 0.1}},
        backend="emulated",
        options=SessionOptions(
            provider_options={},
            session_config={},
            disabled_optimizers=opening_without(()).disabled,
        ),
    )
    pair = Pair(low="fp16", high="fp32")
    export = Export(model=model, kept=[], pair=pair, settings=EngineSettings())
    write_deployed(RunFolder(tmp_path / "run"), export, judge)
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def warm_checks() -> None:
    """Have each check be a Python of its own."""


def checked(folder: Path, work: Path, *, judges: bool = False) -> Recheck:
    """Return what the check says in the end."""
    with Check(folder, work, judges=judges) as check:
        return check.ended()


def test_what_python_prints_as_it_starts_is_passed_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the process is its last line."""
    (tmp_path / "sitecustomize.py").write_text("print('hello')\n")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    found = checked(folder, tmp_path)
    assert "runs in a fresh process" in found.message


def test_files_that_fit_are_not_judged_without_cuda(folder: Path, tmp_path: Path) -> None:
    """It is said what was looked at, and that the target judges."""
    found = checked(folder, tmp_path)
    assert ("not_judged", None) == (found.outcome, found.error)
    expected = (
        "model.mixed.onnx opens and runs in a fresh process, and fits 2 stored samples; "
        "the target has to judge"
    )
    assert expected == found.message


def retyped(folder: Path) -> None:
    """Have the model take another type than was stored."""
    model = onnx.load(folder / MIXED_MODEL)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    onnx.save(model, folder / MIXED_MODEL)


def resized(folder: Path) -> None:
    """Have the model give another shape than was stored."""
    model = onnx.load(folder / MIXED_MODEL)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5
    onnx.save(model, folder / MIXED_MODEL)


def cut(folder: Path) -> None:
    """Have half of the outputs lost."""
    text = (folder / GOLDEN_OUTPUTS).read_text()
    (folder / GOLDEN_OUTPUTS).write_text(text[: len(text) // 2])


def invalid(folder: Path) -> None:
    """Have a node read what nobody writes."""
    model = onnx.load(folder / MIXED_MODEL)
    model.graph.node[-1].input[0] = "nowhere"
    onnx.save(model, folder / MIXED_MODEL)


def swapped(folder: Path) -> None:
    """Have the inputs stand for the outputs."""
    (folder / GOLDEN_INPUTS).write_text("[]")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (retyped, "'x' in golden_inputs.json, sample 0, is float32, and the model has float64"),
        (resized, "'y' in golden_outputs.json, sample 0, has the shape (1, 4), which the model"),
        (cut, "Polygraphy cannot read the stored samples: "),
        (invalid, "model.mixed.onnx is no valid model: "),
        (swapped, "0 stored inputs and 2 stored outputs"),
    ],
)
def test_what_does_not_fit_is_broken(
    damage: Callable[[Path], None], said: str, folder: Path, tmp_path: Path
) -> None:
    """Types, shapes, a damaged file and a broken graph: each is told in one sentence."""
    damage(folder)
    found = checked(folder, tmp_path)
    assert "broken" == found.outcome
    assert found.message.startswith(said)


def test_the_script_that_cannot_judge_is_no_verdict(folder: Path, tmp_path: Path) -> None:
    """Where CUDA judged the run and the fresh process finds none, the script says so."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    found = checked(folder, tmp_path, judges=True)
    assert "not_judged" == found.outcome
    assert "has no CUDAExecutionProvider" in found.message


def test_a_script_that_breaks_is_no_verdict(folder: Path, tmp_path: Path) -> None:
    """A process that ends without an outcome costs nothing but the check."""
    (folder / RUN_SCRIPT).write_text("raise SystemExit('the end')")
    with judging(folder / RUN_SCRIPT, tmp_path) as script:
        found = script.ended()
    assert "not_judged" == found.outcome
    assert (
        "as run_onnxruntime.py judged model.mixed.onnx, its process ended with exit code 1, "
        "having said: the end"
    ) == found.message


@pytest.mark.usefixtures("cold")
@pytest.mark.skipif(sys.platform == "win32", reason="groups of processes are POSIX's")
def test_ctrl_c_is_not_meant_for_the_check(folder: Path, tmp_path: Path) -> None:
    """A terminal sends it to a group of processes, and ends what is explained meanwhile."""
    before = {each.pid for each in psutil.Process().children()}
    with Check(folder, tmp_path, judges=False) as check:
        (begun,) = [each for each in psutil.Process().children() if each.pid not in before]
        assert os.getpgrp() != os.getpgid(begun.pid)
        assert "runs in a fresh process" in check.ended().message


@pytest.mark.usefixtures("cold")
def test_a_check_that_was_killed_says_so(folder: Path, tmp_path: Path) -> None:
    """It is no verdict, and its message is no error of a parser."""
    before = {each.pid for each in psutil.Process().children()}
    with Check(folder, tmp_path, judges=False) as check:
        (begun,) = [each for each in psutil.Process().children() if each.pid not in before]
        begun.kill()
        found = check.ended()
    assert "not_judged" == found.outcome
    assert found.message.endswith("its process ended by SIGKILL (Killed), perhaps out of memory")


def children() -> set[int]:
    """Return the processes that this one has begun."""
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.skipif(sys.platform != "linux", reason="no process is copied elsewhere")
@pytest.mark.parametrize("broken", [False, True])
def test_a_copy_that_stood_by_says_the_same(folder: Path, tmp_path: Path, *, broken: bool) -> None:
    """It takes the place of a process that imports for a second, and of nothing else."""
    if broken:
        (folder / GOLDEN_INPUTS).write_text("{}")
    expected = checked(folder, tmp_path)
    before = children()
    with copies_allowed(), standing_by():
        (ready,) = children() - before
        with Check(folder, tmp_path, judges=False) as check:
            assert {ready} == children() - before
            assert os.getpgrp() != os.getpgid(ready)
            assert expected == check.ended()
        # A second one is a Python of its own.
        assert expected == checked(folder, tmp_path)
    assert before == children()


@pytest.mark.skipif(sys.platform != "linux", reason="no process is copied elsewhere")
def test_a_copy_that_was_killed_says_so(folder: Path, tmp_path: Path) -> None:
    """As of a process of its own; one that nobody asks ends with the block."""
    before = children()
    with copies_allowed(), standing_by(), Check(folder, tmp_path, judges=False) as check:
        for pid in children() - before:
            psutil.Process(pid).kill()
        found = check.ended()
    assert "not_judged" == found.outcome
    assert found.message.endswith("its process ended by SIGKILL (Killed), perhaps out of memory")
    with copies_allowed(), standing_by():
        assert children() - before
    assert before == children()


@pytest.mark.skipif(sys.platform != "linux", reason="no process is copied elsewhere")
def test_a_copy_that_is_gone_costs_no_check(folder: Path, tmp_path: Path) -> None:
    """The system may end one that has waited for hours: a Python of its own takes its place."""
    before = children()
    with copies_allowed(), standing_by():
        (ready,) = children() - before
        os.kill(ready, signal.SIGKILL)
        os.waitid(os.P_PID, ready, os.WEXITED | os.WNOWAIT)
        assert "runs in a fresh process" in checked(folder, tmp_path).message


@pytest.mark.skipif(sys.platform != "linux", reason="no process is copied elsewhere")
def test_a_block_inside_ends_its_own_copy_alone(folder: Path, tmp_path: Path) -> None:
    """A run that is refused as another one is at work takes nothing from that."""
    before = children()
    with copies_allowed(), standing_by():
        outer = children() - before
        with standing_by():
            assert len(children() - before) == len(outer) + 1
        assert outer == children() - before
        with Check(folder, tmp_path, judges=False) as check:
            assert outer == children() - before
            assert "runs in a fresh process" in check.ended().message


def test_a_comparison_that_is_cut_off_says_so(folder: Path, tmp_path: Path) -> None:
    """The time may end while outputs over the limit are computed once more: they did not fit."""
    sample = {"x": normal(1, 4)}
    strict = Tolerance(default=1e-9)
    comparator = PolygraphyComparator(
        metric="elementwise", atol=strict, rtol=strict, outputs=("y",)
    )
    expected = Expected(reference=[{"y": sample["x"]}], comparator=comparator)
    feeds = Feeds(samples=[sample])
    assert "something else" in differing(
        folder / MIXED_MODEL, feeds, expected, tmp_path, ran=False
    )
    with until(lambda: True), pytest.raises(Stopped):
        differing(folder / MIXED_MODEL, feeds, expected, tmp_path, ran=False)


def test_what_the_script_says_is_taken_over() -> None:
    """Verdict, worst error and the option that matters are read from its JSON."""
    told = {
        "outcome": "pass",
        "message": "onnxruntime 1.31.1, CUDAExecutionProvider, 4 samples",
        "errors": {"a": 0.002, "b": 0.0076},
        "library_defaults": {"outcome": "fail", "errors": {}, "options": ["use_tf32=0"]},
    }
    found = from_script(told)
    assert ("pass", 0.0076) == (found.outcome, found.error)
    expected = ByDefaults(outcome="fail", error=None, options=("use_tf32=0",))
    assert expected == found.library_defaults


def test_a_run_without_room_for_the_causes_has_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The typed model stays as it was written first, and nothing else is lost."""

    def full(typed: TypedGraph, path: Path, *, again: bool = False) -> None:
        if again:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_typed(typed, path)

    monkeypatch.setattr(mixed, "save_typed", full)
    result = search(write_model(tmp_path / "tiny.onnx"), tmp_path / "run")
    assert result.diagnosis
    assert Status.FOUND is read_saved(tmp_path / "run").result.status
    onnx.checker.check_model(tmp_path / "run" / MIXED_MODEL, full_check=True)


def test_a_run_ends_with_it(tmp_path: Path) -> None:
    """result.json holds how the answer is deployed, with TF32: this one does not feel it."""
    result = search(write_model(tmp_path / "tiny.onnx"), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "result.json").read_text())["deployment"]
    assert deployed_provider(tf32=True) == told["provider_options"]
    assert ("not_judged", 1, 1) == (
        told["recheck"]["outcome"],
        told["samples"],
        told["samples_total"],
    )
    assert result.deployment is not None
    assert plain_json.plain(result.deployment) == told
    again = read_saved(tmp_path / "run").result.deployment
    assert plain_json.plain(again) == told
