"""A diagnosis for people, from what `diagnosis.json` says."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from precision_bisect.errors import printable

_WIDTH = 80
_MOST_SPREAD = 5
_MOST_NAMED = 4
_TOLD_GROWTH = 2.0
"""So many times an error must grow in one node for it to be named."""


def as_text(found: Mapping[str, Any]) -> str:
    """Return the text: layers with their causes, where NaN and Inf are born, advice.

    `found` is what `Findings.to_json` gives. Names are printed as text, whatever is in them.
    """
    lines = [f"Layers explained: {len(found['layers'])}, low type {printable(found['low'])}", ""]
    for each in found["layers"]:
        lines += _layer(each, found["low"])
    if found["spread"]:
        lines += ["With every layer low, NaN or Inf is born in", *_spread(found["spread"]), ""]
    if found["advice"]:
        lines += ["Advice", ""]
        for each in found["advice"]:
            lines += _advice(each)
    else:
        lines += ["No advice: nothing is known that would help."]
    return "\n".join(lines).rstrip() + "\n"


def _layer(found: Mapping[str, Any], whole: str) -> Iterator[str]:
    figures = found["figures"]
    yield printable(found["layer"])
    types = f" ({found['low']})" if found.get("low", whole) != whole else ""
    yield from _wrapped(f"{found['cause']}{types}: {found['evidence']}", 2)
    if figures.get("alone_error") is not None:
        yield f"  alone low: error {_number(figures['alone_error'])}"
    if figures.get("tensor") and figures.get("sample") is not None:
        place = ", ".join(str(i) for i in figures["index"])
        yield from _wrapped(
            f"largest magnitude {_number(figures['largest'])} in sample {figures['sample']} at "
            f"[{place}] of {figures['tensor']}",
            2,
        )
    if hurts := found.get("hurts"):
        yield from _wrapped(
            f"hurts output {hurts['output']}, by {_number(hurts['error'])} of its largest value, "
            f"{len(hurts['path']) - 1} nodes on",
            2,
        )
        yield from _wrapped(_growth(hurts), 2)
    if found["advice"]:
        yield from _wrapped(f"advice: {', '.join(found['advice'])}", 2)
    yield ""


def _growth(hurts: Mapping[str, Any]) -> str:
    """Return how the error grew on its way: where it began, its largest step, and its end."""
    way = [
        (name, float(error))
        for name, error in zip(hurts["path"], hurts.get("errors", ()), strict=False)
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


def _spread(spread: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in spread[:_MOST_SPREAD]:
        end = (
            f"reaches output {each['output']}" if each["output"] else f"ends at {each['path'][-1]}"
        )
        yield from _wrapped(f"{each['layer']}: {each['born']}, {end}", 2)
    if len(spread) > _MOST_SPREAD:
        yield f"  and {len(spread) - _MOST_SPREAD} more"


def _advice(each: Mapping[str, Any]) -> Iterator[str]:
    yield printable(f"{each['id']}: {each['title']}")
    yield from _wrapped(each["text"], 2)
    yield from _wrapped(f"Why: {each['evidence']}.", 2)
    named = ", ".join(each["layers"][:_MOST_NAMED])
    more = len(each["layers"]) - _MOST_NAMED
    if named:
        yield from _wrapped(f"For: {named}{f' and {more} more' if more > 0 else ''}", 2)
    yield ""


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


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
