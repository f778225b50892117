"""The pareto strategy, with the real Optuna: what it answers, and the copy of its study."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

import oracles
import tiny
from paced import Case, Clock, case, chain, run
from precision_bisect.errors import PluginError
from precision_bisect.plan import Plan
from precision_bisect.runs.results.endings import Status
from precision_bisect.trial import Kind, Phase
from precision_bisect_strategies import pareto
from precision_bisect_strategies.modules import few_groups
from precision_bisect_strategies.pareto import Pareto
from simulated import by

ERRORS = [0.01, 0.01, 0.9, 0.01, 0.01, 0.3, 0.01, 0.3, 0.3, 0.01, 0.3, 0.01]


@pytest.fixture(autouse=True)
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explore a few plans only."""
    monkeypatch.setattr(pareto, "FURTHER_TRIALS", 10)


def made(seed: int = 0) -> Case:
    """Return a case without speed limits in which keeping layer 2 costs most."""
    graph = chain([0.05, 0.05, 2.0, *[0.05] * 9])
    return case(by(oracles.additive(ERRORS)), graph, None, Clock(graph, noise=0.005), seed=seed)


def study_of(url: str) -> optuna.Study:
    """Return the only study of a storage."""
    (name,) = optuna.get_all_study_names(url)
    return optuna.load_study(study_name=name, storage=url)


def test_the_answer_is_the_fastest_plan_that_passed(tmp_path: Path) -> None:
    """Of all plans tried, by what was measured; it need not have the fewest layers."""
    asked = made()
    ending, driver = run(asked, tmp_path, strategy=Pareto())
    assert ending.status is Status.FOUND
    assert ending.plan is not None
    passed = [
        t.proposal.plan
        for t in driver.trials
        if t.outcome.passed and t.proposal.kind is Kind.JUDGE
    ]
    assert ending.plan in passed
    explored = [
        t for t in driver.trials if t.proposal.reason.startswith("explore") and t.proposal.timed
    ]
    assert 1 <= len(explored) <= 10
    fastest = max(
        asked.clock.speedup(t.proposal.plan)
        for t in driver.trials
        if t.outcome.passed and t.outcome.evidence.latency
    )
    assert asked.clock.speedup(ending.plan) == pytest.approx(fastest, rel=0.02)


def test_the_same_seed_explores_the_same(tmp_path: Path) -> None:
    """Two runs with one seed try the same plans; another seed explores others."""
    tried = []
    for place, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(place)
        folder.mkdir()
        _, driver = run(made(seed), folder, strategy=Pareto())
        tried.append(
            [t.proposal.plan for t in driver.trials if t.proposal.reason.startswith("explore")]
        )
    assert tried[0] == tried[1]
    assert tried[0] != tried[2]


def test_the_study_is_copied_as_it_grows_and_once(tmp_path: Path) -> None:
    """Optuna reads the same trials back; a resumed run builds nothing and adds nothing."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    ending, _ = run(made(), tmp_path, strategy=Pareto(url))
    study = study_of(url)
    first = study.get_trials()
    assert ["error", "latency in ms"] == study.metric_names
    seeds = [trial.user_attrs["plan"] for trial in first[:3]]
    assert seeds[1:] == [Plan.all_high(12).key, Plan.of(()).key]
    assert {"kept", "plan", "verdict"} == set(first[0].user_attrs)
    assert 4 <= len(first) <= 23
    again = made()
    assert ending == run(again, tmp_path, strategy=Pareto(url))[0]
    assert [] == again.backend.built
    assert [t.values for t in first] == [t.values for t in study_of(url).get_trials()]


def test_another_run_has_a_study_of_its_own(tmp_path: Path) -> None:
    """The same search with other measurements does not mix its trials into the first one's."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    for noise in (0.0, 0.02):
        asked = made()
        folder = tmp_path / str(noise)
        folder.mkdir()
        asked.backend.clock = Clock(asked.clock.graph, noise=noise)
        run(asked, folder, strategy=Pareto(url))
    names = optuna.get_all_study_names(url)
    assert 2 == len(names)
    assert f"{names[0]} (2)" == names[1]
    counts = [len(optuna.load_study(study_name=n, storage=url).get_trials()) for n in names]
    assert all(count >= 4 for count in counts)


def test_with_the_emulator_costs_stand_in(tmp_path: Path) -> None:
    """A real model on the emulator: the smallest plan that passes, a front of estimated costs."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    model = tiny.write_model(tmp_path / "tiny.onnx")
    result = tiny.search(
        model,
        tmp_path / "run",
        strategy="pareto",
        optuna_storage=url,
        backend="emulated",
    )
    assert (Status.FOUND, set(tiny.KEPT)) == (result.status, set(result.kept))
    assert result.front
    assert all(each.latency_ms is None and (each.cost or 0) >= 0 for each in result.front)
    assert any(each.passed for each in result.front)
    assert ["error", "estimated cost"] == study_of(url).metric_names
    assert 0 == result.builds


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite:////no/such/folder/x.db", "oracle+none://host/db"]
)
def test_a_bad_storage_is_refused_before_anything_is_built(tmp_path: Path, url: str) -> None:
    """One line that names the URL; no run folder is made."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    with pytest.raises(PluginError) as caught:
        tiny.search(model, tmp_path / "run", strategy="pareto", optuna_storage=url)
    assert f"optuna_storage {url!r} fails" in caught.value.message
    assert "\n" not in caught.value.message
    assert not (tmp_path / "run").exists()


def test_without_optuna_the_strategy_says_what_to_install() -> None:
    """Importing and describing it needs no Optuna; checking it names the extra."""
    script = (
        "import sys; sys.modules['optuna'] = None\n"
        "from precision_bisect.plugins import load_strategy\n"
        "strategy = load_strategy('pareto'); assert strategy.assumption\n"
        "from precision_bisect.errors import PluginError\n"
        "try: strategy.check()\n"
        "except PluginError as error: print(error.one_line())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "pip install optuna" in ran.stdout
    assert 1 == len(ran.stdout.splitlines())


@pytest.mark.parametrize("most", [1, 3, 5, 8, 40])
def test_groups_are_modules_as_far_as_there_is_room(most: int) -> None:
    """Every layer is in one group, as many groups as may be; a module is cut only to fill them."""
    modules = ["a"] * 6 + ["b.c"] * 6 + ["b.d"]
    layers = [0, 1, 2, 3, 6, 7, 8, 9, 12]
    groups = few_groups(layers, replace(oracles.problem(13), modules=modules), most)
    assert min(most, len(layers)) == len(groups)
    assert layers == sorted(layer for group in groups for layer in group)
    if most == 3:
        assert [(0, 1, 2, 3), (6, 7), (8, 9, 12)] == groups


def test_the_phase_of_the_exploration_is_the_search(tmp_path: Path) -> None:
    """Its trials count in the budget and in the best so far like those of any search."""
    _, driver = run(made(), tmp_path, strategy=Pareto())
    explored = [t for t in driver.trials if t.proposal.reason.startswith("explore")]
    assert {Phase.SEARCH} == {t.proposal.phase for t in explored}
