"""What the final screen says of the curve: culprits, rounding, and a small table."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

from precision_bisect.errors import UsageError, counted, first_of, printable
from precision_bisect.runs.results.advised import Tried
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.chosen_point import find_point
from precision_bisect.runs.results.curve_of_result import Culprit, CurvePoint
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import FUSED_MODEL
from precision_bisect.settings.export_points import DEPLOY, FEWEST, NEAR_MISS
from precision_bisect_reports.culprit_groups import WHOLE
from precision_bisect_reports.rows import ALWAYS, EVIDENCE, MORE, NEWS, Form, Row
from precision_bisect_reports.speed import better_and_best, deployed_as

MOST_POINTS = 7
CULPRITS_NAMED = 2
COARSER = 3.0
"""Beside the tolerance a limit that is so many times as large is told."""
_NAMES = {"all_low": "all low"}


def curve(result: Result) -> Iterator[Row]:
    """Yield what breaks the low type, in words, and the table; nothing without a curve."""
    if not result.curve:
        return
    if unfinished := _unfinished(result):
        yield Row("unfinished", unfinished, NEWS, Form.CHART)
    elif not _listed(result):
        label = "culprits" if result.culprits else "cause"
        yield Row(label, curve_words(result), NEWS, Form.CHART)
    yield from _table(result.curve, MORE if result.front else EVIDENCE)
    helping = [advice for advice in result.advice if advice.passed]
    # A fused form that is deployed is told of already.
    if helping and not (result.deploys_fused and helping[0].id in WHOLE):
        instead = f"{printable(helping[0].title)}{_outcome(helping[0].tried)}"
        # What changes the model may leave nothing to keep.
        yield Row("instead", instead, ALWAYS, Form.CHART)


def _unfinished(result: Result) -> str:
    """Say that a run was cut off before anything was known of its layers, "" where it was not."""
    if not result.status.cut_off or result.culprits or result.diagnosis:
        return ""
    return f"the run ended before it was known what breaks {result.low.upper()}"


def curve_words(result: Result) -> str:
    """Return which layers break the low type, by how much, and what the rest takes."""
    low, culprits = result.low.upper(), result.culprits
    if not culprits:
        start = _all_low(result.curve)
        rest = _rest(result, 0, start)
        if result.certificate.minimal and len(result.kept) == 1:
            return f"One layer, {printable(result.kept[0])}, breaks {low}{rest}"
        if result.certificate.minimal and result.kept:
            return f"No layer stands out: each of {len(result.kept)} layers is needed{rest}"
        return f"No single layer breaks {low}; {_several(result, 'rounding is spread')}{rest}"
    together = culprits[0].error_with
    first = "" if result.curve[0].kept_count else error_text(result.curve[0], result.limit)
    fall = f"{first} -> " if first else f"in {result.high.upper()} error "
    # Where the low model does not run there is no error to begin with.
    if not first and not result.curve[0].kept_count:
        fall = f"else {low} does not run; {fall}"
    sentence = f"{_named(culprits, low)}: {fall}{figure_text(together)}."
    limit = result.limit
    if together is None or limit is None:
        return sentence
    if together > limit:
        if result.status.cut_off:
            return f"{sentence} The run ended before the rest was known."
        rest = _rest(result, len(culprits), together)
        return f"{sentence} The rest: {_several(result, 'rounding, spread')}{rest}"
    count = len(result.kept)
    if 0 < count < len(culprits):
        inside = {culprit.layer for culprit in culprits}.issuperset(result.kept)
        which = "of them" if inside else f"layer{'s' * (count > 1)}"
        return f"{sentence} The answer keeps {count} {which}, enough for {limit:g}."
    return sentence


def _all_low(points: Sequence[CurvePoint]) -> float | None:
    """Return the error of every layer low; None where the curve does not begin there."""
    return None if points[0].kept_count else points[0].error_median


def _several(result: Result, rounding: str) -> str:
    """Say what layers do that are no culprits: `rounding` over the network, or what is known."""
    culprits = {culprit.layer for culprit in result.culprits}
    causes = {
        diagnosis.cause for diagnosis in result.diagnosis if diagnosis.layer not in culprits
    } - {Cause.UNKNOWN}
    if not causes:
        return "several do together"
    if Cause.ROUNDING in causes:
        return f"{rounding} over the network"
    return f"{' and '.join(sorted(causes))} in several"


def exported(result: Result) -> str:
    """Say which plan the exports hold, "" where that is the answer."""
    point = result.export_point
    if point is None or (point in (FEWEST, DEPLOY) and result.deploys_fewest):
        return ""
    if point == FEWEST:
        return "the fewest layers"
    if point == NEAR_MISS:
        return "the near miss, which is no answer"
    if point == DEPLOY and result.deploy is not None:
        count = counted(len(result.deploy.kept), "layer")
        count += f" of {FUSED_MODEL}" * result.deploy.fused
        plan = f"{deployed_as(result)} ({count})"
        better, _ = better_and_best(result)
        plan += f", which is no {better} than FP32" * result.fp32_wins
        return f"{plan}; target, tf32, unseen are of it"
    text = f"point {printable(point)} of the curve"
    with suppress(UsageError):
        curve_point = find_point(point, result.curve, result.culprits)
        kept = (
            f"{curve_point.kept_count} {'layer' if curve_point.kept_count == 1 else 'layers'} kept"
        )
        median, worst = figure_text(curve_point.error_median), figure_text(curve_point.error_max)
        text += f": {kept}, error {median}, worst {worst}"
        if (curve_point.error_median or 0.0) > (result.limit or math.inf):
            text += "; that is over the limit"
    return text


def needed(points: Sequence[CurvePoint], level: float) -> float | None:
    """Return about how many layers bring the worst error to a level, between measured points.

    None where no point comes down to it.
    """
    pairs = [(point.kept_count, point.error_max) for point in points]
    figures = [(count, error) for count, error in pairs if error is not None and error > 0]
    if figures and figures[0][1] <= level:
        return figures[0][0]
    for (few, before), (more, after) in pairwise(figures):
        if before > level >= after:
            if not math.isfinite(before):
                return more
            return few + (more - few) * math.log(before / level) / math.log(before / after)
    return None


def _named(culprits: Sequence[Culprit], low: str) -> str:
    first = culprits[0]
    if len(culprits) == 1:
        why = printable(": ".join(filter(None, (first.cause, first.evidence))))
        return f"One layer, {printable(first.layer)}, breaks {low}{f' ({why})' if why else ''}"
    names = first_of([printable(culprit.layer) for culprit in culprits], CULPRITS_NAMED)
    causes = list(dict.fromkeys(culprit.cause for culprit in culprits if culprit.cause))
    why = f" ({', '.join(causes)})" if causes else ""
    return f"{len(culprits)} layers break {low}{why}, {names}"


def _rest(result: Result, from_count: int, start: float | None) -> str:
    """Say how many layers the tolerance takes, and a coarser one where that is still below."""
    limit = result.limit
    if limit is None:
        return "."
    points = [
        point
        for point in result.curve
        if point.kept_count >= from_count and point.point not in ("answer", "margin")
    ]
    answer = next((point for point in result.curve if point.point == "answer"), None)
    phrases = []
    most = answer.kept_count if answer is not None else result.candidates
    # A plan that is no prefix of the ranking may need fewer layers than a looser limit along it.
    if (
        start is not None
        and COARSER * limit < start
        and (about := needed(points, COARSER * limit))
        and about <= most
    ):
        phrases.append(f"{COARSER * limit:.2g} takes about {counted(_rounded(about), 'layer')}")
    if answer is not None and answer.kept_count:
        phrases.append(f"{limit:g} {'' if phrases else 'takes '}{answer.kept_count}")
    elif about := needed(points, limit):
        phrases.append(f"{limit:g} {'' if phrases else 'takes '}about {_rounded(about)}")
    return f": {', '.join(phrases)} of {result.candidates}." if phrases else "."


def _rounded(count: float) -> int:
    """Return a count to two digits, never 0."""
    size: int = 10 ** max(0, math.floor(math.log10(max(1.0, count))) - 1)
    return max(1, round(count / size) * size)


def _listed(result: Result) -> bool:
    """Return whether the list of kept layers tells all of the culprits."""
    # A column of culprits behind the answer asks which of them do.
    if any(
        point.point == "culprits" and point.kept_count > len(result.kept) for point in result.curve
    ):
        return False
    together = result.culprits[0].error_with if result.culprits else None
    limit = result.limit
    return bool(result.kept) and None not in (together, limit) and together <= limit  # type: ignore[operator] # neither is None


def _outcome(tried: Tried | None) -> str:
    """Return what came of trying: the error, and how many layers are left."""
    if tried is None:
        return ""
    error = "" if tried.error is None else f"error {tried.error:.3g}, "
    control = "" if tried.control is None else f", without it {tried.control.outcome}"
    return f": {error}{tried.kept} kept{control}"


def _table(points: Sequence[CurvePoint], level: int) -> Iterator[Row]:
    """Yield the curve as rows: kept layers, worst error, the time where known, and the names."""
    columns = _shown(points)
    rows: list[tuple[str, list[str]]] = [
        ("kept", [str(point.kept_count) for point in columns]),
        ("worst error", [figure_text(point.error_max) or "none" for point in columns]),
    ]
    if any(point.latency_ms is not None for point in columns):
        rows.append(("ms", [figure_text(point.latency_ms) for point in columns]))
    rows.append(("", [point_name(point) for point in columns]))
    for label, cells in rows:
        yield Row(label, "".join(f"{cell:>9}" for cell in cells), level, Form.TABLE)


def point_name(point: CurvePoint) -> str:
    """Return what a point of the curve is called, "" for one between."""
    return _NAMES.get(point.point, point.point)


def _shown(points: Sequence[CurvePoint]) -> Sequence[CurvePoint]:
    """Return the points with a name, and as many of the others as there is space for, evenly."""
    named = [point for point in points if point.point]
    others = [point for point in points if not point.point]
    places = max(0, MOST_POINTS - len(named))
    step = len(others) / max(1, min(places, len(others)))
    chosen = [others[int(i * step)] for i in range(min(places, len(others)))]
    return [point for point in points if point in named or point in chosen]


def error_text(point: CurvePoint, limit: float | None) -> str:
    """Return a point's error in the median; the worst, too, where that alone is over the limit.

    So it is of checks that count, such as `top1`: most copies have the same classes.
    """
    median, worst = point.error_median, point.error_max
    text = figure_text(median)
    if None in (median, worst, limit) or not median <= limit < worst:  # type: ignore[operator] # neither is None
        return text
    return f"{text}, at worst {figure_text(worst)}"


def figure_text(value: float | None) -> str:
    """Return an error to two digits, "" for none."""
    return "" if value is None else f"{value:.2g}"
