"""The final screen, for every ending."""

from dataclasses import replace
from pathlib import Path

import pytest

from final_screens import KEPT, RESULT, need, screen, words
from precision_bisect.errors import ExitCode
from precision_bisect.results.advised import Advised
from precision_bisect.results.certificates import Certificate
from precision_bisect.results.deployment import ByDefaults, Deployment, Recheck
from precision_bisect.results.endings import Status
from precision_bisect.results.result import Culprit, Diagnosis, Inputs, Pinned, Rung
from precision_bisect.trial import Honour, LayerHonour, Stability
from precision_bisect_reports.summary import MOST_LINES, WIDTH, final_screen


def test_a_ladder_is_shown_rung_by_rung() -> None:
    """Counts per type in the headline, the layers below the name of their type."""
    rungs = (
        Rung(precision="fp32", layers=KEPT[:2], count=2),
        Rung(precision="fp16", layers=KEPT[2:], count=5),
        Rung(precision="int8", layers=None, count=3),
    )
    shown = screen(replace(RESULT, low="int8", rungs=rungs))
    assert "of 10 layers 2 must be FP32, 2 must be FP16, 3 run INT8" in shown
    texts = ("must be FP32\n", "/a/norm: Pow", "must be FP16\n", "/b/Sqrt")
    places = [shown.index(text) for text in texts]
    assert sorted(places) == places


DEPLOYMENT = Deployment(
    provider_options={},
    session_config={},
    samples=4,
    samples_total=4,
    polygraphy="polygraphy run model.mixed.onnx --trt --atol 0.01",
    recheck=Recheck(outcome="not_judged", message="4 samples fit; the target has to judge"),
)


def test_a_prediction_is_to_be_judged_on_the_target() -> None:
    """What was checked is said, and the next step is the command that judges, quoted."""
    shown = screen(replace(RESULT, deployment=DEPLOYMENT))
    assert "files       4 samples fit; the target has to judge" in shown
    first = shown.index("Next: confirm the prediction on TensorRT, TF32 off:")
    second = shown.index("(cd 'my run' && polygraphy run model.mixed.onnx --trt --atol 0.01)")
    third = shown.index("  Or on ONNX Runtime on CUDA: python 'my run/run_onnxruntime.py'")
    fourth = shown.index(
        "Then build (strong10, strong11, rtx, weak): sh 'my run/trtexec.sh' strong10"
    )
    assert first < second < third < fourth
    rounded = [Diagnosis(layer=name, cause="rounding", evidence="") for name in KEPT[:2]]
    shown = screen(replace(RESULT, deployment=DEPLOYMENT, diagnosis=rounded))
    assert "on TensorRT, TF32 off (2 layers need that):" in shown
    shown = screen(replace(RESULT, status=Status.NOTHING_TO_KEEP, deployment=DEPLOYMENT))
    assert "Next: confirm the prediction" in shown


def test_a_verdict_as_deployed_is_said() -> None:
    """What CUDA made of the exported files, and the option without which they fail."""
    defaults = ByDefaults(outcome="fail", error=0.0118, options=("use_tf32=0",))
    engine = replace(RESULT, emulated=False, backend="onnxruntime")

    def judged(recheck: Recheck) -> str:
        return screen(replace(engine, deployment=replace(DEPLOYMENT, recheck=recheck)))

    shown = judged(Recheck(outcome="pass", message="", error=0.0076, library_defaults=defaults))
    assert "run_onnxruntime.py passes in a fresh process: error 0.0076" in shown
    assert "ONNX Runtime's own options FAIL: error 0.0118; set use_tf32=0" in shown
    assert "Next: build (strong10, strong11, rtx, weak): sh" in shown
    assert "FAILS in a fresh process: error 0.02; do not" in judged(
        Recheck(outcome="fail", message="", error=0.02)
    )
    assert "do NOT fit together: cut" in judged(Recheck(outcome="broken", message="cut"))
    passing = ByDefaults(outcome="pass", error=0.001)
    assert "own options pass, too: error 0.001" in judged(
        Recheck(outcome="pass", message="", error=0.001, library_defaults=passing)
    )


def test_layers_are_grouped_by_what_they_are() -> None:
    """Modules with the same operators, for the same cause, are one line with what it costs."""
    kept = [f"/b{i}/norm/{name}" for i in range(5) for name in ("Pow", "ReduceMean_1")]
    evidence = [
        replace(need(name, True, "dropped"), error=0.02 + i / 100) for i, name in enumerate(kept)
    ]
    result = replace(
        RESULT,
        kept=kept,
        certificate=Certificate(minimal=True, checked=kept, unchecked=(), evidence=evidence),
        diagnosis=[
            Diagnosis(
                layer=name, cause="overflow", evidence=f"reaches {i}e5; without it: error {i}"
            )
            for i, name in enumerate(kept)
        ],
    )
    shown = screen(result)
    assert "  5 modules: Pow, ReduceMean in each\n" in shown
    assert "    overflow: reaches up to 9e5; without one of them: error 0.02 to 0.11\n" in shown
    assert "    /b0/norm, /b1/norm and 3 more\n" in shown
    pieces = Advised(
        id="whole-layernormalization", title="", evidence="", passed=False, layers=kept
    )
    assert "  5 LayerNorms: Pow, ReduceMean in each\n" in screen(replace(result, advice=[pieces]))


def test_what_stands_alone_is_named() -> None:
    """A pattern with one place is named after it, with its cause; operators are counted."""
    shown = screen(RESULT)
    assert "  /a/norm: Pow, Mean\n    overflow: reaches 1e5\n" in shown
    convs = tuple(f"p2o.Conv.{i}" for i in range(6))
    assert "  6 Conv layers\n    p2o.Conv.0, p2o.Conv.1 and 4 more\n" in screen(
        replace(RESULT, kept=convs)
    )


def test_culprits_come_first() -> None:
    """The layer that breaks the type is on the screen, whatever else is kept for rounding."""
    rounded = [f"m{i}/Op{'abcdefghij'[i]}" for i in range(9)]
    culprit = Culprit(layer="Norm", error_without=1.0, error_with=0.06, cause="overflow")
    shown = screen(replace(RESULT, kept=(*rounded, "Norm"), culprits=[culprit]))
    first = next(line for line in shown.splitlines()[2:] if line)
    assert "Norm" == first.strip()


@pytest.mark.parametrize("status", Status)
def test_every_ending_has_a_headline_and_a_next_step(status: Status) -> None:
    """No ending leaves the user without what to do."""
    shown = screen(replace(RESULT, status=status))
    assert "Next" in shown
    assert 5 <= len(shown.splitlines())


def test_what_is_no_precision_problem_is_compared_where_it_is() -> None:
    """An engine with ONNX Runtime, by the shapes of the run; FP32 by what is asked of it."""
    wrong = replace(
        RESULT, status=Status.NOT_PRECISION, fingerprint={"shapes": {"x": [[1, 3], 9]}}
    )
    assert "loosen the tolerance, or see why FP32 itself misses it" in words(wrong)
    engine = words(replace(wrong, emulated=False))
    assert "polygraphy run 'my model.onnx' --trt --onnxrt --input-shapes 'x:[1,3]'" in engine
    damaged = replace(wrong, emulated=False, fingerprint={"shapes": {"x": 3, "y": []}})
    assert "--input-shapes" not in words(damaged)


def test_a_model_that_does_not_build_in_fp32_is_told_apart() -> None:
    """The library's message is the headline, the exit code its own, and the library is asked."""
    wrong = replace(
        RESULT,
        status=Status.NO_BASELINE,
        message="the model with every layer high does not build: checkDet: false",
        backend="tensorrt-rtx",
        emulated=False,
    )
    assert ExitCode.NOT_BUILT is wrong.exit_code
    shown = words(wrong)
    assert "No FP32 baseline: the model with every layer high does not build: checkDet" in shown
    assert "POLYGRAPHY_USE_TENSORRT_RTX=1 polygraphy run 'my model.onnx' --trt" in shown
    assert "precision problem" not in shown


def test_commands_are_quoted_for_the_shell() -> None:
    """Paths with blanks or worse cannot break the command to copy."""
    shown = screen(RESULT)
    assert "sh 'my run/trtexec.sh' strong10" in shown
    assert "precision-bisect verify 'my run'\n" in shown
    shown = screen(replace(RESULT, status=Status.INTERRUPTED), model="a b; rm -rf x.onnx")
    assert "precision-bisect 'a b; rm -rf x.onnx' --resume --out 'my run'" in shown


def test_a_run_goes_on_by_its_own_command() -> None:
    """The command that began it is shown again, to resume, with every flag that it had."""
    spent = replace(RESULT, status=Status.BUDGET_EXHAUSTED)
    command = ["precision-bisect", "a b.onnx", "--tol", "1e-2", "--max-trials", "9", "--overwrite"]
    lines = final_screen(spent, Path("a b.onnx"), command=command)
    shown = "\n".join(line.plain for line in lines)
    assert (
        "with more time or trials:\n    precision-bisect 'a b.onnx' --tol 1e-2 --resume\n" in shown
    )
    curve = ["precision-bisect", "curve", "a b.onnx", "--tol=1e-2"]
    stopped = replace(RESULT, status=Status.STOPPED)
    lines = final_screen(stopped, Path("a b.onnx"), command=curve)
    shown = "\n".join(line.plain for line in lines)
    assert "precision-bisect 'a b.onnx' --tol=1e-2 --resume\n" in shown


def test_names_are_literal() -> None:
    """Markup and control characters in a name are shown, not obeyed."""
    shown = screen(replace(RESULT, kept=("x/[bold]n", "x/\x1b[31mred")))
    assert "[bold]n" in shown
    assert "\x1b" not in shown


def test_long_lists_are_cut() -> None:
    """The screen shows the first patterns and says how many more layers there are."""
    kept = tuple(f"m{i}/layer{chr(97 + i)}" for i in range(20))
    shown = screen(replace(RESULT, kept=kept))
    assert "… and 13 more layers, in the report" in shown


@pytest.mark.parametrize("status", Status)
def test_the_screen_is_small(status: Status) -> None:
    """With everything that can be said it has 26 lines of 80 columns; warnings are among them."""
    kept = tuple(f"/{'block/' * 12}m{i}/layer{'abcdefghij' * (i + 1)}" for i in range(20))
    full = replace(
        RESULT,
        status=status,
        kept=kept,
        candidates=400,
        certificate=Certificate(minimal=False, checked=kept[:1], unchecked=kept[1:]),
        deployment=DEPLOYMENT,
        stability=Stability(copies=16, failed=1, error_median=0.1, error_max=0.2, jitter=0.1),
        notes=["word " * 40] * 5,
        unresolved={"build_failed": 3},
        pinned=[Pinned(layer="celu", reason="Celu takes no fp16")],
        inputs=Inputs(synthetic=True, samples=4),
    )
    lines = screen(full).splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    assert any("made up" in line for line in lines)


def test_commands_can_be_pasted() -> None:
    """A long command is broken with backslashes between its words, never inside quotes."""
    words = " ".join(f"--flag-{i} 'a value {i}'" for i in range(9))
    deployment = replace(DEPLOYMENT, polygraphy=f"polygraphy run {words}")
    shown = screen(replace(RESULT, deployment=deployment))
    broken = shown[shown.index("(cd 'my run'") : shown.index("  Or on ONNX Runtime")]
    assert len(broken.splitlines()) > 2
    together = " ".join(broken.replace("\\\n", " ").split())
    assert f"(cd 'my run' && polygraphy run {words})" == together


def test_what_to_change_is_named_where_little_is_gained() -> None:
    """Where a plan keeps nearly all, the model itself is in question, whatever else is said."""
    kept = [f"/m{i}/layer{i}" for i in range(19)]
    many = replace(RESULT, kept=kept, candidates=20, notes=["a remark of many words " * 45])
    assert "few run in FP16" in words(many)
    assert "What to change instead: precision-bisect explain" in words(many)
    assert "What to change instead" not in words(replace(many, candidates=40))


def test_the_report_is_named() -> None:
    """The last step opens it."""
    assert "'my run/report.html'" in screen(RESULT).splitlines()[-1]


def test_unresolved_trials_are_counted() -> None:
    """Each status has its number; a run without any has no such line."""
    counts = {"build_failed": 3, "timed_out": 1, "not_honoured": 2}
    shown = screen(replace(RESULT, unresolved=counts))
    assert "unresolved  3 build failed, 1 timed out, 2 not honoured: these" in shown
    assert "unresolved" not in screen(RESULT)


def test_missing_string_is_explained() -> None:
    """Without a trtexec string the reason takes its place."""
    result = replace(RESULT, layer_precisions=None, layer_precisions_reason="because")
    assert "No trtexec string for TensorRT 8.6 to 10.x: because" in screen(result)


def test_wildcards_name_the_version_they_need() -> None:
    """A pattern is flagged, since TensorRT 8.6 cannot read it."""
    assert "TensorRT 10.0" in screen(replace(RESULT, layer_precisions="a*b:fp32"))


def test_what_else_there_is_to_say_is_shown() -> None:
    """A held-out sample that changed the answer, or a spent budget, is on the screen."""
    shown = screen(replace(RESULT, message="the samples held out judge too"))
    assert "note        the samples held out judge too" in shown


def test_what_an_engine_shows_is_on_the_screen() -> None:
    """Builds, latencies, obedience, pinned layers and the builder's remarks each have a line."""
    seen = [
        LayerHonour(layer=name, honoured=honour, evidence="weights")
        for name, honour in zip(KEPT, [*[Honour.HONOURED] * 3, Honour.NOT_OBSERVABLE], strict=True)
    ]
    shown = screen(
        replace(
            RESULT,
            backend="onnxruntime",
            emulated=False,
            builds=9,
            latency_ms={"all_high": 2.5, "all_low": 1.25, "kept": None},
            latency_method="cuda_events",
            honoured_layers=seen,
            pinned=[Pinned(layer="celu", reason="Celu takes no fp16")],
            notes=["layer norm in \x1b[31mFP16"],
        )
    )
    assert "effort      9 builds, 19 evaluations of the emulator, 2 s" in shown
    assert "latency     all high 2.5 ms, all low 1.25 ms, by CUDA events" in shown
    assert "honoured    3 honoured, 1 not observable" in shown
    assert "also high   celu: cannot run in fp16" in shown
    assert "remark      layer norm in" in shown
    assert "\x1b" not in shown
    assert "predicted on this machine" not in shown


def test_made_up_inputs_are_said() -> None:
    """They stand on the screen with their number; given ones, and older results, say nothing."""
    shown = screen(replace(RESULT, inputs=Inputs(synthetic=True, samples=4)))
    assert "inputs      made up, 4 samples: real ones may reach ranges" in shown
    assert "give --inputs" in shown
    assert "made up, 1 sample:" in screen(
        replace(RESULT, inputs=Inputs(synthetic=True, samples=1))
    )
    for inputs in (Inputs(synthetic=False, samples=4), None):
        assert "made up" not in screen(replace(RESULT, inputs=inputs))


@pytest.mark.parametrize("status", [Status.BUDGET_EXHAUSTED, Status.INTERRUPTED])
def test_a_run_without_a_plan_claims_none(status: Status) -> None:
    """What was cut off before any plan passed does not say that nothing need be kept."""
    nothing = Certificate(minimal=False, checked=(), unchecked=())
    none = replace(
        RESULT,
        status=status,
        kept=(),
        error=None,
        certificate=nothing,
        layer_precisions=None,
        message="the budget ended during the ranking; no plan has passed",
    )
    shown = screen(none)
    assert "No answer yet: the budget ended during the ranking; no plan has passed\n" in shown
    assert 1 == shown.count("during the ranking")
    untold = screen(replace(none, message=""))
    assert "No answer yet: no plan has passed yet that runs a layer in FP16" in untold
    assert "0 of 10 layers" not in screen(none)
    assert "verdict" not in screen(none)
    empty = replace(none, certificate=replace(nothing, minimal=True))
    assert "0 of 10 layers stay FP32" in screen(empty)


@pytest.mark.parametrize("status", Status)
def test_keeping_everything_is_no_answer(status: Status) -> None:
    """No ending says that all layers stay and the rest runs low: there is no rest."""
    shown = screen(replace(RESULT, status=status, candidates=len(KEPT)))
    assert "the rest runs" not in shown
    assert "4 of 4" not in shown
    if status in (Status.BUDGET_EXHAUSTED, Status.INTERRUPTED, Status.ABORTED):
        assert "No answer yet" in shown
        assert "error" not in shown
        assert "certificate" not in shown


def test_a_plan_that_gains_nothing_is_called_so() -> None:
    """What is found to need every layer names no export, and says what is left to try."""
    shown = screen(replace(RESULT, candidates=len(KEPT)))
    assert "Nothing gained: every plan that passed keeps all 4 layers FP32" in shown
    assert "Next: deploy the model with every layer FP32, loosen the tolerance, or try" in shown
    assert "--low bf16" in shown
    assert "trtexec.sh" not in shown


def test_layers_in_sixteen_bits_are_a_gain() -> None:
    """Where nothing can run INT8 the exports hold what was found: every layer in FP16."""
    rungs = (
        Rung(precision="fp16", layers=KEPT, count=4),
        Rung(precision="int8", layers=None, count=0),
    )
    result = replace(RESULT, candidates=4, low="int8", high="fp16", rungs=rungs)
    shown = screen(result)
    assert "Nothing gained: every plan that passed keeps all 4 layers FP16" in shown
    assert "trtexec.sh' strong10" in shown


def test_nothing_to_keep_names_the_model_that_was_judged() -> None:
    """The files that were written are built, which after --fuse-norms hold the fused model."""
    shown = screen(replace(RESULT, status=Status.NOTHING_TO_KEEP, kept=(), layer_precisions=None))
    assert "sh 'my run/trtexec.sh' strong10" in shown
    assert "--fp16 alone" not in shown


def test_weak_typing_promises_no_low_layer() -> None:
    """TensorRT may take FP32 for layers that are not kept, and the headline says so."""
    weak = replace(RESULT, fingerprint={**RESULT.fingerprint, "versions": {"typing": "weak"}})
    assert "the rest may run in FP16" in screen(weak)
    assert "the rest runs in FP16" in screen(RESULT)
