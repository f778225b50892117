"""The last screen of every ending, and of what else can be said, as `golden/screens.txt` has it.

`python tests/golden_screens.py` writes the file anew; the difference is what to look at.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from final_screens import KEPT, RESULT, need, screen
from precision_bisect.runs.results.advised import Advised
from precision_bisect.runs.results.certificates import Certificate, Forecasts, Need, Uncertified
from precision_bisect.runs.results.deployment import ByDefaults, Deployment, Recheck
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.layer_costs import Costs, IslandCost
from precision_bisect.runs.results.other_targets import OnTargets, Stored, WithTf32
from precision_bisect.runs.results.result import (
    Culprit,
    CurvePoint,
    Diagnosis,
    Inputs,
    Pinned,
    PointName,
    Result,
    Rung,
    TrtexecMode,
)
from precision_bisect.runs.results.speed_report import PlanToDeploy
from precision_bisect.settings.targets import Inside, TargetChoice
from precision_bisect.trial import Honour, LayerHonour, OutputError, Stability

GOLDEN = Path(__file__).parent / "golden" / "screens.txt"
HEAD = "=== "
NO_PLAN: dict[str, Any] = {"kept": (), "rungs": (), "error": None, "layer_precisions": None}
UNTESTED = Certificate(minimal=False, checked=(), unchecked=())
ENGINE = replace(RESULT, emulated=False, backend="onnxruntime")
FITS = Recheck(outcome="not_judged", message="4 samples fit; the target has to judge")
DEPLOYMENT = Deployment(
    provider_options={},
    session_config={},
    samples=4,
    samples_total=4,
    polygraphy="polygraphy run model.mixed.onnx --trt --atol 0.01",
    recheck=FITS,
)
DEFAULTS = ByDefaults(outcome="fail", error=0.0118, options=("use_tf32=0",))


def tf32(passed: bool, fp32_passed: bool) -> WithTf32:
    """Return what TF32 makes of FP32 and of the answer."""
    return WithTf32(fp32_passed=fp32_passed, fp32_error=1.4e-4, passed=passed, error=0.0097)


def deployed(recheck: Recheck) -> Result:
    """Return an engine's answer whose files have been judged so."""
    return replace(ENGINE, deployment=replace(DEPLOYMENT, recheck=recheck))


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
    yield "nothing gained", replace(RESULT, candidates=len(KEPT))
    halves = (
        Rung(precision="fp16", layers=KEPT, count=4),
        Rung(precision="int8", layers=None, count=0),
    )
    low: dict[str, Any] = {"low": "int8", "high": "fp16", "rungs": halves}
    yield "nothing gained in INT8", replace(RESULT, candidates=4, **low)
    shapes = {"shapes": {"x": [[1, 3], 9]}}
    wrong = replace(ENGINE, status=Status.NOT_PRECISION, fingerprint=shapes)
    yield "an engine is compared", wrong
    damaged = {"shapes": {"x": 3, "y": []}}
    yield "an engine is compared, without shapes", replace(wrong, fingerprint=damaged)
    unbuilt = "the model with every layer high does not build: checkDet: false"
    rtx: dict[str, Any] = {"message": unbuilt, "backend": "tensorrt-rtx", "emulated": False}
    yield "does not build in FP32", replace(RESULT, status=Status.NO_BASELINE, **rtx)
    yield from of_answers()


def of_answers() -> Iterator[tuple[str, Result]]:
    """Yield what is said of answers, with its name."""
    rungs = (
        Rung(precision="fp32", layers=KEPT[:2], count=2),
        Rung(precision="fp16", layers=KEPT[2:], count=5),
        Rung(precision="int8", layers=None, count=3),
    )
    yield "a ladder", replace(RESULT, low="int8", rungs=rungs)
    rounded = [Diagnosis(layer=name, cause="rounding", evidence="") for name in KEPT[:2]]
    yield "rounding", replace(RESULT, deployment=DEPLOYMENT, diagnosis=rounded)
    passes = Recheck(outcome="pass", message="", error=0.0076, library_defaults=DEFAULTS)
    own = replace(passes, library_defaults=ByDefaults(outcome="pass", error=0.001))
    yield "files pass", deployed(passes)
    yield "files pass, by the library's own options too", deployed(own)
    yield "files fail", deployed(Recheck(outcome="fail", message="", error=0.02))
    yield "files do not fit", deployed(Recheck(outcome="broken", message="cut"))
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
    culprit = Culprit(
        layer=KEPT[0], error_without=1.0, error_with=0.06, cause="overflow", evidence="1e5"
    )
    figures: list[tuple[int, float, PointName]] = [
        (0, 1.0, "all_low"),
        (1, 0.06, "culprits"),
        (4, 5e-3, "answer"),
    ]
    points = [
        CurvePoint(
            kept_count=count, error_median=error, error_max=error, latency_ms=None, point=name
        )
        for count, error, name in figures
    ]
    yield "a culprit and the curve", replace(RESULT, culprits=[culprit], curve=points)
    plan = PlanToDeploy(
        kept=[*KEPT, "Sub"], error=0.00077, time=0.6, answer_time=0.62, estimated=True
    )
    faster = replace(RESULT, deploy=plan, tf32=tf32(True, True))
    yield "a plan to deploy", faster
    yield "a plan to deploy, exported", replace(faster, export_point="deploy")
    measured = replace(plan, estimated=False, answer_time=0.6)
    yield "a plan to deploy, measured", replace(ENGINE, deploy=measured)
    yield "the answer is deployed", replace(RESULT, deploy=replace(plan, kept=KEPT))
    yield "TF32 breaks the answer", replace(RESULT, tf32=tf32(False, True))
    yield "TF32 breaks FP32", replace(RESULT, tf32=tf32(True, False))
    yield "TF32 breaks both", replace(RESULT, tf32=tf32(False, False))

    yield from of_layers()
    yield from of_proofs()
    yield from of_targets()
    yield from of_outputs()
    yield from of_costs()


def of_layers() -> Iterator[tuple[str, Result]]:
    """Yield how the kept layers are grouped, and what little they gain."""
    kept = [f"/b{i}/norm/{name}" for i in range(5) for name in ("Pow", "ReduceMean_1")]
    needs = [
        replace(need(name, True, "dropped"), error=0.02 + i / 100) for i, name in enumerate(kept)
    ]
    causes = [
        Diagnosis(layer=name, cause="overflow", evidence=f"reaches {i}e5", largest=i * 1e5)
        for i, name in enumerate(kept)
    ]
    proof = proven(needs, minimal=True)
    norms = replace(RESULT, kept=kept, candidates=40, certificate=proof, diagnosis=causes)
    yield "modules of one pattern", norms
    pieces = Advised(
        id="whole-layernormalization", title="", evidence="", passed=False, layers=kept
    )
    yield "modules that are pieces of a norm", replace(norms, advice=[pieces])
    two = [
        Diagnosis(layer="/m/Exp", cause="rounding", evidence="11 bits"),
        Diagnosis(layer="/m/Softmax", cause="underflow", evidence="9% is 0", largest=1e-9),
        Diagnosis(layer="/m/Sub", cause="underflow", evidence="3% is 0", largest=1e-7),
    ]
    yield "two causes", replace(RESULT, kept=[each.layer for each in two], diagnosis=two)
    yield "operators alone", replace(RESULT, kept=[f"p2o.Conv.{i}" for i in range(6)])
    many = [f"m{i}/layer{chr(97 + i)}" for i in range(20)]
    yield "many patterns", replace(RESULT, kept=many, candidates=40)
    yield "little gained", replace(RESULT, kept=many[:19], candidates=20)
    rounded = (*(f"m{i}/Op{'abcdefghij'[i]}" for i in range(9)), "Norm")
    culprit = Culprit(layer="Norm", error_without=1.0, error_with=0.06, cause="overflow")
    yield (
        "a culprit comes first",
        replace(RESULT, kept=rounded, candidates=40, culprits=[culprit]),
    )
    yield "names are literal", replace(RESULT, kept=("x/[bold]n", "x/\x1b[31mred"))
    without: dict[TrtexecMode, str] = {"weak": "no command by layer names", "strong10": "none"}
    yield "ways without a command", replace(RESULT, no_command=without)
    stability = Stability(copies=16, failed=1, error_median=0.0095, error_max=0.0123, jitter=0.1)
    yield "an answer that holds on most copies", replace(RESULT, stability=stability)


def proven(needs: Sequence[Need], **values: Any) -> Certificate:
    """Return a certificate of layers that are needed so."""
    checked = [each.layer for each in needs if each.needed]
    unchecked = [each.layer for each in needs if not each.needed]
    return Certificate(
        **{
            "minimal": False,
            "checked": checked,
            "unchecked": unchecked,
            "evidence": needs,
            **values,
        }
    )


def of_proofs() -> Iterator[tuple[str, Result]]:
    """Yield what a certificate rests on."""
    forecasts = Forecasts(builds=12, right=12, drawn=2, wrong_at_most=1, confidence=0.9)
    dropped = [need(name, True, "dropped") for name in KEPT]
    predicted = need(KEPT[3], None, "predicted")
    limited = [replace(each, needed_at_limit=True) for each in dropped]
    passed = replace(limited[2], needed=False)
    mixed = [
        need("a", True, "dropped"),
        need("b", None, "predicted"),
        need("c", None, "predicted"),
        need("d", False, "dropped"),
        need("e", None, None, "build_failed: no implementation: sorry"),
        need("f", None, None, "the budget was spent"),
    ]
    certificates = {
        "by forecasts": proven([*dropped[:3], predicted], forecasts=forecasts),
        "by forecasts below a limit": proven(
            [*limited[:2], passed, predicted], forecasts=forecasts, limit=0.009
        ),
        "below a limit": proven([*limited[:3], replace(passed, layer=KEPT[3])], limit=0.009),
        "not proven, for several reasons": proven(mixed, mode="forecasts", forecasts=forecasts),
        "not proven": Certificate(minimal=False, checked=KEPT[:1], unchecked=KEPT[1:]),
        "spread": Certificate(
            minimal=False, checked=(), unchecked=KEPT, uncertified=Uncertified.SPREAD
        ),
    }
    for alone, count in ((1, 3), (2, 2), (1, 1)):
        needs = [replace(each, fails_on="copies") for each in dropped[:alone]]
        needs += [replace(each, fails_on="samples") for each in dropped[alone:count]]
        certificates[f"{alone} of {count} on copies alone"] = proven(needs, minimal=True)
    for name, certificate in certificates.items():
        yield f"certificate {name}", replace(RESULT, certificate=certificate)


def of_targets() -> Iterator[tuple[str, Result]]:
    """Yield what a prediction is for, and the commands for targets where it may pass."""
    cuda = OnTargets(
        targets=["onnxruntime"],
        passed=False,
        error=0.1368,
        stored=[
            Stored(op_type="ReduceMean", inside=Inside.SUM, layers=29),
            Stored(op_type="InstanceNormalization", inside=Inside.STEPS, layers=2),
        ],
    )
    both = OnTargets(targets=["tensorrt", "tensorrt-rtx"], passed=False, error=0.02)
    late = replace(cuda, passed=None, error=None, message="the time was up")
    deployed = replace(RESULT, deployment=DEPLOYMENT)
    yield "for all targets", replace(deployed, target="all")
    yield "for ONNX Runtime", replace(deployed, target="onnxruntime")
    elsewhere: Sequence[tuple[str, TargetChoice, OnTargets]] = (
        ("CUDA fails", "tensorrt", cuda),
        ("CUDA is not judged", "tensorrt-rtx", late),
        ("CUDA passes", "tensorrt", replace(cuda, passed=True, stored=())),
        ("TensorRT fails", "onnxruntime", both),
        ("TensorRT passes", "onnxruntime", replace(both, passed=True, error=0.0097)),
        ("TensorRT alone fails", "onnxruntime", replace(both, targets=["tensorrt"])),
        ("TensorRT-RTX alone fails", "onnxruntime", replace(both, targets=["tensorrt-rtx"])),
    )
    for name, target, other in elsewhere:
        yield f"elsewhere {name}", replace(deployed, target=target, other_targets=[other])


BOXES = OutputError(
    output="boxes",
    max=0.5,
    mean=0.02,
    p99=0.25,
    elements=400,
    differing=390,
    sample=1,
    index=(0, 12, 3),
    expected=412.25,
    got=411.75,
)
SCORES = replace(BOXES, output="scores", max=2e-4, index=(7,), expected=0.25, got=0.2502)


def by_output(*errors: OutputError, **limits: Any) -> Result:
    """Return a result with these errors and limits."""
    comparator = {"metric": "elementwise", **limits}
    return replace(RESULT, output_errors=errors, fingerprint={"comparator": comparator})


def of_outputs() -> Iterator[tuple[str, Result]]:
    """Yield the errors by output, where one figure for all does not tell them."""
    limits = {"boxes": 1.0, "scores": 0.01}
    several = by_output(SCORES, BOXES, atol=limits, rtol={"boxes": 0.0, "scores": 0.01})
    yield "outputs", several
    narrow = {"boxes": 0.000125}
    small = replace(BOXES, max=1.25e-05, p99=0.000123)
    yield "outputs of small limits", by_output(small, SCORES, atol=narrow, rtol=narrow)
    labels = replace(BOXES, output="labels", differing=3, max=4000.0)
    boxes = {"atol": {"boxes": 1.0}, "rtol": {"boxes": 0.0}}
    yield "outputs of classes", by_output(labels, BOXES, **boxes, classes={"labels": 0.02})
    exact = replace(labels, differing=0)
    yield "outputs of exact classes", by_output(exact, BOXES, **boxes, classes={"labels": 0.0})
    check: dict[str, Any] = {"metric": None, "check": "metric.py:f", "tolerance": 0.1}
    yield "outputs of a check", by_output(SCORES, BOXES, **check)
    decibels = {"boxes": 40.0, "scores": 40.0}
    yield "outputs in decibels", by_output(SCORES, BOXES, metric="psnr", atol=decibels)
    long = [replace(SCORES, output=f"a/rather/long/name/of/output/{n}") for n in range(40)]
    yield "many outputs", by_output(*long, BOXES, **boxes)
    for atol, rtol in ((1.0, 0.0), (0.01, 0.01), (0.0, 0.01), (0.6, 0.01)):
        one = by_output(BOXES, atol={"boxes": atol}, rtol={"boxes": rtol})
        yield f"one output, {atol} or {rtol}", one
    share = {"boxes": 0.03}
    yield "one output by its mean", by_output(BOXES, metric="mean", atol=share, rtol=share)


def island(layers: Sequence[str], saves_ms: float) -> IslandCost:
    """Return an island that saves so much."""
    return IslandCost(layers=layers, ms=saves_ms, casts_ms=0.01, saves_ms=saves_ms)


def of_costs() -> Iterator[tuple[str, Result]]:
    """Yield what the kept layers cost, where that matters."""
    norm, others = ("/enc/0/norm/Pow", "/enc/0/norm/ReduceMean"), ("p2o.Mul.1", "p2o.Add.7")
    for name, total_ms, islands in (
        ("of three islands", 4.4, [(norm, 0.25), (others, 0.125), (("x",), 0.125)]),
        ("of a long name", 4.4, [(("/" + "long/" * 9 + "Pow",), 0.125), (others, 0.125)]),
        ("of an island that saves nothing", 4.4, [(others, 0.25), (norm, -0.125)]),
        ("of one island", 4.4, [(norm, 0.25)]),
        ("of six islands", 4.4, [((f"n{i}",), 0.1) for i in range(6)]),
        ("too little to tell", 44.0, [(norm, 0.25)]),
        ("nothing saved", 4.4, [(norm, -0.25)]),
    ):
        costs = Costs(
            method="onnxruntime_profile",
            total_ms=total_ms,
            low_ms=4.0,
            islands=[island(*each) for each in islands],
        )
        yield f"costs, {name}", replace(ENGINE, costs=costs)


def text() -> str:
    """Return all of them as the file has them."""
    return "".join(f"{HEAD}{name}\n{screen(result)}" for name, result in cases())


def golden() -> dict[str, str]:
    """Return the screens of the file."""
    parts = GOLDEN.read_text().removeprefix(HEAD).split(f"\n{HEAD}")
    return {name: shown.rstrip("\n") for name, _, shown in (p.partition("\n") for p in parts)}


if __name__ == "__main__":
    GOLDEN.write_text(text())
