"""Make the golden ledger of the present schema: `python make_ledger.py ledger_v4.sqlite`.

One is committed per released schema, so that later versions can show that they still read it. It
holds one trial of every kind, and a start without an end.
"""

import math
import sys
from pathlib import Path

from precision_bisect.plan import Plan
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.trial import (
    Evidence,
    Honour,
    Kind,
    Latency,
    LayerHonour,
    Outcome,
    Phase,
    Proposal,
    SampleSet,
    Stability,
    Trial,
    TrialStatus,
    Verdict,
)

FINGERPRINT = {
    "model": "0" * 64,
    "low": "fp16",
    "seed": 0,
    "comparator": {"metric": "elementwise", "atol": {"y": 0.01}, "rtol": {"y": 0.01}},
    "versions": {"precision-bisect": "0.1.0"},
}
BIG = Plan.of((0, 70, 130))


def _trial(proposal: Proposal, status: TrialStatus, **outcome: object) -> Trial:
    return Trial(proposal=proposal, outcome=Outcome(status=status, **outcome))  # type: ignore[arg-type]


DONE = TrialStatus.FINISHED
TRIALS = [
    _trial(
        Proposal(plan=Plan.all_high(131), phase=Phase.PREFLIGHT, reason="every layer high"),
        DONE,
        verdict=Verdict.PASS,
        error=0.0,
        wall_s=0.25,
    ),
    _trial(
        Proposal(plan=Plan.all_high(131), phase=Phase.PREFLIGHT, kind=Kind.REPEAT),
        DONE,
        verdict=Verdict.PASS,
        error=1e-7,
    ),
    _trial(
        Proposal(plan=Plan.of(()), phase=Phase.PREFLIGHT, reason="every layer low"),
        DONE,
        verdict=Verdict.FAIL,
        error=math.inf,
        message="output 'y' has 1 NaN or Inf of 4 in sample 0",
    ),
    _trial(
        Proposal(plan=BIG, phase=Phase.RANKING, samples=SampleSet.RANKING, kind=Kind.PREDICT),
        DONE,
        verdict=Verdict.FAIL,
        error=0.02,
    ),
    _trial(Proposal(plan=BIG), TrialStatus.BUILD_FAILED, message="no implementation 实现"),
    _trial(Proposal(plan=Plan.of((3,))), TrialStatus.RUN_FAILED),
    _trial(Proposal(plan=Plan.of((4,))), TrialStatus.TIMED_OUT),
    _trial(Proposal(plan=Plan.of((5,))), TrialStatus.CRASHED),
    _trial(
        Proposal(plan=Plan.of((6,))),
        TrialStatus.NOT_HONOURED,
        error=0.5,
        evidence=Evidence(
            latency=Latency(median_ms=1.5, spread_ms=0.25, runs=20),
            honours=[
                LayerHonour(layer="mm 实现", honoured=Honour.DEMOTED, evidence="weights are half"),
                LayerHonour(layer="pow", honoured=Honour.NOT_OBSERVABLE, evidence="not listed"),
            ],
            notes=["layer norm in FP16"],
        ),
    ),
    _trial(Proposal(plan=Plan.of((7,)), phase=Phase.CERTIFICATE), DONE, verdict=Verdict.PASS),
    _trial(
        Proposal(plan=BIG, phase=Phase.RECHECK, samples=SampleSet.HELD_OUT),
        DONE,
        verdict=Verdict.FAIL,
        error=0.5,
    ),
    _trial(Proposal(plan=BIG, samples=SampleSet("all")), DONE, verdict=Verdict.PASS, error=0.01),
    _trial(Proposal(plan=BIG, phase=Phase.RECHECK, kind=Kind.REBUILD), DONE, verdict=Verdict.PASS),
    _trial(
        Proposal(plan=BIG, phase=Phase.PREDICTION, kind=Kind.PREDICT), DONE, verdict=Verdict.PASS
    ),
    _trial(
        Proposal(plan=BIG, phase=Phase.RECHECK, draw=1),
        DONE,
        verdict=Verdict.FAIL,
        error=math.inf,
        evidence=Evidence(
            stability=Stability(
                copies=8, failed=2, error_median=0.5, error_max=math.inf, jitter=0.25
            )
        ),
    ),
]
ORPHAN = Proposal(plan=Plan.of((8,)), reason="in flight")


def make(path: Path) -> None:
    """Write the ledger."""
    with open_ledger(path, FINGERPRINT, resume=False) as ledger:
        for trial in TRIALS:
            ledger.start(trial.proposal)
            ledger.finish(trial.proposal, trial.outcome)
        ledger.start(ORPHAN)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
