"""What a whole run reports of its trials: certificate, unresolved ones, broken monotonicity."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

import oracles
import tiny
from effort import nightly
from oracles import Oracle, outcome
from precision_bisect.errors import ExitCode
from precision_bisect.options import Certify, Options
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.pipeline.run import run_prepared
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import Event, TrialFinished, ignore
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.search.budget import Budget
from precision_bisect.trial import Trial
from simulated import Simulated, by

CULPRITS = (4, 5, 13)
SIZE = len(tiny.STEPS)


class Skewed(Simulated):
    """A backend whose outputs are the model's, wrong by what an oracle says."""

    def __init__(self, oracle: Oracle, reference: Sample) -> None:
        super().__init__(by(oracle))
        self._reference = reference

    def evaluate(self, plan: Plan, feed: Sample) -> Sample:
        """Return the reference times one plus the error, so that both errors are the same."""
        error = self._evaluate(plan, feed)
        return {name: array * (1.0 + error) for name, array in self._reference.items()}


def prepared(
    folder: Path, oracle: Oracle, rtol: float = oracles.TOLERANCE, **options: Any
) -> Prepared:
    """Return a run of the small model on an engine that does what the oracle says."""
    asked = Options(
        model=tiny.write_model(folder / "tiny.onnx"),
        inputs=tiny.samples(),
        backend="emulated",
        metric="max",
        atol=1e-9,
        rtol=rtol,
        out=folder / "run",
        **options,
    )
    made = prepare(asked, ignore, folder)
    engine = Skewed(oracle, made.case.reference[0])
    return replace(made, backend=engine, here=engine, emulator=engine)


def run(folder: Path, oracle: Oracle, **options: Any) -> tuple[Result, list[Trial]]:
    """Run it, and return the result and the trials in which the engine judged."""
    trials = []

    def observe(event: Event) -> None:
        if not isinstance(event, TrialFinished) or event.recalled:
            return
        if not event.proposal.forecast:
            trials.append(Trial(proposal=event.proposal, outcome=event.outcome))

    asked = prepared(folder, oracle, **options)
    limits = Budget(max_trials=asked.case.options.max_trials)
    result = run_prepared(asked, observe, limits, RunFolder(asked.case.options.folder))
    assert result.to_json() == json.loads((folder / "run" / "result.json").read_text())
    return result, trials


@pytest.mark.parametrize("workers", [3, *nightly(1)])
def test_unresolved_trials_are_counted_by_what_became_of_them(
    tmp_path: Path, workers: int
) -> None:
    """The counts are those of the trials, and the answer is still one that passed."""
    oracle = oracles.flaky(oracles.monotone(CULPRITS), SIZE, seed=3, share=0.4)
    result, trials = run(tmp_path, oracle, strategy="ddmin", workers=workers)
    counts = Counter(t.outcome.status.value for t in trials if t.outcome.verdict is None)
    assert {"build_failed"} == set(counts)
    assert counts == result.to_json()["unresolved"]
    assert len(trials) == result.trials
    kept = {tiny_index(name) for name in result.kept}
    assert set(CULPRITS) <= kept


def tiny_index(name: str) -> int:
    """Return the number of a layer of the small model."""
    return int(name[1:].partition("_")[0])


@pytest.mark.parametrize(("rtol", "refuted"), [(1e-7, True), (1e-1, False)])
def test_files_that_compute_otherwise_than_the_engine_are_refuted(
    tmp_path: Path, rtol: float, refuted: bool
) -> None:
    """What passed on an engine that rounds nothing has to pass as it was written, too."""
    result, _ = run(tmp_path, lambda kept: outcome(0.0), rtol=rtol, copies=0)
    assert Status.NOTHING_TO_KEEP is result.status
    assert refuted is (result.refuted is not None)


def test_a_drop_without_a_verdict_is_not_called_needed(tmp_path: Path) -> None:
    """Where the answer without one layer cannot be built, the certificate says so."""
    lost = frozenset(CULPRITS[:2])

    def oracle(kept: frozenset[int]) -> Any:
        whole = oracles.monotone(CULPRITS)
        return oracles.flaky(whole, SIZE, 0, share=1.0)(kept) if kept == lost else whole(kept)

    result, _ = run(tmp_path, oracle, certify="full")
    assert Status.FOUND is result.status
    assert (False, ["n13_Mul"]) == (result.certificate.minimal, result.certificate.unchecked)
    (entry,) = [need for need in result.certificate.evidence if need.needed is None]
    assert entry.reason.startswith("build_failed")


def test_modes_say_what_they_rest_on(tmp_path: Path) -> None:
    """Full drops every layer, as do forecasts where there are few; none claims nothing."""
    spent: dict[str, int] = {}
    for mode in get_args(Certify):
        (folder := tmp_path / mode).mkdir()
        result, trials = run(folder, oracles.monotone(CULPRITS), certify=mode)
        spent[mode] = len(trials)
        assert (mode, ExitCode.OK) == (result.certificate.mode, result.exit_code)
        assert [f"n{i}" for i in CULPRITS] == [name.partition("_")[0] for name in result.kept]
        if mode == "none":
            assert list(result.kept) == result.certificate.unchecked
            assert not result.certificate.minimal
        else:
            assert {"dropped"} == {need.how for need in result.certificate.evidence}
            assert result.certificate.minimal
    assert spent["none"] <= spent["forecasts"] <= spent["full"]


def test_forecasts_certify_where_they_save_builds(tmp_path: Path) -> None:
    """That is the default of engines; what is its own forecast, or has none, is tried in full."""
    asked = prepared(tmp_path, oracles.monotone(CULPRITS))
    assert "forecasts" == asked.certify
    assert "full" == replace(asked, emulator=None).certify
    assert "full" == prepared(tmp_path, oracles.monotone(CULPRITS), certify="full").certify
    for mode in (None, "forecasts"):
        options = replace(asked.case.options, certify=mode)
        assert "full" == prepare(options, ignore, tmp_path).certify


def test_confirmed_forecasts_stand_for_most_drops(tmp_path: Path) -> None:
    """Of twelve culprits a sample is built; the file, the screen and fewer trials tell."""
    spent = {}
    for mode in ("forecasts", "full"):
        (folder := tmp_path / mode).mkdir()
        result, trials = run(folder, oracles.monotone(range(4, 16)), certify=mode)
        spent[mode] = len(trials)
        assert list(range(4, 16)) == [tiny_index(name) for name in result.kept]
        proof = result.certificate
        assert (mode == "full", True, []) == (
            proof.minimal,
            proof.minimal_by_forecasts,
            proof.unchecked,
        )
        assert proof == read_saved(folder / "run").result.certificate
        if proof.forecasts is not None:
            told = proof.forecasts
            assert told.builds == told.right >= told.drawn >= 5
    assert spent["forecasts"] < spent["full"]


def test_a_run_cut_off_says_that_the_budget_was_spent(tmp_path: Path) -> None:
    """What was not tested is listed with that reason."""
    result, _ = run(tmp_path, oracles.monotone(CULPRITS), max_trials=4)
    assert Status.BUDGET_EXHAUSTED is result.status
    reasons = {need.reason for need in result.certificate.evidence if need.how is None}
    assert {"the budget was spent"} == reasons


def crooked(kept: frozenset[int]) -> Any:
    """Need the culprits; two further layers spoil the result unless a third is kept as well."""
    if set(CULPRITS) <= kept and 0 in kept and 19 not in kept:
        return outcome(4.0)
    return oracles.monotone(CULPRITS)(kept)


def test_broken_monotonicity_is_reported(tmp_path: Path) -> None:
    """A plan that failed above one that passed is in the file, and in a note."""
    result, trials = run(tmp_path, crooked, strategy="ddmin", certify="full")
    verdicts = {t.proposal.plan.kept: t.outcome.passed for t in trials if t.outcome.verdict}
    broken = {
        failed
        for failed, passed in verdicts.items()
        if not passed and any(ok and below < failed for below, ok in verdicts.items())
    }
    assert broken
    assert min(len(broken), 5) == len(result.non_monotone)
    first = result.non_monotone[0]
    assert first.passed.kept < first.failed.kept
    assert 0.0 == first.passed.error
    assert pytest.approx(4.0, rel=1e-6) == first.failed.error
    assert first.layers
    assert any(note.startswith("not monotone: ") for note in result.notes)


def test_a_search_below_the_noise_says_what_it_proves(tmp_path: Path) -> None:
    """Builds that differ by 0.05 put the search's limit at 0.9, and the certificate names it."""
    errors = [5.0 * (i == 4) + 0.95 * (i == 13) for i in range(SIZE)]
    builds: list[frozenset[int]] = []

    def oracle(kept: frozenset[int]) -> Any:
        builds.append(kept)
        again = len(kept) == SIZE and builds.count(kept) > 1
        return outcome(0.05) if again else oracles.additive(errors)(kept)

    result, _ = run(tmp_path, oracle, certify="full")
    proof = result.certificate
    assert [4, 13] == sorted(tiny_index(name) for name in result.kept)
    assert pytest.approx(0.9, abs=1e-6) == proof.limit
    assert (False, True) == (proof.minimal, proof.minimal_at_limit)
    assert [(True, True), (False, True)] == [(n.needed, n.needed_at_limit) for n in proof.evidence]
