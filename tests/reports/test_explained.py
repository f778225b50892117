"""`--explain-search`: each trial with what was believed, why this plan, and what came of it."""

import re
from pathlib import Path

import numpy as np
import pytest

import tiny
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode
from precision_bisect.plan import Plan
from precision_bisect.runs.ledger.ledger_reader import recorded_trials
from precision_bisect.trial import Kind, Outcome, Phase, Proposal, TrialStatus
from precision_bisect_reports.terminal import trial_line

DROPPED = re.compile(
    r"  Search, \d+ kept: drop \d+ of \d+; (a culprit among \d+, )?chance to pass [01]\.\d\d, "
    r"correlation [01]\.\d\d, price \S+, room \d+% -> (pass|fail), error \S+"
)


def test_each_trial_is_explained_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run, its resumption and `show` print the same lines: every trial but the forecasts."""
    path = tiny.write_model(tmp_path / "tiny.onnx")
    np.savez(tmp_path / "inputs.npz", x=tiny.samples()[0]["x"])
    shared = ["--inputs", str(tmp_path / "inputs.npz"), "--threads", "1", "--explain-search"]
    told = []
    for more in ([], ["--resume"]):
        out = ["--tol", "1e-2", "--out", str(tmp_path / "run"), *more]
        assert ExitCode.OK == main([str(path), *shared, *out])
        lines = capsys.readouterr().err.splitlines()
        told.append(sorted(line for line in lines if " -> " in line))
    assert ExitCode.OK == main(["show", str(tmp_path / "run"), "--explain-search"])
    lines = capsys.readouterr().out.partition("Found")[0].splitlines()
    shown = sorted(line for line in lines if " -> " in line)
    trials = recorded_trials(tmp_path / "run")
    assert told[0] == told[1] == shown
    assert sum(trial.proposal.kind is not Kind.PREDICT for trial in trials) == len(shown)
    assert any(DROPPED.fullmatch(line) for line in shown)
    assert any("; the law says 0.0" in line for line in shown)


def test_a_trial_without_a_verdict_says_why() -> None:
    """Its status and message stand where the error would."""
    outcome = Outcome(status=TrialStatus.BUILD_FAILED, message="no implementation")
    line = trial_line(Proposal(plan=Plan.of((1,)), reason="drop 1 of 2"), outcome)
    assert "  Search, 1 kept: drop 1 of 2 -> build_failed: no implementation" == line
    assert "" == trial_line(Proposal(plan=Plan.of((1,)), phase=Phase.RANKING), outcome)
