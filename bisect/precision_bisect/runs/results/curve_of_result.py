"""The curve of a result: its points, the culprits apart from it, and its picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from precision_bisect.errors import UsageError
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.unseen import OverSamples
from precision_bisect.runs.typed_json import Count
from precision_bisect.trial import Figure

PointName: TypeAlias = Literal["all_low", "culprits", "answer", "margin", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A layer that breaks the low type: the error when it alone of the culprits runs low.

    `error_with` is that of keeping all culprits; `evidence` is "" where the cause is not known.
    """

    layer: str
    error_without: Figure | None
    error_with: Figure | None
    cause: Cause
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A plan that was evaluated: how many layers it keeps and which, and its error over copies.

    `point` is "" for one between those with a name; `kept` are in network order.
    """

    kept_count: Count
    error_median: Figure | None
    error_max: Figure | None
    latency_ms: Figure | None
    point: PointName
    kept: Sequence[str] = ()
    over_samples: OverSamples | None = None


@dataclass(frozen=True, kw_only=True)
class CurveSection:
    """The points of the curve, fewest layers first, and the culprits in network order."""

    culprits: Sequence[Culprit] = ()
    curve: Sequence[CurvePoint] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptError:
    """How many layers a plan keeps, and its error."""

    kept: Count
    error: Figure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NonMonotone:
    """A plan that passed, and one that keeps more and failed; `layers` are some of the added."""

    passed: KeptError
    failed: KeptError
    layers: Sequence[str]


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture that notebooks show; `svg` is its text, which `save` writes to a file."""

    svg: str

    def __repr__(self) -> str:
        return '<the curve as SVG; .save("curve.svg") writes it>'

    def save(self, path: str | Path) -> None:
        """Write the picture, to be opened in any browser. Raises UsageError."""
        if not str(path).lower().endswith(".svg"):
            raise UsageError(f"the picture is an SVG, and {path} none", "give a path.svg")
        try:
            Path(path).write_text(self.svg, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot write {path}: {error}", "choose another path") from error

    def _repr_svg_(self) -> str:
        return self.svg

    _repr_html_ = _repr_svg_
