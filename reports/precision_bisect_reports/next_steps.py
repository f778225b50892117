"""What to do next, as commands that can be pasted."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_bisect.errors import counted, printable
from precision_bisect.options import default_run_folder
from precision_bisect.runs.results.advised import CHOSEN_ROWS, EVERYWHERE
from precision_bisect.runs.results.chosen_point import kept_in_files
from precision_bisect.runs.results.deployment import Recheck, TrtexecMode
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import MIXED_MODEL, REPORT, RUN_SCRIPT, TRTEXEC
from precision_bisect.settings.targets import LABELS, TargetName
from precision_bisect_reports.culprit_groups import WHOLE
from precision_bisect_reports.promise import causes_in_files, kept_for_rounding
from precision_bisect_reports.rows import ALWAYS, EVIDENCE, MORE, NEWS

# What opens a page in the browser, where it is not `xdg-open`.
_OPEN = {"darwin": "open", "win32": "start"}
# The ways of the script for trtexec, and what each builds for.
_BUILDS: Mapping[TrtexecMode, TargetName] = {
    "strong10": "tensorrt",
    "strong11": "tensorrt",
    "rtx": "tensorrt-rtx",
    "weak": "tensorrt",
}
SYMPTOMS = "docs/symptoms.md"
"""The page that tells which case a user's is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """What to do, in words, and the commands that do it; `room` says when it is left out."""

    what: str
    commands: tuple[str, ...] = ()
    level: int = ALWAYS


def next_steps(result: Result, model: Path, command: Sequence[str] = ()) -> Iterator[NextStep]:
    """Yield the steps, the first to take first.

    `command` has the words of the command line that began the run, where it is known.
    """
    # What must not be used comes before what can be done with it.
    if result.refuted:
        yield _instead_of_file(result.refuted)
    if result.cut_short and result.status is not Status.STOPPED:
        yield _go_on(result, model, command, "Next: complete it, what explains it was interrupted")
    if not result.refuted or result.status.cut_off:
        yield from _by_ending(result, model, command)
    if result.out is not None and result.layers_total:
        page = shlex.quote(str(result.out / REPORT))
        yield NextStep(
            what="Open the report", commands=(f"{_OPEN.get(sys.platform, 'xdg-open')} {page}",)
        )
        yield NextStep(
            what="All of it",
            commands=(f"precision-bisect show {_quoted(result.out)} -v",),
            level=NEWS,
        )
    yield NextStep(what=f"Wrong boxes, NaN, no speed: {SYMPTOMS}")


def _instead_of_file(recheck: Recheck) -> NextStep:
    """Return what to do where the exported model is none to deploy."""
    if recheck.outcome == "fail":
        return NextStep(what="Next: search again, with more samples or a tighter tolerance")
    if recheck.crash is not None and recheck.crash.cure:
        option = f"graph_optimization_level {recheck.crash.cure}"
        return NextStep(what=f"Next: open it with {option} on the target, or by another version")
    return NextStep(
        what="Next: export the model otherwise (another opset or exporter), and search that; the "
        f"layers that were found stand, {MIXED_MODEL} does not"
    )


def _by_ending(result: Result, model: Path, command: Sequence[str]) -> Iterator[NextStep]:
    match result.status:
        case Status.FOUND if result.gains_nothing and _stays_fp32(result):
            yield _as_it_is(result)
            yield from _explain(result, model)
        case Status.FOUND:
            fused = list(_fused(result, command))
            yield from fused
            yield from _apply(result, model, first=not fused)
        case Status.NOTHING_TO_KEEP:
            yield from _judge(result, ALWAYS)
            yield from _build(result, NEWS)
        case Status.BUDGET_EXHAUSTED if not result.layers_total:
            yield NextStep(what="Next: run it again, with more time")
        case Status.BUDGET_EXHAUSTED:
            yield _go_on(result, model, command, "Next: go on, with more time or trials")
        case Status.INTERRUPTED:
            yield _go_on(result, model, command, "Next: go on")
        case Status.STOPPED:
            yield _go_on(result, model, command, "Next: search for an answer")
        case Status.ABORTED:
            yield _go_on(result, model, command, "Next: see to what ended it, then go on")
        case Status.NOT_PRECISION if not result.trials:
            return  # its message says what to mend
        case Status.NOT_PRECISION if result.interface is not None:
            yield NextStep(
                what="Next: leave --io-types out"
                + ", or scale what loses values: an input before the model and back in it, an "
                "output in it and back behind it" * bool(result.interface.lost)
            )
        case Status.NOT_PRECISION if result.high != "fp32":
            yield NextStep(
                what="Next: let layers stay FP32, by --high fp32 or at the end of --ladder, or "
                "loosen the tolerance"
            )
        case Status.NOT_PRECISION if result.emulated:
            yield NextStep(
                what="Next: loosen the tolerance, or see why FP32 itself misses it: the check, "
                "outputs that were given, random numbers in the model"
            )
        case Status.NOT_PRECISION:
            yield NextStep(
                what="Next: compare the FP32 engine with ONNX Runtime",
                commands=(_polygraphy(result, model, "--trt", "--onnxrt"),),
            )
        case Status.NO_BASELINE if result.backend.startswith("tensorrt"):
            yield NextStep(
                what="Next: make TensorRT build the model in FP32, apart from this tool",
                commands=(_polygraphy(result, model, "--trt"),),
            )
        case Status.NO_BASELINE:
            yield NextStep(what="Next: make the model run in FP32, for the reason that is given")
        case Status.INFEASIBLE if result.speed is not None and result.front:
            yield NextStep(what="Next: loosen one of the limits; result.json lists the front")
        case Status.INFEASIBLE if _advised(result, CHOSEN_ROWS):
            yield from _advised(result, CHOSEN_ROWS)
            yield from _explain(result, model)
        case Status.INFEASIBLE:
            yield NextStep(what="Next: loosen the tolerance, or find what makes the outputs vary")


def _advised(result: Result, kind: str) -> Sequence[NextStep]:
    """Return the advice with this id as what to do next."""
    return [NextStep(what=f"Next: {title}") for title in _titles(result, kind)]


def _titles(result: Result, kind: str) -> Sequence[str]:
    """Return the titles of the advice with this id, as they go on a sentence."""
    titles = [printable(advice.title) for advice in result.advice if advice.id == kind]
    return [f"{title[:1].lower()}{title[1:]}" for title in titles]


def _polygraphy(result: Result, model: Path, *runners: str) -> str:
    words = ["polygraphy", "run", str(model), *runners]
    shapes = [*_shapes(result)]
    words += ["--input-shapes", *shapes] if shapes else []
    rtx = "POLYGRAPHY_USE_TENSORRT_RTX=1 " * (result.backend == "tensorrt-rtx")
    return printable(rtx + shlex.join(words))


def _shapes(result: Result) -> Iterator[str]:
    """Yield the first shape of each input, as Polygraphy takes them."""
    shapes_by_input = result.fingerprint.get("shapes")
    for name, shapes in shapes_by_input.items() if isinstance(shapes_by_input, Mapping) else ():
        if isinstance(shapes, list) and shapes:
            yield f"{name}:{json.dumps(shapes[0], separators=(',', ':'))}"


def _go_on(result: Result, model: Path, command: Sequence[str], what: str) -> NextStep:
    if command:
        again = shlex.join([*_without(command, result.status), "--resume"])
        return NextStep(what=what, commands=(printable(again),))
    if result.out is not None:
        again = f"precision-bisect {_quoted(result.out)} --resume"
        return NextStep(what=what, commands=(again,))
    again = f"precision-bisect {_quoted(model)} --resume"
    return NextStep(what=f"{what}; add the flags of the first run", commands=(again,))


def _without(command: Sequence[str], status: Status) -> Iterator[str]:
    """Yield the words of a command without what ended its run."""
    spent = ("--max-time", "--max-trials") if status is Status.BUDGET_EXHAUSTED else ()
    gone = {"--overwrite", "--resume"}
    if status is Status.STOPPED:
        command = [*command[:1], *command[1 + (command[1] == "curve") :]]
        gone.add("--culprits-only")
    words = iter(command)
    for word in words:
        if word in spent:
            next(words, None)
        elif word not in gone and word.partition("=")[0] not in spent:
            yield word


def _stays_fp32(result: Result) -> bool:
    """Whether a plan that keeps every layer is the model as it was given, and no form of it runs
    low."""
    return result.high == "fp32" and not result.deploys_fused


def _as_it_is(result: Result) -> NextStep:
    """Return what to do where nothing can go low: nothing was exported for FP32."""
    steps = [f"deploy the model with every layer {result.high.upper()}"]
    steps += _titles(result, CHOSEN_ROWS) or ["loosen the tolerance"]
    if any(advice.id == EVERYWHERE and advice.passed for advice in result.advice):
        steps.append("search with --low bf16")
    return NextStep(what=f"Next: {', '.join(steps[:-1])}, or {steps[-1]}")


def _fused(result: Result, command: Sequence[str]) -> Iterator[NextStep]:
    """Yield the search of the model with its norms put together, where that holds with fewer.

    Nothing where the run has tried that itself.
    """
    if result.fused is not None:
        return
    helping = ((a.id, a.tried) for a in result.advice if a.id in WHOLE and a.passed and a.tried)
    kind, tried = next(helping, ("", None))
    if tried is None or tried.kept >= len(result.kept) or not command or result.out is None:
        return
    error = "" if tried.error is None else f" (error {tried.error:.3g})"
    count = f"{tried.kept} instead of {counted(len(result.kept), 'layer')}"
    words = [w for w in _without(command, result.status) if Path(w) != result.out]
    flags = {word.partition("=")[0] for word in words}
    if not flags.isdisjoint(("--keep", "--low-only", "--start")):
        return  # these name layers of the file, or plans of it
    again = [word for word in words if word.partition("=")[0] != "--out"]
    again += ["--fuse-norms", "--out", f"{result.out}.fused"]
    yield NextStep(
        what=f"First: search it with {WHOLE[kind]} as one operator: {count} hold{error}",
        commands=(printable(shlex.join(again)),),
    )


def _apply(result: Result, model: Path, *, first: bool) -> Iterator[NextStep]:
    """Yield how to judge, build and look into the answer, `first` where nothing goes before."""
    yield from _judge(result, ALWAYS if first else MORE)
    yield from _build(result, NEWS if first else MORE)
    reason = result.no_command.get("weak", result.layer_precisions_reason)
    if reason is not None:
        yield NextStep(
            what=f"No trtexec string for TensorRT 8.6 to 10.x: {printable(reason)}", level=EVIDENCE
        )
    elif result.layer_precisions is not None and "*" in result.layer_precisions:
        yield NextStep(
            what="weak needs TensorRT 10.0 or later: a name holds a wildcard", level=EVIDENCE
        )
    if result.emulated and "tensorrt" not in result.unusable and kept_in_files(result)[1]:
        yield NextStep(
            what="Does TensorRT keep them",
            commands=(f"precision-bisect verify {_run(result, model)}",),
            level=MORE,
        )
    yield from _explain(result, model)


def _explain(result: Result, model: Path) -> Iterator[NextStep]:
    if result.out is not None:
        yield NextStep(
            what="What to change instead",
            commands=(f"precision-bisect explain {_run(result, model)}",),
            level=NEWS if result.gains_little else MORE,
        )


def _judge(result: Result, level: int) -> Iterator[NextStep]:
    """Yield how to judge a prediction on the target; nothing where an engine has judged."""
    if not result.emulated:
        return
    undone = kept_for_rounding(causes_in_files(result))
    tf32 = f"TF32 {'on' if result.tf32_on else 'off'}"
    tf32 += f" (for {counted(undone, 'layer')})" if undone and not result.tf32_on else ""
    for number, (target, command) in enumerate(judging_steps(result).items()):
        if number:
            yield NextStep(what=f"Or on {LABELS[target]}", commands=(command,), level=MORE)
        else:
            what = f"Next: confirm the prediction on {LABELS[target]}, {tf32}"
            yield NextStep(what=what, commands=(command,), level=level)


def _build(result: Result, level: int) -> Iterator[NextStep]:
    """Yield how to build the typed model, which is the fused one where norms were fused."""
    judged = any(_judge(result, ALWAYS))
    script = shlex.quote(str((result.out or Path()) / TRTEXEC))
    without: set[str] = set(result.no_command)
    if kept_in_files(result)[1] and result.layer_precisions is None:
        without.add("weak")
    ways = [
        way
        for way, target in _BUILDS.items()
        if target not in result.unusable and way not in without
    ]
    if ways:
        timed = result.deploy is not None and result.deploy.latency is not None
        rival = "the mixed plan" if kept_in_files(result)[1] else f"the {result.low.upper()} model"
        # FP32 is the file as it was given: what is built is what it was held against.
        what = f"build{' and time' * (not timed)} {rival}" if result.fp32_wins else "build"
        yield NextStep(
            what=f"{'Then' if judged else 'Next:'} {what} ({', '.join(ways)})",
            commands=(f"sh {script} {ways[0]}",),
            level=level if judged else ALWAYS,
        )


def _run(result: Result, model: Path) -> str:
    """Return the model where its last run is this one, else the run folder."""
    if result.out is None or result.out == default_run_folder(model):
        return _quoted(model)
    return _quoted(result.out)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def judging_steps(result: Result) -> Mapping[TargetName, str]:
    """Return the commands that judge an answer on targets where it may pass, for a shell.

    The target that was searched for comes first.
    """
    deployment, folder = result.deployment, result.out
    if deployment is None or not deployment.samples or folder is None or result.refuted:
        return {}
    steps: dict[TargetName, str] = {}
    if deployment.polygraphy is not None:
        there = shlex.quote(str(folder))
        steps["tensorrt"] = f"(cd {there} && {printable(deployment.polygraphy)})"
    steps["onnxruntime"] = f"python {shlex.quote(str(folder / RUN_SCRIPT))}"
    usable = [target for target in steps if target not in result.unusable]
    return {
        target: steps[target] for target in sorted(usable, key=lambda name: name != result.target)
    }
