"""What changed between two runs, each read from its folder. Layers are the same by their names."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_bisect.errors import RunFolderError, UsageError, counted, first_of
from precision_bisect.options import Options
from precision_bisect.runs import plain_json
from precision_bisect.runs.ledger.fingerprint import Difference, differing_fields
from precision_bisect.runs.results.model_layers import read_modules
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import Saved, read_saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run's answer, and the modules of its model's layers by name, None if not known."""

    saved: Saved
    layers: Mapping[str, str] | None

    @property
    def causes(self) -> Mapping[str, str]:
        """Why each kept layer needs the precision, as far as the run has found it out."""
        return {layer: why.cause for layer, why in self.saved.result.causes.items()}

    def to_json(self) -> dict[str, Any]:
        result = self.saved.result
        latency = result.latency_ms
        return {
            "path": str(self.saved.path),
            "model": str(self.saved.model),
            "answered": self.saved.answered,
            **{key: getattr(result, key) for key in _FIGURES},
            "latency_ms": None if latency is None else latency.get("kept"),
            "minimal": result.certificate.minimal,
            "minimal_by_forecasts": result.certificate.minimal_by_forecasts,
            "kept": len(result.kept),
            "deploy": self._deploy(result),
        }

    def _deploy(self, result: Result) -> dict[str, Any] | None:
        """Return what is to be deployed, which need not be the answer; None where that is open."""
        if result.deploy is None:
            return None
        names = ("fused", "tf32", "error", "time")
        plan = {name: getattr(result.deploy, name) for name in names}
        return {"fp32": result.fp32_wins, "kept": len(result.deploy.kept), **plan}


_FIGURES = (
    *("status", "cut_short", "backend", "low", "high", "error", "tolerance", "candidates"),
    *("trials", "builds", "wall_s"),
)


def read_side(path: Path) -> Side:
    """Read a run folder, or the `result.json` in one. Raises RunFolderError."""
    saved = read_saved(path)
    return Side(saved=saved, layers=read_modules(saved.path.parent))


COMPARISON_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a layer was in one run and is in the other."""

    layer: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs: kept layers that were `added` and `removed`, and those that are in `common`.

    All are in network order. `retyped` are common layers that are kept in another type, `causes`
    those whose cause is another one. `depends` are the differences of the fingerprints.
    `only_before` and `only_after` count the layers that one model has and the other does not;
    None where a run does not list its layers.
    """

    before: Side
    after: Side
    depends: Sequence[Difference]
    added: Sequence[str]
    removed: Sequence[str]
    common: Sequence[str]
    retyped: Sequence[Change]
    causes: Sequence[Change]
    only_before: int | None
    only_after: int | None

    @property
    def same(self) -> bool:
        """Whether both runs keep the same layers in the same types, or have no answer both."""
        changed = self.added or self.removed or self.retyped
        return not changed and self.before.saved.answered == self.after.saved.answered

    def is_foreign(self, layer: str) -> bool | None:
        """Return whether the model of only one run has the layer; None where it is not known."""
        models = (self.before.layers, self.after.layers)
        return None if None in models else any(layer not in layers for layers in models if layers)

    def to_json(self) -> dict[str, Any]:
        """Return what `compare --json` prints (docs/ci.md)."""
        return {
            "schema": COMPARISON_SCHEMA,
            "same": self.same,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "depends": list(self.depends),
            "added": [self._row(layer) for layer in self.added],
            "removed": [self._row(layer) for layer in self.removed],
            "common": list(self.common),
            "retyped": list(self.retyped),
            "causes": list(self.causes),
            "only_before": self.only_before,
            "only_after": self.only_after,
        }

    def to_text(self) -> str:
        return plain_json.dumps(self.to_json(), indent=2) + "\n"

    def _row(self, layer: str) -> dict[str, Any]:
        causes = {**self.before.causes, **self.after.causes}
        return {"layer": layer, "cause": causes.get(layer), "foreign": self.is_foreign(layer)}


def compare(before: Side, after: Side) -> Comparison:
    """Return what changed from one run to the other."""
    first, second = before.saved.result.precisions, after.saved.result.precisions
    # A run whose layers were not written does not tell what its model lacks.
    comparable = before.layers is not None and after.layers is not None
    ours, theirs = (before.layers or {}).keys(), (after.layers or {}).keys()
    return Comparison(
        before=before,
        after=after,
        depends=differing_fields(before.saved.result.fingerprint, after.saved.result.fingerprint),
        added=[name for name in second if name not in first],
        removed=[name for name in first if name not in second],
        common=[name for name in second if name in first],
        retyped=_changes(first, second),
        causes=_changes(before.causes, after.causes),
        only_before=len(ours - theirs) if comparable else None,
        only_after=len(theirs - ours) if comparable else None,
    )


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    return [
        Change(layer=layer, before=before[layer], after=now)
        for layer, now in after.items()
        if layer in before and before[layer] != now
    ]


# Most layers that a line names; the result and the baseline have all.
_MOST_NAMED = 20
NO_BASELINE = "there is no baseline {}: the answer is new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The most layers that may be kept, and those that may be; None for what was not asked.

    A baseline that is `missing` was named, and nothing lies there yet.
    """

    max_kept: int | None = None
    baseline: frozenset[str] | None = None
    missing: Path | None = None

    @property
    def remark(self) -> str:
        """What whoever reads the outcome should know of the gate itself; "" where it is whole."""
        return "" if self.missing is None else NO_BASELINE.format(self.missing)

    def objections(self, result: Result) -> Iterator[str]:
        """Yield one line for each way in which the answer keeps more than it may."""
        kept = len(result.kept)
        if self.max_kept is not None and kept > self.max_kept:
            yield f"the answer keeps {counted(kept, 'layer')}, --max-kept is {self.max_kept}"
        new = [name for name in result.kept if name not in (self.baseline or ())]
        if self.baseline is not None and new:
            yield f"kept and not in the baseline: {first_of(new, _MOST_NAMED)}"


def read_gate(options: Options, max_kept: int | None, baseline: Path | None) -> Gate:
    """Return what the answer of these options is held against.

    `baseline` is the run folder, or the `result.json`, of a run with an answer; where nothing lies
    there, the model is new. Raises UsageError for a baseline of other types, RunFolderError for
    one that cannot be read or has no answer.
    """
    if baseline is None:
        return Gate(max_kept=max_kept)
    # A job for a new model must not fail for want of its first answer.
    if not os.path.lexists(baseline):
        return Gate(max_kept=max_kept, missing=baseline)
    saved = read_saved(baseline)
    if not saved.answered:
        raise RunFolderError(
            f"--baseline {saved.path} has no answer, its status is {saved.result.status.value!r}",
            "name the result of a run that found one",
        )
    ladder = options.ladder or (options.low, options.high)
    if (saved.result.low, saved.result.high) != (ladder[0], ladder[-1]):
        raise UsageError(
            f"--baseline {saved.path} is of {saved.result.low} and {saved.result.high}, this run "
            f"of {ladder[0]} and {ladder[-1]}",
            "name a baseline of the same types",
        )
    return Gate(max_kept=max_kept, baseline=frozenset(saved.result.kept))
