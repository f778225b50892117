"""How to judge what a model chooses: rows of TopK or NonMaxSuppression, boxes of a raw head."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from precision_bisect.errors import PrecisionBisectError, counted
from precision_bisect.explaining.advice.diagnosed_model import (
    Advising,
    DiagnosedModel,
    Editor,
    ModelChange,
)
from precision_bisect.explaining.diagnosis.findings import Advice
from precision_bisect.judging.comparators.choose_comparator import ReadyMade
from precision_bisect.judging.comparators.matched_boxes import is_head, taken_apart
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator
from precision_bisect.judging.comparators.task_heads import image_sizes
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.protocols import Sample, Search
from precision_bisect.runs.results.advised import CHOSEN_ROWS, Tried
from precision_bisect.runs.results.causes import Cause
from precision_bisect.settings.check_words import READY_MADE

# Coordinates that are no shares of the image's size, and no probabilities, reach this.
_PIXELS = 8


class _Fitting(NamedTuple):
    """The flags of a check, the outputs that it does not judge, and what it comes to."""

    flags: str
    unjudged: Sequence[str]
    tried: Tried


def chosen_rows(net: DiagnosedModel) -> Advising:
    """Yield how to judge what is chosen otherwise: by a check, or before it is chosen.

    Only what was tried and helps is named. Nothing where a check judges already.
    """
    if not isinstance(net.case.comparator, PolygraphyComparator):
        return
    chosen = net.findings.selections
    if not chosen:
        yield from _raw_head(net)
    cut = (yield from _cut(net, net.case.comparator)) if chosen else None
    for selection in chosen:
        behind = net.view.behind(selection.layer) - {selection.layer}
        checks = checks_of(net.view.outputs, net.case.reference[0], selection.outputs)
        fitting = yield from _fitting(net, checks, behind)
        before, at = f"before {selection.operator}", ", ".join(selection.reads)
        judge, text, evidence = [], [], [selection.words]
        if fitting is not None:
            flags, unjudged, tried = fitting
            judge.append(f"by {flags}")
            text.append(f"Judge by {flags}, which allows for other rows")
            text[0] += f" and does not judge {', '.join(unjudged)}" if unjudged else ""
            evidence.append(f"judged by that, with {counted(tried.kept, 'layer')} kept: {tried}")
        if cut is not None:
            judge.append(before)
            text.append(
                f"{'or' if fitting else 'Judge'} a model that ends before {selection.layer} "
                f"at {at}"
            )
            evidence.append(f"judged {before}, with {counted(cut.kept, 'layer')} kept: {cut}")
        if judge:
            yield Advice(
                id=CHOSEN_ROWS,
                title=f"Judge {', or '.join(judge)}",
                text=f"{', '.join(text)}.",
                layers=[one for one in net.by_name if selection.layer in net.view.behind(one)],
                evidence="; ".join(evidence),
                tried=fitting.tried if fitting else cut,
            )


def _cut(net: DiagnosedModel, judge: PolygraphyComparator) -> Search[Tried | None]:
    """Return what a model comes to that ends at what choices read; None where it does not help.

    The tensors that it ends at are judged by the limits that have no output of their own.
    """
    gone = {name for selection in net.findings.selections for name in selection.outputs}
    outputs = [name for name in net.view.outputs if name not in gone]
    reads = dict.fromkeys(
        name for selection in net.findings.selections for name in selection.reads
    )
    fresh = [name for name in reads if name not in outputs]
    # A tolerance lets indices pass that are off by rows.
    counting = any(
        finding.cause is Cause.INDICES for finding in net.findings.layers if finding.kept
    )
    if counting or not all(selection.reads for selection in net.findings.selections):
        return None
    editor = Editor(net.case.model.proto)
    editor.end_at(outputs, fresh)
    try:
        model = net.loaded(editor.edited(), "before")
        judge = judge.of_outputs([*outputs, *fresh])
    except PrecisionBisectError:
        return None
    change = ModelChange(what="before-choice", model=model, own_reference=True, comparator=judge)
    behind = {n for selection in net.findings.selections for n in net.view.behind(selection.layer)}
    # What comes after a choice is not judged then, so what it needs stays kept.
    after = net.kept & behind
    for kept in (after, net.kept):
        tried = yield from net.tried(kept, change)
        if tried is not None and tried.helps:
            return tried
    return None


def _raw_head(net: DiagnosedModel) -> Advising:
    """Yield how to judge a detector by what it detects, if all its boxes are in one output."""
    reference = net.case.reference
    if not is_head(list(reference)) or not all(map(_in_pixels, reference)):
        return
    fitting = yield from _fitting(net, [("boxes", net.view.outputs)], ())
    if fitting is not None:
        (name,) = net.view.outputs
        yield Advice(
            id=CHOSEN_ROWS,
            title=f"Judge by {fitting.flags}, if {name} has the boxes of a detector",
            text="A tolerance judges boxes of no score, which nothing detects, as the others.",
            layers=list(net.by_name),
            evidence=f"{name} {list(reference[0][name].shape)} looks like a raw head; judged "
            f"by that, with {counted(fitting.tried.kept, 'layer')} kept: {fitting.tried}",
            tried=fitting.tried,
        )


def _in_pixels(sample: Sample) -> bool:
    """Tell whether the boxes of a raw head have a size, and lie beyond the first pixels."""
    (head,) = sample.values()
    corners = taken_apart(head).corners
    return bool((corners[..., 2:] >= corners[..., :2]).all() and corners.max() > _PIXELS)


def _fitting(
    net: DiagnosedModel, checks: Iterable[tuple[str, Sequence[str]]], behind: Collection[str]
) -> Search[_Fitting | None]:
    """Return the first check that fits the outputs and helps; None where there is none.

    It judges every layer low, or else all but those `behind` a choice.
    """
    for name, outputs in checks:
        check = ReadyMade(name=name, outputs=outputs, tolerance=READY_MADE[name].tol)
        words = shlex.quote(f"{name}:{','.join(outputs)}")
        flags = f"--check {words} --tol {check.tolerance:g}"
        try:
            judge = check.fitted(net.case.reference, image_sizes(net.case.model, net.case.samples))
            try_out(judge, net.case.reference, flags)
        except PrecisionBisectError:
            continue
        for kept in ((), behind):
            tried = yield from net.tried(kept, ModelChange(what=name, comparator=judge))
            if tried is not None and tried.helps:
                unjudged = [name for name in net.view.outputs if name not in outputs]
                return _Fitting(flags, unjudged, tried)
    return None


def checks_of(
    outputs: Sequence[str], reference: Sample, chosen: Sequence[str]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield checks that may fit, each with outputs to judge: all of them before the chosen ones.

    Only whole numbers are classes: the largest of a row of features says nothing of them.
    `reference` has the outputs of a sample, by name.
    """
    yield from (("boxes", judged) for judged in (outputs, chosen))
    if all(reference[name].dtype.kind in "iu" for name in chosen):
        yield "top1", chosen
