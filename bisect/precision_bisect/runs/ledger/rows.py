"""The tables of a ledger, and its trials from rows to objects."""

from typing import Any

from precision_bisect.plan import Plan
from precision_bisect.runs.ledger.evidence_text import from_text
from precision_bisect.trial import (
    Kind,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Trial,
    TrialStatus,
    Verdict,
)

LEDGER_SCHEMA = 3
TABLES = """
CREATE TABLE header (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE trials (
    id INTEGER PRIMARY KEY,
    plan TEXT NOT NULL,
    samples TEXT NOT NULL,
    kind TEXT NOT NULL,
    draw INTEGER NOT NULL,
    phase TEXT NOT NULL,
    kept INTEGER NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 1,
    status TEXT,
    verdict TEXT,
    error REAL,
    message TEXT NOT NULL DEFAULT '',
    wall_s REAL NOT NULL DEFAULT 0,
    evidence TEXT NOT NULL DEFAULT '{}',
    UNIQUE (plan, samples, kind, draw)
) STRICT;
"""

ENDED = (
    "SELECT plan, samples, kind, draw, phase, reason, status, verdict, error, message, "
    "wall_s, evidence FROM trials WHERE status IS NOT NULL ORDER BY id"
)
"""Selects the trials that have ended, in the order they were started."""


def trial_of(row: tuple[Any, ...]) -> Trial:
    """Return the trial of one row of `ENDED`. Raises ValueError for what is none."""
    plan, samples, kind, draw, phase, reason, status, verdict, error, message, wall_s, text = row
    return Trial(
        proposal=Proposal(
            plan=Plan.from_key(plan),
            phase=Phase(phase),
            samples=SampleSet.read(samples),
            kind=Kind(kind),
            draw=draw,
            reason=reason,
        ),
        outcome=Outcome(
            status=TrialStatus(status),
            verdict=Verdict(verdict) if verdict else None,
            error=error,
            message=message,
            wall_s=wall_s,
            evidence=from_text(text),
        ),
    )
