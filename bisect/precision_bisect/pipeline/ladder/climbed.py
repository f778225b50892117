"""Which type of a ladder each layer computes in, and what its searches found, step by step."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.pinning import pin
from precision_bisect.layer_table import FIXED_BY_RUNG, LayerName
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.precisions import Form, Pair, PrecisionName, pairs_of
from precision_bisect.protocols import Comparator
from precision_bisect.runs.results.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """The level of each layer: the place of its type in the ladder, 0 for the lowest.

    Rung i is the search between levels i and i + 1.
    """

    ladder: Sequence[PrecisionName]
    levels: Mapping[LayerName, int]

    @classmethod
    def at_top(cls, ladder: Sequence[PrecisionName], names: Sequence[LayerName]) -> "Composition":
        """Return the composition of these layers in which each has the highest type."""
        return cls(ladder=tuple(ladder), levels=dict.fromkeys(names, len(ladder) - 1))

    def pair(self, rung: int) -> Pair:
        return pairs_of(self.ladder)[rung]

    def form(self, level: int) -> Form:
        """Return how layers of a level compute: 8-bit ones store their outputs one level up."""
        # The highest level belongs to the last rung, as its upper side.
        rung = self.pair(min(level, len(self.ladder) - 2))
        return rung.low_form if level < len(self.ladder) - 1 else rung.high_form

    def at(self, level: int) -> tuple[LayerName, ...]:
        """Return the layers of a level, in network order."""
        return tuple(name for name, found in self.levels.items() if found == level)

    def on_rung(self, model: Model, rung: int) -> Model:
        """Return the model whose candidates are only the layers that the rung decides on.

        These are the layers in the upper type of the rung; all others are fixed as they are.
        """
        for level in range(len(self.ladder)):
            if level != rung + 1:
                model = pin(model, dict.fromkeys(self.at(level), FIXED_BY_RUNG), self.form(level))
        return model

    def lowered(self, names: Collection[LayerName]) -> "Composition":
        """Return the composition with these layers one level down."""
        levels = {name: level - (name in names) for name, level in self.levels.items()}
        return replace(self, levels=levels)


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
