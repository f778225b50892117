"""Rows of outputs that an operator chooses: what judges them in place of a tolerance."""

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from precision_bisect.errors import PrecisionBisectError, counted
from precision_bisect.explaining.advice.case import DiagnosedModel, ModelChange
from precision_bisect.explaining.diagnosis.findings import Advice, Selection
from precision_bisect.judging.comparators.choose_comparator import ReadyMade
from precision_bisect.judging.comparators.polygraphy import PolygraphyComparator
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.runs.results.advised import CHOSEN_ROWS, Tried
from precision_bisect.settings.check_words import READY_MADE


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
    for each in case.findings.selections:
        found = _fitting(case, each)
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
            layers=[one for one in case.by_name if each.layer in case.wiring.behind(one)],
            evidence=f"{each.words}{told}",
            tried=found.tried if found else None,
        )


def _fitting(case: DiagnosedModel, chosen: Selection) -> _Fitting | None:
    """Return the first check that fits the outputs and holds; None where there is none.

    It judges every layer low, or else those low that lead to the choice.
    """
    behind = case.wiring.behind(chosen.layer) - {chosen.layer}
    for name, outputs in _checks(case, chosen):
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
                left = [name for name in case.wiring.outputs if name not in outputs]
                return _Fitting(flags, left, tried)
    return None


def _checks(case: DiagnosedModel, chosen: Selection) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield checks that may fit, each with outputs to judge: those of all before the chosen ones.

    Only whole numbers are classes: the largest of a row of features says nothing of them.
    """
    yield from (("boxes", each) for each in (case.wiring.outputs, chosen.outputs))
    if all(case.reference[0][name].dtype.kind in "iu" for name in chosen.outputs):
        yield "top1", chosen.outputs
