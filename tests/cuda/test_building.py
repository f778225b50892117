"""Which layers run low is read off ONNX Runtime's records, here those of its CPU provider."""

from dataclasses import replace
from pathlib import Path

import pytest

from models import keeping, load_text
from precision_bisect.backends.cuda.building import TypedSessions
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Form, LowName, Pair
from precision_bisect.protocols import BackendFailure
from precision_bisect.trial import TrialStatus

CHAIN = """(float[4] x) => (float[4] y) {
  [first] a = Sigmoid(x)
  [second] b = Mul(a, a)
  [third] c = Mul(b, a)
  [last] y = Softmax(c) }"""


def sessions(
    model: Model, folder: Path, low: LowName = "fp16", timeout_s: float | None = None
) -> TypedSessions:
    """Return what opens plans of the model on the CPU provider."""
    opener = Opener(providers=[CPU], profiles=folder / "profile", timeout_s=timeout_s)
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    return TypedSessions(writer, opener, folder / "typed")


def test_cpu_runs_nothing_low(tmp_path: Path) -> None:
    """On the CPU provider no layer can run low: it would compute each in FP32."""
    model = load_text(CHAIN, tmp_path)
    why = "ONNX Runtime places it on its CPU provider, which would compute it in FP32"
    expected = dict.fromkeys(("first", "second", "third", "last"), why)
    assert expected == sessions(model, tmp_path).unbuildable()


def test_the_engine_and_the_emulator_say_the_same(tmp_path: Path) -> None:
    """Where a newer opset brings the kernel, the engine's own reason names that cure, too."""
    text = (
        "(float[4] x) => (float[4] y) <float top = {6}> { [clip] c = Clip(x, , top) y = Tanh(c) }"
    )
    model = load_text(text, tmp_path, opset=11)
    foretold = EmulatedBackend(model, targets=["onnxruntime"]).unbuildable()
    assert foretold == {"clip": sessions(model, tmp_path).unbuildable()[model.table.names[0]]}
    assert "raise the opset to 12" in foretold[model.table.names[0]]


def test_refused_operators_stay_high(tmp_path: Path) -> None:
    """What has no kernel in BF16 is found error by error, all layers of an operator at once."""
    model = load_text(CHAIN, tmp_path)
    found = sessions(model, tmp_path, "bf16").unbuildable()
    assert {"first", "second", "third", "last"} == set(found)
    assert (
        "ONNX Runtime: Could not find an implementation for Mul(14) node with name 'second'"
        == (found[model.table.names[1]])
    )
    assert found[model.table.names[1]] == found[model.table.names[2]]


def test_low_layer_on_the_cpu(tmp_path: Path) -> None:
    """A plan of which a low layer lies on the CPU has no verdict, and says which layer."""
    model = load_text(CHAIN, tmp_path)
    with pytest.raises(BackendFailure) as caught:
        sessions(model, tmp_path).open(keeping(model, "first", "last"))
    expected = (
        TrialStatus.NOT_HONOURED,
        "'second' (and 1 more) does not run low: ONNX Runtime places it on its CPU provider, "
        "which would compute it in FP32",
    )
    assert expected == (caught.value.outcome.status, caught.value.outcome.message)


def test_a_layer_asked_for_low_is_no_exception(tmp_path: Path) -> None:
    """A layer that is low by order, and lies on the CPU, has no verdict under any plan either."""
    model = load_text(CHAIN, tmp_path)
    forms = {LayerName("second"): Form(stored="fp16"), LayerName("last"): Form(stored="fp32")}
    asked = replace(model, table=model.table.asking(forms))
    assert {"first", "third"} == set(sessions(asked, tmp_path).unbuildable())
    with pytest.raises(BackendFailure) as caught:
        sessions(asked, tmp_path).open(Plan.all_high(2))
    assert TrialStatus.NOT_HONOURED is caught.value.outcome.status
    assert caught.value.outcome.message.startswith("'second' does not run low")


def test_refused_plan(tmp_path: Path) -> None:
    """A plan that ONNX Runtime refuses is a failed build, in its own words."""
    model = load_text(CHAIN, tmp_path)
    with pytest.raises(BackendFailure) as caught:
        sessions(model, tmp_path, "bf16").open(Plan.of(()))
    outcome = caught.value.outcome
    assert TrialStatus.BUILD_FAILED == outcome.status
    assert outcome.message.startswith("Could not find an implementation for")


def test_slow_plan(tmp_path: Path) -> None:
    """A plan that is not ready in time is an outcome of its own."""
    model = load_text(CHAIN, tmp_path)
    with pytest.raises(BackendFailure) as caught:
        sessions(model, tmp_path, timeout_s=1e-9).open(Plan.all_high(4))
    outcome = caught.value.outcome
    assert (TrialStatus.TIMED_OUT, "not built within 1e-09 s") == (outcome.status, outcome.message)


def test_layers_of_a_plan(tmp_path: Path) -> None:
    """A built plan names all layers of the model, and what of the candidates is kept."""
    model = load_text(CHAIN, tmp_path)
    built = sessions(model, tmp_path).open(Plan.all_high(4))
    names = ["first", "second", "third", "last"]
    assert set(names) == built.layers
    assert names == built.kept
    assert [] == built.low
