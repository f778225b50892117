"""`layers.json`: every node of the model in the run folder, for readers that have no model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precision_bisect.layer_table import Exclusion
from precision_bisect.runs.runfolder import LAYERS
from precision_bisect.runs.typed_json import Count, read_or_none


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A node: `candidate` is its place among the candidates, else `exclusion` says why it is none.

    `detail` has what more there is to say of that. `follows` is the node whose values it moves,
    `inputs` are those that it reads from.
    """

    name: str
    op: str
    module: str
    candidate: Count | None
    exclusion: Exclusion | None
    detail: str = ""
    follows: Count | None
    inputs: Sequence[Count]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayers:
    """The contents of the file: the name of the model's file, and its nodes in network order."""

    schema: Literal[1] = 1
    model: str
    layers: Sequence[Row]


def read_modules(folder: Path) -> Mapping[str, str] | None:
    """Return the module of each node of a run's model, by name; None where no file tells it."""
    listed = read_or_none(ModelLayers, folder / LAYERS)
    return None if listed is None else {layer.name: layer.module for layer in listed.layers}
