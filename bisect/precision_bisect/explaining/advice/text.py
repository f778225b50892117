"""A diagnosis for people, from what `diagnosis.json` says."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from precision_bisect.errors import counted, first_of, printable
from precision_bisect.explaining.diagnosis.findings import Advice, Birth, Finding, Findings, Hurt

_WIDTH = 80
_MOST_SPREAD = 5
_MOST_NAMED = 4
_MOST_LAYERS = 5
_TOLD_GROWTH = 2.0
"""So many times an error must grow in one node for it to be named."""


def advice_text(found: Findings, *, verbose: bool = False) -> str:
    """Return the text: the verdict, advice, layers with their causes, where NaN and Inf are born.

    Names are printed as text, whatever is in them. All layers, and what is known of each, are
    listed only where it is `verbose`.
    """
    lines = [*_verdict(found), ""]
    for advice in found.advice:
        lines += _advice(advice, verbose=verbose)
    # Kept ones before near misses.
    first = sorted(found.layers, key=lambda each: not each.kept)[:_MOST_LAYERS]
    layers = found.layers if verbose else first
    for each in layers:
        lines += _layer(each, found.low, verbose=verbose)
    lines += [""] * (bool(layers) and not verbose)
    if found.stopped:
        low = printable(found.low).upper()
        lines += [*_wrapped(f"With every layer {low} the model does not run: {found.stopped}", 0)]
        lines.append("")
    if found.spread and not verbose:
        count = len(found.spread)
        lines += [f"With every layer low, NaN or Inf is born in {counted(count, 'layer')}.", ""]
    elif found.spread:
        lines += ["With every layer low, NaN or Inf is born in", *_spread(found.spread), ""]
    if not verbose and found.layers:
        more = len(found.layers) - len(layers)
        rest = f"{counted(more, 'more layer')}, " if more else ""
        lines.append(f"-v shows {rest}where values are largest, and how errors grow.")
    return "\n".join(lines).rstrip() + "\n"


def _verdict(found: Findings) -> Iterator[str]:
    """Yield what the layers suffer from, and the first thing that was tried and passes."""
    if not found.layers and not found.advice:
        yield from _wrapped(_nothing(found), 0)
        return
    if found.layers:
        yield _causes(found)
    helping = [each for each in found.advice if each.holds]
    if helping:
        yield from _wrapped(f"What helps: {helping[0].title}", 0)
    elif not found.advice:
        yield "Nothing is known that would help"


def _nothing(found: Findings) -> str:
    """Say why no layer is told: none is kept, none can be, or the run ended before."""
    if not found.answered:
        return "Nothing to explain: the run has no answer"
    if not found.unexplained:
        return "Nothing to explain: no layer is kept"
    kept = counted(found.unexplained, "kept layer")
    return (
        f"Not explained: the run ended before it looked into its {kept}. "
        "--resume goes on with it; `precision-bisect explain` explains the model without a run"
    )


def _causes(found: Findings) -> str:
    """Return how many layers are told, and how many suffer from what."""
    kept = [each for each in found.layers if each.kept]
    told = kept or found.layers
    causes = Counter(each.cause for each in told)
    why = ", ".join(f"{count} {printable(cause)}" for cause, count in causes.items())
    low = printable(found.low).upper()
    near = len(found.layers) - len(told)
    more = f"; {near} more come{'s' * (near == 1)} close" if near else ""
    count = counted(len(told), "layer")
    kept_from = f" kept from {low}" if kept else ""
    return f"{count}{kept_from}{': ' * bool(why)}{why}{more}"


def _layer(found: Finding, whole: str, *, verbose: bool) -> Iterator[str]:
    figures = found.figures
    yield printable(found.layer)
    types = f" ({found.low})" if found.low != whole else ""
    drop, alone = (_number(figures.get(key)) for key in ("drop_error", "alone_error"))
    without = f"; without it: error {drop}" if drop else ""
    yield from _wrapped(f"{found.cause}{types}: {found.evidence}{without}", 2)
    # A near miss has the figure in its evidence.
    if alone and found.kept:
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
    if hurts := found.hurts:
        yield from _wrapped(
            f"hurts output {hurts.output}, by {_number(hurts.error)} of its largest value, "
            f"{counted(len(hurts.path) - 1, 'node')} on",
            2,
        )
        yield from _wrapped(_growth(hurts), 2)
    if found.advice:
        yield from _wrapped(f"advice: {', '.join(found.advice)}", 2)
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
    for each in spread[:_MOST_SPREAD]:
        end = f"reaches output {each.output}" if each.output else f"ends at {each.path[-1]}"
        yield from _wrapped(f"{each.layer}: {each.born}, {end}", 2)
    if len(spread) > _MOST_SPREAD:
        yield f"  and {len(spread) - _MOST_SPREAD} more"


def _advice(each: Advice, *, verbose: bool) -> Iterator[str]:
    title = f"{each.title} ({each.id})" if verbose else each.title
    if each.tried is not None and not each.holds:
        yield printable(f"Tried, and does not hold: {title}")
    else:
        yield printable(title)
        yield from _wrapped(each.text, 2)
    yield from _wrapped(f"Why: {each.evidence}.", 2)
    if each.layers and verbose:
        yield from _wrapped(f"For: {first_of(each.layers, _MOST_NAMED)}", 2)
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
