"""A result as notebooks show it: a small piece of HTML, without scripts.

Layer names and messages come from an untrusted file, so every text is escaped.
"""

from collections.abc import Iterator
from html import escape

from precision_bisect.errors import counted, printable
from precision_bisect.runs.monitoring.run_watch import spent
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import RESULT
from precision_bisect_reports.by_output import kind_of_limit
from precision_bisect_reports.curve import curve_words
from precision_bisect_reports.curve_plot import curve_svg
from precision_bisect_reports.promise import certified

MOST_ADVICE = 3
"""So much advice is shown, the most helpful first; the report has all."""
MOST_LAYER_ROWS = 60
"""Most layers that are listed; the result itself has all."""


def as_html(result: Result, *, curve_alone: bool = False) -> str:
    """Return how the run ended, the error, the curve, what helps, and why each layer is kept.

    With `curve_alone` it is the curve, as SVG, "" where there is none.
    """
    curve = curve_svg(result)
    if curve_alone:
        return curve
    facts = "".join(
        f"<tr><th>{name}</th><td>{_text(said)}</td></tr>" for name, said in _facts(result)
    )
    parts = [f"<p><b>{_text(_headline(result))}</b></p>", f"<table>{facts}</table>"]
    if curve:
        parts.append(f"<p>{_text(curve_words(result))}</p>{curve}")
    for each in result.advice[:MOST_ADVICE]:
        parts.append(f"<p><b>{_text(each.title)}</b>: {_text(each.evidence)}</p>")
    if result.kept:
        head = "<tr><th>layer</th><th>type</th><th>cause</th><th>evidence</th></tr>"
        rows = "".join(
            f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"
            for cells in _layers(result)
        )
        parts.append(f"<table>{head}{rows}</table>")
    if len(result.kept) > MOST_LAYER_ROWS:
        parts.append(f"<p>… and {len(result.kept) - MOST_LAYER_ROWS} more, all in {RESULT}</p>")
    return f"<div>{''.join(parts)}</div>"


def _headline(result: Result) -> str:
    layers = counted(result.candidates, "layer")
    kept = f"{len(result.kept)} of {layers} kept above {result.low.upper()}"
    if result.gains_nothing:
        kept = f"no plan has passed that runs a layer in {result.low.upper()}"
    return f"{result.status.value.replace('_', ' ')}: {kept if result.rungs else result.message}"


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    if result.error is not None:
        limit = "1, as a multiple of the limits"
        if isinstance(result.tolerance, int | float):
            kind = kind_of_limit(result)
            limit = f"{result.tolerance:.4g}" + (kind and f" ({kind})")
        yield "error", f"{result.error:.4g}, tolerance {limit}"
    if result.kept:
        yield "certificate", certified(result.certificate)
    yield "backend", f"{result.backend}{', a prediction' if result.emulated else ''}"
    if result.inputs and result.inputs.synthetic:
        yield "inputs", "made up: real ones may reach other ranges"
    yield "effort", f"{spent(result.builds, result.evaluations)}, {result.wall_s:.0f} s"
    if result.out is not None:
        yield "run folder", str(result.out)


def _layers(result: Result) -> Iterator[tuple[str, ...]]:
    causes = {each.layer: each for each in result.diagnosis}
    types = {name: rung.precision for rung in result.rungs for name in rung.layers or ()}
    for name in result.kept[:MOST_LAYER_ROWS]:
        found = causes.get(name)
        why = ("", "") if found is None else (found.cause, found.evidence)
        yield (name, types.get(name, result.high), *why)


def _text(text: str) -> str:
    return escape(printable(text))
