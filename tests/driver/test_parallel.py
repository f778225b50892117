"""Trials side by side: order, limits, what is recorded when, and what an interrupt leaves."""

import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import examples
from patience import PATIENCE_S
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample, Search
from precision_bisect.runs.monitoring.events import Event, TrialFinished, TrialStarted, Warned
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.search.driver import Driver
from precision_bisect.search.workers import still_working, threads
from precision_bisect.trial import Kind, Proposal
from simulated import Evaluate, Simulated, by, driven, driver_of

ORACLE = oracles.monotone([0])


def proposals(*sizes: int, **about: object) -> tuple[Proposal, ...]:
    """Return proposals that keep so many of the first layers."""
    return tuple(Proposal(plan=Plan.of(range(size)), **about) for size in sizes)  # type: ignore[arg-type]


class Company:
    """A rule that takes some seconds and notes how many plans are evaluated at the same time.

    A plan for which `meets` tells a number goes on once so many were. Errors are the oracle's.
    """

    def __init__(
        self,
        seconds: Callable[[Plan], float] = lambda plan: 0.02,
        meets: Mapping[int, int] = MappingProxyType({}),
        oracle: oracles.Oracle = ORACLE,
    ) -> None:
        self._seconds, self._meets, self._oracle = seconds, meets, oracle
        self._changed = threading.Condition()
        self.now: set[Plan] = set()
        self.most: dict[Plan, int] = {}

    def __call__(self, plan: Plan, feed: Sample) -> float:
        """Return the error of a plan."""
        least = self._meets.get(len(plan), 1)
        with self._changed:
            self.now.add(plan)
            for each in self.now:
                self.most[each] = max(self.most.get(each, 0), len(self.now))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most[plan] >= least, PATIENCE_S)
        time.sleep(self._seconds(plan))
        with self._changed:
            self.now.discard(plan)
        return by(self._oracle)(plan, feed)


def test_one_worker_is_the_callers_thread() -> None:
    """There Ctrl-C arrives; what several have begun, and nobody waits for, is known to go on."""
    alone, several = (threads(lambda _: pytest.fail(), count).executor for count in (1, 2))
    assert threading.get_ident() == alone.submit(threading.get_ident).result()
    go_on = threading.Event()
    given_up = several.submit(go_on.wait, PATIENCE_S)
    assert still_working()
    go_on.set()
    assert given_up.result(PATIENCE_S)


@pytest.mark.parametrize("kind", [Kind.JUDGE, Kind.PREDICT])
def test_four_workers_evaluate_side_by_side(tmp_path: Path, kind: Kind) -> None:
    """Of twelve trials four are in flight at a time, and never more."""
    rule = Company(lambda plan: 0.1, meets=dict.fromkeys(range(1, 5), 4))
    with driven(tmp_path, Simulated(rule), workers=4) as driver:
        driver.consider_all(proposals(99, kind=kind))
        driver.consider_all(proposals(*range(1, 13), kind=kind))
    assert 4 == max(rule.most.values())


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_outcomes_come_in_the_order_of_the_proposals(tmp_path: Path, workers: int) -> None:
    """However long each takes, and where builds fail, they are those of a run one by one."""
    oracle = oracles.flaky(ORACLE, 9, seed=1, share=0.5)
    rule = Company(lambda plan: 0.02 / (1 + len(plan)), oracle=oracle)
    driver, ledger = driver_of(tmp_path, Simulated(rule), workers=workers)
    with ledger:
        batch = proposals(3, 0, 8, 5, 1, 7)
        outcomes = driver.consider_all(batch)
        rows = [trial.proposal for trial in ledger.trials()]
    expected = [oracle(each.plan.kept) for each in batch]
    assert [(o.status, o.verdict) for o in expected] == [(o.status, o.verdict) for o in outcomes]
    assert 3 == len({(o.status, o.verdict) for o in expected})
    assert [each.identity for each in batch] == [each.identity for each in rows]
    assert max(rule.most.values()) <= workers


def test_what_is_known_or_comes_twice_is_evaluated_once(tmp_path: Path) -> None:
    """A batch with a known plan and a plan twice costs the others only."""
    seen: list[Event] = []
    backend = Simulated(by(ORACLE))
    with driven(tmp_path, backend, workers=3, observer=seen.append) as driver:
        driver.consider_all(proposals(2))
        outcomes = driver.consider_all(proposals(4, 2, 4, 0))
    assert Counter({Plan.of(range(size)): 1 for size in (2, 4, 0)}) == Counter(backend.built)
    assert [True, True, True, False] == [outcome.passed for outcome in outcomes]
    recalled = [e.recalled for e in seen if isinstance(e, TrialFinished)]
    assert Counter({False: 3, True: 2}) == Counter(recalled)


@pytest.mark.parametrize("alone", ["timed", "has ended a process"])
def test_what_runs_alone_has_nothing_beside_it(tmp_path: Path, alone: str) -> None:
    """A latency must not share the machine, nor a plan count as the cause of another's crash."""
    timed = alone == "timed"
    batch = (*proposals(1, 2), *proposals(3, timed=timed), *proposals(4, 5))
    if not timed:
        _, ledger = driver_of(tmp_path, Simulated(by(ORACLE)))
        with ledger:
            ledger.start(batch[2])
    expected = {1: 2, 2: 2, 3: 1, 4: 2, 5: 2}
    rule = Company(lambda plan: 0.1, meets=expected)
    driver, ledger = driver_of(tmp_path, Simulated(rule), workers=4)
    with ledger:
        driver.consider_all(batch)
    assert expected == {len(plan): most for plan, most in rule.most.items()}


def test_a_batch_is_cut_to_what_the_budget_allows(tmp_path: Path) -> None:
    """What fits is evaluated and recorded before the budget's end is told; the rest can follow."""
    backend = Simulated(Company())
    budget = Budget(max_trials=3)
    driver, ledger = driver_of(tmp_path, backend, workers=2, budget=budget)
    with ledger, pytest.raises(BudgetSpent, match="--max-trials 3"):
        driver.consider_all(proposals(0, 1, 2, 3, 4))
    assert 3 == len(driver.trials) == len(backend.built)
    driver, ledger = driver_of(tmp_path, backend, workers=4)
    with ledger:
        assert 5 == len(driver.consider_all(proposals(0, 1, 2, 3, 4)))
    assert 5 == len(backend.built)


def test_time_is_asked_for_before_each_start(tmp_path: Path) -> None:
    """When the time ends within a batch, what flies lands and nothing more starts."""
    now = iter([0.0, 1.0, 2.0, 11.0])
    budget = Budget(max_time_s=10.0, clock=lambda: next(now))
    driver, ledger = driver_of(tmp_path, Simulated(Company()), workers=4, budget=budget)
    with ledger, pytest.raises(BudgetSpent, match="--max-time"):
        driver.consider_all(proposals(0, 1, 2, 3))
    assert 2 == len(driver.trials)


def in_file(path: Path) -> dict[int, str | None]:
    """Return what another process sees: the status of each trial by its number of kept layers."""
    with sqlite3.connect(path / "ledger.sqlite") as connection:
        found = dict(connection.execute("SELECT kept, status FROM trials").fetchall())
    connection.close()
    return found


def test_intents_and_outcomes_are_durable_as_they_come(tmp_path: Path) -> None:
    """A quick trial is recorded while a slow one goes on; what waits has no intent yet."""
    release = threading.Event()
    files: list[dict[int, str | None]] = []

    def rule(plan: Plan, feed: Sample) -> float:
        if len(plan) == 1:
            assert release.wait(PATIENCE_S)
        return by(ORACLE)(plan, feed)

    def observe(event: Event) -> None:
        if isinstance(event, TrialStarted | TrialFinished):
            files.append(in_file(tmp_path))
        if isinstance(event, TrialFinished) and len(event.proposal.plan) == 3:
            release.set()

    with driven(tmp_path, Simulated(rule), workers=2, observer=observe) as driver:
        driver.consider_all(proposals(1, 2, 3))
    done = "finished"
    assert [
        {1: None},
        {1: None, 2: None},
        {1: None, 2: done},
        {1: None, 2: done, 3: None},
        {1: None, 2: done, 3: done},
        {1: done, 2: done, 3: done},
    ] == files


def gated() -> tuple[threading.Event, Evaluate]:
    """Return a gate, and a rule that waits for it."""
    gate = threading.Event()

    def rule(plan: Plan, feed: Sample) -> float:
        assert gate.wait(PATIENCE_S)
        return by(ORACLE)(plan, feed)

    return gate, rule


def test_an_interrupt_records_what_flies_and_starts_nothing(tmp_path: Path) -> None:
    """After Ctrl-C the two trials in flight are waited for; the third was never begun."""
    gate, rule = gated()
    warned: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, TrialStarted) and len(event.proposal.plan) == 2:
            raise KeyboardInterrupt
        if isinstance(event, Warned):
            warned.append(event.message)
            gate.set()

    backend = Simulated(rule)
    driver, ledger = driver_of(tmp_path, backend, workers=3, observer=observe)
    with ledger:
        with pytest.raises(KeyboardInterrupt):
            driver.consider_all(proposals(0, 1, 2, 3))
        assert 2 == len(driver.trials) == len(ledger.trials())
        assert frozenset() == ledger.orphans()
    (message,) = warned
    assert "waiting for the 2 trials in flight" in message


@pytest.mark.parametrize("second", [TrialFinished, Warned])
def test_a_second_interrupt_gives_up_what_flies(tmp_path: Path, second: type[Event]) -> None:
    """Ctrl-C twice ends at once, with the trials in flight withdrawn; they are tried again."""
    gate, rule = gated()

    def observe(event: Event) -> None:
        third = isinstance(event, TrialStarted) and len(event.proposal.plan) == 2
        # The quick trial ends while the others are waited for.
        if third or isinstance(event, second):
            raise KeyboardInterrupt

    def first_quick(plan: Plan, feed: Sample) -> float:
        return 0.0 if len(plan) == 5 else rule(plan, feed)

    with driven(tmp_path, Simulated(first_quick), workers=3, observer=observe) as driver:
        with pytest.raises(KeyboardInterrupt):
            driver.consider_all(proposals(5, 1, 2))
        left = {5: "finished"} if second is TrialFinished else {}
        assert left == in_file(tmp_path)
        assert len(left) == len(driver.trials)
    gate.set()
    backend = Simulated(by(ORACLE))
    with driven(tmp_path, backend, workers=3) as driver:
        driver.consider_all(proposals(5, 1, 2))
    assert {5, 1, 2} - set(left) == {len(plan) for plan in backend.built}


def test_what_breaks_one_trial_off_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in one evaluation ends the run; what flew beside it is recorded, it is not."""
    withdrawn = threading.Event()

    def rule(plan: Plan, feed: Sample) -> float:
        if len(plan) == 2:
            raise MemoryError
        assert withdrawn.wait(PATIENCE_S)
        return 0.0

    def withdraw(proposal: Proposal) -> None:
        own(proposal)
        withdrawn.set()

    driver, ledger = driver_of(tmp_path, Simulated(rule), workers=3)
    own = ledger.withdraw
    monkeypatch.setattr(ledger, "withdraw", withdraw)
    with ledger:
        with pytest.raises(MemoryError):
            driver.consider_all(proposals(1, 2, 3, 4))
        assert {1, 3} == {len(trial.proposal.plan) for trial in ledger.trials()}
        assert frozenset() == ledger.orphans()


def test_a_repeat_waits_for_the_first_run(tmp_path: Path) -> None:
    """A plan and its repeat in one batch are two builds, judged against each other."""
    backend = Simulated(Company())
    with driven(tmp_path, backend, workers=4) as driver:
        outcomes = driver.consider_all((*proposals(2), *proposals(2, kind=Kind.REPEAT)))
    assert [0.0, 0.0] == [outcome.error for outcome in outcomes]
    assert 2 == len(backend.built)


def test_the_seconds_of_trials_add_up_to_those_of_the_run(tmp_path: Path) -> None:
    """Trials side by side share the time, so that a resumed run knows how much is spent.

    That is 0.2 s at the least, and no more than all took.
    """
    with driven(tmp_path, Simulated(Company(lambda plan: 0.1)), workers=4) as driver:
        begun = time.perf_counter()
        driver.consider_all(proposals(*range(8)))
        seconds = time.perf_counter() - begun
    assert 0.19 <= sum(t.outcome.wall_s for t in driver.trials) <= seconds


Batches = Sequence[Sequence[int]]


def asking(batches: Batches) -> Search[list[list[bool]]]:
    """Return a search that proposes the batches, and ends with what passed."""
    passed = []
    for batch in batches:
        outcomes = yield proposals(*batch)
        passed.append([outcome.passed for outcome in outcomes])
    return passed


class Trouble:
    """Raises in the evaluation or the event of that number; does nothing for 0."""

    def __init__(self, evaluation: int, event: int) -> None:
        self._left = Counter(evaluation=evaluation, event=event)
        self._lock = threading.Lock()

    def strike(self, where: str, error: type[BaseException]) -> None:
        """Count one down, and raise when it is the one."""
        with self._lock:
            self._left[where] -= 1
            hit = self._left[where] == 0
        if hit:
            raise error


def session(folder: Path, batches: Batches, workers: int, trouble: Trouble, most: int) -> Driver:
    """Run a session over the batches; no plan that was recorded may be evaluated again."""
    recorded: set[Plan] = set()

    def rule(plan: Plan, feed: Sample) -> float:
        assert plan not in recorded
        trouble.strike("evaluation", RuntimeError)
        return by(ORACLE)(plan, feed)

    def observe(event: Event) -> None:
        trouble.strike("event", KeyboardInterrupt)

    driver, ledger = driver_of(
        folder,
        Simulated(rule),
        workers=workers,
        observer=observe,
        budget=Budget(max_trials=most),
    )
    with ledger:
        recorded |= {trial.proposal.plan for trial in ledger.trials()}
        before = {trial.proposal.identity: trial for trial in ledger.trials()}
        try:
            answer = driver.run(asking(batches))
            assert [[ORACLE(frozenset(range(n))).passed for n in b] for b in batches] == answer
        finally:
            after = {trial.proposal.identity: trial for trial in ledger.trials()}
            assert before.items() <= after.items()
            assert set(after) == {trial.proposal.identity for trial in driver.trials}
            assert frozenset() == ledger.orphans()
    return driver


@examples(30)
@given(
    batches=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6), min_size=1, max_size=4),
    workers=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    points=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), max_size=4),
    most=st.integers(1, 12),
)
def test_nothing_is_lost_and_nothing_repeated(
    batches: Batches, workers: list[int], points: list[tuple[int, int]], most: int
) -> None:
    """Sessions cut off anywhere, by errors, Ctrl-C or the budget, with any workers, add up."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for number, (evaluation, event) in enumerate(points):
            trouble = Trouble(evaluation, event)
            with contextlib.suppress(RuntimeError, KeyboardInterrupt, BudgetSpent):
                session(folder, batches, workers[number % len(workers)], trouble, most)
        driver = session(folder, batches, workers[-1], Trouble(0, 0), 99)
        assert {n for batch in batches for n in batch} == {
            len(trial.proposal.plan) for trial in driver.trials
        }
