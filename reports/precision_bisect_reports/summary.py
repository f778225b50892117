"""The final screen: the answer, the layers by what they are, and the next step to take.

Layer names come from an untrusted file, so they are shown as literal text, never as markup or
control characters, and commands that contain paths are quoted for the shell.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from precision_bisect.errors import counted, first_of, printable
from precision_bisect.runs.monitoring.run_watch import spent
from precision_bisect.runs.results.endings import WITHOUT_ANSWER, Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import RESULT
from precision_bisect.trial import Honour, LatencyMethod, Stability
from precision_bisect_reports.by_output import by_output, kind_of_limit
from precision_bisect_reports.culprit_groups import by_cause, groups_of
from precision_bisect_reports.curve import curve, exported
from precision_bisect_reports.next_steps import (
    ALWAYS,
    DETAIL,
    EVIDENCE,
    MORE,
    NextStep,
    folded,
    next_steps,
    step,
)
from precision_bisect_reports.promise import (
    deployed_rows,
    foreign_to,
    in_range,
    judging_steps,
    made_up,
    must_not_be_used,
    predicted,
    proof,
    unseen,
    with_tf32,
)
from precision_bisect_reports.speed import cost, no_faster, speed, to_deploy

WIDTH = 80
MOST_LINES = 25
_SPACED = 4
_LAYOUTS = (
    *((4, 3, _SPACED), (4, 3, DETAIL), (2, 3, DETAIL)),
    *((2, 3, MORE), (1, 3, MORE), (1, 0, MORE), (1, 3, EVIDENCE)),
    *((0, 1, MORE), (0, 3, EVIDENCE), (0, 0, EVIDENCE), (0, 3, ALWAYS), (0, 0, ALWAYS)),
)
"""How many patterns of layers are explained, how many more are named, and which parts the screen
has, until all of it fits."""
MOST_PINNED = 3

METHOD_WORDS: Mapping[LatencyMethod, str] = {
    "host_clock": "the host's clock",
    "cuda_events": "CUDA events",
}


class _Headline(NamedTuple):
    """How a run ended, in a few words, what there is all the same, and the colour."""

    what: str
    colour: str
    more: str = ""


_HEADLINES = {
    Status.FOUND: _Headline("Found", "green"),
    Status.NOTHING_TO_KEEP: _Headline("Nothing to keep", "green"),
    Status.NO_BASELINE: _Headline("No FP32 baseline", "red"),
    Status.NOT_PRECISION: _Headline("Not a precision problem", "red"),
    Status.INFEASIBLE: _Headline("No plan satisfies the limits", "red"),
    Status.BUDGET_EXHAUSTED: _Headline("Budget spent", "yellow", "; best so far"),
    Status.INTERRUPTED: _Headline("Interrupted", "yellow", "; best so far"),
    Status.ABORTED: _Headline("Aborted", "red", "; best so far"),
    Status.STOPPED: _Headline("Culprits only", "yellow", "; not within the tolerance"),
}
INTERFACE_ALONE = "The interface alone is over the limit"
NO_ANSWER = "No answer yet"
NOTHING_GAINED = "Nothing gained"


def final_screen(
    result: Result,
    model: Path,
    width: int = WIDTH,
    command: Sequence[str] = (),
    most: float = MOST_LINES,
) -> Iterator[Text]:
    """Yield the lines of the final screen, at most `most` of at most `width` columns.

    `command` has the words of the command line that began the run, where it is known.

    What does not fit is left to the report, the least important first: warnings always fit in.
    Only words of commands may be longer than a line.
    """
    lines: list[Text] = []
    steps = list(next_steps(result, model, command))
    for *patterns, level in _LAYOUTS:
        lines = list(_screen(result, steps, width, patterns, level))
        if len(lines) <= most:
            break
    yield from lines


def _screen(
    result: Result, steps: Sequence[NextStep], width: int, patterns: Sequence[int], level: int
) -> Iterator[Text]:
    """Yield the lines of a screen: so many patterns of layers, and what is due at this level."""
    yield Text("")
    if refuted := must_not_be_used(result):
        yield from folded(Text(refuted, style="bold red"), width, 2)
    yield from folded(_headline(result), width, 2)
    if slow := no_faster(result):
        yield from folded(Text(f"  {slow}", style="bold yellow"), width, 4)
    if result.kept and not _without_plan(result):
        yield from _layers(result, width, patterns)
        if level >= _SPACED:
            yield Text("")
    for label, text, needed in _facts(result):
        if needed <= level:
            yield from folded(Text.assemble((f"  {label:<12}", "dim"), text), width, 14)
    yield Text("")
    for next_step in steps:
        if next_step.level <= level:
            yield from step(next_step.what, next_step.commands, width)


def every_layer(result: Result) -> str:
    """Name all candidates."""
    return "the one layer" if result.candidates == 1 else f"all {result.candidates} layers"


def headline_of(result: Result) -> str:
    """Return how a run ended; an interface that costs too much is said to."""
    if result.status is Status.NOT_PRECISION and result.interface is not None:
        return INTERFACE_ALONE
    return _HEADLINES[result.status].what


def _headline(result: Result) -> Text:
    heading = _HEADLINES[result.status]
    style = f"bold {heading.colour}"
    more = "; a near miss" if result.near_miss else heading.more
    headline = Text(f"{headline_of(result)}{more}", style=style)
    if result.status in WITHOUT_ANSWER:
        why = f": {printable(result.message)}" if result.message else ""
        return headline.append(why, style="default not bold")
    if _without_plan(result):
        why = printable(result.message) or nothing_low(result.low)
        return Text(NO_ANSWER, style=style).append(f": {why}", style="default not bold")
    if result.gains_nothing:
        kept = f": every plan that passed keeps {every_layer(result)}"
        return Text(NOTHING_GAINED, style="bold yellow").append(
            f"{kept} {result.high.upper()}", style="default not bold"
        )
    if len(result.rungs) > 2:
        return headline.append(f": {_by_rung(result)}", style="default not bold")
    text = f": {result.staying}, {result.rest}"
    if result.gains_little and result.low_share is None:
        text = f": {result.staying}, few run in {result.low.upper()}"
    return headline.append(text, style="default not bold")


def _by_rung(result: Result) -> str:
    """Return how many layers a ladder has in each type."""
    lowest = result.rungs[-1]
    counts = f"{lowest.count} run {lowest.precision.upper()}"
    return f"of {counted(result.candidates, 'layer')} {must_be(result)}, {counts}"


def must_be(result: Result) -> str:
    """Return how many layers a ladder keeps in each type but the lowest."""
    kept = ((rung.layers, rung.precision.upper()) for rung in result.rungs)
    return ", ".join(f"{len(some)} must be {kind}" for some, kind in kept if some is not None)


def _without_plan(result: Result) -> bool:
    """Return whether a run was cut off before any plan passed that runs a layer low.

    The empty plan is minimal.
    """
    if result.status is Status.STOPPED:
        return not result.rungs
    nothing = not result.kept and not result.certificate.minimal
    return result.status.cut_off and (nothing or result.gains_nothing)


def nothing_low(low: str) -> str:
    """Say that only the plan that keeps everything has passed."""
    return f"no plan has passed yet that runs a layer in {low.upper()}"


def _layers(result: Result, width: int, patterns: Sequence[int]) -> Iterator[Text]:
    """Yield the kept layers by their patterns, for each type of a ladder."""
    several = len(result.rungs) > 2
    for rung in result.rungs[:-1] if several else ():
        if rung.layers:
            yield Text(f"  must be {rung.precision.upper()}", style="bold")
            yield from _patterns(result, rung.layers, width, patterns)
    if not several:
        yield from _patterns(result, result.kept, width, patterns)


def _patterns(
    result: Result, layers: Sequence[str], width: int, patterns: Sequence[int]
) -> Iterator[Text]:
    groups = groups_of(result, layers)
    explained, named = patterns[0], sum(patterns)
    for group in groups[:explained]:
        yield from folded(Text(f"  {group.title}", style="bold"), width, 4)
        for text in filter(None, (group.why, group.where)):
            yield from folded(Text(f"    {text}"), width, 4)
    for group in groups[explained:named]:
        title = Text.assemble((f"  {group.title}", "bold"), _counted(result, group.layers))
        yield from folded(title, width, 4)
    rest = [name for group in groups[named:] for name in group.layers]
    if rest:
        count = counted(len(rest), "more layer" if named else "layer")
        count += _counted(result, rest)
        # Where there is no space for a pattern, one layer is named all the same.
        more = f"… and {count}" if named else f"{count}, such as {printable(rest[0])}"
        more = f"{more}, in the report"
        yield from folded(Text(f"  {more}"), width, 4)


def _counted(result: Result, layers: Sequence[str]) -> str:
    """Return the causes of some layers, in brackets, with counts; "" where none is known."""
    causes = by_cause(result, layers).removeprefix("1 " if len(layers) == 1 else "")
    return f" ({causes})" if causes else ""


def _facts(result: Result) -> Iterator[tuple[str, str, int]]:
    """Yield what was measured: a label, the words, and the level from which it is shown."""
    answered = not _without_plan(result)
    without_answer = result.status in WITHOUT_ANSWER
    if words := foreign_to(result):
        yield "unknown", words, ALWAYS
    if result.error is not None and answered:
        yield "error", f"{result.error_range}, tolerance {_tolerance(result)}", ALWAYS
        if result.stability is not None:
            yield *holds(result, result.stability), ALWAYS
        if words := predicted(result):
            yield "target", words, ALWAYS if result.not_passed else DETAIL
        yield from by_output(result)
    elif answered and not without_answer:
        yield "verdict", "by the check's own word, without a figure", ALWAYS
    if result.interface is not None and not without_answer:
        yield "interface", printable(result.interface.words), ALWAYS
    if result.fp32_form is not None:
        yield "searched", searched_as(result), ALWAYS
    if result.asked:
        yield "asked for", f"{result.asked_for}; what is proven is of the others", ALWAYS
    if result.kept and answered:
        spread = result.certificate.spread
        yield "certificate", proof(result), ALWAYS if spread else EVIDENCE
    if result.by_modules is not None:
        yield "modules", result.by_modules.words, EVIDENCE
    yield from _curve(result)
    took = spent(result.builds, result.evaluations)
    yield "effort", f"{took}, {result.wall_s:.0f} s", DETAIL
    if result.unresolved:
        counts = (f"{n} {status.replace('_', ' ')}" for status, n in result.unresolved.items())
        yield "unresolved", f"{', '.join(counts)}: these count neither way", EVIDENCE
    yield from _engine(result)
    if point := exported(result):
        yield "exports", point, ALWAYS
    yield from _deployed(result)
    if result.emulated and answered and not without_answer and not judging_steps(result):
        yield "backend", "emulated: predicted on this machine; confirm on the target", ALWAYS
    for input_range in result.input_ranges:
        yield (
            "range",
            in_range(input_range, result.low),
            ALWAYS if input_range.failed else EVIDENCE,
        )
    if answered and not without_answer and (words := unseen(result)):
        yield "unseen", words, ALWAYS
    if words := made_up(result.inputs):
        yield "inputs", words, ALWAYS
    if result.message and not without_answer and answered:
        yield "note", printable(result.message), ALWAYS


def searched_as(result: Result) -> str:
    """Say that a file was searched in its FP32 form, what it computes low, and what breaks there.

    A node that leaves the range in one sample at least is named.
    """
    form = result.fp32_form
    assert form is not None
    types = " and ".join(kind.upper() for kind in form.types)
    low = f"{len(form.layers)} of {counted(result.candidates, 'layer')} compute in {types}"
    sentence = f"in its FP32 form; in the file {low}"
    if form.overflowing:
        nodes = [printable(overflow.node) for overflow in form.overflowing]
        leave = "leaves" if len(nodes) == 1 else "leave"
        worst = max(overflow.samples for overflow in form.overflowing)
        of = counted(form.of_samples, "sample")
        sentence += f", and {first_of(nodes, MOST_PINNED)} {leave} the range in {worst} of {of}"
    return sentence


def _curve(result: Result) -> Iterator[tuple[str, str, int]]:
    """Yield what breaks the low type, which is always told, the table, and what helps."""
    levels = {"culprits": ALWAYS, "cause": ALWAYS, "unfinished": ALWAYS, "instead": ALWAYS}
    rows = MORE if result.front else EVIDENCE
    for label, text in curve(result):
        yield label, text, levels.get(label, rows)


def _deployed(result: Result) -> Iterator[tuple[str, str, int]]:
    """Yield the plan to deploy, TF32, and the last check of the files; a failure always."""
    if words := to_deploy(result):
        yield "deploy", words, EVIDENCE if result.deploys_fewest else ALWAYS
    if words := with_tf32(result):
        yield "tf32", words, EVIDENCE if result.tf32 and result.tf32.holds else ALWAYS
    recheck = result.deployment.recheck if result.deployment else None
    judged = recheck is not None and recheck.outcome != "not_judged"
    for label, text in deployed_rows(
        result.deployment, (diagnosis.cause for diagnosis in result.diagnosis)
    ):
        if label == "deployed" and result.refuted:
            continue  # said first
        yield label, text, ALWAYS if judged else DETAIL


def holds(result: Result, stability: Stability) -> tuple[str, str]:
    """Return a label and in how many checks a plan held; a near miss is called what it is."""
    passed = stability.copies - stability.failed
    checks = f"in {passed} of {stability.copies} checks with slight changes"
    if not result.near_miss:
        return "holds", checks
    return "near miss", f"passes on the samples as given, and {checks}"


def _engine(result: Result) -> Iterator[tuple[str, str, int]]:
    """Yield what only an engine tells: speed, obedience, remarks; and what could not run low."""
    times = [
        f"{name.replace('_', ' ')} {ms:.3g} ms"
        for name, ms in (result.latency_ms or {}).items()
        if ms is not None
    ]
    if times:
        method = result.latency_method
        by = "" if method is None else f", by {METHOD_WORDS[method]}"
        yield "latency", ", ".join(times) + by, ALWAYS
    if words := cost(result):
        yield "cost", words, MORE
    yield from (
        (label, text, ALWAYS if label == "speed" else EVIDENCE) for label, text in speed(result)
    )
    by_honour = Counter(entry.honoured for entry in result.honoured_layers)
    if by_honour:
        counts = [
            f"{by_honour[honour]} {honour.replace('_', ' ')}"
            for honour in Honour
            if by_honour[honour]
        ]
        yield "honoured", ", ".join(counts), ALWAYS if by_honour[Honour.DEMOTED] else EVIDENCE
    if result.pinned:
        names = first_of([printable(pin.layer) for pin in result.pinned], MOST_PINNED)
        low = f"in {result.low}" if len(result.rungs) <= 2 else "lower"
        yield "also high", f"{names}: cannot run {low}, see {RESULT}", MORE
    for number, note in enumerate(result.notes):
        yield "remark", printable(note), ALWAYS if number == 0 else DETAIL


def _tolerance(result: Result) -> str:
    if isinstance(result.tolerance, int | float):
        kind = kind_of_limit(result)
        return f"{result.tolerance:g}" + (kind and f" ({kind})")
    return "1 (as a multiple of the given limits)"
