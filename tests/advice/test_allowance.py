"""What trying advice may take is counted, and the same on machines of any speed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiny
from advice_cases import advice_on, case_of
from models import parse, save
from norm_spellings import large, layer_norm
from precision_bisect.explaining.advice.advise import advised
from precision_bisect.explaining.advice.diagnosed_model import DiagnosedModel
from precision_bisect.explaining.advice.variants import Allowance, Variants
from precision_bisect.options import Options
from precision_bisect.pipeline.explanation import ADVICE, LEAST_ADVICE_S, allowance
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import Event, TrialStarted, ignore
from precision_bisect.search.budget import Budget
from precision_bisect.search.speed.costs import NODE_WORK
from precision_bisect.trial import (
    Evidence,
    Outcome,
    Proposal,
    Stability,
    Trial,
    TrialStatus,
    Verdict,
)
from reported_models import ATTENTION, MASKED
from simulated import Simulated, driven


def prepared(folder: Path) -> Prepared:
    """Return a run of the small model on three samples."""
    path = tiny.write_model(folder / "tiny.onnx")
    (work := folder / "work").mkdir()
    options = Options(
        model=path, inputs=tiny.samples(3), tol=1e-2, backend="emulated", out=folder / "run"
    )
    return prepare(options, ignore, work)


def trials(count: int, copies: int) -> Sequence[Trial]:
    """Return so many trials with so many copies of the samples."""
    evidence = Evidence(stability=Stability(copies=copies, failed=0) if copies else None)
    outcome = Outcome(
        status=TrialStatus.FINISHED, verdict=Verdict.PASS, error=0.1, evidence=evidence
    )
    return [Trial(proposal=Proposal(plan=Plan.of(())), outcome=outcome)] * count


def test_it_is_counted_and_no_clock_decides(tmp_path: Path) -> None:
    """A share of the run's inferences, or as much work as any run may take for it."""
    run = prepared(tmp_path)
    least = allowance(run, trials(1, 0), Budget()).inferences
    assert 1e10 / NODE_WORK / len(tiny.STEPS) < least < 1e12 / NODE_WORK / len(tiny.STEPS)
    many = trials(200_000, 16)
    slow = iter(range(0, 10**9, 10**6))
    for budget in (Budget(), Budget(clock=lambda: float(next(slow))), Budget(max_trials=9)):
        found = allowance(run, many, budget)
        assert (float("inf"), ADVICE * 200_000 * 3 * 17) == (found.until, found.inferences)
    asked = Budget(max_time_s=1e6)
    assert allowance(run, many, asked).until < float("inf")
    assert 0 < LEAST_ADVICE_S


def with_allowance(case: DiagnosedModel, inferences: float) -> DiagnosedModel:
    """Return the case with so many inferences left."""
    return replace(case, variants=Variants(allowance=Allowance(inferences=inferences)))


@pytest.mark.parametrize("inferences", [0, 1])
def test_once_it_is_spent_nothing_more_is_tried(tmp_path: Path, inferences: int) -> None:
    """One adviser begins with what is left; with nothing none does."""
    path = save(parse(ATTENTION.format(mask=-1e9)), tmp_path)
    kept = ["node_of_a", "node_of_s"]
    samples: list[Sample] = [
        {name: np.asarray(array) for name, array in feed.items()} for feed in MASKED
    ]
    case = case_of(path, samples, kept, tmp_path)
    every = with_allowance(case, float("inf"))
    assert any(each.tried for each in advice_on(every).advice)
    short = with_allowance(case, inferences)
    found = advice_on(short)
    assert [each.id for each in advice_on(with_allowance(case, inferences)).advice] == [
        each.id for each in found.advice
    ]
    assert len(found.advice) < len(advice_on(every).advice) if not inferences else found.advice
    assert inferences or not found.advice


def test_what_was_tried_stays_when_it_is_cut(tmp_path: Path) -> None:
    """After Ctrl-C in its third trial no advice is tried any more; what was, is there."""
    kept = ["node_of_h", "node_of_q", "node_of_v"]
    case = case_of(save(parse(layer_norm()), tmp_path), list(large()), kept, tmp_path)
    whole, started = advice_on(case), list[Event]()

    def observe(event: Event) -> None:
        if isinstance(event, TrialStarted):
            started.append(event)
            if len(started) == 3:
                raise KeyboardInterrupt

    with driven(tmp_path, Simulated(lambda *_: 0.0), observer=observe) as driver:
        found = driver.run(driver.to_end(advised(replace(case, cases=driver.cases))))
    assert 3 == len(started)
    tried = [advice.tried for advice in found.advice if advice.tried]
    assert tried == [advice.tried for advice in whole.advice if advice.tried][: len(tried)]
    assert 0 < len(tried) < sum(advice.tried is not None for advice in whole.advice)
