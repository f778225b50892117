"""Near misses: layers that run low in an answer, and take much of the tolerance there."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from precision_bisect.trial import Kind, Phase, Trial

NEAR_MISSES = 5
"""Near misses that are explained, at most: those that take most. A bound for readers."""
NEAR_SHARE = 0.1
"""Share of the tolerance from which a layer that runs low is a near miss. Half: 5 of 20 models are
told otherwise; double: 6 of 20 models are told otherwise, in benchmarks/constants.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """What a layer takes of the tolerance, by errors on its scale; None for what was not tried.

    `alone` is the error with this layer alone low, from the ranking or a trial. `added` is the
    growth of the error when the search dropped this layer alone from a plan and the rest still
    passed; of several such plans it is the smallest one's.
    """

    alone: float | None
    added: float | None
    tolerance: float
    error: float | None

    @property
    def share(self) -> float:
        """The larger of both as a share of the tolerance."""
        return max(self.alone or 0.0, self.added or 0.0) / self.tolerance

    @property
    def figures(self) -> Mapping[str, Any]:
        """The figures for `diagnosis.json`."""
        return {"alone_error": self.alone, "added_error": self.added, "share": self.share}

    @property
    def words(self) -> str:
        """What to append to the evidence: errors, their share, and what the answer leaves."""
        parts = []
        if self.added is not None:
            what = "added" if self.added >= 0 else "took away"
            parts.append(f"dropping it {what} {self._told(abs(self.added))}")
        if self.alone is not None:
            parts.append(f"alone low: {self._told(self.alone)}")
        if self.error is not None:
            left = max(0.0, 1.0 - self.error / self.tolerance)
            parts.append(f"{left:.0%} of the tolerance is left")
        return "; ".join(parts)

    def _told(self, error: float) -> str:
        share = error / self.tolerance
        return f"{error:.3g}" + (f", {share:.0%} of the tolerance" if share < math.inf else "")


def near_misses(
    names: Sequence[str],
    kept: Sequence[str],
    trials: Sequence[Trial],
    *,
    tolerance: float | None,
    error: float | None,
) -> dict[str, NearMiss]:
    """Return the near misses, those that take most of the tolerance first.

    `names` are the candidates, `kept` those of them that the answer keeps, `error` is the
    answer's. There are none without a tolerance, or with a tolerance of 0.
    """
    if not tolerance:
        return {}
    alone, added = dict(_alone(len(names), trials)), dict(_added(len(names), trials))
    found = {
        names[i]: NearMiss(
            alone=alone.get(i), added=added.get(i), tolerance=tolerance, error=error
        )
        for i in sorted(alone.keys() | added.keys())
        if names[i] not in set(kept)
    }
    near = [name for name, each in found.items() if each.share >= NEAR_SHARE]
    first = sorted(near, key=lambda name: -found[name].share)[:NEAR_MISSES]
    return {name: found[name] for name in first}


def _alone(size: int, trials: Sequence[Trial]) -> Iterator[tuple[int, float]]:
    """Yield the layers that ran low by themselves, with the error."""
    everything = (1 << size) - 1
    for trial in trials:
        asked, error = trial.proposal, trial.outcome.error
        told = asked.phase is Phase.RANKING or asked.kind is Kind.JUDGE
        if told and size - len(asked.plan) == 1 and error is not None:
            yield _bit(everything ^ asked.plan.mask), error


def _added(size: int, trials: Sequence[Trial]) -> Iterator[tuple[int, float]]:
    """Yield the layers that the search dropped by themselves, smaller plans last."""
    by_size: dict[int, list[tuple[int, float]]] = {}
    for trial in trials:
        asked, outcome = trial.proposal, trial.outcome
        judged = asked.kind is Kind.JUDGE and asked.samples.judges
        if judged and outcome.passed and outcome.error is not None:
            by_size.setdefault(len(asked.plan), []).append((asked.plan.mask, outcome.error))
    # From the plan that keeps everything only single layers were dropped, which `_alone` has.
    for count in sorted((n for n in by_size if n < size - 1), reverse=True):
        # Of two plans that are one layer apart and both passed, the growth is that layer's.
        for (less, after), (more, before) in product(by_size[count], by_size.get(count + 1, ())):
            if less & more == less:
                yield _bit(less ^ more), after - before


def _bit(mask: int) -> int:
    """Return the place of the only bit that is set."""
    return mask.bit_length() - 1
