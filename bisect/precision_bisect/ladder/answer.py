"""The answer of a ladder: what its searches come to as a whole."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from precision_bisect.budget import Budget
from precision_bisect.certificate import Certificate, Need
from precision_bisect.conclude import tolerance_of, write_answer
from precision_bisect.endings import Status
from precision_bisect.ladder.composition import Composition
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair, assigned
from precision_bisect.prepare import Prepared
from precision_bisect.protocols import Comparator
from precision_bisect.result import Diagnosis, Result, Rung
from precision_bisect.runfolder import RESULT, RunFolder

DONE = (Status.FOUND, Status.NOTHING_TO_KEEP)
"""How a search ends after which the next rung is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The lowest level that a layer has a form for, and why there is none below."""

    level: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One search of a ladder.

    `kept` are the candidates that stay in the upper type of the rung, all of them where the search
    had no answer; `after` is the composition that it left. `answered` is False where no plan of
    the ladder has passed yet.
    """

    rung: int
    prepared: Prepared
    result: Result
    kept: Sequence[LayerName]
    after: Composition
    answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Climbed:
    """What the searches of a ladder found, in their order.

    `comparator` judges by the full tolerance. `floors` are the layers that no search could take to
    the lowest type. `interrupted` tells that the run was broken off between two searches.
    """

    comparator: Comparator
    steps: Sequence[Step]
    floors: Mapping[LayerName, Floor]
    interrupted: bool = False

    @property
    def composition(self) -> Composition:
        """The final composition."""
        return self.steps[-1].after

    @property
    def chosen(self) -> Mapping[int, Sequence[LayerName]]:
        """The layers that each level above the lowest holds by choice, in network order."""
        return {
            level: [
                name
                for name in self.composition.at(level)
                if name not in self.floors or self.floors[name].level < level
            ]
            for level in range(1, len(self.composition.ladder))
        }

    def proof_of(self, rung: int) -> Step | None:
        """Return the search that certified a rung in the final composition."""
        found = (s for s in reversed(self.steps) if s.rung == rung and s.after == self.composition)
        return next(found, None)


def conclude_ladder(climbed: Climbed, budget: Budget, folder: RunFolder) -> Result:
    """Return the result of a ladder's run, and write the run folder's files."""
    last = climbed.steps[-1]
    results = [step.result for step in climbed.steps]
    chosen = frozenset(name for layers in climbed.chosen.values() for name in layers)
    kept = [name for name in climbed.composition.levels if last.answered and name in chosen]
    ladder = climbed.composition.ladder
    diagnosis = _diagnosis(climbed, kept)
    string, reason, unwritten = write_answer(
        last.prepared, last.kept if last.answered else None, folder, diagnosis
    )
    notes = [*(note for each in results for note in each.notes), *unwritten]
    result = replace(
        last.result,
        status=_status(climbed, kept),
        low=ladder[0],
        high=ladder[-1],
        tolerance=tolerance_of(climbed.comparator),
        candidates=len(climbed.steps[0].prepared.model.table.candidates),
        kept=kept,
        rungs=_rungs(climbed) if last.answered else [],
        layer_precisions=string,
        layer_precisions_reason=reason,
        certificate=_certificate(climbed, kept),
        trials=sum(each.trials for each in results),
        engine_builds=sum(each.engine_builds for each in results),
        emulated_trials=sum(each.emulated_trials for each in results),
        unresolved=_unresolved(results),
        non_monotone=[row for each in results for row in each.non_monotone],
        wall_s=round(budget.elapsed_s(), 3),
        pinned=_pinned(climbed, kept),
        notes=list(dict.fromkeys(notes)),
        diagnosis=diagnosis,
        fingerprint={**last.result.fingerprint, "ladder": list(ladder)},
        message=_message(climbed),
        out=folder.path,
    )
    folder.write(RESULT, result.to_text())
    return result


def _pinned(climbed: Climbed, kept: Sequence[LayerName]) -> Mapping[str, str]:
    """Return why layers that are not kept do not have the lowest type, in network order."""
    floors = climbed.floors
    return {
        str(name): floors[name].reason
        for name in climbed.composition.levels
        if name in floors and name not in frozenset(kept)
    }


def _status(climbed: Climbed, kept: Sequence[LayerName]) -> Status:
    if climbed.interrupted:
        return Status.INTERRUPTED
    last = climbed.steps[-1].result.status
    if last not in DONE:
        return last
    return Status.FOUND if kept else Status.NOTHING_TO_KEEP


def _message(climbed: Climbed) -> str:
    """Return what the last search said, with its types where it ended the run."""
    last = climbed.steps[-1]
    if last.result.status in DONE:
        return "" if last.result.status is Status.NOTHING_TO_KEEP else last.result.message
    options = last.prepared.options
    return f"{options.low} against {options.high}: {last.result.message}".rstrip(": ")


def _rungs(climbed: Climbed) -> list[Rung]:
    """Return what computes in each type of the ladder, highest first."""
    last, ladder = climbed.steps[-1], climbed.composition.ladder
    table, options = last.prepared.model.table, last.prepared.options
    plan = Plan.of(i for i, name in enumerate(table.names) if name in frozenset(last.kept))
    pair = Pair(low=options.low, high=options.high)
    counts = Counter(assigned(table, pair, plan).values())
    rungs = [
        Rung(precision=ladder[level], layers=layers, count=counts[ladder[level]])
        for level, layers in reversed(list(climbed.chosen.items()))
    ]
    return [*rungs, Rung(precision=ladder[0], layers=None, count=counts[ladder[0]])]


def _certificate(climbed: Climbed, kept: Sequence[LayerName]) -> Certificate:
    """Put the certificates of the rungs together, as far as they hold for the whole."""
    needs: dict[str, Need] = {}
    for level, layers in climbed.chosen.items():
        needs |= {name: _untested(name) for name in layers}
        proof = climbed.proof_of(level - 1)
        if proof is not None:
            needs |= {need.layer: need for need in proof.result.certificate.evidence}
    evidence = [needs[name] for name in kept]
    proven = [step for rung in climbed.chosen if (step := climbed.proof_of(rung - 1))]
    return Certificate(
        minimal=climbed.steps[-1].answered and all(need.needed for need in evidence),
        checked=[need.layer for need in evidence if need.needed],
        unchecked=[need.layer for need in evidence if not need.needed],
        mode=climbed.steps[-1].result.certificate.mode,
        evidence=evidence,
        assumes="monotone" if any(step.result.certificate.assumes for step in proven) else None,
    )


def _untested(name: LayerName) -> Need:
    return Need(layer=name, needed=None, reason="not tried: the run ended before")


def _diagnosis(climbed: Climbed, kept: Sequence[LayerName]) -> list[Diagnosis]:
    """Return what the last search that kept a layer said of it, in network order."""
    found = {each.layer: each for step in climbed.steps for each in step.result.diagnosis}
    return [found[name] for name in kept if name in found]


def _unresolved(results: Sequence[Result]) -> Mapping[str, int]:
    counts = Counter[str]()
    for each in results:
        counts.update(each.unresolved)
    return dict(counts)
