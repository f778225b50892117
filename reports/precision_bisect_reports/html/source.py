"""What a run folder holds, read and never written, and what its trials say of single layers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precision_bisect.explaining.diagnosis.findings import Findings
from precision_bisect.plan import Plan
from precision_bisect.runs.belonging import exported_texts
from precision_bisect.runs.ledger.ledger_reader import Recorded, read_ledger
from precision_bisect.runs.results.chosen_point import kept_in_files
from precision_bisect.runs.results.model_layers import ModelLayers
from precision_bisect.runs.results.on_target import OnTarget
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.run_status import RunStatus
from precision_bisect.runs.results.saved import lacks, read_result
from precision_bisect.runs.results.verification import Verification
from precision_bisect.runs.runfolder import (
    DIAGNOSIS,
    LAYERS,
    LEDGER,
    RESULT,
    STATUS,
    TARGET,
    VERIFIED,
)
from precision_bisect.runs.typed_json import T, read_file, read_or_none
from precision_bisect.search.sample_sets import searched
from precision_bisect.search.speed.front import judged_outcomes
from precision_bisect.trial import Kind, Phase, Trial

LARGEST_COPIED = 512 * 1024
"""Bytes: a longer file is named in the report, and not copied into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search: the ledger of a run, or of one rung of a ladder; `title` is "" for a run's."""

    title: str
    recorded: Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a run folder, each None where it is not there yet.

    `result` is None, too, while a run goes on that has found something before: it is the former
    answer. `verified` is what `verify` has seen, `on_target` what came back from a target, maybe
    of a former answer. `exports` are texts by file name, None for one that is too long to copy.
    """

    searches: Sequence[Search]
    result: Result | None = None
    status: RunStatus | None = None
    layers: ModelLayers | None = None
    diagnosis: Findings | None = None
    verified: Verification | None = None
    on_target: OnTarget | None = None
    exports: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def looked_into(self) -> Verification | None:
        """What `verify` has seen of this answer, None where it was not asked."""
        verified, result = self.verified, self.result
        return (
            verified
            if verified and result and set(verified.kept) == set(kept_in_files(result)[1])
            else None
        )

    @property
    def judged_on_target(self) -> OnTarget | None:
        """What a target made of this answer, None where none did."""
        on_target, result = self.on_target, self.result
        return (
            on_target
            if on_target and result and set(on_target.kept) == set(kept_in_files(result)[1])
            else None
        )


def read_source(folder: Path) -> Source:
    """Read a run folder, finished or not. Raises RunFolderError where it is none."""
    ledgers = sorted(folder.glob(f"rung-*/{LEDGER}"), key=_number)
    if (folder / LEDGER).exists():
        searches = [Search(title="", recorded=read_ledger(folder / LEDGER))]
    else:
        searches = [Search(title=_title(path), recorded=read_ledger(path)) for path in ledgers]
    if not searches:
        raise lacks(folder, LEDGER)
    status = _read(RunStatus, folder / STATUS)
    layers = _read(ModelLayers, folder / LAYERS)
    verified = read_or_none(Verification, folder / VERIFIED)
    # The result beside a search that goes on is of before.
    if status is not None and status.state == "searching":
        return Source(searches=searches, status=status, layers=layers, verified=verified)
    return Source(
        searches=searches,
        result=_result(folder / RESULT, status.message if status else ""),
        status=status,
        layers=layers,
        diagnosis=_read(Findings, folder / DIAGNOSIS),
        verified=verified,
        on_target=read_or_none(OnTarget, folder / TARGET),
        exports=_exports(folder),
    )


def _number(path: Path) -> int:
    """Return the place of a rung's search among those of its ladder."""
    number = path.parent.name.split("-")[1]
    return int(number) if number.isdecimal() else 0


def _title(path: Path) -> str:
    number, _, low = path.parent.name.removeprefix("rung-").partition("-")
    return f"search {number}: {low}"


def _result(path: Path, message: str) -> Result | None:
    """Return what the run has found, None before its end. Raises RunFolderError."""
    if not path.exists():
        return None
    return replace(read_result(path, "go on with --resume, which writes it"), message=message)


def _read(kind: type[T], path: Path) -> T | None:
    """Return what a file holds, None where it is not there. Raises RunFolderError."""
    try:
        return read_file(kind, path)
    except FileNotFoundError:  # or a link that leads nowhere
        return None


def _exports(folder: Path) -> dict[str, str | None]:
    texts: dict[str, str | None] = {}
    for name in exported_texts():
        path = folder / name
        if path.is_file():
            short = path.stat().st_size <= LARGEST_COPIED
            texts[name] = path.read_text("utf-8", errors="replace") if short else None
    return texts


def coded(texts: Sequence[str]) -> dict[str, Any]:
    """Return the different texts, and for each place the number of its text."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return {"texts": list(numbers), "at": [numbers[text] for text in texts]}


def figure(value: float | None) -> float | str | None:
    """Return a figure with six digits, "inf" for an infinite one, None for none."""
    if value is None or math.isnan(value):
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else "inf"


# Errors of larger blocks say too little of one layer in them.
_MOST_TOGETHER = 64


def columns(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return one list per field, in the order in which the trials began; texts by number."""
    latencies = [trial.outcome.evidence.latency for trial in trials]
    return {
        "phase": coded([trial.proposal.phase.value for trial in trials]),
        "verdict": coded([(t.outcome.verdict or t.outcome.status).value for t in trials]),
        "kind": coded([trial.proposal.kind.value for trial in trials]),
        "samples": coded([str(trial.proposal.samples) for trial in trials]),
        "reason": coded([trial.proposal.reason for trial in trials]),
        "kept": [len(trial.proposal.plan) for trial in trials],
        "error": [figure(trial.outcome.error) for trial in trials],
        "seconds": [figure(trial.outcome.wall_s) for trial in trials],
        "latency": [latency and figure(latency.median_ms) for latency in latencies],
        "spread": [latency and figure(latency.spread_ms) for latency in latencies],
    }


def candidates_of(recorded: Recorded) -> int:
    """Return how many layers a search decides on, 0 where its preflight has not begun."""
    return max((len(trial.proposal.plan) for trial in recorded.own), default=0)


def best(recorded: Recorded) -> tuple[Plan, float | None] | None:
    """Return the smallest plan that has passed so far, with its error.

    The plan that keeps every layer is none: it is what there was before the search.
    """
    outcomes = judged_outcomes(recorded.own, searched(recorded.own))
    every = candidates_of(recorded)
    passed = sorted(p for p, outcome in outcomes.items() if outcome.passed and len(p) < every)
    return (passed[0], outcomes[passed[0]].error) if passed else None


def sensitivities(recorded: Recorded) -> dict[int, tuple[float, int]]:
    """Return by candidate the error of running it low, and how many layers ran low with it.

    All other layers were high. Of several trials the one with the fewest layers low counts.
    """
    every = Plan.all_high(candidates_of(recorded))
    errors_by_candidate: dict[int, tuple[float, int]] = {}
    for trial in recorded.own:
        error = trial.outcome.error
        if not _ranks(trial) or error is None:
            continue
        low = Plan(every.mask & ~trial.proposal.plan.mask)
        if not 0 < len(low) <= _MOST_TOGETHER:
            continue
        for index in low.indices:
            if index not in errors_by_candidate or len(low) < errors_by_candidate[index][1]:
                errors_by_candidate[index] = (error, len(low))
    return errors_by_candidate


def _ranks(trial: Trial) -> bool:
    proposal = trial.proposal
    return proposal.phase in (Phase.RANKING, Phase.PREDICTION) and proposal.kind is Kind.PREDICT
