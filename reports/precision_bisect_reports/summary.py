"""The final screen: the answer, the evidence, and the next step to take.

Layer names come from an untrusted file, so they are shown as literal text, never as markup or
control characters, and commands that contain paths are quoted for the shell.
"""

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from rich.text import Text

from precision_bisect.errors import printable
from precision_bisect.flow import Status
from precision_bisect.result import Diagnosis, Result
from precision_bisect.runfolder import LAYER_PRECISIONS, RESULT

MOST_SHOWN = 60
"""Longest list of layers on the screen; result.json always has all."""

_HEADLINES = {
    Status.FOUND: "Found",
    Status.NOTHING_TO_KEEP: "Nothing to keep",
    Status.NOT_PRECISION: "Not a precision problem",
    Status.INFEASIBLE: "No plan satisfies the limits",
    Status.BUDGET_EXHAUSTED: "Budget spent; best so far",
    Status.INTERRUPTED: "Interrupted; best so far",
}
_STYLES = {
    Status.FOUND: "bold green",
    Status.NOTHING_TO_KEEP: "bold green",
    Status.NOT_PRECISION: "bold red",
    Status.INFEASIBLE: "bold red",
    Status.BUDGET_EXHAUSTED: "bold yellow",
    Status.INTERRUPTED: "bold yellow",
}


def final_screen(result: Result, model: Path) -> Iterator[Text]:
    """Yield the parts of the final screen in order."""
    yield Text("")
    yield _headline(result)
    if result.kept:
        yield from _layers(result)
    for label, text in _facts(result):
        yield Text.assemble((f"  {label:<12}", "dim"), text)
    yield Text("")
    for line in _next_steps(result, model):
        yield Text(f"  {line}")


def _headline(result: Result) -> Text:
    headline = Text(_HEADLINES[result.status], style=_STYLES[result.status])
    if result.status in (Status.NOT_PRECISION, Status.INFEASIBLE):
        return headline.append(f": {printable(result.message)}", style="default not bold")
    kept = f"{len(result.kept)} of {result.candidates} layers"
    text = f": {kept} stay {result.high.upper()}, the rest runs {result.low.upper()}"
    return headline.append(text, style="default not bold")


def _layers(result: Result) -> Iterator[Text]:
    causes = {diagnosis.layer: diagnosis for diagnosis in result.diagnosis}
    shown = result.kept[:MOST_SHOWN]
    for module, group in groupby(shown, key=_module):
        yield Text(f"  {printable(module)}" if module else "  (top level)", style="bold")
        names = list(group)
        leaves = [printable(name[len(module) + 1 :] if module else name) for name in names]
        width = max(map(len, leaves))
        for name, leaf in zip(names, leaves, strict=True):
            yield Text(f"    {leaf:<{width}}").append_text(_why(causes.get(name)))
    if len(result.kept) > MOST_SHOWN:
        yield Text(f"  … and {len(result.kept) - MOST_SHOWN} more, all in {RESULT}")
    yield Text("")


def _module(name: str) -> str:
    return name.rpartition("/")[0]


def _why(diagnosis: Diagnosis | None) -> Text:
    if diagnosis is None:
        return Text("")
    return Text.assemble("  ", (diagnosis.cause, "yellow"), ": ", printable(diagnosis.evidence))


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    if result.error is not None:
        yield "error", f"{result.error:.4g}, tolerance {_tolerance(result)}"
    elif result.status not in (Status.NOT_PRECISION, Status.INFEASIBLE):
        yield "verdict", "by the check's own word, without a figure"
    if result.kept:
        yield "certificate", _certificate(result)
    ranking = result.emulated_trials - (result.trials if result.emulated else 0)
    extra = f" after {ranking} for the ranking" if ranking else ""
    yield "trials", f"{result.trials}{extra}, {result.wall_s:.0f} s"
    if result.emulated:
        yield "backend", "emulated: predicted on this machine; confirm on the target"
    if result.message and result.status not in (Status.NOT_PRECISION, Status.INFEASIBLE):
        yield "note", printable(result.message)
    if result.out is not None:
        yield "written", str(result.out)


def _tolerance(result: Result) -> str:
    if isinstance(result.tolerance, int | float):
        return f"{result.tolerance:g}"
    return "1 (as a multiple of the given limits)"


def _certificate(result: Result) -> str:
    certificate = result.certificate
    if certificate.minimal:
        return f"minimal: dropping any one of the {len(result.kept)} fails, each was tried"
    checked = len(certificate.checked)
    return f"not proven minimal: {checked} of {len(result.kept)} drops were tried and failed"


def _next_steps(result: Result, model: Path) -> Sequence[str]:
    rerun = f"precision-bisect {shlex.quote(str(model))}"
    out = shlex.quote(str(result.out))
    match result.status:
        case Status.FOUND:
            return _apply(result, model)
        case Status.NOTHING_TO_KEEP:
            return [f"Next: build with --{result.low} alone and confirm on the target."]
        case Status.BUDGET_EXHAUSTED:
            return [f"Next: go on with a larger budget: {rerun} … --resume --out {out}"]
        case Status.INTERRUPTED:
            return [f"Next: go on: {rerun} … --resume --out {out}"]
        case Status.NOT_PRECISION:
            return ["Next: compare the FP32 engine with ONNX Runtime (polygraphy run --onnxrt)."]
        case Status.INFEASIBLE:
            return ["Next: loosen the tolerance, or find what makes the outputs vary."]


def _apply(result: Result, model: Path) -> Sequence[str]:
    if result.layer_precisions is None:
        return [f"No trtexec string: {printable(result.layer_precisions_reason or '')}"]
    file = shlex.quote(str((result.out or Path()) / LAYER_PRECISIONS))
    lines = [
        "Next, on the target (TensorRT 8.6 to 10.x):",
        f"  trtexec --onnx={shlex.quote(str(model))} --{result.low} "
        "--precisionConstraints=obey \\",
        f'    --layerPrecisions="$(cat {file})"',
    ]
    if "*" in result.layer_precisions:
        lines.append("  (it holds a wildcard, which needs TensorRT 10.0 or later)")
    return lines
