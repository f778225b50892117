"""The live status, and `precision-bisect status` from another terminal."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from beginning import PROCESS, STARTED
from effort import nightly
from patience import PATIENCE_S, wait_for, wait_until
from precision_bisect.commandline.main import main
from precision_bisect.errors import RunFolderError
from precision_bisect.plan import Plan
from precision_bisect.runs import locking
from precision_bisect.runs.locking import Owner, RunLock, now
from precision_bisect.runs.monitoring import attend
from precision_bisect.runs.monitoring.attend import INTERVAL_S, Attended, LiveStatus
from precision_bisect.runs.monitoring.events import (
    Event,
    RunStarted,
    TrialFinished,
    TrialStarted,
    ignore,
)
from precision_bisect.runs.monitoring.run_watch import look, spoken, status_text
from precision_bisect.runs.runfolder import EVENTS, OWNER, STATUS
from precision_bisect.trial import Outcome, Proposal, TrialStatus, Verdict
from run_folders import trial, write_ledger

COMMAND = [sys.executable, "-m", "precision_bisect"]
SLOW_CHECK = """
import pathlib, time

def error(outputs, reference):
    gate = pathlib.Path(__file__).with_name("go")
    log = pathlib.Path(__file__).with_name("calls")
    log.write_text((log.read_text() if log.exists() else "") + "x")
    while len(log.read_text()) > 60 and not gate.exists():
        time.sleep(0.02)
    return max(float(abs(o[k] - r[k]).max()) for o, r in zip(outputs, reference) for k in o)
"""


def status(folder: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Ask for the status of a folder by the command line."""
    command = [*COMMAND, "status", str(folder), *more]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)


def test_nothing_is_written_once_it_is_left(tmp_path: Path) -> None:
    """Without a word on how the run ended, neither: the files are as they were, no thread is."""
    before = {*threading.enumerate()}
    with Attended(tmp_path, ignore) as attended:
        attended(STARTED)
        (writing,) = {*threading.enumerate()} - before
    assert not writing.is_alive()
    assert "searching" == json.loads((tmp_path / STATUS).read_text())["state"]
    assert "run_ended" not in (tmp_path / EVENTS).read_text()


def told(folder: Path) -> dict[str, Any]:
    """Return the status as the command's JSON tells it."""
    ran = status(folder, "--json")
    assert 0 == ran.returncode, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def shows_the_last_event(run: Path) -> bool:
    """Tell whether the status is that of a trial in flight, after which nothing happened."""
    shown = json.loads((run / STATUS).read_text())
    last = json.loads((run / EVENTS).read_text().splitlines()[-1])
    return bool(shown["in_flight"]) and last["time"] <= shown["updated"]


def files_of(run: Path) -> set[str]:
    """Return what lies in a run folder, but for a status that is just being written."""
    return {path.name for path in run.iterdir() if not path.name.startswith(f".{STATUS}.")}


@contextmanager
def searching(home: Path) -> Iterator["subprocess.Popen[str]"]:
    """Have a real search that waits in the middle of a trial, until the file `go` is there."""
    model = tiny.write_model(home / "tiny.onnx")
    np.savez(home / "inputs.npz", **tiny.samples()[0])  # type: ignore[arg-type]
    (home / "slow.py").write_text(SLOW_CHECK)
    asked = ["--backend", "emulated", "--tol", "1e-2", "--inputs", home / "inputs.npz"]
    command = [*COMMAND, model, *asked, "--check", f"{home / 'slow.py'}:error", "--json"]
    with subprocess.Popen(
        [str(part) for part in (*command, "--out", home / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            calls = home / "calls"
            wait_for(child, lambda: calls.exists() and len(calls.read_text()) > 60)
            wait_until(lambda: shows_the_last_event(home / "run"))
            yield child
        finally:
            child.kill()


def test_a_search_is_watched_and_not_disturbed(tmp_path: Path) -> None:
    """While a trial hangs another process sees it; nothing in the folder changes by looking."""
    run = tmp_path / "run"
    with searching(tmp_path) as child:
        files = files_of(run)
        ledger = (run / "ledger.sqlite-wal").read_bytes()
        seen = told(run)
        assert ("searching", True, child.pid) == (seen["state"], seen["running"], seen["pid"])
        assert (20, "guided") == (seen["run"]["candidates"], seen["run"]["strategy"])
        (flight,) = seen["in_flight"]
        assert flight["seconds"] > 0
        assert seen["phase"] == flight["phase"]
        assert 20 >= seen["best"]["kept"] >= 4
        assert 0 < seen["trials"] < seen["evaluations"]
        assert 0 == seen["builds"]
        assert 0.3 < seen["done"] < 1.0
        text = status(run).stdout
        assert f"{run}: searching for " in text
        assert f"process {child.pid} on " in text
        assert "in flight" in text
        assert files == files_of(run)
        assert ledger == (run / "ledger.sqlite-wal").read_bytes()
        (tmp_path / "go").touch()
        printed = json.loads(child.communicate(timeout=PATIENCE_S)[0])
    seen = told(run)
    assert ("finished", "found", False) == (seen["state"], seen["status"], seen["running"])
    assert {"kept": 4, "error": printed["error"]} == seen["best"]
    assert printed["trials"] == seen["trials"]
    assert [] == seen["in_flight"]
    assert ": finished after " in status(run).stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, *nightly(signal.SIGSEGV)])
def test_a_killed_search_is_told_from_one_that_goes_on(tmp_path: Path, number: int) -> None:
    """When its process is gone the status says so, and what to do; resumed it is finished."""
    run = tmp_path / "run"
    with searching(tmp_path) as child:
        child.send_signal(number)
        child.wait()
        seen = told(run)
        assert ("not_running", False) == (seen["state"], seen["running"])
        said = status(run).stdout.splitlines()
        assert said[0] == (
            f"{run}: not running, process {child.pid} on {seen['host']} is gone; "
            "go on with --resume"
        )
    (tmp_path / "go").touch()
    command = [*child.args, "--resume"]  # type: ignore[misc]  # a list, as it was started
    assert 0 == subprocess.run(command, check=False, capture_output=True).returncode
    seen = told(run)
    assert ("finished", "found") == (seen["state"], seen["status"])
    assert seen["run"]["resumed_trials"] > 0


def test_a_ladder_is_told_as_one_run(tmp_path: Path) -> None:
    """The folder of a ladder has a status that names the rung; that of one rung leads there."""
    run = tmp_path / "run"
    model = tiny.write_model(tmp_path / "tiny.onnx")
    events: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, RunStarted):
            seen = look(run)
            events.append(f"{seen.state} {seen.told.run.rung}")

    tiny.search(model, run, ladder=("fp16", "bf16", "fp32"), tol=1e-1, observer=observe)
    assert "searching bf16 against fp32" == events[0]
    assert "finished" == look(run).state
    with pytest.raises(RunFolderError, match=r"is one search of a ladder"):
        look(next(run.glob("rung-*")))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing", "does not exist"),
        ("file", "is no folder"),
        ("empty", "is no run folder"),
        ("torn", "holds what this version cannot read"),
        ("list", "holds what this version cannot read"),
        ("foreign", "holds what this version cannot read"),
        ("old", "holds what this version cannot read"),
        ("odd", "holds what this version cannot read"),
    ],
)
def test_what_is_no_run_is_one_line(
    tmp_path: Path, name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every folder that tells nothing ends with code 2 and one line that names it."""
    texts = {
        "torn": '{"schema": 1',
        "list": "[1]",
        "foreign": '{"schema": 1}',
        "old": '{"schema": 0}',
        "odd": json.dumps({"schema": 1, "updated": now(), "state": "searching", "pid": []}),
    }
    if name == "file":
        (tmp_path / name).touch()
    elif name != "missing":
        (tmp_path / name).mkdir()
    if name in texts:
        (tmp_path / name / STATUS).write_text(texts[name])
    assert 2 == main(["status", str(tmp_path / name)])
    said = capsys.readouterr().err
    assert 1 == len(said.splitlines()), said
    assert f"{tmp_path / name}" in said and says in said


@pytest.fixture
def live(tmp_path: Path) -> LiveStatus:
    """Return a status that has begun in the folder, which nobody has taken."""
    found = LiveStatus(tmp_path / STATUS, PROCESS)
    found(STARTED)
    return found


def test_one_of_another_host_is_not_judged(tmp_path: Path) -> None:
    """Whether its process lives is unknown there; what counts is when it was last heard of."""
    owner = replace(Owner.here(), host="elsewhere")
    (tmp_path / OWNER).write_text(json.dumps(asdict(owner)))
    live = LiveStatus(tmp_path / STATUS, PROCESS)
    live(STARTED)
    live.close({"state": "failed", "message": "a full disk"})
    aged = replace(look(tmp_path), state="searching", silent_s=90.0)
    assert None is aged.running
    assert "searching for" in status_text(aged)
    assert "last heard of 1 min 30 s ago" in status_text(aged)
    assert "failed after" in status_text(look(tmp_path))
    assert "a full disk" in status_text(look(tmp_path))
    # The next one to take the folder has not written yet; its clock may be behind.
    (tmp_path / OWNER).write_text(json.dumps(asdict(replace(owner, since="2020-01-01T00:00:00Z"))))
    assert ("starting", None) == (look(tmp_path).state, look(tmp_path).running)


def test_a_clock_that_goes_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that took its folder an hour later than it writes is searching, and heard of now."""
    told = [f"2030-01-01T{hour:02}:00:00.000Z" for hour in (12, 11, 10, 9, 8, 7, 6)]
    times = iter(told)
    monkeypatch.setattr(locking, "now", lambda: next(times))
    monkeypatch.setattr(attend, "now", lambda: next(times))
    with RunLock(tmp_path / "run") as lock:
        lock.open(overwrite=False, rungs=False)
        live = LiveStatus(tmp_path / "run" / STATUS, PROCESS)
        live(STARTED)
        seen = look(tmp_path / "run")
        live.close({"state": "finished"})
    assert ("searching", True, 0.0) == (seen.state, seen.running, seen.silent_s)


def test_a_run_that_reads_its_model_again_is_starting(tmp_path: Path, live: LiveStatus) -> None:
    """A process that has taken the folder of a former run is seen before it searches."""
    live.close({"state": "finished", "status": "budget_exhausted"})
    write_ledger(tmp_path, [])
    (tmp_path / ".lock").touch()
    time.sleep(0.002)
    with RunLock(tmp_path):
        assert ("starting", True) == (look(tmp_path).state, look(tmp_path).running)
    assert ("finished", False) == (look(tmp_path).state, look(tmp_path).running)


def test_a_new_run_that_prepares_is_named(tmp_path: Path) -> None:
    """Between the making of a folder and the first trial the refusal says who is at work."""
    with RunLock(tmp_path / "run") as lock:
        lock.open(overwrite=False, rungs=False)
        with pytest.raises(RunFolderError, match="has not begun to search"):
            look(tmp_path / "run")
    with pytest.raises(RunFolderError, match="ended before its first trial"):
        look(tmp_path / "run")


def test_a_run_that_was_killed_early_says_how_to_go_on(tmp_path: Path) -> None:
    """Its folder may hold the lock alone, or a ledger without a trial; one with trials is told."""
    (tmp_path / "lock").mkdir()
    (tmp_path / "lock" / ".lock").touch()
    for name, trials in (("ledger", []), ("tried", [trial(Plan.of(()), 1.0)])):
        (tmp_path / name).mkdir()
        write_ledger(tmp_path / name, trials)
    for name in ("lock", "ledger"):
        with pytest.raises(RunFolderError, match="ended before its first trial") as refused:
            look(tmp_path / name)
        assert "begin it again by its command, with --resume" in refused.value.hint
    with pytest.raises(RunFolderError, match=r"holds a run and no status\.json"):
        look(tmp_path / "tried")
    (tmp_path / "ledger" / "ledger.sqlite").write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"is empty, .*; begin the run again"):
        look(tmp_path / "ledger")


def test_the_file_is_written_seldom_and_is_always_whole(tmp_path: Path) -> None:
    """A thousand events in a second cost few writes, and every read sees valid JSON."""
    live = LiveStatus(tmp_path / STATUS, PROCESS)
    live(STARTED)
    seen: set[str] = set()
    begun, number = time.monotonic(), 0
    while number < 1000 or len(seen) < 2:
        assert time.monotonic() < begun + PATIENCE_S, seen
        proposal = Proposal(plan=Plan.of(range(number % 20)), reason=f"number {number}")
        live(TrialStarted(proposal=proposal))
        failed = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.FAIL, error=1.0)
        live(TrialFinished(proposal=proposal, outcome=failed, recalled=False))
        seen.add(json.loads((tmp_path / STATUS).read_text())["updated"])
        number += 1
        time.sleep(max(0.0, begun + number * 1e-3 - time.monotonic()))
    seconds = time.monotonic() - begun
    assert len(seen) <= seconds / INTERVAL_S + 2
    live.close({"state": "finished"})
    last = json.loads((tmp_path / STATUS).read_text())
    assert (number, "finished", f"number {number - 1}") == (
        last["trials"],
        last["state"],
        last["last"][-1]["reason"],
    )


def test_the_last_event_is_written_without_another(tmp_path: Path, live: LiveStatus) -> None:
    """A trial that takes hours is in the file soon after it began, though nothing happens."""
    live(TrialStarted(proposal=Proposal(plan=Plan.of((1,)), reason="hangs")))
    wait_until(lambda: json.loads((tmp_path / STATUS).read_text())["in_flight"])
    live.close({})


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0123, "0.0123 s"),
        (59.4, "59.4 s"),
        (59.9, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3599.9, "1 h 0 min"),
        (7260, "2 h 1 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_spans_are_said_in_two_units(seconds: float, said: str) -> None:
    """The largest unit and the next, without gaps between them."""
    assert said == spoken(seconds)
