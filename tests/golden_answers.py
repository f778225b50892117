"""What the last screen says of answers, case by case; `golden_screens.py` has the other cases."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

from final_screens import DEPLOYMENT, ENGINE, KEPT, RESULT, need
from precision_bisect.runs.results.advised import Advised
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.certificates import Certificate, Forecasts, Need, Uncertified
from precision_bisect.runs.results.curve_of_result import Culprit
from precision_bisect.runs.results.deployment import TrtexecMode
from precision_bisect.runs.results.layer_costs import Costs, IslandCost
from precision_bisect.runs.results.other_targets import OnTargets, Stored
from precision_bisect.runs.results.result import Diagnosis, Result
from precision_bisect.settings.targets import Inside, TargetChoice
from precision_bisect.trial import OutputError, Stability, TrialStatus


def answers() -> Iterator[tuple[str, Result]]:
    """Yield all of them, with their names."""
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
        Diagnosis(layer=name, cause=Cause.OVERFLOW, evidence=f"reaches {i}e5", largest=i * 1e5)
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
        Diagnosis(layer="/m/Exp", cause=Cause.ROUNDING, evidence="11 bits"),
        Diagnosis(layer="/m/Softmax", cause=Cause.UNDERFLOW, evidence="9% is 0", largest=1e-9),
        Diagnosis(layer="/m/Sub", cause=Cause.UNDERFLOW, evidence="3% is 0", largest=1e-7),
    ]
    yield "two causes", replace(RESULT, kept=[each.layer for each in two], diagnosis=two)
    yield "operators alone", replace(RESULT, kept=[f"p2o.Conv.{i}" for i in range(6)])
    numbered = [f"n{i}" for i in range(6)]
    products = [
        Diagnosis(layer=name, operator="MatMul", cause=Cause.ROUNDING, evidence="rounds")
        for name in numbered
    ]
    yield "numbered layers", replace(RESULT, kept=numbered, diagnosis=products)
    many = [f"m{i}/layer{chr(97 + i)}" for i in range(20)]
    yield "many patterns", replace(RESULT, kept=many, candidates=40)
    yield "little gained", replace(RESULT, kept=many[:19], candidates=20)
    rounded = (*(f"m{i}/Op{'abcdefghij'[i]}" for i in range(9)), "Norm")
    culprit = Culprit(layer="Norm", error_without=1.0, error_with=0.06, cause=Cause.OVERFLOW)
    yield (
        "a culprit comes first",
        replace(RESULT, kept=rounded, candidates=40, culprits=[culprit]),
    )
    yield "names are literal", replace(RESULT, kept=("x/[bold]n", "x/\x1b[31mred"))
    without: dict[TrtexecMode, str] = {"weak": "no command by layer names", "strong10": "none"}
    yield "ways without a command", replace(RESULT, no_command=without)
    nothing = dict.fromkeys(get_args(TrtexecMode), "none")
    yield "no way has a command", replace(RESULT, no_command=nothing)
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
        need("e", None, None, "build_failed: no implementation: sorry", TrialStatus.BUILD_FAILED),
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
    signal = by_output(SCORES, BOXES, metric="psnr", atol=decibels)
    yield "outputs in decibels", replace(signal, tolerance=40.0, error=20.0, error_max=40.0)
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
