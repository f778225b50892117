"""What is sent to workers, and what comes back."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tiny
from precision_bisect.cluster.shipped_model import RemoteSpec, ShippedModel, pack, unpack
from precision_bisect.cluster.task_queue import Delivery, Tail, receive, take_files
from precision_bisect.errors import ExecutorError, RunFolderError
from precision_bisect.execution.evaluator_spec import EvaluatorSpec
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.plan import Plan
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.search.sample_sets import SampleSets
from precision_bisect.trial import Outcome, Proposal, TrialStatus, Verdict

PROPOSAL = Proposal(plan=Plan.all_high(3))


CHECK = """
from pathlib import Path

def error(outputs, reference):
    return {error} + (str(outputs) != str(reference))
"""


def spec(folder: Path, **options: Any) -> EvaluatorSpec:
    """Return the spec of a run of the small model, one of whose constants is external data."""
    model = onnx.load(tiny.write_model(folder / "tiny.onnx"))
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(
        model,
        folder / "tiny.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    work = folder / "work"
    work.mkdir()
    asked = Options(
        model=folder / "tiny.onnx", inputs=tiny.samples(), backend="emulated", **options
    )
    return prepare(asked, ignore, work).spec


def moved(shipped: ShippedModel, folder: Path) -> ShippedModel:
    """Return it as if it came from a machine whose paths are not there here."""
    return replace(shipped, model=folder / "elsewhere" / shipped.model.name)


def test_a_model_goes_with_its_external_data(tmp_path: Path) -> None:
    """Where the path is unknown the files are written, and are the same model."""
    sent = spec(tmp_path)
    shipped = pack(sent)
    assert {"tiny.onnx", "weights.bin"} == set(shipped.digests) == set(shipped.contents)
    model = unpack(moved(shipped, tmp_path), tmp_path / "there")
    assert tmp_path / "there" / "tiny.onnx" == model
    there = replace(sent, options=replace(sent.options, model=model))
    assert sent.made(tmp_path).backend.versions() == there.made(tmp_path).backend.versions()


def test_a_shared_file_system_is_used(tmp_path: Path) -> None:
    """Where the same files are under the same path nothing is written, even without contents."""
    shipped = pack(spec(tmp_path), most_bytes=10)
    assert {} == shipped.contents
    assert tmp_path / "tiny.onnx" == unpack(shipped, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_another_file_under_the_same_path_is_not_taken(tmp_path: Path) -> None:
    """A file that differs in a byte is another model, and what was sent is used instead."""
    shipped = pack(spec(tmp_path))
    weights = tmp_path / "weights.bin"
    weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
    assert tmp_path / "there" / "tiny.onnx" == unpack(shipped, tmp_path / "there")
    assert shipped.contents["weights.bin"] == (tmp_path / "there" / "weights.bin").read_bytes()


def test_a_large_model_must_be_shared(tmp_path: Path) -> None:
    """A model that is too large to be sent and is not there is an error that says so."""
    shipped = moved(pack(spec(tmp_path), most_bytes=10), tmp_path)
    with pytest.raises(ExecutorError, match=r"over 1 GiB.*not there") as caught:
        unpack(shipped, tmp_path / "there")
    assert "file system" in caught.value.hint


@pytest.mark.parametrize("there", [True, False, None], ids=["shared", "changed", "missing"])
def test_the_script_of_a_check_goes_with_the_spec(tmp_path: Path, there: bool | None) -> None:
    """A worker judges by the script of the driver, from its path if it is the same one there."""
    script = tmp_path / "shared" / "check.py"
    script.parent.mkdir()
    script.write_text(CHECK.format(error="0.25 * (Path(__file__).parent.name == 'shared')"))
    made = spec(tmp_path, check=f"{script}:error", tol=0.5)
    bare, samples = tmp_path / "run.spec", tmp_path / "samples"
    none = SampleSets(feeds=(), pool=(), reference=())
    bare.write_bytes(pickle.dumps(replace(made, samples=none)))
    samples.write_bytes(pickle.dumps(made.samples))
    if there is None:
        script.unlink()
    elif not there:
        script.write_text(CHECK.format(error="7.0"))
    model = made.options.model
    away = RemoteSpec(spec=bare, samples=samples, model=model, keep=tmp_path).unpacked().comparator
    outputs = [{"y": np.zeros(1, np.float32)}]
    assert made.comparator.settings() == away.settings()
    assert (0.25 if there else 0.0) == away.judge(outputs, outputs).error


def test_what_a_worker_keeps_comes_to_the_run_folder(tmp_path: Path) -> None:
    """Files come back under their names, once, and the log of a trial without a verdict, too."""
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "engines" / "ab").mkdir(parents=True)
    here.mkdir()
    (there / "model.engine").write_bytes(b"engine")
    (there / "engines" / "ab" / "model.engine").write_bytes(b"another")
    log = tmp_path / "log.txt"
    log.write_bytes(b"it went wrong\n")
    crashed = Outcome(status=TrialStatus.CRASHED, message="it died")
    tail = Tail(tmp_path)
    assert crashed == tail.keep(log, PROPOSAL, crashed)
    delivery = Delivery(outcome=crashed, log=tail.take(), files=take_files(there))
    outcome = receive(delivery, PROPOSAL, here)
    assert b"engine" == (here / "model.engine").read_bytes()
    assert b"another" == (here / "engines" / "ab" / "model.engine").read_bytes()
    assert "it died; what it printed is in logs/000001-crashed.log" == outcome.message
    assert (here / "logs" / "000001-crashed.log").read_text().endswith("it went wrong\n")
    assert ({}, b"") == (take_files(there), tail.take())


def test_an_engine_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    """A run folder that is a file is an error of the run folder, with a hint."""
    (tmp_path / "run").write_text("")
    passed = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=0.0)
    with pytest.raises(RunFolderError, match="cannot write"):
        receive(Delivery(outcome=passed, files={"x": b""}), PROPOSAL, tmp_path / "run")
