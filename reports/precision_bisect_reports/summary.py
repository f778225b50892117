"""The final screen: the answer, the evidence, and the next step to take.

Layer names come from an untrusted file, so they are shown as literal text, never as markup or
control characters, and commands that contain paths are quoted for the shell.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from precision_bisect.errors import printable
from precision_bisect.results.endings import Status
from precision_bisect.results.result import Diagnosis, Result
from precision_bisect.run_folder.runfolder import MIXED_MODEL, RESULT, TRTEXEC, default_run_folder
from precision_bisect.trial import Honour, LatencyMethod, Stability
from precision_bisect_reports.curve import curve, exported
from precision_bisect_reports.deployed import deployed, judging_steps, under_tf32
from precision_bisect_reports.made_up import made_up
from precision_bisect_reports.proof import proof
from precision_bisect_reports.speed import speed

MOST_SHOWN = 60
"""Longest list of layers on the screen; result.json always has all."""

MOST_PINNED = 3
_LONGEST_COLUMN = 32
"""Longest names of layers beside which folded evidence has a column of its own."""

_HONOUR_WORDS = {
    Honour.HONOURED: "honoured",
    Honour.DEMOTED: "demoted",
    Honour.NOT_OBSERVABLE: "not observable",
}
METHOD_WORDS: Mapping[LatencyMethod, str] = {
    "host_clock": "the host's clock",
    "cuda_events": "CUDA events",
}
HEADLINES = {
    Status.FOUND: "Found",
    Status.NOTHING_TO_KEEP: "Nothing to keep",
    Status.NOT_PRECISION: "Not a precision problem",
    Status.INFEASIBLE: "No plan satisfies the limits",
    Status.BUDGET_EXHAUSTED: "Budget spent; best so far",
    Status.INTERRUPTED: "Interrupted; best so far",
    Status.ABORTED: "Aborted; best so far",
    Status.STOPPED: "Culprits only; not within the tolerance",
}
NO_ANSWER = "No answer yet"
NOTHING_GAINED = "Nothing gained"
_STYLES = {
    Status.FOUND: "bold green",
    Status.NOTHING_TO_KEEP: "bold green",
    Status.NOT_PRECISION: "bold red",
    Status.INFEASIBLE: "bold red",
    Status.BUDGET_EXHAUSTED: "bold yellow",
    Status.INTERRUPTED: "bold yellow",
    Status.ABORTED: "bold red",
    Status.STOPPED: "bold yellow",
}


def final_screen(result: Result, model: Path, width: int | None = None) -> Iterator[Text]:
    """Yield the parts of the final screen in order.

    With a `width` they are folded to so many columns, but for the commands to copy.
    """
    yield Text("")
    if buys_nothing := _buys_nothing(result):
        yield from folded(Text(buys_nothing, style="bold yellow"), width, 2)
    yield from folded(_headline(result), width, 2)
    if result.kept and not _without_plan(result):
        yield from _layers(result, width)
    for label, text in _facts(result):
        yield from folded(Text.assemble((f"  {label:<12}", "dim"), text), width, 14)
    yield Text("")
    for line in _next_steps(result, model):
        yield Text(f"  {line}")


def _buys_nothing(result: Result) -> str:
    """Say that the low type is no faster, where that was measured."""
    timed = result.latency_ms or {}
    high, low = timed.get("all_high"), timed.get("all_low")
    if high is None or low is None or low < high:
        return ""
    return (
        f"{result.low.upper()} buys nothing here: every layer low takes {low:.3g} ms, "
        f"every layer high {high:.3g} ms"
    )


def _headline(result: Result) -> Text:
    headline = Text(HEADLINES[result.status], style=_STYLES[result.status])
    if result.status in (Status.NOT_PRECISION, Status.INFEASIBLE):
        why = f": {printable(result.message)}" if result.message else ""
        return headline.append(why, style="default not bold")
    if _without_plan(result):
        why = printable(result.message) or nothing_low(result.low)
        return Text(NO_ANSWER, style=_STYLES[result.status]).append(
            f": {why}", style="default not bold"
        )
    if result.gains_nothing:
        kept = f": every plan that passed keeps all {result.candidates} layers"
        return Text(NOTHING_GAINED, style="bold yellow").append(
            f"{kept} {result.high.upper()}", style="default not bold"
        )
    if len(result.rungs) > 2:
        return headline.append(f": {_by_rung(result)}", style="default not bold")
    kept = f"{len(result.kept)} of {result.candidates} layers"
    text = f": {kept} stay {result.high.upper()}, the rest {result.rest}"
    return headline.append(text, style="default not bold")


def _by_rung(result: Result) -> str:
    """Return how many layers a ladder keeps in each type."""
    kept = [
        f"{len(rung.layers)} must be {rung.precision.upper()}"
        for rung in result.rungs
        if rung.layers is not None
    ]
    lowest = result.rungs[-1]
    counts = f"{lowest.count} run {lowest.precision.upper()}"
    return f"of {result.candidates} layers {', '.join([*kept, counts])}"


def _without_plan(result: Result) -> bool:
    """Return whether a run was cut off before any plan passed that runs a layer low.

    The empty plan is minimal.
    """
    if result.status is Status.STOPPED:
        return not result.rungs
    cut_off = result.status in (Status.BUDGET_EXHAUSTED, Status.INTERRUPTED, Status.ABORTED)
    nothing = not result.kept and not result.certificate.minimal
    return cut_off and (nothing or result.gains_nothing)


def nothing_low(low: str) -> str:
    """Say that only the plan that keeps everything has passed."""
    return f"no plan has passed yet that runs a layer in {low.upper()}"


def _layers(result: Result, width: int | None) -> Iterator[Text]:
    left = MOST_SHOWN
    for rung in result.rungs[:-1] if len(result.rungs) > 2 else ():
        if rung.layers:
            yield Text(f"  {rung.precision.upper()}", style="bold underline")
            yield from _by_module(result, rung.layers[:left], width)
            left -= min(left, len(rung.layers))
    if len(result.rungs) <= 2:
        yield from _by_module(result, result.kept[:MOST_SHOWN], width)
    if len(result.kept) > MOST_SHOWN:
        yield Text(f"  … and {len(result.kept) - MOST_SHOWN} more, all in {RESULT}")
    yield Text("")


def _by_module(result: Result, shown: Sequence[str], width: int | None) -> Iterator[Text]:
    """Yield the layers under the headings of their modules, each with its diagnosis."""
    causes = {diagnosis.layer: diagnosis for diagnosis in result.diagnosis}
    for module, group in groupby(shown, key=_module):
        heading = Text(f"  {printable(module)}" if module else "  (top level)", style="bold")
        yield from folded(heading, width, 4)
        names = list(group)
        leaves = [printable(name[len(module) + 1 :] if module else name) for name in names]
        longest = max(map(len, leaves))
        hang = longest + 6 if longest <= _LONGEST_COLUMN else 8
        for name, leaf in zip(names, leaves, strict=True):
            line = Text(f"    {leaf:<{longest}}").append_text(_why(causes.get(name)))
            yield from folded(line, width, hang)


def _module(name: str) -> str:
    return name.rpartition("/")[0]


def _why(diagnosis: Diagnosis | None) -> Text:
    if diagnosis is None:
        return Text("")
    return Text.assemble("  ", (diagnosis.cause, "yellow"), ": ", printable(diagnosis.evidence))


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    if result.error is not None and not _without_plan(result):
        yield "error", f"{result.error:.4g}, tolerance {_tolerance(result)}"
        yield from _stability(result.stability)
    elif result.status not in (Status.NOT_PRECISION, Status.INFEASIBLE) and not _without_plan(
        result
    ):
        yield "verdict", "by the check's own word, without a figure"
    if result.kept and not _without_plan(result):
        yield "certificate", proof(result.certificate)
    yield from curve(result)
    predicted = result.emulated_trials - (result.trials if result.emulated else 0)
    extra = f" after {predicted} for the ranking" if predicted else ""
    if result.emulated:
        yield "trials", f"{result.trials}{extra}, {result.wall_s:.0f} s"
    else:
        emulated = f", {predicted} emulated trials" if predicted else ""
        yield "builds", f"{result.engine_builds}{emulated}, {result.wall_s:.0f} s"
    if result.unresolved:
        counts = (f"{n} {status.replace('_', ' ')}" for status, n in result.unresolved.items())
        yield "unresolved", f"{', '.join(counts)}: these trials count neither way"
    yield from _engine(result)
    if point := exported(result):
        yield "exports", point
    yield from deployed(result.deployment, (each.cause for each in result.diagnosis))
    if result.emulated:
        yield "backend", "emulated: predicted on this machine; confirm on the target"
    if said := made_up(result.inputs):
        yield "inputs", said
    told = result.status in (Status.NOT_PRECISION, Status.INFEASIBLE) or _without_plan(result)
    if result.message and not told:
        yield "note", printable(result.message)
    if result.out is not None:
        yield "written", str(result.out)


def _stability(stability: Stability | None) -> Iterator[tuple[str, str]]:
    """Yield how the answer did on copies of the samples."""
    if stability is None:
        return
    held = stability.copies - stability.failed
    what = f"on {held} of {stability.copies} copies, one part in 100,000 apart"
    if stability.error_median is not None and stability.error_max is not None:
        what += f"; error {stability.error_median:.4g} (median), {stability.error_max:.4g} (max)"
    yield "holds", what


def _engine(result: Result) -> Iterator[tuple[str, str]]:
    """Yield what only an engine tells: speed, obedience, remarks; and what could not run low."""
    if result.latency_ms is not None:
        figures = [
            f"{name.replace('_', ' ')} {'not measured' if ms is None else f'{ms:.3g} ms'}"
            for name, ms in result.latency_ms.items()
        ]
        method = result.latency_method
        by = "" if method is None else f", by {METHOD_WORDS[method]}"
        yield "latency", ", ".join(figures) + by
    yield from speed(result)
    if result.honoured_layers:
        counts = [
            f"{sum(entry.honour is honour for entry in result.honoured_layers)} {word}"
            for honour, word in _HONOUR_WORDS.items()
        ]
        yield "honoured", ", ".join(counts)
    if result.pinned:
        names = ", ".join(printable(name) for name in list(result.pinned)[:MOST_PINNED])
        more = f" and {len(result.pinned) - MOST_PINNED} more" * (len(result.pinned) > MOST_PINNED)
        low = f"in {result.low}" if len(result.rungs) <= 2 else "lower"
        yield "also high", f"{names}{more}: cannot run {low}, see {RESULT}"
    for note in result.notes:
        yield "remark", printable(note)


def _tolerance(result: Result) -> str:
    if isinstance(result.tolerance, int | float):
        return f"{result.tolerance:g}"
    return "1 (as a multiple of the given limits)"


def _next_steps(result: Result, model: Path) -> Sequence[str]:
    rerun = f"precision-bisect {shlex.quote(str(model))}"
    out = shlex.quote(str(result.out))
    match result.status:
        case Status.FOUND:
            as_it_is = result.gains_nothing and result.high == "fp32"
            return _as_it_is(result) if as_it_is else _apply(result, model)
        case Status.NOTHING_TO_KEEP:
            weak = f"TensorRT 8.6 to 10.x: sh {_script(result)} weak"
            return [*_judge(result), *_strong(result), weak]
        case Status.BUDGET_EXHAUSTED:
            larger = "a larger --max-time or --max-trials"
            return [f"Next: go on with {larger}: {rerun} … --resume --out {out}"]
        case Status.INTERRUPTED:
            return [f"Next: go on: {rerun} … --resume --out {out}"]
        case Status.STOPPED:
            return [f"Next: search for an answer: {rerun} … --resume --out {out}"]
        case Status.ABORTED:
            return [f"Next: see what {out}/logs says, then go on: {rerun} … --resume --out {out}"]
        case Status.NOT_PRECISION:
            return ["Next: compare the FP32 engine with ONNX Runtime (polygraphy run --onnxrt)."]
        case Status.INFEASIBLE:
            if result.speed is not None and result.front:
                return ["Next: loosen one of the limits; result.json lists the front."]
            return ["Next: loosen the tolerance, or find what makes the outputs vary."]


def _script(result: Result) -> str:
    return shlex.quote(str((result.out or Path()) / TRTEXEC))


def _strong(result: Result) -> list[str]:
    """Return how to build the typed model, which is the fused one where norms were fused."""
    build = "Then build" if _judge(result) else "Next, on the target"
    return [
        f"{build}: sh {_script(result)} strong10, or strong11 or rtx, by the version there",
        f"  (they build {MIXED_MODEL}, strongly typed; it runs on ONNX Runtime with CUDA, too)",
    ]


def _as_it_is(result: Result) -> Sequence[str]:
    """Return what to do where nothing can go low: nothing was exported for FP32."""
    other = "bf16" if result.low == "fp16" else "fp16"
    kept = f"deploy the model with every layer {result.high.upper()}"
    lines = [f"Next: {kept}, loosen the tolerance, or try --low {other}."]
    if result.out is not None:
        run = shlex.quote(str(result.out))
        lines.append(f"What would change the answer? precision-bisect explain {run}")
    return lines


def _apply(result: Result, model: Path) -> Sequence[str]:
    script, lines = _script(result), [*_judge(result), *_strong(result)]
    if result.layer_precisions is None:
        reason = printable(result.layer_precisions_reason or "")
        return [*lines, f"No trtexec string for TensorRT 8.6 to 10.x: {reason}"]
    lines.append(f"TensorRT 8.6 to 10.x, weakly typed: sh {script} weak")
    if "*" in result.layer_precisions:
        lines.append("  (its names hold a wildcard, which needs TensorRT 10.0 or later)")
    if result.emulated:
        verify = f"precision-bisect verify {shlex.quote(str(model))}{_plan(result, model)}"
        lines.append(f"Does TensorRT obey? {verify}")
    if result.out is not None:
        run = shlex.quote(str(result.out))
        lines.append(f"What would change the answer? precision-bisect explain {run}")
    return lines


def _judge(result: Result) -> list[str]:
    """Return how to judge a prediction on the target; nothing where an engine has judged."""
    steps = list(judging_steps(result.deployment, result.out)) if result.emulated else []
    if not steps:
        return []
    gains = under_tf32(each.cause for each in result.diagnosis)
    return [
        f"Next, judge it on the target, TF32 off{gains}:",
        "  " + steps[0],
        *(f"  or, by ONNX Runtime on CUDA: {step}" for step in steps[1:]),
    ]


def _plan(result: Result, model: Path) -> str:
    """Return the flag that leads to the run folder, where it is not the default one."""
    if result.out is None or result.out == default_run_folder(model):
        return ""
    return f" --plan {shlex.quote(str(result.out))}"


def folded(line: Text, width: int | None, hang: int) -> Iterator[Text]:
    """Yield the line in pieces of at most `width` columns, the later ones further in.

    They begin below the character at `hang`, which is no more than half the width. Words longer
    than a line are cut. Without a width the line stays as it is.
    """
    if width is None or line.cell_len <= width:
        yield line
        return
    head, body = line.divide([hang])
    indent = head.cell_len
    for piece in body.wrap(Console(width=width), width - indent, overflow="fold"):
        piece.rstrip()
        yield Text.assemble(head, piece)
        head = Text(" " * indent)
