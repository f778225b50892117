"""Exported files over which a library ends its process: what is said, and what opens them.

ONNX Runtime is replaced by one that ends the process where it is told to; the model is harmless.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from final_screens import screen
from precision_bisect.commandline.export_command import export
from precision_bisect.errors import ExitCode
from precision_bisect.exports.recheck import STORED, Check
from precision_bisect.exports.rerun import Feeds
from precision_bisect.graphs.ort import LEVELS, runtime
from precision_bisect.runs.results.deployment import Recheck
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import MIXED_MODEL, REPORT, RUN_SCRIPT

DIES = """
import os
import signal

import onnxruntime

real = onnxruntime.InferenceSession


class Dying(real):
    def __init__(self, source, options, *words, **more):
        if {call!r} == "__init__" and options.graph_optimization_level.name in {levels!r}:
            {death}
        real.__init__(self, source, options, *words, **more)

    def run(self, *words, **more):
        if {call!r} == "run":
            {death}
        return real.run(self, *words, **more)


onnxruntime.InferenceSession = Dying
"""
SEGFAULT, ABORT = (f"os.kill(os.getpid(), signal.{name})" for name in ("SIGSEGV", "SIGABRT"))
Dying = Callable[..., None]
"""Has ONNX Runtime die so in processes that begin from now on, at these levels."""


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dying:
    """Return what has processes that begin die in ONNX Runtime."""
    folder = tmp_path / "site"
    folder.mkdir()
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

    def dies(death: str, levels: Sequence[str], call: str = "__init__") -> None:
        text = DIES.format(death=death, levels=tuple(levels), call=call)
        (folder / "sitecustomize.py").write_text(text)

    return dies


@pytest.fixture(autouse=True)
def warm_checks() -> None:
    """Have each check be a Python of its own."""


def checked(run: Path, work: Path, feeds: Feeds) -> Recheck:
    """Return what the check of a run's files says."""
    with Check(run, work, judges=False, feeds=feeds) as check:
        return check.ended()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run."""
    folder = tmp_path_factory.mktemp("whole")
    tiny.search(tiny.write_with_samples(folder), folder / "run")
    return folder / "run"


def test_a_runtime_that_dies_of_the_answer_is_told_first(tmp_path: Path, dying: Dying) -> None:
    """With what opens the file, and its error then, wherever the answer is read."""
    dying(SEGFAULT, LEVELS[:1])
    model = tiny.write_with_samples(tmp_path)
    result = tiny.search(model, tmp_path / "run")
    died = (
        f"as ONNX Runtime {runtime().__version__} opened {MIXED_MODEL} on the CPU (a GPU is "
        "untested), its process ended by SIGSEGV (Segmentation fault); "
    )
    opens = f"with graph_optimization_level {LEVELS[1]} it"
    recheck = result.rechecked
    assert recheck is not None and recheck.crash is not None
    error = recheck.crash.error
    assert ("not_judged", LEVELS[0], LEVELS[1], True) == (
        recheck.outcome,
        recheck.crash.level,
        recheck.crash.cure,
        recheck.crash.fault,
    )
    assert error is not None and 0 <= error <= 1e-2
    assert f"{died}{opens} holds ({error:.4g})" == recheck.message
    # The answer stands for engines that were not tried, as where a file could not be run.
    assert ExitCode.OK is result.exit_code
    assert recheck.message in " ".join(screen(result).split())
    assert recheck.message.partition(";")[0] in (tmp_path / "run" / REPORT).read_text()
    again = read_saved(tmp_path / "run").result.rechecked
    assert again == recheck
    exported = export(model, tmp_path / "run", tmp_path / "again", {})
    assert ExitCode.OK is exported.exit_code
    first = f"{MIXED_MODEL}: {died}{opens} runs"
    assert first == exported.to_text().splitlines()[0]
    assert LEVELS[1] == json.loads(exported.to_json())["recheck"]["crash"]["cure"]


def test_a_file_that_its_own_runtime_dies_of_is_broken(
    run: Path, tmp_path: Path, dying: Dying
) -> None:
    """As one that it refuses; what opens it is said all the same."""
    dying(ABORT, LEVELS[:3])
    found = checked(run, tmp_path, replace(STORED, by_defaults=True))
    assert found.refutes and found.crash is not None
    assert ("broken", LEVELS[3]) == (found.outcome, found.crash.cure)
    assert "SIGABRT (Aborted)" in found.message
    assert found.message.endswith(f" {LEVELS[3]} it runs")


@pytest.mark.parametrize(
    ("death", "call", "known", "outcome", "said"),
    [
        (SEGFAULT, "__init__", True, "broken", "opened model.mixed.onnx on the CPU "),
        (SEGFAULT, "run", True, "broken", "ran model.mixed.onnx on the CPU "),
        (ABORT, "__init__", False, "not_judged", "its process ended by SIGABRT (Aborted)"),
        ("os._exit(7)", "__init__", True, "broken", "its process ended with exit code 7"),
    ],
)
def test_a_file_that_no_level_opens_is_broken(
    run: Path,
    tmp_path: Path,
    dying: Dying,
    death: str,
    call: str,
    known: bool,
    outcome: str,
    said: str,
) -> None:
    """Unless the given model does not run here, either; a large file is opened as it is."""
    dying(death, LEVELS[3:], call)
    found = checked(run, tmp_path, replace(STORED, large=True, known=known))
    assert found.crash is not None
    assert (outcome, "") == (found.outcome, found.crash.cure)
    assert said in found.message
    advice = f", with graph_optimization_level {LEVELS[3]}; try another version of ONNX Runtime"
    assert found.message.endswith(advice)


def test_the_options_that_end_the_script_are_told_with_its_verdict(
    run: Path, tmp_path: Path
) -> None:
    """It judges by those of the run first, and writes that down."""
    told = {
        "outcome": "pass",
        "message": "",
        "errors": {"y": 0.002},
        "library_defaults": {"outcome": "broken", "errors": {}, "options": ["use_tf32=0"]},
    }
    script = tmp_path / RUN_SCRIPT
    script.write_text(
        "import os, pathlib, signal, sys\n"
        f"pathlib.Path(sys.argv[-1]).write_text({json.dumps(told)!r})\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    with Check(tmp_path, tmp_path, judges=True) as check:
        found = check.ended()
    defaults, crash = found.library_defaults, found.crash
    assert ("pass", 0.002) == (found.outcome, found.error)
    assert defaults is not None and crash is not None
    assert ("broken", ("use_tf32=0",)) == (defaults.outcome, defaults.options)
    assert crash.ended.startswith("ended by SIGSEGV (Segmentation fault)")
