"""The answer first: what was found, in words and figures, or how far the search is."""

from collections.abc import Iterator, Mapping
from typing import Any

from precision_bisect.errors import counted
from precision_bisect.runs.results.endings import WITHOUT_ANSWER, Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.verification import VerifiedEngine
from precision_bisect_reports.by_output import kind_of_limit
from precision_bisect_reports.curve import exported
from precision_bisect_reports.html.source import Source, best, candidates_of, figure
from precision_bisect_reports.promise import (
    deployed_rows,
    made_up,
    must_not_be_used,
    predicted,
    proof,
    unseen,
    with_tf32,
)
from precision_bisect_reports.speed import how_fast, to_deploy
from precision_bisect_reports.summary import (
    METHOD_WORDS,
    NO_ANSWER,
    NOTHING_GAINED,
    every_layer,
    headline_of,
    holds,
    must_be,
)

_BAD = (*WITHOUT_ANSWER, Status.ABORTED)
_BLANK: Mapping[str, Any] = {
    **dict.fromkeys(("limits", "latency", "speed", "honoured", "nodes", "tolerance")),
    **dict.fromkeys(("error", "error_max")),
    **dict.fromkeys(("message", "inputs", "limit_kind", "holds", "proof", "seen"), ""),
    **{"precisions": [], "remarks": []},
}
"""What there is not to say."""


def answer_section(source: Source) -> dict[str, Any]:
    """Return what stands at the top of the report."""
    result = source.result
    if result is None:
        return _so_far(source)
    status, tolerance = result.status, result.tolerance
    unfinished = status.cut_off or status is Status.STOPPED
    message = source.status.message if source.status else ""
    gained = not (result.rungs and result.gains_nothing)
    verification = source.looked_into
    answered = bool(result.rungs) and (gained or not unfinished)
    tone = "good" if status.answers and gained else "bad" if status in _BAD else "open"
    return {
        "title": _title(result, status, answered),
        "badge": headline_of(result) if gained or not answered else NOTHING_GAINED,
        "tone": tone,
        "message": "" if status.answers else message,
        "inputs": made_up(result.inputs),
        "answered": answered,
        "kept": len(result.kept),
        "candidates": result.candidates,
        "nodes": result.layers_total,
        "error": result.error if answered or not unfinished else None,
        "error_max": result.error_max,
        "tolerance": result.limit,
        "limits": tolerance if isinstance(tolerance, Mapping) else None,
        "limit_kind": kind_of_limit(result),
        "holds": _sentence(*holds(result, result.stability)) if result.stability else "",
        "proof": proof(result) if result.kept else "",
        "precisions": [[rung.precision, rung.count] for rung in result.rungs],
        "latency": result.latency_ms,
        "speed": result.speed,
        "honoured": verification.honoured if verification else result.honoured,
        "seen": _seen(verification),
        "facts": [*_facts(result), *_on_target(source)],
        "run": _run(source),
        "remarks": list(_remarks(result, message)),
    }


def _sentence(label: str, text: str) -> str:
    return f"{label.capitalize()} {text}."


def _so_far(source: Source) -> dict[str, Any]:
    """Return the best of a search that goes on; of a ladder, of its latest search."""
    recorded = source.searches[-1].recorded
    incumbent, run = best(recorded), source.status.run if source.status else None
    candidates = candidates_of(recorded)
    header = recorded.header
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


def _seen(verified: VerifiedEngine | None) -> str:
    """Return what `verify` has seen, "" where it was not asked."""
    if verified is None:
        return ""
    engine = f"; {verified.engine}" if verified.engine else ""
    return f"verify, with {verified.backend} {verified.remark}: {verified.summary}{engine}."


def _title(result: Result, status: Status, answered: bool) -> str:
    low, high = result.low.upper(), result.high.upper()
    if status is Status.NOTHING_TO_KEEP:
        return f"Every {'other ' * bool(result.asked)}layer can run {low}"
    if status in WITHOUT_ANSWER:
        return headline_of(result)
    if not answered:
        return NO_ANSWER
    if result.gains_nothing:
        return f"Every plan that passed keeps {every_layer(result)} {high}"
    of = f"of {counted(result.candidates, 'layer')}"
    if len(result.rungs) > 2:
        return f"{must_be(result)} {of}"
    return f"{result.staying}, {result.rest}"


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


def _facts(result: Result) -> Iterator[list[str]]:
    yield ["Backend", result.backend]
    if prediction := predicted(result):
        yield ["Predicted for", prediction]
    if result.builds:
        yield ["Builds", str(result.builds)]
    yield ["Evaluations", str(result.evaluations)]
    if method := result.latency_method:
        yield ["Latency by", METHOD_WORDS[method]]
    if words := to_deploy(result):
        yield ["To deploy", words]
        yield ["How fast that is", how_fast(result)]
    if words := with_tf32(result):
        yield ["With TF32", words]
    yield ["Search", f"{result.wall_s:.0f} s"]
    yield ["Strategy", str(result.fingerprint["strategy"])]
    samples, holdout = result.fingerprint["samples"], result.fingerprint["holdout"]
    inputs = result.inputs
    repeated = f", {inputs.distinct} distinct" if inputs and inputs.repeated else ""
    yield ["Samples", f"{samples}{repeated}" + (f", {holdout} held out" if holdout else "")]
    yield from _deployed(result)


def _on_target(source: Source) -> Iterator[list[str]]:
    """Yield what a target made of the answer, and of each plan."""
    if (on_target := source.judged_on_target) is None:
        return
    yield ["On the target", on_target.verdict]
    for point in on_target.points:
        yield [f"On the target, {point.point}", point.line(on_target.samples)]


def _deployed(result: Result) -> Iterator[list[str]]:
    """Yield which plan is exported, what the last check of it found, and what judges elsewhere."""
    if words := exported(result):
        yield ["Exports hold", words]
    recheck = result.deployment.recheck if result.deployment else None
    if recheck is not None and recheck.outcome != "not_judged":
        rows = deployed_rows(
            result.deployment, (diagnosis.cause for diagnosis in result.diagnosis)
        )
        yield from ([label.capitalize(), text] for label, text in rows)


def _remarks(result: Result, message: str) -> Iterator[str]:
    if sentence := must_not_be_used(result):
        yield f"{sentence}."
    if result.status is Status.FOUND and message:
        yield f"{message[:1].upper()}{message[1:]}."
    if result.rungs and (sentence := unseen(result)):
        yield f"Unseen inputs: {sentence}."
    if result.emulated and result.rungs:
        yield "Predicted by the emulator on the machine of the search; confirm on the target."
    if result.unresolved:
        counts = (f"{n} {status.replace('_', ' ')}" for status, n in result.unresolved.items())
        yield f"Trials without a verdict, which count neither way: {', '.join(counts)}."
    for broken in result.non_monotone:
        passed, failed = broken.passed, broken.failed
        yield (
            f"Keeping more hurt: {counted(failed.kept, 'kept layer')} failed ({failed.error}) "
            f"although {passed.kept} of them alone had passed ({passed.error})."
        )
    if result.asked:
        yield f"Asked for: {result.asked_for}. What is proven is of the other layers."
    if pinned := result.pinned:
        yield f"{len(pinned)} more stay high because they cannot run lower; marked in the list."
    yield from result.notes
