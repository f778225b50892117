"""The structured log: every event once, valid JSON, and never the end of a run."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny
from beginning import PROCESS, STARTED
from precision_bisect.plan import Plan
from precision_bisect.runs import plain_json
from precision_bisect.runs.ledger.store import SqliteLedger
from precision_bisect.runs.monitoring.attend import EventLog, record
from precision_bisect.runs.monitoring.events import (
    Event,
    PhaseStarted,
    TrialFinished,
    TrialStarted,
    Warned,
)
from precision_bisect.runs.plain_json import to_bytes
from precision_bisect.runs.runfolder import EVENTS, LEDGER
from precision_bisect.trial import Outcome, Phase, Proposal, TrialStatus, Verdict

PROPOSAL = Proposal(plan=Plan.of((1, 3)), reason="keep 2")
FAILED = Outcome(status=TrialStatus.FINISHED, verdict=Verdict.FAIL, error=math.inf, wall_s=0.25)


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the log; every line must be valid JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def kinds(path: Path) -> list[str]:
    """Return the kinds of the events in a log."""
    return [line["event"] for line in lines(path)]


def test_a_trial_is_told_with_all_its_fields(tmp_path: Path) -> None:
    """Plan, phase, verdict and figures are plain values, an infinite error the text inf."""
    log = EventLog(tmp_path / "log", PROCESS)
    events: list[Event] = [
        Warned(message="before the run"),
        STARTED,
        PhaseStarted(phase=Phase.SEARCH),
        TrialStarted(proposal=PROPOSAL),
        TrialFinished(proposal=PROPOSAL, outcome=FAILED, recalled=False),
    ]
    for event in events:
        log(event)
    log.close({"event": "run_ended", "status": "found"})
    told = lines(tmp_path / "log")
    expected = ["warned", "run_started", "phase_started", "trial_started", "trial_finished"]
    assert [*expected, "run_ended"] == [line["event"] for line in told]
    assert (7, "box", 0.01) == (told[1]["pid"], told[1]["host"], told[1]["tolerance"])
    trial = told[4]
    assert (2, "a", "search", "judged", "judge") == tuple(
        trial[key] for key in ("kept", "plan", "phase", "samples", "kind")
    )
    assert ("finished", "fail", "inf", 0.25) == tuple(
        trial[key] for key in ("status", "verdict", "error", "wall_s")
    )
    assert sorted(line["time"] for line in told) == [line["time"] for line in told]
    assert all(len("2026-01-01T00:00:00.000Z") == len(line["time"]) for line in told)


def test_nothing_is_written_before_the_run_begins(tmp_path: Path) -> None:
    """A run that its input ends before it begins leaves no log."""
    log = EventLog(tmp_path / "log", PROCESS)
    log(Warned(message="no inputs"))
    log.close({"event": "run_ended"})
    assert not (tmp_path / "log").exists()


def test_a_resumed_run_appends_and_counts_what_it_recalls(tmp_path: Path) -> None:
    """Each trial is in the log once: those of the ledger become one line with their number."""
    for _ in range(2):
        log = EventLog(tmp_path / "log", PROCESS)
        log(STARTED)
        for phase in (Phase.PREFLIGHT, Phase.SEARCH):
            log(PhaseStarted(phase=phase))
            log(TrialFinished(proposal=PROPOSAL, outcome=FAILED, recalled=True))
        log(TrialStarted(proposal=PROPOSAL))
        log.close({"event": "run_ended"})
    session = ["run_started", "recalled", "phase_started", "trial_started", "run_ended"]
    assert session * 2 == kinds(tmp_path / "log")
    assert [2, 2] == [line["trials"] for line in lines(tmp_path / "log") if "trials" in line]


@pytest.mark.parametrize(
    "torn", ['{"time": "2026', '{"event": "a"}\n{"ti', "", '{"event": "a"}\n']
)
def test_a_line_that_was_cut_off_goes(tmp_path: Path, torn: str) -> None:
    """After a kill in the middle of a line the next one begins where that line began."""
    path = tmp_path / "log"
    path.write_text(torn)
    log = EventLog(path, PROCESS)
    log(STARTED)
    log.close({"event": "run_ended"})
    before = ["a"] if '{"event": "a"}\n' in torn else []
    assert [*before, "run_started", "run_ended"] == kinds(path)


def test_a_full_disk_costs_lines_and_says_how_many(tmp_path: Path) -> None:
    """Lines that cannot be written are counted once there is space; no half line is left."""
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from precision_bisect.runs.monitoring.events import Warned\n"
        "from precision_bisect.runs.monitoring.attend import EventLog\n"
        "from test_event_log import PROCESS, STARTED\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "log = EventLog(Path(sys.argv[1]), PROCESS)\n"
        "log(STARTED)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))\n"
        "for _ in range(9):\n"
        "    log(Warned(message='x' * 100))\n"
        "assert 'File too large' == log.trouble.strerror or 'space' in log.trouble.strerror\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "log.close({'event': 'run_ended'})\n"
    )
    folders = os.pathsep.join((str(Path(__file__).parent), str(Path(tiny.__file__).parent)))
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        check=True,
        env={**os.environ, "PYTHONPATH": folders},
    )
    told = lines(tmp_path / "log")
    (lost,) = (line["lines"] for line in told if line["event"] == "lost")
    assert 0 < lost <= 9
    assert 9 == lost + sum(line["event"] == "warned" for line in told)


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    """Folders in place of the log and of the status are a warning each."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    out = tmp_path / "run"
    (out / "status.json").mkdir(parents=True)
    (out / EVENTS).mkdir()
    events: list[Event] = []
    result = tiny.search(model, out, observer=events.append)
    assert tiny.KEPT == list(result.kept)
    said = [event.message for event in events if isinstance(event, Warned)]
    assert ["Is a directory; the search goes on"] == [
        message.removeprefix(f"cannot write {EVENTS}: ") for message in said if EVENTS in message
    ]
    assert 1 == sum(message.startswith("cannot write status.json") for message in said)


def test_a_run_tells_each_trial_of_its_ledger_once(tmp_path: Path) -> None:
    """Cut off by its budget and resumed, the log has the trials that the ledger has, in order."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    out = tmp_path / "run"
    tiny.search(model, out, max_trials=5)
    tiny.search(model, out, resume=True)
    told = lines(out / EVENTS)
    keys = [
        (line["plan"], line["samples"], line["kind"], line["draw"], line["case"])
        for line in told
        if line["event"] == "trial_finished"
    ]
    with SqliteLedger(out / LEDGER) as ledger:
        trials = ledger.trials()
    assert [trial.proposal.identity for trial in trials] == keys
    ends = [(line["state"], line["status"]) for line in told if line["event"] == "run_ended"]
    assert [("finished", "budget_exhausted"), ("finished", "found")] == ends
    resumed = [line["resumed_trials"] for line in told if line["event"] == "run_started"]
    assert resumed[0] == 0 < resumed[1] < len(keys)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from([Phase.SEARCH, TrialStatus.CRASHED])
    | st.builds(Path, st.just("a/b")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(VALUES)
def test_any_value_becomes_one_line_of_json(value: Any) -> None:
    """Whatever a field holds, lone surrogates and NaN too, the line is UTF-8, valid, and one."""
    line = to_bytes({"value": plain_json.plain(value)})
    assert 1 == line.count(b"\n")
    assert {"value": plain_json.plain(value)} == json.loads(line.decode("utf-8"))


def test_kinds_are_named_after_their_events() -> None:
    """The names in the log are the events' own, in snake case."""
    assert "run_started" == record(STARTED)["event"]
    assert "warned" == record(Warned(message=""))["event"]
    assert "trial_started" == record(TrialStarted(proposal=PROPOSAL))["event"]
