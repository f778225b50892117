"""What each plan costs in error and in time, FP32 as libraries run it among them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from precision_bisect.runs.results.result import Result
from precision_bisect_reports.curve import point_name
from precision_bisect_reports.speed import mark_in_charts


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan with its largest error, and its time in the unit of its `Times`.

    `chosen` tells that it is the plan to deploy, or stands in its place beside FP32.
    """

    name: str
    error: float
    time: float
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Times:
    """Plans in the order of their times, which are measured, or estimated shares of FP32's."""

    unit: str
    plans: Sequence[Timed]


def error_by_time(result: Result) -> Times:
    """Return the plans of which error and time are known; none unless there are two to compare."""
    kinds = {"ms": _measured(result), "share of FP32's time, estimated": _estimated(result)}
    for unit, plans in kinds.items():
        ordered = sorted(plans, key=lambda plan: plan.time)
        if len(ordered) > 1:
            return Times(unit, ordered)
    return Times("", [])


def _measured(result: Result) -> Iterator[Timed]:
    """Yield what the engine has timed."""
    tf32, deploy = result.tf32, result.deploy
    for point in result.curve:
        if point.latency_ms is not None and point.error_max is not None:
            name = point_name(point) or f"{point.kept_count} kept"
            yield Timed(name, point.error_max, point.latency_ms)
    if tf32 is not None and tf32.fp32_ms is not None and tf32.fp32_error is not None:
        yield Timed("FP32, TF32", tf32.fp32_error, tf32.fp32_ms)
    timed = None if deploy is None or result.deploys_fewest else deploy.latency
    if deploy is not None and deploy.error is not None and timed is not None:
        yield Timed(mark_in_charts(result), deploy.error, timed.median_ms, chosen=True)


def _estimated(result: Result) -> Iterator[Timed]:
    """Yield what is estimated beside the plan to deploy, as shares of FP32 without TF32."""
    tf32, deploy, high = result.tf32, result.deploy, result.high.upper()
    if deploy is None or result.error is None:
        return
    setting = deploy.fp32_tf32_time if deploy.tf32 else 1.0
    yield Timed(f"{high}, no TF32", result.noise_floor or 0.0, 1.0)
    if tf32 is not None and tf32.fp32_error is not None:
        yield Timed(f"{high}, TF32", tf32.fp32_error, deploy.fp32_tf32_time)
    yield Timed("fewest", result.error_max or result.error, deploy.answer_time * setting)
    if deploy.error is not None and not result.deploys_fewest:
        yield Timed(mark_in_charts(result), deploy.error, deploy.time * setting, chosen=True)
