"""The answer first: the page of a result beside its figures, or how far the search is."""

from collections.abc import Iterator, Mapping
from typing import Any

from precision_bisect.errors import counted, printable
from precision_bisect.runs.results.verification import Verification
from precision_bisect_reports.by_output import kind_of_limit
from precision_bisect_reports.html.source import Source, best, candidates_of, figure
from precision_bisect_reports.page_model import NO_ANSWER, page_of
from precision_bisect_reports.promise import proof
from precision_bisect_reports.rows import Form
from precision_bisect_reports.speed import to_deploy

# What there is not to say.
_BLANK: Mapping[str, Any] = {
    **dict.fromkeys(("limits", "latency", "speed", "honoured", "nodes", "tolerance")),
    **dict.fromkeys(("error", "error_max")),
    **dict.fromkeys(("message", "banner", "deploy", "limit_kind", "proof", "seen"), ""),
    **{"precisions": [], "remarks": []},
}


def answer_section(source: Source) -> dict[str, Any]:
    """Return what stands at the top of the report."""
    result = source.result
    if result is None:
        return _so_far(source)
    tolerance, verification = result.tolerance, source.looked_into
    page = page_of(result)
    lead = "" if result.status.answers else printable(result.message)
    rows = sorted((row for row in page.rows if row.text != lead), key=lambda row: row.level)
    facts = [
        [row.label[:1].upper() + row.label[1:], row.text] for row in rows if row.form is Form.FACT
    ]
    return {
        "title": page.title,
        "badge": page.ending,
        "tone": page.tone,
        "message": lead,
        "banner": page.banner,
        "deploy": to_deploy(result),
        "answered": page.answered,
        "kept": len(result.kept),
        "candidates": result.candidates,
        "nodes": result.layers_total,
        "error": None if result.unanswered else result.error,
        "error_max": result.error_max,
        "tolerance": result.limit,
        "limits": tolerance if isinstance(tolerance, Mapping) else None,
        "limit_kind": kind_of_limit(result),
        "proof": proof(result) if result.kept else "",
        "precisions": [[rung.precision, rung.count] for rung in result.rungs],
        "latency": result.latency_ms,
        "speed": result.speed,
        "honoured": verification.honoured if verification else result.honoured,
        "seen": _seen(verification),
        "facts": [*facts, *_on_target(source)],
        "run": _run(source),
        "remarks": [row.text for row in rows if row.form is Form.REMARK],
    }


def _so_far(source: Source) -> dict[str, Any]:
    """Return the best of a search that goes on; of a ladder, of its latest search."""
    recorded = source.searches[-1].recorded
    incumbent, run = best(recorded), source.status.run if source.status else None
    candidates = candidates_of(recorded)
    header = recorded.header.fingerprint
    kept = len(incumbent[0]) if incumbent else None
    title = NO_ANSWER
    if incumbent:
        stay = f"{header['high'].upper()}, the rest {header['low'].upper()}"
        title = f"Best so far: {kept} of {counted(candidates, 'layer')} {stay}"
    trials = sum(len(search.recorded.trials) for search in source.searches)
    return {
        **_BLANK,
        "title": title,
        "badge": "Not finished",
        "tone": "open",
        "message": "The search had not ended when this report was made. Make it again by "
        "precision-bisect report.",
        "answered": False,
        "kept": kept,
        "candidates": candidates,
        "nodes": run.layers_total if run else None,
        "error": figure(incumbent[1]) if incumbent else None,
        "tolerance": run.tolerance if run else None,
        "run": _run(source),
        "facts": [
            ["Plans so far", str(trials)],
            ["Strategy", str(header["strategy"])],
            ["Backend", str(header["backend"])],
        ],
    }


def _seen(verified: Verification | None) -> str:
    """Return what `verify` has seen, "" where it was not asked."""
    if verified is None:
        return ""
    engine = f"; {verified.engine}" if verified.engine else ""
    return f"verify, with {verified.backend} {verified.remark}: {verified.summary}{engine}."


def _run(source: Source) -> dict[str, str]:
    """Return what was asked, of which model, and when."""
    status, result = source.status, source.result
    count = result.fingerprint.get("samples") if result else None
    parts = [
        status.run.model if status else "",
        counted(count, "sample") if count else "",
        status.started[:16].replace("T", " ") if status else "",
        f"{result.wall_s:.0f} s" if result else "",
        f"precision-bisect {status.version}" if status else "",
    ]
    command = status.command if status else None
    return {"command": command or "", "about": ", ".join(filter(None, parts))}


def _on_target(source: Source) -> Iterator[list[str]]:
    """Yield what a target made of the answer, and of each plan."""
    if (on_target := source.judged_on_target) is None:
        return
    yield ["On the target", on_target.verdict]
    for point in on_target.points:
        yield [f"On the target, {point.point}", point.line(on_target.samples)]
