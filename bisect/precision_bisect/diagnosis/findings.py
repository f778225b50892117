"""The result of a diagnosis: the contents of `diagnosis.json`, version 1."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_bisect.run_folder import plain_json

SCHEMA = 1
"""The version of the file's format, which readers check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts of values by floor(log2|x|), the first for `lowest_exponent`; zeros are not counted.

    `counts` has one list each for "inputs", "outputs" and "weights". If it is `scaled`, values are
    counted in multiples of their scale, as an 8-bit type holds them.
    """

    lowest_exponent: int
    counts: Mapping[str, Sequence[int]]
    scaled: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return `histogram` of an entry."""
        return {
            "lowest_exponent": self.lowest_exponent,
            "scaled": self.scaled,
            "counts": {key: list(each) for key, each in self.counts.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Hurt:
    """Which output of the model the layer hurts most when it runs low: how much, and the way.

    `error` is the largest difference as a share of the output's largest value, infinity where NaN
    or Inf come out. `path` has the nodes from this one to the output: the way of the error if it
    was followed, else a shortest way. `errors` has the error of each node's output while the layer
    alone runs low: root mean square, relative to the values, None for what is not FP32. It is
    empty if the error was not followed.
    """

    output: str
    error: float
    path: Sequence[str]
    errors: Sequence[float | None] = ()

    def to_json(self) -> dict[str, Any]:
        """Return `hurts` of an entry."""
        return {
            "output": self.output,
            "error": self.error,
            "path": list(self.path),
            "errors": list(self.errors),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Why one layer needs the high type: a cause, one sentence of evidence, and the figures.

    `kept` is False for a near miss. `low` is the type that it cannot have, `high` the one that it
    has instead. `advice` has the ids of what would help.
    """

    layer: str
    kept: bool
    low: str
    high: str
    cause: str
    evidence: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    histogram: Histogram | None = None
    hurts: Hurt | None = None
    advice: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return one entry of `layers`."""
        hurts, histogram = self.hurts, self.histogram
        return {
            "layer": self.layer,
            "name": self.layer,
            "kept": self.kept,
            "low": self.low,
            "high": self.high,
            "cause": self.cause,
            "evidence": self.evidence,
            "figures": dict(self.figures),
            "hurts": None if hurts is None else hurts.to_json(),
            "histogram": None if histogram is None else histogram.to_json(),
            "advice": list(self.advice),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """Where NaN or Inf first appears with every layer low, and how it reaches an output.

    `layer` has it in its outputs and in none of its inputs. `path` ends where values are finite
    again, or with the last layer before the output.
    """

    layer: str
    born: str
    path: Sequence[str]
    output: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something to change, for the layers named, with one sentence of evidence."""

    id: str
    title: str
    text: str
    layers: Sequence[str]
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """A diagnosis: layers in network order, births in network order, advice most helpful first."""

    low: str
    layers: Sequence[Finding] = ()
    spread: Sequence[Birth] = ()
    advice: Sequence[Advice] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the contents of `diagnosis.json`; figures that are not finite become text."""
        plain = {
            "schema": SCHEMA,
            "low": self.low,
            "layers": [each.to_json() for each in self.layers],
            "spread": [
                {
                    "layer": each.layer,
                    "born": each.born,
                    "path": list(each.path),
                    "output": each.output,
                }
                for each in self.spread
            ],
            "advice": [
                {
                    "id": each.id,
                    "title": each.title,
                    "text": each.text,
                    "layers": list(each.layers),
                    "evidence": each.evidence,
                }
                for each in self.advice
            ],
        }
        finite: dict[str, Any] = _finite(plain)
        return finite

    def to_text(self) -> str:
        """Return `diagnosis.json` as text."""
        return plain_json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    # JSON has no infinity; `allow_nan=False` above would raise.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
