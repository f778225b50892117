"""A prediction names its engine: the screen, the report, and the commands that are proposed."""

from dataclasses import replace

import pytest

from final_screens import RESULT, screen, words
from precision_bisect.runs.results.deployment import Deployment
from precision_bisect.runs.results.other_targets import OnTargets, Stored
from precision_bisect.runs.results.result import Result
from precision_bisect.settings.targets import Inside, TargetChoice, TargetName
from precision_bisect_reports.html.answer import _facts
from precision_bisect_reports.promise import predicted

POLYGRAPHY, SCRIPT, BUILD = "polygraphy run", "run_onnxruntime.py", "build ("
DEPLOYMENT = Deployment(
    provider_options={}, session_config={}, samples=1, polygraphy="polygraphy run m.onnx"
)
CUDA = OnTargets(
    targets=["onnxruntime"],
    passed=False,
    error=0.1368,
    stored=[
        Stored(op_type="ReduceMean", inside=Inside.SUM, layers=29),
        Stored(op_type="InstanceNormalization", inside=Inside.STEPS, layers=2),
    ],
)
BOTH = OnTargets(targets=["tensorrt", "tensorrt-rtx"], passed=False, error=0.02)


def of(target: TargetChoice, *others: OnTargets) -> Result:
    """Return an answer that was searched for one target."""
    return replace(
        RESULT,
        target=target,
        other_targets=others,
        deployment=DEPLOYMENT,
        fingerprint={"strategy": "guided", "samples": 4, "holdout": 0},
    )


def test_a_target_that_fails_is_named_with_the_reason() -> None:
    """So is the flag that searches for it."""
    shown = words(of("tensorrt", CUDA))
    assert (
        "target TensorRT; FAILS on ONNX Runtime on CUDA: error 0.137, which stores sums of 29 "
        "ReduceMean, each step of 2 InstanceNormalization in FP16; try --target onnxruntime or all"
    ) in shown
    assert (
        "ONNX Runtime on CUDA; FAILS on TensorRT and TensorRT-RTX: error 0.02, where everything "
        "inside operators is FP32; try --target tensorrt or all"
    ) == predicted(of("onnxruntime", BOTH))


def test_a_target_that_passes_or_was_not_judged_is_named() -> None:
    """Neither is a reason to search again."""
    passing = replace(BOTH, passed=True, error=0.0097)
    expected = "ONNX Runtime on CUDA; passes on TensorRT and TensorRT-RTX, too: error 0.0097"
    assert expected == predicted(of("onnxruntime", passing))
    late = replace(CUDA, passed=None, error=None, message="the time was up")
    assert "TensorRT-RTX; not judged on ONNX Runtime on CUDA: the time was up" == predicted(
        of("tensorrt-rtx", late)
    )
    assert "TensorRT, TensorRT-RTX and ONNX Runtime on CUDA" == predicted(of("all"))
    assert "" == predicted(RESULT)


@pytest.mark.parametrize(
    ("target", "others", "proposed"),
    [
        ("tensorrt", [], [POLYGRAPHY, SCRIPT, BUILD]),
        ("all", [], [POLYGRAPHY, SCRIPT, BUILD]),
        ("onnxruntime", [], [SCRIPT, POLYGRAPHY, BUILD]),
        ("tensorrt", [CUDA], [POLYGRAPHY, BUILD]),
        ("tensorrt", [replace(CUDA, passed=None)], [POLYGRAPHY, BUILD]),
        ("tensorrt", [replace(CUDA, passed=True)], [POLYGRAPHY, SCRIPT, BUILD]),
        ("onnxruntime", [BOTH], [SCRIPT]),
    ],
)
def test_commands_are_for_targets_on_which_the_answer_passed(
    target: TargetChoice, others: list[OnTargets], proposed: list[str]
) -> None:
    """The others are not proposed; the target that was searched for comes first."""
    shown = screen(of(target, *others))
    places = {shown.index(each): each for each in (POLYGRAPHY, SCRIPT, BUILD) if each in shown}
    assert proposed == [places[at] for at in sorted(places)]
    assert ("Does TensorRT keep them" in shown) == (BUILD in proposed)


@pytest.mark.parametrize(
    ("targets", "ways"),
    [
        (["tensorrt-rtx"], "build (strong10, strong11, weak): sh 'my run/trtexec.sh' strong10"),
        (["tensorrt"], "build (rtx): sh 'my run/trtexec.sh' rtx"),
    ],
)
def test_builds_are_for_targets_on_which_the_answer_passed(
    targets: list[TargetName], ways: str
) -> None:
    """Where TensorRT and TensorRT-RTX should ever differ."""
    assert ways in words(of("onnxruntime", replace(BOTH, targets=targets)))


def test_the_report_names_the_engine() -> None:
    """Among its facts, in the words of the screen."""
    result = of("tensorrt", CUDA)
    assert ["Predicted for", predicted(result)] in list(_facts(result))
    told = [label for label, _ in _facts(replace(result, target=None))]
    assert "Predicted for" not in told
