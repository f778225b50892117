"""Outputs that a check judges better than a tolerance: rows that are chosen, and raw heads."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from precision_bisect.errors import PrecisionBisectError, counted
from precision_bisect.explaining.advice.case import DiagnosedModel, ModelChange
from precision_bisect.explaining.diagnosis.findings import Advice, Selection
from precision_bisect.judging.comparators.choose_comparator import ReadyMade
from precision_bisect.judging.comparators.matched_boxes import is_head, taken_apart
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.advised import CHOSEN_ROWS, Tried
from precision_bisect.settings.check_words import READY_MADE

_PIXELS = 8
"""Coordinates that are no shares of the image's size, and no probabilities, reach this."""


class _Fitting(NamedTuple):
    """The flags of a check, the outputs that it does not judge, and what it comes to."""

    flags: str
    unjudged: Sequence[str]
    tried: Tried


def chosen_rows(case: DiagnosedModel) -> Iterator[Advice]:
    """Yield how to judge what is chosen otherwise: by a check that fits and holds, if one does.

    Nothing where a check judges already.
    """
    if not isinstance(case.comparator, PolygraphyComparator):
        return
    if not case.findings.selections:
        yield from _raw_head(case)
    for each in case.findings.selections:
        behind = case.view.behind(each.layer) - {each.layer}
        found = _fitting(case, _checks(case, each), behind)
        before = f"before {each.operator}"
        judge = f"Judge {before}, or by what counts in the task"
        text, told = "or by a --check of your own", ""
        if found is not None:
            flags, unjudged, tried = found
            judge = f"Judge by {flags}, or {before}"
            text = f"or by {flags}, which allows for other rows"
            text += f" and does not judge {', '.join(unjudged)}" if unjudged else ""
            told = f"; judged by that, with {counted(tried.kept, 'layer')} kept: {tried}"
        ends = f" at {', '.join(each.reads)}" if each.reads else ""
        yield Advice(
            id=CHOSEN_ROWS,
            title=judge,
            text=f"Judge a model that ends before {each.layer}{ends}, {text}.",
            layers=[one for one in case.by_name if each.layer in case.view.behind(one)],
            evidence=f"{each.words}{told}",
            tried=found.tried if found else None,
        )


def _raw_head(case: DiagnosedModel) -> Iterator[Advice]:
    """Yield how to judge a detector by what it detects, if all its boxes are in one output."""
    if not is_head(list(case.reference)) or not all(map(_in_pixels, case.reference)):
        return
    found = _fitting(case, [("boxes", case.view.outputs)], ())
    if found is not None:
        (name,) = case.view.outputs
        yield Advice(
            id=CHOSEN_ROWS,
            title=f"Judge by {found.flags}, if {name} has the boxes of a detector",
            text="A tolerance judges boxes of no score, which nothing detects, as the others.",
            layers=list(case.by_name),
            evidence=f"{name} {list(case.reference[0][name].shape)} looks like a raw head; judged "
            f"by that, with {counted(found.tried.kept, 'layer')} kept: {found.tried}",
            tried=found.tried,
        )


def _in_pixels(sample: Sample) -> bool:
    """Tell whether the boxes of a raw head have a size, and lie beyond the first pixels."""
    (head,) = sample.values()
    corners = taken_apart(head).corners
    return bool((corners[..., 2:] >= corners[..., :2]).all() and corners.max() > _PIXELS)


def _fitting(
    case: DiagnosedModel,
    checks: Iterable[tuple[str, Sequence[str]]],
    behind: Collection[str],
) -> _Fitting | None:
    """Return the first check that fits the outputs and holds; None where there is none.

    It judges every layer low, or else all but those `behind` a choice.
    """
    for name, outputs in checks:
        judge = ReadyMade(name=name, outputs=outputs, tolerance=READY_MADE[name].tol)
        words = shlex.quote(f"{name}:{','.join(outputs)}")
        flags = f"--check {words} --tol {judge.tolerance:g}"
        try:
            try_out(judge, case.reference, flags)
        except PrecisionBisectError:
            continue
        for kept in ((), behind):
            tried = case.tried(kept, ModelChange(comparator=judge))
            if tried is not None and tried.holds:
                left = [name for name in case.view.outputs if name not in outputs]
                return _Fitting(flags, left, tried)
    return None


def _checks(case: DiagnosedModel, chosen: Selection) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield checks that may fit, each with outputs to judge: those of all before the chosen ones.

    Only whole numbers are classes: the largest of a row of features says nothing of them.
    """
    yield from (("boxes", each) for each in (case.view.outputs, chosen.outputs))
    if all(case.reference[0][name].dtype.kind in "iu" for name in chosen.outputs):
        yield "top1", chosen.outputs
