"""Batches that are killed or interrupted: nothing is lost, nothing runs twice, nobody stays."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import tiny
from effort import nightly
from patience import PATIENCE_S, gone, wait_for, wait_until
from precision_bisect.commandline.batch import job_process
from precision_bisect.commandline.batch.batch_record import BATCH, Batch
from precision_bisect.runs.typed_json import read_typed

Write = Callable[[str], Path]
Loader = Callable[..., None]
Command = Callable[..., Sequence[str]]

JOBS = """
tol = 1e-2
copies = 0
[[job]]
model = "b.onnx"
[[job]]
name = "slow"
model = "a.onnx"
check = "checks.py:held"
[[job]]
name = "last"
model = "b.onnx"
"""

SLOW = """
[[job]]
name = "slow"
model = "a.onnx"
check = "checks.py:held"
tol = 1e-2
copies = 0
"""

DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


def calls(folder: Path) -> Sequence[int]:
    """Return the processes that have judged outputs of the slow job, one entry per judgement."""
    log = folder / "calls"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def jobs_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs in batch.json by name."""
    batch = json.loads((folder / "out" / "batch.json").read_text())
    return {job["name"]: job for job in batch["jobs"]}


def running(folder: Path) -> Sequence[int]:
    """Return the processes that were told of this folder."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or ())
    ]


def start(
    command: Sequence[str], folder: Path, hold: str, mark: str = "held"
) -> "subprocess.Popen[str]":
    """Start a batch, in a session as a terminal gives it, and wait for a file.

    The slow job is held in its judgement of that number, or once its trials have "ended".
    """
    (folder / "hold").write_text(hold)
    (folder / mark).unlink(missing_ok=True)
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(child, (folder / mark).exists)
    return child


@pytest.mark.parametrize("moments", [(9,), pytest.param((2, 9, 16), marks=pytest.mark.nightly)])
def test_a_killed_batch_goes_on(
    write: Write, command: Command, tmp_path: Path, moments: Sequence[int]
) -> None:
    """After SIGKILL: the job ends too, and --resume repeats no finished job or trial."""
    write(JOBS)
    for judged in moments:
        with start(command("--resume"), tmp_path, str(judged)) as child:
            child.kill()
            child.communicate()
        wait_until(lambda: gone(calls(tmp_path)[-1]))
        assert ["found", "running", "waiting"] == [j["status"] for j in jobs_of(tmp_path).values()]
    (tmp_path / "hold").unlink()
    ran = subprocess.run(command("--resume"), capture_output=True, text=True, timeout=PATIENCE_S)
    assert 0 == ran.returncode, ran.stderr
    assert ran.stderr.startswith("[2/3] slow begins") and "; not run again\n" in ran.stdout
    assert {("found", 4)} == {(j["status"], j["kept"]) for j in jobs_of(tmp_path).values()}
    result = json.loads((tmp_path / "out" / "slow" / "result.json").read_text())
    # Each kill cuts off one trial, and one that hits the repeat of a plan runs the plan again.
    trials = result["trials"] + result["evaluations"]
    # Each process tries the check out twice.
    kills = len(moments)
    assert len(calls(tmp_path)) <= trials + 2 * kills + 2 * (kills + 1)
    assert kills + 1 == len(set(calls(tmp_path)))


def test_an_interrupt_ends_the_job_with_its_best(
    write: Write, command: Command, tmp_path: Path
) -> None:
    """Ctrl-C in the terminal: the job writes a result, no other begins, 130."""
    write(JOBS)
    with start(command(), tmp_path, "7") as child:
        os.killpg(child.pid, signal.SIGINT)
        table, said = child.communicate(timeout=PATIENCE_S)
    assert 130 == child.returncode, said
    jobs = jobs_of(tmp_path)
    assert ["found", "interrupted", "waiting"] == [job["status"] for job in jobs.values()]
    assert [0, 130, None] == [job["exit_code"] for job in jobs.values()]
    result = json.loads((tmp_path / "out" / "slow" / "result.json").read_text())
    assert "interrupted" == result["status"]
    # What leaves the range of FP16 is the first plan, and has passed.
    assert (tiny.KEPT, 4) == (result["kept"], jobs["slow"]["kept"])
    assert "Traceback" not in (tmp_path / "out" / "slow.log").read_text()
    assert ["b:", "slow:", "written"] == [line.split()[0] for line in table.splitlines()]
    assert "interrupted; waiting for what runs" in said


def test_an_answer_whose_explanation_is_cut_short_is_not_finished(
    write: Write, command: Command, tmp_path: Path
) -> None:
    """SIGTERM after the search, wherever it meets the job: --resume explains the answer whole."""
    write(SLOW)
    with start(command(), tmp_path, "ended") as child:
        child.terminate()
        child.communicate(timeout=PATIENCE_S)
    (tmp_path / "hold").unlink()
    (cut,) = jobs_of(tmp_path).values()
    assert cut["cut_short"]
    # The job may have ended as if nothing had been asked of it.
    answered = read_typed(Batch, tmp_path / "out" / BATCH).jobs[0]
    assert not replace(answered, status="found", exit_code=0).finished
    ran = subprocess.run(command("--resume"), capture_output=True, text=True, timeout=PATIENCE_S)
    (job,) = jobs_of(tmp_path).values()
    assert (0, "found", False) == (ran.returncode, job["status"], job["cut_short"]), ran.stderr
    assert "not run again" not in ran.stdout
    whole = json.loads((tmp_path / "out" / "slow" / "result.json").read_text())
    assert whole["diagnosis"]


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_the_reading_can_be_interrupted(
    write: Write, loader: Loader, command: Command, tmp_path: Path, more: Sequence[str]
) -> None:
    """By Ctrl-C, and by the batch's death: no loader stays, and no job begins."""
    loader("hangs")
    write('[[job]]\nmodel = "a.onnx"\ninputs = "hangs.py"\n')
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        with start(command("--resume", *more), tmp_path, "1", mark="calls") as child:
            os.killpg(child.pid, number)
            _, said = child.communicate(timeout=PATIENCE_S)
        assert (code, False) == (child.returncode, "begins" in said), said
        wait_until(lambda: gone(calls(tmp_path)[-1]))


@pytest.mark.parametrize("delay_s", [0.3, *nightly(0.0, 0.05, 1.0)])
def test_a_batch_killed_while_a_job_starts_leaves_nobody(
    write: Write, command: Command, tmp_path: Path, delay_s: float
) -> None:
    """Whatever the job's process is doing, it does not outlive the batch."""
    write(SLOW)
    (tmp_path / "hold").write_text("1")
    with subprocess.Popen(command(), stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert "slow begins" in child.stderr.readline()
        if delay_s:
            wait_until((tmp_path / "out" / BATCH).exists)
            wait_until(lambda: "running" == jobs_of(tmp_path)["slow"]["status"])
        time.sleep(delay_s)
        child.kill()
    wait_until(lambda: not running(tmp_path))
    if delay_s:
        assert "running" == jobs_of(tmp_path)["slow"]["status"]


def test_a_deaf_job_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the deadline a job that heeds no interrupt is killed after the time of grace."""
    monkeypatch.setattr(job_process, "JOB_GRACE_S", 0.2)
    ready = tmp_path / "ready"
    with subprocess.Popen([sys.executable, "-c", DEAF, ready]) as child:
        wait_for(child, ready.exists)
        job_process.wait(child, iter((0.1, 0.0)).__next__)
        assert -signal.SIGKILL == child.returncode
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        job_process.wait(child, lambda: 30.0)
        assert 0 == child.returncode


def test_the_end_of_a_batch_follows_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slept, or whose clock went ahead, is past the time that was told."""
    monkeypatch.setattr(job_process, "_LOOK_S", 0.01)
    clock = iter([9000.0, 9000.0, -3600.0])
    with subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep({PATIENCE_S})"]
    ) as child:
        assert job_process.wait(child, clock.__next__)
        assert -signal.SIGTERM == child.returncode
