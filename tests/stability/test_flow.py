"""Answers that hold: what passes by luck is widened, and nothing of it is called minimal."""

import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import examples
from precision_bisect.options import Certify
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.pipeline.stability import clear_limit
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample, Search
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.search.certificate.confirmed_forecasts import sample_of
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.certificate.proving import Terms, certificate
from precision_bisect.search.driver import Driver
from precision_bisect.trial import Kind, Phase, Proposal
from precision_bisect_strategies.guided import Guided
from simulated import SIZE, Evaluate, Simulated, copies_of, driven


def course(
    path: Path,
    rule: Evaluate,
    *,
    builds: bool = False,
    count: int = 16,
    curve: bool = False,
    certify: Certify = "full",
) -> tuple[Ending, Driver]:
    """Run the whole flow; the rule is asked for the samples and for each copy of them."""
    backend = Simulated(rule)
    with driven(path, backend, copies=lambda sets: copies_of(sets, count)) as driver:
        asked = replace(oracles.problem(SIZE), builds=builds)
        how = Course(copies=True, curve=curve, certify=certify)
        ending = driver.run(flow(asked, Guided(), how))
    return ending, driver


def spread(sigma: float, errors: list[float]) -> Evaluate:
    """Return a rule by which errors add up in quadrature, times luck that each copy draws."""

    def evaluate(plan: Plan, feed: Sample) -> float:
        low = [errors[i] for i in range(SIZE) if i not in plan.kept]
        seed = [*feed["x"].tobytes(), *plan.mask.to_bytes(2, "little")]
        luck = np.random.default_rng(seed).standard_normal()
        return math.sqrt(sum(each**2 for each in low)) * math.exp(sigma * luck)

    return evaluate


ERRORS = [0.9, 0.5, 0.45, 0.4, 0.4, 0.35, 0.35, 0.3, 0.3, 0.3, 0.25, 0.25]


def test_culprits_that_hold_are_minimal(tmp_path: Path) -> None:
    """Two layers overflow; the rest is far below the limit, on every copy."""

    def rule(plan: Plan, feed: Sample) -> float:
        del feed
        return 0.1 if {2, 7} <= plan.kept else 5.0

    ending, driver = course(tmp_path, rule)
    drawn = driver.on_copies(Plan.of((2, 7)))
    assert (Status.FOUND, Plan.of((2, 7)), None) == (ending.status, ending.plan, ending.spread)
    assert drawn is not None and drawn.evidence.stability is not None
    assert (16, 0) == (drawn.evidence.stability.copies, drawn.evidence.stability.failed)
    limit = clear_limit(1.0, drawn)
    seen = JudgedTrials(tolerance=1.0, size=SIZE, copies=True, clear=limit).having(driver.trials)
    terms = Terms(mode="full", untested="")
    names = [f"layer{i}" for i in range(SIZE)]
    assert certificate(ending.plan, seen, names, terms).minimal


def test_what_a_drop_failed_on_is_told(tmp_path: Path) -> None:
    """A layer that the samples as given do without is told from one that they need."""

    def rule(plan: Plan, feed: Sample) -> float:
        copied = feed["x"].dtype.kind == "f"
        return 0.1 if ({2, 7} if copied else {2}) <= plan.kept else 1.1

    def drops() -> Search[None]:
        plans = [Plan.of(kept) for kept in ((2, 7), (7,), (2,))]
        yield tuple(Proposal(plan=plan, phase=Phase.CERTIFICATE, draw=1) for plan in plans)

    with driven(tmp_path, Simulated(rule), copies=copies_of) as driver:
        driver.run(drops())
    seen = JudgedTrials(tolerance=1.0, size=SIZE, copies=True, clear=2.0).having(driver.trials)
    names = [f"layer{i}" for i in range(SIZE)]
    found = certificate(Plan.of((2, 7)), seen, names, Terms(mode="full", untested=""))
    assert [(True, "samples"), (True, "copies")] == [
        (need.needed, need.fails_on) for need in found.evidence
    ]
    assert 1 == found.on_copies_alone
    assert [True, False] == [need.reason.endswith("as do the samples") for need in found.evidence]


def test_culprits_that_hold_are_needed_by_forecasts(tmp_path: Path) -> None:
    """Nine layers overflow on every copy: a sample of their drops is judged on copies."""
    needed = frozenset(range(9))

    def rule(plan: Plan, feed: Sample) -> float:
        del feed
        return 0.1 if needed <= plan.kept else 5.0

    ending, driver = course(tmp_path, rule, builds=True, curve=True, certify="forecasts")
    assert (Status.FOUND, needed) == (ending.status, ending.plan and ending.plan.kept)
    assert ending.plan is not None
    limit = clear_limit(1.0, driver.on_copies(ending.plan))
    seen = JudgedTrials(tolerance=1.0, size=SIZE, copies=True, clear=limit).having(driver.trials)
    names = [f"layer{i}" for i in range(SIZE)]
    found = certificate(ending.plan, seen, names, Terms(mode="forecasts", untested=""))
    assert (True, False, []) == (found.minimal_by_forecasts, found.minimal, found.unchecked)
    assert found.forecasts is not None
    assert sample_of(9) <= found.forecasts.drawn <= len(found.checked) < 9
    drops = [t for t in driver.trials if t.proposal.phase is Phase.CERTIFICATE]
    assert all(t.outcome.evidence.stability for t in drops)


@pytest.mark.parametrize("builds", [False, True])
def test_an_answer_that_passed_by_luck_is_widened(tmp_path: Path, builds: bool) -> None:
    """What is returned passed on two draws that had no part in choosing it but one each."""
    ending, driver = course(tmp_path, spread(0.2, ERRORS), builds=builds)
    assert Status.FOUND is ending.status and ending.plan is not None
    assert "checks with slight changes" in str(ending.spread)
    draws = [t for t in driver.trials if t.proposal.plan == ending.plan and t.proposal.draw]
    assert 2 <= len(draws)
    assert all(trial.outcome.passed for trial in draws)
    assert len(ending.plan) < SIZE


@examples(15)
@given(
    sigma=st.sampled_from([0.1, 0.2, 0.3]),
    errors=st.lists(st.floats(0.2, 0.9), min_size=SIZE, max_size=SIZE),
)
def test_no_answer_has_failed_a_draw(sigma: float, errors: list[float]) -> None:
    """Whatever plan of the curve or of the search it is, it passed all draws that judged it."""
    with TemporaryDirectory() as folder:
        ending, driver = course(Path(folder), spread(sigma, errors), curve=True)
    answered = [
        trial.outcome.passed
        for trial in driver.trials
        if trial.proposal.plan == ending.plan and trial.proposal.phase is Phase.RECHECK
    ]
    assert answered and all(answered)


def test_a_smaller_plan_of_the_curve_is_no_worse_than_a_wider_answer(tmp_path: Path) -> None:
    """The curve has the first layers of its order; what was widened has others, and more."""
    errors = [0.32, 0.42, 0.43, 0.29, 0.34, 0.28, 0.35, 0.28, 0.3, 0.42, 0.26, 0.36]
    ending, driver = course(tmp_path, spread(0.2, errors), curve=True)
    wider = [t.proposal.plan for t in driver.trials if t.proposal.reason.endswith(" more")]
    (smaller,) = (
        t for t in driver.trials if "the plan of the curve, on copies" in t.proposal.reason
    )
    assert smaller.outcome.passed
    assert ending.plan == smaller.proposal.plan
    assert len(smaller.proposal.plan) < len(wider[-1])


@examples(10)
@given(
    sigma=st.sampled_from([0.05, 0.1, 0.2, 0.4]),
    errors=st.lists(st.floats(0.01, 1.0), min_size=SIZE, max_size=SIZE),
)
def test_answers_hold_on_copies_that_were_not_drawn(sigma: float, errors: list[float]) -> None:
    """Of 50 fresh copies hardly any fails; no network is infeasible, as keeping all is exact."""
    rule = spread(sigma, errors)
    with TemporaryDirectory() as folder:
        ending, _ = course(Path(folder), rule)
    assert ending.status in (Status.FOUND, Status.NOTHING_TO_KEEP)
    assert ending.plan is not None
    rng = np.random.default_rng(1)
    fresh = [rule(ending.plan, {"x": rng.standard_normal(1)}) for _ in range(50)]
    assert sum(error > 1.0 for error in fresh) <= 6


def test_what_fails_on_copies_with_everything_kept_is_infeasible(tmp_path: Path) -> None:
    """No plan is called an answer when even the widest one fails."""

    def rule(plan: Plan, feed: Sample) -> float:
        return 2.0 if feed["x"][0] != int(feed["x"][0]) or not plan.kept else 0.0

    ending, _ = course(tmp_path, rule)
    assert (Status.INFEASIBLE, None) == (ending.status, ending.plan)


def test_on_an_engine_all_copies_of_an_answer_share_its_fresh_build(tmp_path: Path) -> None:
    """A draw costs one build, however many copies it has."""

    def rule(plan: Plan, feed: Sample) -> float:
        del feed
        return 0.1 if 3 in plan.kept else 5.0

    few, many = (course_builds(tmp_path / str(count), rule, count) for count in (4, 16))
    assert few == many


def course_builds(path: Path, rule: Evaluate, count: int) -> list[tuple[str, int]]:
    """Return the builds of a run with so many copies, by plan and draw."""
    path.mkdir()
    _, driver = course(path, rule, builds=True, count=count)
    return [
        (trial.proposal.plan.key, trial.proposal.draw)
        for trial in driver.trials
        if trial.proposal.kind is not Kind.PREDICT
    ]
