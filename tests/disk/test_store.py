"""What a run keeps on disk: engines and logs below a cap, free space before each trial."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from effort import examples
from precision_bisect.machine.free_space import Space
from precision_bisect.plan import Plan
from precision_bisect.runs.monitoring.events import TrialFinished
from precision_bisect.runs.runfolder import ENGINE, ENGINES, LOGS, TIMING_CACHE
from precision_bisect.search.budget import Budget, BudgetSpent
from precision_bisect.search.engine_store import Store, engine_folder
from precision_bisect.trial import CaseName, Kind, Outcome, Phase, Proposal, TrialStatus, Verdict
from simulated import Simulated, by, driven, driver_of

KB = 1024


def finished(
    plan: Plan, verdict: Verdict, *, case: CaseName = "", recalled: bool = False
) -> TrialFinished:
    """Return the end of a trial."""
    outcome = Outcome(status=TrialStatus.FINISHED, verdict=verdict, error=0.0)
    proposal = Proposal(plan=plan, case=case)
    return TrialFinished(proposal=proposal, outcome=outcome, recalled=recalled)


def put(run: Path, plan: Plan, size: int, age: int) -> Path:
    """Write the engine of a trial; the greater the age the older it is."""
    folder = engine_folder(run / ENGINES, plan)
    folder.mkdir(parents=True)
    (folder / ENGINE).write_bytes(b"e" * size)
    os.utime(folder, (1e9 - age, 1e9 - age))
    return folder


def names(folder: Path) -> list[str]:
    """Return the names of what a folder holds, sorted."""
    return sorted(path.name for path in folder.iterdir())


def test_rejected_engines_go_first_the_oldest_before_others(tmp_path: Path) -> None:
    """Then those that passed, the smallest plan's last; the accepted engine stays."""
    plans = [Plan.of(range(n)) for n in range(1, 6)]
    verdicts = [Verdict.PASS, Verdict.PASS, Verdict.FAIL, Verdict.FAIL, Verdict.PASS]
    folders = [put(tmp_path, plan, KB, age) for age, plan in enumerate(plans)]
    (tmp_path / ENGINE).write_bytes(b"a" * 100 * KB)
    (tmp_path / TIMING_CACHE).write_bytes(b"t" * KB)
    order = []
    for cap in range(6, 0, -1):
        store = Store(tmp_path, cap * KB)
        for plan, verdict in zip(plans, verdicts, strict=True):
            store(finished(plan, verdict, recalled=True))
        store.trim()
        order.append([n for n, folder in enumerate(folders, 1) if not folder.exists()])
    assert [[], [4], [3, 4], [3, 4, 5], [2, 3, 4, 5], [2, 3, 4, 5]] == order
    assert (tmp_path / ENGINE).exists()
    assert (tmp_path / TIMING_CACHE).exists()


def test_a_trial_of_another_case_rejects_no_engine(tmp_path: Path) -> None:
    """With TF32 an answer may fail; its engine is that of the run, where it passed."""
    answer, larger = Plan.of((1,)), Plan.of((1, 2))
    kept = put(tmp_path, answer, KB, 1)
    put(tmp_path, larger, KB, 0)
    store = Store(tmp_path, KB)
    for plan in (answer, larger):
        store(finished(plan, Verdict.PASS, recalled=True))
    store(finished(answer, Verdict.FAIL, case="tf32"))
    store.trim()
    assert [kept.name] == names(tmp_path / ENGINES)


def test_logs_count_and_the_oldest_go(tmp_path: Path) -> None:
    """Logs go after engines."""
    (tmp_path / LOGS).mkdir()
    for number in range(4):
        path = tmp_path / LOGS / f"{number:06}-crashed.log"
        path.write_bytes(b"l" * KB)
        os.utime(path, (1e9 + number, 1e9 + number))
    put(tmp_path, Plan.of((1,)), KB, 0)
    store = Store(tmp_path, 2 * KB)
    store(finished(Plan.of((1,)), Verdict.FAIL))
    assert ["000002-crashed.log", "000003-crashed.log"] == names(tmp_path / LOGS)
    assert [] == names(tmp_path / ENGINES)


@examples(12)
@given(
    cap=st.integers(1, 12),
    trials=st.lists(st.tuples(st.integers(1, 255), st.booleans(), st.integers(0, 3)), max_size=12),
)
def test_a_cap_holds_whatever_is_tried(
    tmp_path_factory: pytest.TempPathFactory, cap: int, trials: list[tuple[int, bool, int]]
) -> None:
    """After each trial the engines fit, but for that of the smallest plan that passed."""
    run = tmp_path_factory.mktemp("run")
    store, passed = Store(run, cap * KB), set()
    for mask, good, size in {mask: (mask, good, size) for mask, good, size in trials}.values():
        plan = Plan(mask)
        put(run, plan, size * KB, 0)
        store(finished(plan, Verdict.PASS if good else Verdict.FAIL))
        if good:
            passed.add(plan)
        kept = {
            path: sum(f.stat().st_size for f in path.iterdir())
            for path in (run / ENGINES).iterdir()
        }
        best = min(passed, default=None)
        others = sum(
            n
            for path, n in kept.items()
            if best is None or path != engine_folder(run / ENGINES, best)
        )
        assert others == 0 or sum(kept.values()) <= cap * KB
        assert best is None or engine_folder(run / ENGINES, best) in kept


def test_every_engine_of_a_search_is_kept_where_that_is_asked(tmp_path: Path) -> None:
    """Each judged plan has a folder of its own; one that is built afresh is the accepted one."""
    driver, ledger = driver_of(
        tmp_path, Simulated(by(oracles.monotone((1, 3)))), engines=tmp_path / ENGINES
    )
    plans = [Plan.of((1, 3)), Plan.of((1,))]
    with ledger:
        for plan in plans:
            driver.consider_all([Proposal(plan=plan)])
        driver.consider_all([Proposal(plan=plans[0], kind=Kind.REBUILD, phase=Phase.RECHECK)])
    texts = {
        plan.key: (engine_folder(tmp_path / ENGINES, plan) / "engine").read_text()
        for plan in plans
    }
    assert {plan.key: plan.key for plan in plans} == texts
    assert plans[0].key == (tmp_path / "engine").read_text()


def test_an_engine_that_cannot_be_kept_costs_a_note(tmp_path: Path) -> None:
    """The verdict stands."""
    (tmp_path / ENGINES).write_text("in the way")
    with driven(
        tmp_path, Simulated(by(oracles.monotone((1,)))), engines=tmp_path / ENGINES
    ) as driver:
        (outcome,) = driver.consider_all([Proposal(plan=Plan.of((1,)))])
    assert outcome.passed
    assert ("its engine could not be kept: Not a directory",) == outcome.evidence.notes


def test_a_full_disk_ends_the_run_before_a_trial(tmp_path: Path) -> None:
    """What was found so far is in the ledger; the sentence says where and what to do."""
    budget = Budget()
    driver, ledger = driver_of(tmp_path, Simulated(by(oracles.monotone((1,)))), budget=budget)
    with ledger:
        driver.consider_all([Proposal(plan=Plan.of((1,)))])
        budget.space = Space((tmp_path,), 2**62)
        with pytest.raises(BudgetSpent, match=r"MiB are free in .*; free some space, then go on"):
            driver.consider_all([Proposal(plan=Plan.of((2,)))])
        assert 1 == len(driver.trials)
        assert not ledger.orphans()
        budget.space = Space((tmp_path,), 1)
        driver.consider_all([Proposal(plan=Plan.of((2,)))])


def test_a_folder_that_is_gone_is_a_shortage(tmp_path: Path) -> None:
    """Nothing can be written there, either."""
    assert "No such file" in Space((tmp_path / "gone",), 1).shortage()
    assert "" == Space((tmp_path,), 1).shortage()
