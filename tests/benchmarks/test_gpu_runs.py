"""The benchmark of whole runs on a GPU, on small networks and without one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu_job
import gpu_judge
import gpu_runs
import numpy as np
import pytest
from gpu_models import write_decoder
from gpu_networks import SMALL_DECODER, Source, prepare

from patience import PATIENCE_S
from zoo.judge import load, plain

ROOT = Path(__file__).parents[2]
FRESH = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the module's runs share."""
    return tmp_path_factory.mktemp("gpu_runs")


def small(folder: Path, *more: str) -> Sequence[str]:
    """Return the arguments of a run on a small decoder with the emulator."""
    places = ["--models", str(folder), "--runs", str(folder / "runs")]
    sizes = ["--small", "--backend", "emulated", "--fresh", str(FRESH)]
    return ["--networks", "decoder", *places, *sizes, "--out", str(folder / "rows.json"), *more]


@pytest.fixture(scope="module")
def row(folder: Path) -> dict[str, Any]:
    """Return the row of a run on a small decoder."""
    assert 0 == gpu_runs.main(small(folder))
    (found,) = json.loads((folder / "rows.json").read_text())["rows"]
    assert isinstance(found, dict)
    return found


@pytest.mark.nightly
def test_the_row_tells_of_the_whole_run(row: dict[str, Any]) -> None:
    """The trials of the log are those of the result, and they lie within the run's time."""
    assert ("decoder", "nothing_to_keep", 0) == (row["network"], row["status"], row["exit"])
    of_result = row["engine_builds"] + row["evaluations"]
    assert of_result == row["builds"] + row["forecasts"] > 0
    assert 0 < row["first_trial_s"] <= row["last_trial_s"] <= row["wall_s"]
    assert {"preflight"} <= row["phases"].keys()
    assert 50 < row["host_mb"] < 1000
    assert "numpy" in row["machine"]["packages"]
    assert "the emulator predicts, and no GPU was used" == row["not_judged"]


@pytest.mark.nightly
def test_the_answer_is_judged_by_a_process_of_its_own(row: dict[str, Any], folder: Path) -> None:
    """On the CPU, which computes FP16 in FP32, all samples and fresh ones are within the limit."""
    out = folder / "judged.json"
    prepared = prepare("decoder", Source(models=folder, small=True, fresh=FRESH))
    command = [str(ROOT / "benchmarks" / "gpu_judge.py"), str(prepared)]
    command += [str(folder / "runs" / "decoder-today" / "run"), "--bound", "1e-2"]
    command += ["--provider", "CPUExecutionProvider", "--out", str(out)]
    ended = gpu_job.run(command, folder / "judge", tool=ROOT, limit_s=100)
    assert (0, "") == (ended.code, ended.said)
    found = json.loads(out.read_text())
    counts = {kind: found[kind]["count"] for kind in ("samples", "copies", "fresh")}
    assert {"samples": 2, "copies": 0, "fresh": FRESH} == counts
    assert 0 == found["samples"]["over"] == found["fresh"]["over"]
    assert {"fp32", "answer", "recommended"} == found["latency_ms"].keys()
    # Nothing is kept, so that TF32 has no FP32 product to round.
    assert "1" == found["options"]["provider_options"]["use_tf32"]


@pytest.mark.nightly
def test_an_answer_that_is_wrong_is_seen(row: dict[str, Any], folder: Path) -> None:
    """Another network's answer fails on each sample."""
    prepared = prepare("decoder", Source(models=folder, small=True, fresh=FRESH))
    wrong = folder / "wrong"
    wrong.mkdir()
    write_decoder(wrong / "model.mixed.onnx", SMALL_DECODER, seed=1)
    (wrong / "result.json").write_text('{"deployment": null}')
    found = gpu_judge.judge(
        prepared, wrong, limit="tol", bound=1e-2, provider="CPUExecutionProvider"
    )
    assert (2, FRESH) == (found["samples"]["over"], found["fresh"]["over"])


def test_a_network_that_fails_does_not_end_the_others(row: dict[str, Any], folder: Path) -> None:
    """Its row has the last lines of stderr, and the rows of another label stay."""
    given = [*small(folder, "--label", "wrong", "--arguments=--no-such-flag")]
    given[1:2] = ["minilm13", "decoder"]
    assert 1 == gpu_runs.main(given)
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    assert [("decoder", "today"), ("decoder", "wrong"), ("minilm13", "wrong")] == [
        (each["network"], each["label"]) for each in rows
    ]
    assert row == rows[0]
    assert "--no-such-flag" in rows[1]["error"]
    assert ("skipped", True) == (rows[2]["status"], "minilm.py" in rows[2]["error"])


def test_a_run_without_an_end_is_interrupted(folder: Path) -> None:
    """At its limit it gets Ctrl-C, and what it said then is kept."""
    begun = folder / "begun"
    program = (
        "import pathlib, sys, time\n"
        "try: pathlib.Path(sys.argv[1]).touch(); time.sleep(600)\n"
        "except KeyboardInterrupt: raise SystemExit('late')"
    )
    words = ["-c", program, str(begun)]
    tried = (
        gpu_job.run(words, folder / "endless", tool=ROOT, limit_s=limit_s)
        for limit_s in (1, 20, PATIENCE_S)
    )
    # On a busy machine Python may not have started within a second.
    ended = next(each for each in tried if begun.exists())
    assert (True, 1, "late") == (ended.timed_out, ended.code, ended.said)


def test_a_torn_log_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    """What a killed run was writing is left out; recalled trials are none."""
    trial = {"event": "trial_finished", "wall_s": 2.0, "recalled": False, "phase": "search"}
    events: list[dict[str, Any]] = [
        {"event": "phase_started", "phase": "search", "at": 1},
        {"event": "trial_started", "at": 2},
        {**trial, "kind": "judge", "at": 4},
        {**trial, "kind": "predict", "at": 5},
        {**trial, "kind": "judge", "recalled": True, "at": 6},
    ]
    lines = [
        json.dumps(event | {"time": f"1970-01-01T00:00:0{event.pop('at')}.000Z"})
        for event in events
    ]
    log = tmp_path / "events.jsonl"
    log.write_text("\n".join([*lines, '{"time": "19']))
    found = gpu_job.timeline(log, 0.5)
    assert (1.5, 5.5) == (found.first_trial_s, found.last_trial_s)
    assert (1, 2.0, 1, 2.0) == (found.builds, found.builds_s, found.forecasts, found.forecasts_s)
    assert {"search": 5.0} == found.phases


@pytest.mark.parametrize("name", ["decoder", "unet"])
def test_the_networks_run_and_stay_of_order_one(name: str, folder: Path) -> None:
    """Outputs of a small one are finite, differ by sample, and have a spread near 1."""
    prepared = prepare(name, Source(models=folder, small=True, fresh=FRESH))
    run = plain(prepared / "model.onnx")
    outputs = [run(sample)[0] for sample in load(prepared / "judged")]
    assert all(0.2 < output.std() < 5 for output in outputs)
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1
