"""A diagnosis for people, from what `diagnosis.json` says."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from precision_bisect.errors import counted, first_of, printable
from precision_bisect.explaining.diagnosis.findings import Advice, Birth, Finding, Findings, Hurt
from precision_bisect.layer_table import with_module

_WIDTH = 80
_MOST_SPREAD = 5
_MOST_NAMED = 4
_MOST_LAYERS = 5
# So many times an error must grow in one node for it to be named.
_TOLD_GROWTH = 2.0


def advice_text(findings: Findings, *, verbose: bool = False) -> str:
    """Return the text: the verdict, advice, layers with their causes, where NaN and Inf are born.

    Names are printed as text, whatever is in them. All layers, and what is known of each, are
    listed only where it is `verbose`.
    """
    lines = [*_verdict(findings), ""]
    for advice in findings.advice:
        lines += _advice(advice, verbose=verbose)
    # Kept ones before borderline ones.
    first = sorted(findings.layers, key=lambda finding: not finding.kept)[:_MOST_LAYERS]
    layers = findings.layers if verbose else first
    for finding in layers:
        lines += _layer(finding, findings.low, verbose=verbose)
    lines += [""] * (bool(layers) and not verbose)
    if findings.stopped:
        low = printable(findings.low).upper()
        lines += [
            *_wrapped(f"With every layer {low} the model does not run: {findings.stopped}", 0)
        ]
        lines.append("")
    if findings.spread and not verbose:
        count = len(findings.spread)
        lines += [f"With every layer low, NaN or Inf is born in {counted(count, 'layer')}.", ""]
    elif findings.spread:
        lines += ["With every layer low, NaN or Inf is born in", *_spread(findings.spread), ""]
    if not verbose and findings.layers:
        more = len(findings.layers) - len(layers)
        rest = f"{counted(more, 'more layer')}, " if more else ""
        lines.append(f"-v shows {rest}where values are largest, and how errors grow.")
    return "\n".join(lines).rstrip() + "\n"


def _verdict(findings: Findings) -> Iterator[str]:
    """Yield what the layers suffer from, and the first thing that was tried and passes."""
    if not findings.layers and not findings.advice:
        yield from _wrapped(_nothing(findings), 0)
        return
    if findings.layers:
        yield _causes(findings)
    helping = [advice for advice in findings.advice if advice.holds]
    if helping:
        yield from _wrapped(f"What helps: {helping[0].title}", 0)
    elif not findings.advice:
        yield "Nothing is known that would help"


def _nothing(findings: Findings) -> str:
    """Say why no layer is told: none is kept, none can be, or the run ended before."""
    if not findings.answered:
        return "Nothing to explain: the run has no answer"
    if not findings.unexplained:
        return "Nothing to explain: no layer is kept"
    kept = counted(findings.unexplained, "kept layer")
    return (
        f"Not explained: the run ended before it looked into its {kept}. "
        "--resume goes on with it; `precision-bisect explain` explains the model without a run"
    )


def _causes(findings: Findings) -> str:
    """Return how many layers are told, and how many suffer from what."""
    kept = [finding for finding in findings.layers if finding.kept]
    layers = kept or findings.layers
    causes = Counter(finding.cause for finding in layers)
    why = ", ".join(f"{count} {cause}" for cause, count in causes.items())
    low = printable(findings.low).upper()
    near = len(findings.layers) - len(layers)
    more = f"; {near} more come{'s' * (near == 1)} close" if near else ""
    count = counted(len(layers), "layer")
    kept_from = f" kept from {low}" if kept else ""
    return f"{count}{kept_from}{': ' * bool(why)}{why}{more}"


def _layer(finding: Finding, whole: str, *, verbose: bool) -> Iterator[str]:
    figures = finding.figures
    yield printable(with_module(finding.layer, finding.module))
    types = f" ({finding.low})" if finding.low != whole else ""
    drop, alone = (_number(figures.get(key)) for key in ("drop_error", "alone_error"))
    without = f"; without it: error {drop}" if drop else ""
    yield from _wrapped(f"{finding.cause}{types}: {finding.evidence}{without}", 2)
    # A borderline layer has the figure in its evidence.
    if alone and finding.kept:
        yield f"  alone low: error {alone}"
    if not verbose:
        return
    index = figures.get("index")
    if figures.get("tensor") and isinstance(index, list):
        place = ", ".join(map(str, index))
        yield from _wrapped(
            f"largest magnitude {_number(figures.get('largest'))} in sample "
            f"{figures.get('sample')} at [{place}] of {figures['tensor']}",
            2,
        )
    if hurts := finding.hurts:
        yield from _wrapped(
            f"hurts output {hurts.output}, by {_number(hurts.error)} of its largest value, "
            f"{counted(len(hurts.path) - 1, 'node')} on",
            2,
        )
        yield from _wrapped(_growth(hurts), 2)
    if finding.advice:
        yield from _wrapped(f"advice: {', '.join(finding.advice)}", 2)
    yield ""


def _growth(hurts: Hurt) -> str:
    """Return how the error grew on its way: where it began, its largest step, and its end."""
    way = [
        (name, float(error))
        for name, error in zip(hurts.path, hurts.errors, strict=False)
        if error is not None
    ]
    if len(way) < 2:
        return ""
    # No ratio can be told of a step that begins at 0, or that comes from infinity.
    steps = [
        (after / before, to, before, after)
        for (_, before), (to, after) in pairwise(way)
        if 0 < before < inf
    ]
    text = f"its error on the way: {_number(way[0][1])}, at the end {_number(way[-1][1])}"
    largest = max(steps, key=lambda step: step[0], default=None)
    if largest is None or not largest[0] > _TOLD_GROWTH:
        return text
    _, to, before, after = largest
    return f"{text}; it grows most at {to}, from {_number(before)} to {_number(after)}"


def _spread(spread: Sequence[Birth]) -> Iterator[str]:
    for birth in spread[:_MOST_SPREAD]:
        end = f"reaches output {birth.output}" if birth.output else f"ends at {birth.path[-1]}"
        yield from _wrapped(f"{birth.layer}: {birth.born}, {end}", 2)
    if len(spread) > _MOST_SPREAD:
        yield f"  and {len(spread) - _MOST_SPREAD} more"


def _advice(advice: Advice, *, verbose: bool) -> Iterator[str]:
    title = f"{advice.title} ({advice.id})" if verbose else advice.title
    if advice.tried is not None and not advice.holds:
        yield printable(f"Tried, and does not hold: {title}")
    else:
        yield printable(title)
        yield from _wrapped(advice.text, 2)
    yield from _wrapped(f"Why: {advice.evidence}.", 2)
    if advice.layers and verbose:
        yield from _wrapped(f"For: {first_of(advice.layers, _MOST_NAMED)}", 2)
    yield ""


def _number(value: Any) -> str:
    """Return a figure with three digits, "" for what is none."""
    if isinstance(value, int | float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else ""


def _wrapped(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=margin,
        subsequent_indent=margin + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
