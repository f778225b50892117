"""Few samples choose, all judge: which ones, what the others decide, and a run that is resumed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oracles
from precision_bisect.pipeline.choosing import hardest, promised
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.pipeline.stability import NARROWED
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.endings import Ending, Status
from precision_bisect.runs.results.unseen import Unseen, share_at_most
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.search.driver import Driver
from precision_bisect.search.sample_sets import CHOSEN, SampleSets, pool_of
from precision_bisect.trial import Kind, OneByOne, SampleSet, Trial
from precision_bisect_strategies.guided import Guided
from simulated import SIZE, Evaluate, Simulated, driven, driver_of, samples

COUNT = 60
POOL = pool_of(range(COUNT), 0)


def needing(needs: dict[int, set[int]]) -> Evaluate:
    """Return a rule: layer 2 for every sample, further ones for these; later ones are harder."""

    def rule(plan: Plan, feed: Sample) -> float:
        number = int(feed["x"][0])
        wanted = {2} | needs.get(number, set())
        return 0.5 if wanted <= plan.kept else 5.0 + number

    return rule


def searched(
    path: Path,
    rule: Evaluate,
    *,
    held_out: int = 0,
    most: int | None = None,
    builds: bool = False,
) -> tuple[Ending | None, Driver, SampleSets, Simulated]:
    """Run the flow with `COUNT` samples and some held out; None where the trials were spent."""
    backend = Simulated(rule)
    sets = samples(COUNT, held_out, POOL)
    driver, ledger = driver_of(path, backend, sets=sets, budget=Budget(max_trials=most))
    course = Course(pool=sets.pool, others=True, held_out=held_out > 0)
    with ledger:
        try:
            problem = replace(oracles.problem(SIZE), builds=builds)
            ending = driver.run(flow(problem, Guided(), course))
        except BudgetSpent:
            ending = None
    return ending, driver, sets, backend


def test_the_pool_is_all_of_few_samples_and_a_random_part_of_many() -> None:
    """Eight may all choose; of more, most take no part, and which do is drawn anew by the seed."""
    assert [*range(8)] == pool_of(range(8), 0)
    sizes = {n: len(pool_of(range(n), 0)) for n in (9, 16, 45, 64, 1000)}
    assert {9: 8, 16: 8, 45: 11, 64: 16, 1000: 32} == sizes
    assert pool_of(range(1000), 0) == pool_of(range(1000), 0) != pool_of(range(1000), 1)


def test_a_ranking_takes_part_of_the_pool() -> None:
    """At most eight samples, evenly from all of it."""
    counts = {n: len(samples(n).numbers(SampleSet.RANKING)) for n in (1, 8, 9, 17, 32)}
    assert {1: 1, 8: 8, 9: 5, 17: 6, 32: 8} == counts


def test_plans_take_turns_to_name_their_hardest_sample() -> None:
    """Failures without a figure come first, those unjudged never, those chosen before last."""
    low = OneByOne(numbers=[1, 2, 3], errors=[0.1, np.inf, 0.3])
    other = OneByOne(numbers=[1, 2, 3], errors=[None, 0.2, None], failed=[1], unjudged=[3])
    assert [2, 1, 3] == hardest([low, other])
    assert [2, 3, 1, 9] == hardest([low], [9, 1])
    many = OneByOne(numbers=[*range(20)], errors=[float(i) for i in range(20)])
    assert [*range(19, 11, -1)] == hardest([many])


def test_the_hardest_of_the_pool_choose_and_all_others_judge_once(tmp_path: Path) -> None:
    """Every trial of the search runs at most eight samples; one trial runs the rest."""
    ending, driver, sets, _ = searched(tmp_path, needing({}))
    chosen = sorted(POOL)[-1:-9:-1]
    assert ending is not None
    assert (Status.FOUND, Plan.of((2,)), chosen) == (
        ending.status,
        ending.plan,
        [*(ending.samples.numbers or ())],
    )
    wide = [t for t in driver.trials if len(sets.numbers(t.proposal.samples)) > CHOSEN]
    kinds = [(t.proposal.samples, t.proposal.kind) for t in wide]
    others = ending.samples.others
    assert [(SampleSet.POOL, Kind.PREDICT), (others, Kind.JUDGE)] == kinds
    assert COUNT - CHOSEN == len(sets.numbers(others))
    found = promised(driver.trials, Plan.of((2,)), sets)
    assert Unseen(judged=COUNT - len(POOL), failed=0, took_part=len(POOL)) == found


def rare(count: int) -> list[int]:
    """Return so many samples that take no part at first."""
    return [n for n in range(COUNT) if n not in POOL][:count]


def test_no_more_joins_than_the_hard_sample_needs(tmp_path: Path) -> None:
    """Where errors do not add up the law asks for too many layers; halves find how many."""
    (hard,) = rare(1)
    needed = {2, 5}

    def rule(plan: Plan, feed: Sample) -> float:
        wanted = needed if int(feed["x"][0]) == hard else {2}
        return 5.0 if wanted - plan.kept else 0.4 if len(plan) < SIZE else 0.0

    ending, driver, _, _ = searched(tmp_path, rule)
    assert ending is not None
    assert (Status.FOUND, Plan.of(needed)) == (ending.status, ending.plan)
    widened = [len(t.proposal.plan) for t in driver.trials if t.proposal.reason.endswith(" more")]
    assert max(widened) > len(needed) and len(widened) <= 1 + NARROWED


@pytest.mark.parametrize("builds", [False, True])
def test_a_sample_that_fails_joins_and_the_plan_widens(tmp_path: Path, builds: bool) -> None:
    """The answer holds on all in the end, and what joined counts against the promise.

    Its error on them is known, also where it was only built afresh.
    """
    first, second = rare(2)
    rule = needing({first: {5}, second: {5, 7}})
    ending, driver, sets, _ = searched(tmp_path, rule, builds=builds)
    assert ending is not None and ending.plan is not None
    assert {2, 5, 7} <= ending.plan.kept
    assert len(ending.plan) < SIZE
    assert {first, second} <= {*(ending.samples.numbers or ())}
    assert CHOSEN == len(ending.samples.numbers or ())
    assert "fails on 2 of 52 samples that did not choose them" in str(ending.spread)
    found = promised(driver.trials, ending.plan, sets)
    assert found is not None
    assert (43, 0, 2, 17) == (found.judged, found.failed, found.joined, found.took_part)
    assert share_at_most(2, 45) == found.share_at_most
    told = driver.judged(ending.plan, ending.samples)
    assert told is not None and told.error == 0.5


def test_where_the_budget_ends_before_it_is_widened_the_refuted_answer_stands(
    tmp_path: Path,
) -> None:
    """It held on those that chose it; the promise says how many others it fails on."""
    rule = needing({rare(1)[0]: {5}})
    _, whole, _, _ = searched(tmp_path, rule)
    counted = [t for t in whole.trials if t.proposal.kind is not Kind.PREDICT]
    judging = [number for number, t in enumerate(counted, 1) if t.proposal.samples.singly]
    folder = tmp_path / "short"
    folder.mkdir()
    ending, driver, sets, _ = searched(folder, rule, most=judging[0])
    nearly = driver.nearly()
    assert ending is None and nearly is not None
    assert Plan.of((2,)) == nearly.proposal.plan
    found = promised(driver.trials, nearly.proposal.plan, sets)
    assert found is not None
    assert (COUNT - len(POOL), 1, len(POOL)) == (found.judged, found.failed, found.took_part)


def test_samples_that_judged_a_plan_have_taken_part_in_it(tmp_path: Path) -> None:
    """Also where a budget ends before all others judge a plan that was widened for them."""
    rule = needing({n: {5} for n in rare(2)})
    _, whole, _, _ = searched(tmp_path, rule)
    counted = [t for t in whole.trials if t.proposal.kind is not Kind.PREDICT]
    last = max(number for number, t in enumerate(counted) if t.proposal.samples.singly)
    folder = tmp_path / "short"
    folder.mkdir()
    _, driver, sets, _ = searched(folder, rule, most=last)
    best = driver.best()
    assert best is not None and {2, 5} <= best.proposal.plan.kept
    found = promised(driver.trials, best.proposal.plan, sets)
    assert found is not None
    assert (0, len(POOL) + 2) == (found.judged, found.took_part)


def test_what_failed_before_and_did_not_join_counts_as_a_failure(tmp_path: Path) -> None:
    """Of twelve that fail eight join; the others pass with the wider answer."""
    ending, driver, sets, _ = searched(tmp_path, needing({n: {5} for n in rare(12)}))
    assert ending is not None and ending.plan is not None
    found = promised(driver.trials, ending.plan, sets)
    assert found is not None
    assert (36 + 1, 0, 8, 4) == (found.judged, found.failed, found.joined, found.passed_later)
    assert share_at_most(12, 45) == found.share_at_most


def test_nothing_to_keep_is_judged_by_all_too(tmp_path: Path) -> None:
    """All layers low pass on the pool, one other sample needs a layer."""
    (odd,) = rare(1)

    def rule(plan: Plan, feed: Sample) -> float:
        return 5.0 if int(feed["x"][0]) == odd and 4 not in plan.kept else 0.5

    ending, *_ = searched(tmp_path, rule)
    assert ending is not None and ending.plan is not None
    assert (Status.FOUND, True) == (ending.status, 4 in ending.plan.kept)


def test_a_sample_that_no_layer_mends_leaves_the_answer_and_is_told(tmp_path: Path) -> None:
    """The plan that chose eight stands, and the promise says that one of the others is over."""
    (odd,) = rare(1)

    def rule(plan: Plan, feed: Sample) -> float:
        return 9.0 if int(feed["x"][0]) == odd else needing({})(plan, feed)

    ending, driver, sets, _ = searched(tmp_path, rule)
    assert ending is not None and Plan.of((2,)) == ending.plan
    found = promised(driver.trials, ending.plan, sets)
    assert found is not None and share_at_most(1, 45) == found.share_at_most
    assert (1, 45, 0) == (found.failed, found.judged, found.joined)


def test_samples_held_out_judge_the_answer_and_never_join(tmp_path: Path) -> None:
    """Ten more samples, one of which fails: the answer stays, and the promise counts it."""
    ending, driver, sets, _ = searched(tmp_path, needing({COUNT + 3: {8}}), held_out=10)
    assert ending is not None and Plan.of((2,)) == ending.plan
    found = promised(driver.trials, ending.plan, sets)
    assert found is not None
    assert (55, 1, 0) == (found.judged, found.failed, found.joined)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_is_cut_off_anywhere_goes_on_to_the_same_answer(
    tmp_path: Path, seed: int
) -> None:
    """Which samples chose comes from the ledger alone, and no trial is made twice."""
    rng = np.random.default_rng(seed)
    needs = {n: {int(rng.integers(SIZE))} for n in rng.choice(rare(40), 4, replace=False)}
    (tmp_path / "whole").mkdir()
    whole, driver, sets, backend = searched(tmp_path / "whole", needing(needs))
    assert whole is not None and whole.plan is not None
    identities = [trial.proposal.identity for trial in driver.trials]
    counted = sum(t.proposal.kind is not Kind.PREDICT for t in driver.trials)
    folder = tmp_path / "cut"
    folder.mkdir()
    built: list[Plan] = []
    for most in (3, counted // 2, counted - 1):
        _, _, _, part = searched(folder, needing(needs), most=most)
        built += part.built
    ending, again, _, part = searched(folder, needing(needs))
    built += part.built
    assert ending == whole
    assert identities == [trial.proposal.identity for trial in again.trials]
    assert len(backend.built) == len(built)
    assert promised(driver.trials, whole.plan, sets) == promised(again.trials, whole.plan, sets)


class Files(Sequence[Sample]):
    """Samples that are read when they are asked for, and count that."""

    def __init__(self, count: int) -> None:
        self.read: list[int] = []
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:  # type: ignore[override]  # no slices
        self.read.append(number)
        return {"x": np.array([number])}


def test_of_a_thousand_samples_the_others_are_read_and_referred_to_once(tmp_path: Path) -> None:
    """Before the first trial only the pool is read; each other sample once, at the end."""
    files, referred = Files(1000), list[int]()
    pool = pool_of(range(1000), 0)

    class Refer:
        def __call__(self, feed: Sample) -> Sample:
            referred.append(int(feed["x"][0]))
            return {"y": np.zeros(1)}

        step = __call__

        def rest(self) -> None:
            """Hold nothing."""

    zeros: list[Sample] = [{"y": np.zeros(1)}] * len(pool)
    sets = SampleSets(feeds=files, pool=pool, reference=zeros, refer=Refer())
    assert (pool, []) == (files.read, referred)
    with driven(tmp_path, Simulated(needing({})), sets=sets) as driver:
        driver.run(flow(oracles.problem(SIZE), Guided(), Course(pool=pool, others=True)))
    others = [n for n in range(1000) if n not in pool]
    assert (others, others) == (sorted(files.read[len(pool) :]), sorted(referred))


def test_a_sample_that_fp32_cannot_judge_is_counted_apart() -> None:
    """FP32 that does not run, gives NaN, or no numbers, is no word on a plan."""
    feeds: list[Sample] = [{"x": np.array([i])} for i in range(4)]

    class Refer:
        def __call__(self, feed: Sample) -> Sample:
            number = int(feed["x"][0])
            if number == 1:
                raise RuntimeError("index out of range")
            return {"y": np.array([np.nan] if number == 2 else ["?"] if number == 3 else [0.0])}

        step = __call__

        def rest(self) -> None:
            """Hold nothing."""

    sets = SampleSets(feeds=feeds, pool=[0], reference=[{"y": np.zeros(1)}], refer=Refer())
    assert [False, True, True, True] == [sets.single(n)[1] is None for n in range(4)]


def test_what_cannot_be_judged_is_no_input_that_passed(tmp_path: Path) -> None:
    """Inputs without FP32 outputs are counted apart: the bound is that of the others alone."""
    ending, driver, sets, _ = searched(tmp_path, needing({}))
    assert ending is not None and ending.plan is not None
    found = promised(driver.trials, ending.plan, sets)
    lost = [number for number in range(COUNT) if number not in POOL][:9]

    def without(trial: Trial) -> Trial:
        told = trial.outcome.evidence.one_by_one
        if told is None:
            return trial
        evidence = replace(
            trial.outcome.evidence,
            one_by_one=replace(told, unjudged=[n for n in lost if n in told.numbers]),
        )
        return replace(trial, outcome=replace(trial.outcome, evidence=evidence))

    less = promised([without(each) for each in driver.trials], ending.plan, sets)
    assert found is not None and less is not None
    judged = COUNT - len(POOL)
    assert (judged, 0, judged - 9, 9) == (
        found.judged,
        found.unjudged,
        less.judged,
        less.unjudged,
    )
    assert share_at_most(0, judged - 9) == less.share_at_most > found.share_at_most


@pytest.mark.nightly
def test_the_promise_of_whole_runs_is_kept(tmp_path: Path) -> None:
    """Of 40 runs on drawn samples, with three rare needs, so few break their promise."""
    shares = {5: 0.05, 7: 0.03, 9: 0.015}
    broken = 0
    for draw in range(40):
        rng = np.random.default_rng(draw)
        needs = {
            n: {layer for layer, share in shares.items() if rng.random() < share}
            for n in range(COUNT)
        }
        folder = tmp_path / str(draw)
        folder.mkdir()
        ending, driver, sets, _ = searched(folder, needing(needs))
        assert ending is not None and ending.plan is not None
        found = promised(driver.trials, ending.plan, sets)
        assert found is not None and 0 == found.failed
        lacking = [share for layer, share in shares.items() if layer not in ending.plan.kept]
        broken += int(found.share_at_most < 1 - np.prod([1 - share for share in lacking]))
    # Three standard deviations of a share of 10% over 40 runs.
    assert broken / 40 <= 0.1 + 3 * np.sqrt(0.09 / 40)
