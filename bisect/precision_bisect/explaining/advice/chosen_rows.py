"""Rows of outputs that an operator chooses: what judges them in place of a tolerance."""

import shlex
from collections.abc import Iterator

from precision_bisect.errors import PrecisionBisectError, counted
from precision_bisect.explaining.advice.case import DiagnosedModel, ModelChange
from precision_bisect.explaining.diagnosis.findings import Advice, Selection
from precision_bisect.judging.comparators.choose_comparator import ReadyMade
from precision_bisect.judging.comparators.polygraphy import PolygraphyComparator
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.runs.results.advised import CHOSEN_ROWS, Tried
from precision_bisect.settings.check_words import READY_MADE

_FITTING = ("boxes", "top1")
"""The checks that may fit chosen rows, the first one first."""


def chosen_rows(case: DiagnosedModel) -> Iterator[Advice]:
    """Yield how to judge what is chosen otherwise, with what a check that fits comes to.

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
            flags, tried = found
            judge = f"Judge by {flags}, or {before}" if tried.holds else judge
            text = f"or by {flags}, which allows for other rows"
            told = f"; judged by that, with {counted(tried.kept, 'layer')} kept: {tried}"
        ends = f" at {' and '.join(each.reads)}" if each.reads else ""
        yield Advice(
            id=CHOSEN_ROWS,
            title=judge,
            text=f"Judge a model that ends before {each.layer}{ends}, {text}.",
            layers=[one for one in case.by_name if each.layer in case.wiring.behind(one)],
            evidence=f"{each.words}{told}",
            tried=found[1] if found else None,
        )


def _fitting(case: DiagnosedModel, found: Selection) -> tuple[str, Tried] | None:
    """Return the flags of the first check that fits the outputs, and what it comes to.

    It judges every layer low, or else those low that lead to the choice.
    """
    outputs = found.outputs
    behind = case.wiring.behind(found.layer) - {found.layer}
    for name in _FITTING:
        judge = ReadyMade(name=name, outputs=outputs, tolerance=READY_MADE[name].tol)
        words = shlex.quote(f"{name}:{','.join(outputs)}")
        flags = f"--check {words} --tol {judge.tolerance:g}"
        try:
            try_out(judge, case.reference, flags)
        except PrecisionBisectError:
            continue
        change = ModelChange(comparator=judge)
        plans = (case.tried(kept, change) for kept in ((), behind))
        tried = [each for each in plans if each is not None]
        if tried:
            return flags, next((each for each in tried if each.holds), tried[0])
    return None
