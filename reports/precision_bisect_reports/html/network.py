"""The nodes of the model in columns: names, operators, modules, and what each computes in."""

from collections.abc import Mapping, Sequence
from typing import Any

from precision_bisect.layer_table import Exclusion, scope_of
from precision_bisect.runs.results.model_layers import ModelLayers, Row
from precision_bisect.runs.results.result import Result
from precision_bisect_reports.html.compact import coded

RUNS_LOW, RUNS_HIGH, FOLLOWER, FIXED, OTHER, OPEN = range(6)
"""What becomes of a node: decided low or kept; not decided on; or not decided yet."""

_STAYS = (
    *(Exclusion.PINNED, Exclusion.CONTROL_FLOW, Exclusion.CUSTOM, Exclusion.UNTYPED),
    *(Exclusion.DOUBLE, Exclusion.RANDOM),
)


class Network:
    """The rows of `layers.json`; of the kept layers alone where a run has written none."""

    def __init__(self, layers: ModelLayers | None, result: Result | None) -> None:
        self.complete = layers is not None
        kept = result.kept if result else ()
        self.rows: Sequence[Row] = (
            layers.layers
            if layers is not None
            else [_bare(name, place) for place, name in enumerate(kept)]
        )
        self.index = {row.name: place for place, row in enumerate(self.rows)}
        self.candidates = [
            place for place, row in enumerate(self.rows) if row.candidate is not None
        ]

    def columns(
        self,
        precisions: Mapping[str, str] | None,
        pinned: Mapping[str, str],
        low: str,
        asked: Mapping[str, str],
    ) -> dict[str, Any]:
        """Return one list per field.

        `precisions` are those of the kept layers by name, None where nothing is decided; `pinned`
        says why others stay above the type `low`; `asked` has the types by order.
        """
        ordered = {name: RUNS_LOW if kind == low else FIXED for name, kind in asked.items()}
        states = [ordered.get(row.name, _state(row, precisions, pinned)) for row in self.rows]
        return {
            "complete": self.complete,
            "name": [row.name for row in self.rows],
            "op": coded([row.op for row in self.rows]),
            "module": coded([row.module for row in self.rows]),
            "state": states,
            "precision": [
                _precision(row, state, precisions or {}, low)
                for row, state in zip(self.rows, states, strict=True)
            ],
            "reason": coded([pinned.get(row.name, _reason(row)) for row in self.rows]),
            "follows": [row.follows for row in self.rows],
            "inputs": [row.inputs for row in self.rows],
        }


def _bare(name: str, place: int) -> Row:
    """Return the row of a layer of which only the name is known."""
    module = scope_of(name)
    return Row(
        name=name, op="", module=module, candidate=place, exclusion=None, follows=None, inputs=()
    )


def _reason(row: Row) -> str:
    return ": ".join(filter(None, (row.exclusion, row.detail)))


def _state(row: Row, precisions: Mapping[str, str] | None, pinned: Mapping[str, str]) -> int:
    if row.candidate is None:
        if row.exclusion is Exclusion.FOLLOWER:
            return FOLLOWER
        return FIXED if row.exclusion in _STAYS else OTHER
    if precisions is None:
        return OPEN
    if row.name in precisions:
        return RUNS_HIGH
    return FIXED if row.name in pinned else RUNS_LOW


def _precision(row: Row, state: int, precisions: Mapping[str, str], low: str) -> str | None:
    if state == RUNS_HIGH:
        return precisions[row.name]
    return low if state == RUNS_LOW else None
