"""The last screen of every ending, and of what else can be said, as `golden/screens.txt` has it.

`python tests/golden_screens.py` writes the file anew; the difference is what to look at.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from final_screens import DEPLOYMENT, ENGINE, KEPT, RESULT, screen
from golden_answers import answers
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.runs.results.curve_of_result import Culprit, CurvePoint, PointName
from precision_bisect.runs.results.deployment import ByDefaults, Crash, Recheck
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.fused_form import FusedForm
from precision_bisect.runs.results.loop_steps import LoopSteps
from precision_bisect.runs.results.other_targets import WithTf32
from precision_bisect.runs.results.result import Diagnosis, Inputs, Pinned, Result, Rung
from precision_bisect.runs.results.speed_report import PlanToDeploy
from precision_bisect.runs.results.unseen import Calibrating, Estimate, Unseen
from precision_bisect.trial import Honour, Latency, LayerHonour, Stability

GOLDEN = Path(__file__).parent / "golden" / "screens.txt"
HEAD = "=== "
NO_PLAN: dict[str, Any] = {"kept": (), "rungs": (), "error": None, "layer_precisions": None}
UNTESTED = Certificate(minimal=False, checked=(), unchecked=())
DEFAULTS = ByDefaults(outcome="fail", error=0.0118, options=("use_tf32=0",))


def unseen(judged: int, took_part: int, **about: Any) -> Unseen:
    """Return what came of inputs that took no part, none of which failed unless it is said."""
    return Unseen(**{"judged": judged, "failed": 0, "took_part": took_part, **about})


UNSEEN = {
    "all hold": unseen(45, 8),
    "of two samples": unseen(0, 2),
    "one joined": unseen(29, 9, joined=1),
    "some fail": unseen(43, 10, failed=1, joined=2, passed_later=1, unjudged=3),
    "all calibrated": unseen(0, 60, calibrating=Calibrating(judged=45, failed=0)),
    "the one calibrated": unseen(0, 1, calibrating=Calibrating(judged=0, failed=0)),
    "some calibrated": unseen(9, 8, calibrating=Calibrating(judged=0, failed=0)),
    "an estimate": unseen(0, 2, estimate=Estimate(risk=0.05, share_under=0.137, spread=0.4)),
    "a poor estimate": unseen(0, 2, estimate=Estimate(risk=0.05, share_under=None, spread=0.4)),
    "no estimate": unseen(
        0, 2, estimate=Estimate(risk=0.01, share_under=None, selecting=["TopK"])
    ),
    "proof beside an estimate": unseen(
        500, 8, estimate=Estimate(risk=0.05, share_under=0.137, spread=0.4)
    ),
}


def tf32(passed: bool, fp32_passed: bool) -> WithTf32:
    """Return what TF32 makes of FP32 and of the answer."""
    return WithTf32(fp32_passed=fp32_passed, fp32_error=1.4e-4, passed=passed, error=0.0097)


PLAN = PlanToDeploy(
    kept=[*KEPT, "Sub"],
    error=0.00077,
    time=0.6,
    answer_time=0.62,
    fp32_tf32_time=0.7,
    full_batch_time=0.4,
    casts=4,
    weight_bytes=5_000_000,
    answer_weight_bytes=5_000_000,
    high_weight_bytes=9_000_000,
    estimated=True,
)


def deployed(recheck: Recheck) -> Result:
    """Return an engine's answer whose files have been judged so."""
    return replace(ENGINE, deployment=replace(DEPLOYMENT, recheck=recheck))


def of_loops() -> Iterator[tuple[str, Result]]:
    """Yield what is said of samples that run in a loop."""
    errors, all_low = [1e-3 * (n + 1) for n in range(12)], [2e-3 * 1.5**n for n in range(12)]
    loop = LoopSteps(steps=12, feeds=["y:x"], errors=errors, all_low=all_low)
    yield "a loop", replace(RESULT, loop=loop)
    yield "a loop of which each step is judged", replace(RESULT, loop=replace(loop, judged="each"))
    broken = [*all_low[:3], float("inf")]
    yield "a loop that breaks in a step", replace(RESULT, loop=replace(loop, all_low=broken))
    own = LoopSteps(steps=None, judged="function")
    yield "a loop of the user's, without figures", replace(RESULT, loop=own)


def cases() -> Iterator[tuple[str, Result]]:
    """Yield what the screen is shown for, with its name."""
    for status in Status:
        yield status, replace(RESULT, status=status, deployment=DEPLOYMENT)
    for status in (Status.BUDGET_EXHAUSTED, Status.INTERRUPTED):
        told = "the budget ended during the ranking; no plan has passed"
        none = replace(RESULT, status=status, certificate=UNTESTED, message=told, **NO_PLAN)
        yield f"{status}, no plan", none
        yield f"{status}, no plan and no message", replace(none, message="")
        empty = replace(
            none,
            rungs=[replace(rung, layers=rung.layers and ()) for rung in RESULT.rungs],
            certificate=replace(UNTESTED, minimal=True),
        )
        yield f"{status}, the empty plan", empty
        near = Stability(copies=16, failed=9, error_median=0.0105, error_max=0.0123)
        missed = replace(RESULT, status=status, certificate=UNTESTED, message="", near_miss=True)
        yield f"{status}, a near miss", replace(missed, stability=near, export_point="near-miss")
    stopped: dict[str, Any] = {"message": "only the curve was asked for", **NO_PLAN}
    yield "only the curve", replace(RESULT, status=Status.STOPPED, **stopped)
    high = replace(PLAN, kept=KEPT, time=1.0, answer_time=1.0, fp32_tf32_time=1.0)
    yield "nothing gained", replace(RESULT, candidates=len(KEPT), deploy=high)
    halves = (
        Rung(precision="fp16", layers=KEPT, count=4),
        Rung(precision="int8", layers=None, count=0),
    )
    low: dict[str, Any] = {"low": "int8", "high": "fp16", "rungs": halves}
    yield "nothing gained in INT8", replace(RESULT, candidates=4, **low)
    yield "FP16 itself fails", replace(RESULT, status=Status.NOT_PRECISION, **{**low, **NO_PLAN})
    shapes = {"shapes": {"x": [[1, 3], 9]}}
    wrong = replace(ENGINE, status=Status.NOT_PRECISION, fingerprint=shapes)
    yield "an engine is compared", wrong
    damaged = {"shapes": {"x": 3, "y": []}}
    yield "an engine is compared, without shapes", replace(wrong, fingerprint=damaged)
    unbuilt = "the model with every layer high does not build: checkDet: false"
    rtx: dict[str, Any] = {"message": unbuilt, "backend": "tensorrt-rtx", "emulated": False}
    yield "does not build in FP32", replace(RESULT, status=Status.NO_BASELINE, **rtx)
    yield from of_answers()
    yield from of_curves()
    for name, promise in UNSEEN.items():
        yield f"unseen inputs: {name}", replace(RESULT, unseen=promise)
    few = replace(RESULT, unseen=UNSEEN["of two samples"])
    yield "unseen inputs: made-up ones", replace(few, inputs=Inputs(synthetic=True, samples=2))
    left = Inputs(synthetic=False, samples=40)
    yield "unseen inputs: some have not judged yet", replace(few, inputs=left)


def of_answers() -> Iterator[tuple[str, Result]]:
    """Yield what is said of answers, with its name."""
    rungs = (
        Rung(precision="fp32", layers=KEPT[:2], count=2),
        Rung(precision="fp16", layers=KEPT[2:], count=5),
        Rung(precision="int8", layers=None, count=3),
    )
    yield "a ladder", replace(RESULT, low="int8", rungs=rungs)
    rounded = [Diagnosis(layer=name, cause=Cause.ROUNDING, evidence="") for name in KEPT[:2]]
    yield "rounding", replace(RESULT, deployment=DEPLOYMENT, diagnosis=rounded)
    passes = Recheck(outcome="pass", message="", error=0.0076, library_defaults=DEFAULTS)
    own = replace(passes, library_defaults=ByDefaults(outcome="pass", error=0.001))
    yield "files pass", deployed(passes)
    yield "files pass, by the library's own options too", deployed(own)
    yield "files fail", deployed(Recheck(outcome="fail", message="", error=0.02))
    yield "files do not fit", deployed(Recheck(outcome="broken", message="cut"))
    ended = "ended by SIGSEGV (Segmentation fault)"
    died = (
        "as ONNX Runtime 1.32.0 opened model.mixed.onnx on the CPU (a GPU is untested), its "
        f"process {ended}; with graph_optimization_level ORT_DISABLE_ALL it holds (0.0006)"
    )
    crash = Crash(
        library="ONNX Runtime 1.32.0", doing="opens", ended=ended, cure="ORT_DISABLE_ALL"
    )
    died_of = Recheck(outcome="not_judged", message=died, crash=crash)
    yield "the runtime dies of the files", deployed(died_of)
    yield "their own runtime dies of the files", deployed(replace(died_of, outcome="broken"))
    by_own = ByDefaults(outcome="broken", options=["use_tf32=0"])
    yield (
        "the library's own options crash",
        deployed(replace(passes, library_defaults=by_own, crash=crash)),
    )
    crashed: dict[str, Any] = {
        "unresolved": {"crashed": 3},
        "unresolved_why": {"crashed": f"its process {ended}"},
    }
    yield "trials crash", replace(RESULT, **crashed)
    typed = {**RESULT.fingerprint, "versions": {"typing": "weak"}}
    yield "weak typing", replace(RESULT, fingerprint=typed)
    yield "a wildcard", replace(RESULT, layer_precisions="a*b:fp32")
    yield (
        "no string, trials unresolved, a message, one made-up sample",
        replace(
            RESULT,
            layer_precisions=None,
            layer_precisions_reason="because",
            unresolved={"build_failed": 3, "timed_out": 1, "not_honoured": 2},
            message="the samples held out judge too",
            inputs=Inputs(synthetic=True, samples=1),
        ),
    )
    yield "outputs below their tolerance", replace(RESULT, overlooked=["scores", "boxes"])
    yield "made-up inputs", replace(RESULT, inputs=Inputs(synthetic=True, samples=4))
    yield "given inputs", replace(RESULT, inputs=Inputs(synthetic=False, samples=4))
    honours = [*[Honour.HONOURED] * 3, Honour.NOT_OBSERVABLE]
    yield (
        "what an engine shows",
        replace(
            ENGINE,
            builds=9,
            latency_ms={"all_high": 2.5, "all_low": 1.25, "kept": None},
            latency_method="cuda_events",
            honoured_layers=[
                LayerHonour(layer=name, honoured=honour, evidence="weights")
                for name, honour in zip(KEPT, honours, strict=True)
            ],
            pinned=[Pinned(layer="celu", reason="Celu takes no fp16")],
            notes=["layer norm in \x1b[31mFP16"],
        ),
    )
    slow = {"all_high": 2.05, "all_low": 2.34, "kept": 2.3}
    yield "no faster", replace(ENGINE, latency_ms=slow)
    both = tf32(True, True)
    faster = replace(RESULT, deploy=PLAN, tf32=both, export_point="deploy", promises_of="deploy")
    yield "a plan to deploy", faster
    yield (
        "a plan to deploy, the fewest exported",
        replace(faster, export_point="fewest", promises_of="fewest"),
    )
    form = FusedForm(
        model="00",
        operators={"LayerNormalization": 2},
        candidates=9,
        all_low=0.0004,
        kept=["Erf"],
        error=0.0005,
    )
    of_form = replace(PLAN, kept=["Erf"], error=0.0005, time=0.5, fused=True)
    yield "the fused form is deployed", replace(faster, deploy=of_form, fused=form)
    yield "the fused form is slower", replace(faster, fused=form)
    unheld = replace(faster, fused=replace(form, kept=None))
    yield "the fused form does not hold", unheld
    yield "the fused form was not judged in time", replace(unheld, status=Status.INTERRUPTED)
    slower = replace(PLAN, time=1.02, answer_time=1.1, fp32_tf32_time=0.8)
    yield "FP32 with TF32 is faster", replace(faster, deploy=slower)
    yield "FP32 is faster, without TF32", replace(faster, deploy=slower, tf32=tf32(True, False))
    yield "FP32 is faster, where TF32 changes nothing", replace(faster, deploy=slower, tf32=None)
    for name, speedup in (("a plan to deploy, timed", 1.31), ("FP32 is timed to be faster", 0.68)):
        latency = Latency(
            median_ms=1.4, spread_ms=0.01, runs=60, baseline_ms=1.4 * speedup, speedup=speedup
        )
        timed_plan = replace(PLAN, estimated=False, latency=latency, tf32=True)
        compared = replace(both, fp32_ms=1.4 * speedup, speedup=speedup)
        on_engine = replace(faster, emulated=False, tf32_on=True)
        yield name, replace(on_engine, deploy=timed_plan, tf32=compared)
    yield (
        "the answer is deployed",
        replace(RESULT, deploy=replace(PLAN, kept=KEPT, answer_time=0.6)),
    )
    lowest = replace(PLAN, kept=(), time=1.2, answer_time=1.2, full_batch_time=0.5, tf32=True)
    nothing = replace(faster, status=Status.NOTHING_TO_KEEP, kept=(), deploy=lowest)
    yield "nothing is kept, and FP32 is deployed", nothing
    yield (
        "nothing is kept, and the smallest is deployed",
        replace(nothing, options={"objective": "smallest"}),
    )
    yield "TF32 breaks the answer", replace(RESULT, tf32=tf32(False, True))
    yield "TF32 breaks FP32", replace(RESULT, tf32=tf32(True, False))
    yield "TF32 breaks both", replace(RESULT, tf32=tf32(False, False))
    for name, speedup in (("a slower", 0.8), ("a faster", 1.25)):
        timed = replace(both, fp32_ms=1.82, speedup=speedup)
        yield f"{name} answer than FP32 with TF32", replace(ENGINE, tf32=timed)

    yield from of_loops()
    yield from answers()


def point(count: int, error: float | None, name: PointName = "") -> CurvePoint:
    """Return a point whose copies agree."""
    return CurvePoint(
        kept_count=count, error_median=error, error_max=error, latency_ms=None, point=name
    )


def culprit(layer: str, without: float, together: float) -> Culprit:
    """Return a culprit that overflows."""
    return Culprit(
        layer=layer,
        error_without=without,
        error_with=together,
        cause=Cause.OVERFLOW,
        evidence="1e5",
    )


def of_curves() -> Iterator[tuple[str, Result]]:
    """Yield what is said of culprits, and where there are none, with its name."""
    spread = [Diagnosis(layer=name, cause=Cause.ROUNDING, evidence="11 bits") for name in KEPT]
    points = [point(0, 1.0, "all_low"), point(1, 0.06, "culprits"), point(4, 5e-3, "answer")]
    one = replace(RESULT, culprits=[culprit(KEPT[0], 1.0, 0.06)], curve=points)
    yield "a culprit and the curve", one
    looser = [*points[:2], point(2, 0.03), points[2]]
    yield "a culprit, and rounding", replace(one, curve=looser, diagnosis=spread)
    dead = [point(0, None, "all_low"), *points[1:]]
    yield "the low model does not run", replace(one, curve=dead)
    names = [f"m/n{i}" for i in range(6)]
    points = [point(0, 0.12, "all_low"), point(4, 9e-3, "answer"), point(6, 7e-4, "culprits")]
    several = replace(RESULT, culprits=[culprit(n, 0.2, 7e-4) for n in names], curve=points)
    yield "fewer culprits suffice", replace(several, kept=names[:4])
    yield "another layer suffices", replace(several, kept=["Top"])
    yield "the answer is the culprits", replace(several, kept=names)
    points = [point(0, 0.02, "all_low"), point(2, 0.012), point(4, 9e-3, "answer")]
    none = replace(RESULT, curve=points, certificate=UNTESTED, diagnosis=())
    yield "no culprit", none
    yield "no culprit, and rounding", replace(none, diagnosis=spread)
    beyond = [replace(diagnosis, cause=Cause.OVERFLOW) for diagnosis in spread]
    yield "no culprit, and overflow in several", replace(none, diagnosis=beyond)
    yield "no culprit beside a certificate", replace(none, certificate=RESULT.certificate)
    rungs = [Rung(precision="fp32", layers=["a"], count=1)]
    single = Certificate(minimal=True, checked=["a"], unchecked=())
    curve = [points[0], point(1, 9e-3, "answer")]
    yield (
        "one layer of one",
        replace(none, candidates=1, kept=["a"], rungs=rungs, certificate=single, curve=curve),
    )


def text() -> str:
    """Return all of them as the file has them."""
    return "".join(f"{HEAD}{name}\n{screen(result)}" for name, result in cases())


def golden() -> dict[str, str]:
    """Return the screens of the file."""
    parts = GOLDEN.read_text().removeprefix(HEAD).split(f"\n{HEAD}")
    return {name: shown.rstrip("\n") for name, _, shown in (p.partition("\n") for p in parts)}


if __name__ == "__main__":
    GOLDEN.write_text(text())
