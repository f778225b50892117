"""Which plan the exports hold: the one to deploy, the fewest layers, or a point of the curve."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from precision_bisect.errors import UsageError
from precision_bisect.layer_table import LayerName
from precision_bisect.runs.results.curve_of_result import Culprit, CurvePoint
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.speed_report import PlanToDeploy
from precision_bisect.settings.export_points import DEPLOY, FEWEST, NEAR_MISS


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPoint:
    """What exports hold: the point, and the names of its kept layers.

    `modules` are those that were judged to hold whole.
    """

    kept: Sequence[LayerName]
    point: str = FEWEST
    modules: Sequence[str] = ()


PointsOfCurve: TypeAlias = tuple[Sequence[CurvePoint], Sequence[Culprit]]
"""The points of a curve, and the culprits."""


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
    point: str, fewest: Sequence[str], deploy: PlanToDeploy | None, curve: PointsOfCurve
) -> tuple[str, Sequence[str]]:
    """Return the name of the plan that a point comes to, and the layers that it keeps.

    Where there is no plan to deploy it comes to the fewest. Raises UsageError where there is no
    such point.
    """
    if point == DEPLOY and deploy is not None:
        return point, deploy.kept
    if point in (DEPLOY, FEWEST):
        return FEWEST, fewest
    return point, find_point(point, *curve).kept


def kept_in_files(result: Result) -> tuple[str, Sequence[str]]:
    """Return the name of the plan that a run's files hold, or would, and the layers it keeps."""
    curve = (result.curve, result.culprits)
    with suppress(UsageError):
        if result.export_point not in (None, NEAR_MISS):
            return kept_at(result.export_point, result.kept, result.deploy, curve)
    return kept_at(DEPLOY, result.kept, result.deploy, curve)


def _why(point: str, curve: Sequence[CurvePoint]) -> str:
    if not curve:
        return "the run has no curve"
    what = f"of {point} layers" if point.isdecimal() else f"named {point}"
    return f"the curve has no point {what}"


def _choice(curve: Sequence[CurvePoint], culprits: Sequence[str]) -> str:
    """Name the points that there are."""
    if not curve:
        return "leave it out, which exports what is to be deployed"
    names: list[str] = [point.point for point in curve if point.point == "margin"]
    names += (
        ["culprits"] if any(list(point.kept) == culprits for point in curve if culprits) else []
    )
    counts = dict.fromkeys(str(point.kept_count) for point in curve)
    return f"choose {', '.join([FEWEST, *sorted(names), *counts])}"
