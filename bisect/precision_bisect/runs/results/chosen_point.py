"""Which plan of the curve the exports hold: the answer, or another point that was evaluated."""

from collections.abc import Sequence
from dataclasses import dataclass

from precision_bisect.errors import UsageError
from precision_bisect.layer_table import LayerName
from precision_bisect.options import ANSWER, DEPLOY
from precision_bisect.runs.results.result import Culprit, CurvePoint
from precision_bisect.runs.results.speed_report import PlanToDeploy


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPoint:
    """What exports hold: the point as it was asked for, and the names of its kept layers.

    `modules` are those that hold it whole, which are known of the answer alone.
    """

    kept: Sequence[LayerName]
    point: str = ANSWER
    modules: Sequence[str] = ()


def find_point(point: str, curve: Sequence[CurvePoint], culprits: Sequence[Culprit]) -> CurvePoint:
    """Return the point of a curve by its name or its number of kept layers.

    Of several with one number that with a name is taken, else the one with the least error. The
    culprits are found by their layers, as they may be the answer, too. Raises UsageError where
    there is no such point.
    """
    blamed = [culprit.layer for culprit in culprits]
    points = [
        curve_point
        for curve_point in curve
        if (point == str(curve_point.kept_count))
        or (point == "culprits" and blamed and list(curve_point.kept) == blamed)
        or (point == curve_point.point)
    ]
    if not points:
        raise UsageError(f"--export-point {point}: {_why(point, curve)}", _choice(curve, blamed))
    return min(
        points, key=lambda curve_point: (not curve_point.point, curve_point.error_median or 0.0)
    )


def kept_at(
    point: str,
    curve: Sequence[CurvePoint],
    culprits: Sequence[Culprit],
    deploy: PlanToDeploy | None,
) -> Sequence[str]:
    """Return the layers that a point keeps, also those of the plan to deploy.

    Raises UsageError where there is no such point.
    """
    if point != DEPLOY:
        return find_point(point, curve, culprits).kept
    if deploy is None:
        raise UsageError(
            f"--export-point {DEPLOY}: the run has no plan that is faster than its answer",
            "leave it out, which exports the answer",
        )
    return deploy.kept


def _why(point: str, curve: Sequence[CurvePoint]) -> str:
    if not curve:
        return "the run has no curve"
    what = f"of {point} layers" if point.isdecimal() else f"named {point}"
    return f"the curve has no point {what}"


def _choice(curve: Sequence[CurvePoint], culprits: Sequence[str]) -> str:
    """Name the points that there are."""
    if not curve:
        return "leave it out, which exports the answer"
    names: list[str] = [point.point for point in curve if point.point in ("answer", "margin")]
    names += (
        ["culprits"] if any(list(point.kept) == culprits for point in curve if culprits) else []
    )
    counts = dict.fromkeys(str(point.kept_count) for point in curve)
    return f"choose {', '.join([*sorted(names), *counts])}"
