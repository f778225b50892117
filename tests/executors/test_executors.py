"""Executors are plug-ins: one from elsewhere evaluates a run, and none is imported unasked."""

import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.errors import PluginError, UsageError

COUNTING = """
from contextlib import contextmanager
from dataclasses import replace
from precision_bisect.execution.local_executor import LocalExecutor

class Counting(LocalExecutor):
    def __init__(self):
        self.evaluated = []
    def check(self, options):
        assert options.executor_address == "tcp://x=1"
    @contextmanager
    def workers(self, task, work):
        with super().workers(task, work) as workers:
            def evaluate(proposal):
                self.evaluated.append(proposal)
                return workers.evaluate(proposal)
            yield replace(workers, evaluate=evaluate)

COUNTING = Counting()
"""
WITHOUT = """
import sys
import precision_bisect
precision_bisect.find(sys.argv[1], out=sys.argv[2], backend="emulated", copies=0)
print([name for name in sys.modules if name.startswith("precision_bisect.cluster")])
"""


def test_an_executor_from_elsewhere_evaluates_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file and one entry are an executor: what it is given finds the answer."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    entry = "[precision_bisect.executors]\ncounting = counting:COUNTING\n"
    (info / "entry_points.txt").write_text(entry)
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = tiny.write_model(tmp_path / "tiny.onnx")
    asked = {"executor": "counting", "executor_address": "tcp://x=1"}
    result = tiny.search(model, tmp_path / "run", **asked)
    assert tiny.KEPT == result.kept
    assert len(sys.modules["counting"].COUNTING.evaluated) >= result.trials


def test_a_plug_in_is_imported_only_where_it_is_named(tmp_path: Path) -> None:
    """A run on this machine imports nothing of the cluster's room."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    command = [sys.executable, "-c", WITHOUT, str(model), str(tmp_path / "run")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "[]" == ran.stdout.strip()


def test_a_flag_names_executor_and_address() -> None:
    """`--cluster` is short for one of them; what follows the first equals sign is the address."""
    for arguments, named in (
        ([], ("local", None)),
        (["--executor", "theirs"], ("theirs", None)),
        (["--executor", "theirs=tcp://x=1"], ("theirs", "tcp://x=1")),
        (["--cluster", "tcp://x:1"], ("dask", "tcp://x:1")),
    ):
        options = to_options(run_parser().parse_args(["m.onnx", *arguments]))
        assert named == (options.executor, options.executor_address)


def test_an_executor_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """An unknown name, or an address of this machine, is refused before anything is written."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    with pytest.raises(PluginError, match="no executor 'dusk'") as unknown:
        tiny.search(model, tmp_path / "run", executor="dusk")
    assert "did you mean dask?" == unknown.value.hint
    with pytest.raises(UsageError, match="executor local has no address"):
        tiny.search(model, tmp_path / "run", executor_address="here")
    assert not (tmp_path / "run").exists()
