"""The results of a ladder's searches, step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_bisect.layer_table import LayerName
from precision_bisect.pipeline.ladder.composition import Composition
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.protocols import Comparator
from precision_bisect.runs.results.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The lowest level that a layer has a form for, and why there is none below."""

    level: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RungSearch:
    """One search of a ladder.

    `kept` are the candidates that stay in the upper type of the rung; without an answer that is
    all of them. `after` is the composition that the search left, `ledger` has its trials.
    `answered` is False as long as no plan of the ladder has passed.
    """

    rung: int
    prepared: Prepared
    result: Result
    kept: Sequence[LayerName]
    after: Composition
    ledger: Path
    answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Climbed:
    """What the searches of a ladder found, in their order.

    `comparator` judges by the full tolerance. `floors` has the layers that have no form in the
    lowest type. `interrupted` tells that the run was broken off between two searches.
    """

    comparator: Comparator
    steps: Sequence[RungSearch]
    floors: Mapping[LayerName, Floor]
    interrupted: bool = False

    @property
    def composition(self) -> Composition:
        return self.steps[-1].after

    @property
    def rungs(self) -> range:
        """The rungs, the lowest first."""
        return range(len(self.composition.ladder) - 1)

    @property
    def chosen(self) -> Mapping[int, Sequence[LayerName]]:
        """The layers that each level above the lowest holds by choice, in network order.

        A layer at its floor has no lower form, so it was not chosen.
        """
        return {
            level: [
                name
                for name in self.composition.at(level)
                if name not in self.floors or self.floors[name].level < level
            ]
            for level in range(1, len(self.composition.ladder))
        }

    def proof_of(self, rung: int) -> RungSearch | None:
        """Return the search that certified a rung in the final composition."""
        found = (s for s in reversed(self.steps) if s.rung == rung and s.after == self.composition)
        return next(found, None)
