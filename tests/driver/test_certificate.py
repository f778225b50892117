"""What the trials of a run prove of the kept layers."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import nightly
from oracles import Oracle, Simulation, outcome
from precision_bisect.options import Certify
from precision_bisect.plan import Plan
from precision_bisect.runs import plain_json
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.search.certificate.certifying import certify
from precision_bisect.search.certificate.judged_trials import JudgedTrials
from precision_bisect.search.certificate.proving import Terms, certificate
from precision_bisect.trial import Kind, Outcome, Proposal, Trial, TrialStatus
from precision_bisect_strategies.guided import Guided

NAMES = [f"layer{i}" for i in range(12)]
PLAN = Plan.of((1, 2, 5))
LOST = Outcome(status=TrialStatus.BUILD_FAILED, message="no implementation")


def trial(kept: Sequence[int], came: float | Outcome, kind: Kind = Kind.JUDGE) -> Trial:
    """Return a trial with an error, or an outcome as it is."""
    return Trial(
        proposal=Proposal(plan=Plan.of(kept), kind=kind),
        outcome=came if isinstance(came, Outcome) else outcome(came),
    )


def proven(
    trials: Sequence[Trial],
    mode: Certify = "full",
    *,
    plan: Plan | None = PLAN,
    limit: float | None = None,
) -> Certificate:
    """Return the certificate of `PLAN`."""
    seen = JudgedTrials(tolerance=oracles.TOLERANCE, size=len(NAMES)).having(trials)
    terms = Terms(mode=mode, untested="the budget was spent", limit=limit)
    return certificate(plan, seen, NAMES, terms)


DROPS = [trial([2, 5], 3.0), trial([1, 5], 4.0), trial([1, 2], float("inf"))]


@pytest.mark.parametrize("mode", ["forecasts", "full"])
def test_every_drop_that_failed_makes_it_minimal(mode: Certify) -> None:
    """With each single drop tried and failed, nothing rests on forecasts; the errors are there."""
    found = proven(DROPS, mode)
    assert (True, True, None) == (found.minimal, found.minimal_by_forecasts, found.forecasts)
    assert (["layer1", "layer2", "layer5"], []) == (found.checked, found.unchecked)
    assert {"layer1": 3.0, "layer2": 4.0, "layer5": float("inf")} == found.errors


def test_only_the_plan_without_the_layer_proves_it_needed() -> None:
    """A failing plan that lacks it and keeps more proves nothing, nor does one that lacks more."""
    found = proven([*DROPS[:2], trial([1, 2, 4], 2.0), trial([1], 5.0)])
    assert (False, ["layer5"]) == (found.minimal, found.unchecked)
    assert (None, "the budget was spent") == (found.evidence[-1].how, found.evidence[-1].reason)


def test_a_failure_of_all_that_is_kept_and_more_implies_nothing() -> None:
    """A plan that keeps the layer too and failed says nothing of what happens without it."""
    found = proven([trial([1, 2, 5, 7], 3.0)])
    assert {None} == {need.how for need in found.evidence}
    assert not found.minimal


def test_nothing_counts_where_no_certificate_was_asked_for() -> None:
    """Mode none claims nothing, whatever the search happened to try."""
    found = proven(DROPS, "none")
    assert (False, [], NAMES[1:3] + NAMES[5:6]) == (found.minimal, found.checked, found.unchecked)
    assert {} == found.errors


def test_an_unresolved_drop_shows_nothing_and_says_why() -> None:
    """A drop that could not be built is unchecked, with its status as the reason."""
    found = proven([*DROPS[:2], trial([1, 2], LOST)], "full")
    assert (False, ["layer5"]) == (found.minimal, found.unchecked)
    assert "build_failed: no implementation" == found.evidence[-1].reason


def test_builds_that_disagree_show_nothing() -> None:
    """A drop that failed, and passed when it was built afresh, is no evidence of a need."""
    found = proven([*DROPS, trial([1, 2], 0.5, Kind.REBUILD)])
    assert (False, ["layer5"]) == (found.minimal, found.unchecked)
    assert "builds disagree" in found.evidence[-1].reason


def test_a_drop_that_passed_is_told() -> None:
    """Where a run was cut off before it took a layer out, the layer is not called needed."""
    found = proven([*DROPS[:2], trial([1, 2], 0.5)])
    assert (False, False) == (found.minimal, found.evidence[-1].needed)


def test_the_empty_plan_is_minimal_and_no_plan_is_not() -> None:
    """There is nothing to drop from the one, and nothing to certify in the other."""
    assert proven([], plan=Plan.of(())).minimal
    assert not proven([], plan=None).minimal


def test_it_is_written_as_documented() -> None:
    """The keys of the file, for entries with a trial and without one."""
    written = plain_json.plain(proven([DROPS[0], trial([1, 2, 4], 2.0)]))
    keys = [
        "mode",
        "uncertified",
        "minimal",
        "checked",
        "predicted",
        "unchecked",
        "evidence",
        "forecasts",
    ]
    keys += ["limit", "minimal_at_limit", "minimal_by_forecasts"]
    assert keys == list(written)
    inner = ["layer", "needed", "needed_at_limit", "error", "how", "fails_on", "reason", "status"]
    assert [inner] * 3 == [list(entry) for entry in written["evidence"]]
    assert ["dropped", None, None] == [entry["how"] for entry in written["evidence"]]


PLANS = st.frozensets(st.integers(0, 5))


@given(
    tried=st.sets(PLANS, max_size=25),
    plan=PLANS,
    culprits=st.frozensets(st.integers(0, 5), min_size=1),
    seed=st.integers(0, 99),
    mode=st.sampled_from(get_args(Certify)),
)
def test_it_never_claims_what_is_not_so(
    tried: set[frozenset[int]],
    plan: frozenset[int],
    culprits: frozenset[int],
    seed: int,
    mode: Certify,
) -> None:
    """On monotone oracles with failing builds, what is called needed is, in every mode."""
    oracle = oracles.flaky(oracles.monotone(culprits), 6, seed, share=0.3)
    trials = [trial(sorted(kept), oracle(kept)) for kept in tried]
    found = proven(trials, mode, plan=Plan.of(plan))
    for need in found.evidence:
        without = culprits <= plan - {NAMES.index(need.layer)}
        assert need.needed in (None, not without)
        assert (need.needed is True) == (need.layer in found.checked)
        assert (need.needed is None) == (need.how is None)
    assert found.minimal == (len(found.checked) == len(plan))


def bent(seed: int, size: int) -> Oracle:
    """Let errors add up, four layers of which are too many; some plans fail for no reason."""
    luck = random.Random(seed)
    errors = sorted(luck.lognormvariate(0.0, 2.0) for _ in range(size))
    errors = [error / (sum(errors[:-4]) + 0.001) for error in errors]
    luck.shuffle(errors)

    def judge(kept: frozenset[int]) -> Outcome:
        spoilt = random.Random(f"{seed}:{sorted(kept)}").random() < 0.15
        return outcome(4.0) if spoilt and 0 < len(kept) < size else additive(kept)

    additive = oracles.additive(errors)
    return judge


@pytest.mark.parametrize("seed", [*range(8), *nightly(*range(8, 30))])
def test_where_keeping_more_hurts_every_drop_is_tried(seed: int) -> None:
    """The trials of a certificate and what is read off them agree on what counts."""
    oracle, size = bent(seed, len(NAMES)), len(NAMES)
    asked = replace(oracles.problem(size), workers=4)
    plan, simulation = oracles.certified(Guided(), asked, oracle)
    ends = [trial(kept, oracle(frozenset(kept))) for kept in (range(size), ())]
    found = proven([*ends, *simulation.trials], plan=plan)
    assert (True, []) == (found.minimal, found.unchecked)


def test_a_search_below_the_tolerance_proves_its_own_limit() -> None:
    """A drop within the tolerance but above the limit is told from one that fails, and passes."""
    trials = [*DROPS[:2], trial([1, 2], 0.95)]
    found = proven(trials, limit=0.9)
    assert (False, True, 0.9) == (found.minimal, found.minimal_at_limit, found.limit)
    last = found.evidence[-1]
    assert (False, True, 0.95) == (last.needed, last.needed_at_limit, last.error)
    assert "without it the plan passes, but not below 0.9" in last.reason
    assert [True, True] == [need.needed_at_limit for need in found.evidence[:2]]
    assert not proven([*DROPS[:2], trial([1, 2], 0.85)], limit=0.9).minimal_at_limit


def test_without_a_limit_of_its_own_a_search_proves_the_tolerance() -> None:
    """Both readings are the same then, and entries say nothing of a limit."""
    found = proven(DROPS)
    assert (True, True, None) == (found.minimal, found.minimal_at_limit, found.limit)
    assert {None} == {need.needed_at_limit for need in found.evidence}
    assert not proven(DROPS[:2]).minimal_at_limit
    assert not proven([], plan=None).minimal_at_limit


def test_drops_that_nearly_passed_before_come_first() -> None:
    """The layer whose absence failed by least in the search is dropped from the plan first."""
    seen = JudgedTrials(tolerance=oracles.TOLERANCE, size=12)
    for kept, error in (([2, 5, 7], 3.0), ([1, 5, 8], 1.01), ([1, 2, 9], 2.0)):
        seen.note(Proposal(plan=Plan.of(kept)), outcome(error))
    certifying = certify(oracles.problem(12), PLAN, "full", seen)
    (first,) = next(certifying)
    assert Plan.of((1, 5)) == first.plan
    (second,) = certifying.send((outcome(1.5),))
    assert Plan.of((1, 2)) == second.plan


@pytest.mark.parametrize(("workers", "most"), [(4, 24), (16, 7)])
def test_what_several_workers_drop_at_once_goes_together(workers: int, most: int) -> None:
    """Where many of 60 layers can go, those that passed in one round go in the next."""
    needed = frozenset((7, 30, 59))
    asked = replace(oracles.problem(60), workers=workers)
    simulation = Simulation(60, oracles.monotone(needed))
    search = certify(asked, Plan.all_high(60), "full")
    rounds = 0
    try:
        batch = next(search)
        while True:
            rounds += 1
            assert len(batch) <= workers
            batch = search.send(tuple(map(simulation.answer, batch)))
    except StopIteration as end:
        assert end.value.kept == needed
    assert rounds <= most


def test_a_layer_whose_drop_is_known_to_have_passed_goes() -> None:
    """A plan that failed by noise alone, and kept more, does not speak for it."""
    asked = replace(oracles.problem(4), noise=10.0)
    answers = {(0, 1): 0.1, (0, 2): 5.0, (0,): 0.1, (1,): 5.0, (): 5.0}
    seen = JudgedTrials(tolerance=asked.tolerance, size=4)
    for kept in ((0, 2), (0,)):
        found = trial(kept, answers[kept])
        seen.note(found.proposal, found.outcome)
    oracle = Simulation(4, lambda kept: outcome(answers.get(tuple(sorted(kept)), 5.0)))
    assert oracle.run(certify(asked, Plan.of((0, 1)), "full", seen)).kept == {0}
