"""Which type of a ladder each layer has."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from precision_bisect.graphs.load import Model
from precision_bisect.layer_table import LayerName
from precision_bisect.precisions import Form, Pair, PrecisionName, pairs_of


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
        return tuple(name for name, own in self.levels.items() if own == level)

    def on_rung(self, model: Model, rung: int) -> Model:
        """Return the model whose candidates are only the layers that the rung decides on.

        These are the layers in the upper type of the rung; all others are fixed as they are.
        """
        table = model.table
        for level in range(len(self.ladder)):
            if level != rung + 1:
                table = table.on_rung(frozenset(self.at(level)), self.form(level))
        return replace(model, table=table)

    def lowered(self, names: Collection[LayerName]) -> "Composition":
        """Return the composition with these layers one level down."""
        levels = {name: level - (name in names) for name, level in self.levels.items()}
        return replace(self, levels=levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The lowest level that a layer has a form for, and why there is none below."""

    level: int
    reason: str
