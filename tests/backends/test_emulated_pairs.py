"""The emulator for every pair of types, against graphs with Casts and Q/DQ written out."""

import random
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assigned_graphs import assigned_graph, run_as_written
from effort import examples
from models import keeping, load_text, normal, save
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.switched import switch
from precision_bisect.errors import ModelError
from precision_bisect.graphs.load import Model, at_least_opset, load_model
from precision_bisect.graphs.quantization.calibration import scales_for
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.pinning import pin, pin_formless
from precision_bisect.layer_table import forms_of
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.precisions import (
    HALF_NAMES,
    HIGH_NAMES,
    LOW_NAMES,
    Form,
    HalfName,
    LowName,
    Pair,
)
from random_graphs import KINDS, SIZE, random_models

PAIRS = [Pair(low=low, high=high) for low, high in product(LOW_NAMES, HIGH_NAMES) if low != high]
ONE_OUTPUT = tuple(kind for kind in KINDS if kind not in ("Split",))
QUANTIZABLE = ("MatMul", "Gemm", "Conv")


def loaded(proto: onnx.ModelProto, pair: Pair) -> Model:
    """Return the model at an opset that knows all types, with what has no form pinned."""
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(save(proto, Path(folder)))
    return pin_formless(at_least_opset(model, 19), pair)


def scales_of(model: Model, pair: Pair, x: np.ndarray) -> Scales:
    """Return the scales for one sample."""
    return scales_for(model, pair, [{"x": x}], Options(model=model.path))


def forms_in(model: Model, pair: Pair, plan: Plan) -> dict[str, Form]:
    """Return the form of each layer under a plan."""
    kept = {model.table.names[i] for i in plan.kept}
    return {
        str(name): forms.high if name in kept else forms.low
        for name, forms in forms_of(model.table, pair).items()
    }


@examples(15)
@given(
    proto=random_models(among=(*ONE_OUTPUT, *QUANTIZABLE, *QUANTIZABLE)),
    pair=st.sampled_from(PAIRS),
    choose=st.randoms(use_true_random=False),
    scale=st.sampled_from((0.01, 1.0, 30.0)),
)
def test_every_plan_of_every_pair_equals_the_written_graph(
    proto: onnx.ModelProto, pair: Pair, choose: random.Random, scale: float
) -> None:
    """Switching gives, bit for bit, what ONNX Runtime makes of the same Casts and Q/DQ nodes."""
    model = loaded(proto, pair)
    x = normal(SIZE, SIZE) * np.float32(scale)
    scales = scales_of(model, pair, x)
    count = len(model.table.candidates)
    backend = EmulatedBackend(model, pair.low, 1, pair.high, scales)
    for kept in (range(count), (), choose.sample(range(count), k=count // 2)):
        plan = Plan.of(kept)
        written = assigned_graph(model, forms_in(model, pair, plan), scales)
        expected = run_as_written(written, {"x": x})
        found = backend.evaluate(plan, {"x": x})
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{name} of {kept}")


@examples(10)
@given(
    proto=random_models(among=(*ONE_OUTPUT, *QUANTIZABLE)),
    low=st.sampled_from(HALF_NAMES),
    choose=st.randoms(use_true_random=False),
)
def test_every_plan_beside_fixed_layers_equals_the_written_graph(
    proto: onnx.ModelProto, low: HalfName, choose: random.Random
) -> None:
    """One switch for both ends of an edge is right where a neighbour's type is fixed, too."""
    pair = Pair(low=low, high="fp32")
    model = loaded(proto, pair)
    for stored in HIGH_NAMES:
        some = [name for name in model.table.names if choose.random() < 0.2]
        model = pin(model, dict.fromkeys(some, "fixed"), Form(stored=stored))
    count = len(model.table.candidates)
    backend = EmulatedBackend(model, low, 1)
    x = normal(SIZE, SIZE)
    for kept in (range(count), (), choose.sample(range(count), k=count // 2)):
        plan = Plan.of(kept)
        written = assigned_graph(model, forms_in(model, pair, plan), Scales())
        expected = run_as_written(written, {"x": x})
        found = backend.evaluate(plan, {"x": x})
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{name} of {kept}")


def test_a_fixed_layer_costs_the_other_edges_no_switch(tmp_path: Path) -> None:
    """An edge between two layers that a plan decides on has one switch, whatever is fixed."""
    model = load_text(
        """(float[4] x) => (float[4] y) {
            [a] p = Sqrt(x) [b] q = Sqrt(p) [c] r = Sqrt(q) [d] y = Sqrt(r) }""",
        tmp_path,
    )
    counts = [len(switch(model, Pair(low="fp16", high="fp32"), Scales()).switches.layers)]
    model = pin(model, {model.table.names[3]: "fixed"}, Form(stored="fp32"))
    counts.append(len(switch(model, Pair(low="fp16", high="fp32"), Scales()).switches.layers))
    # The ends of x, p, q, r and y; then those of x, p, q and what c stores.
    assert [5, 4] == counts


@examples(12)
@given(
    proto=random_models(among=(*ONE_OUTPUT, *QUANTIZABLE)),
    low=st.sampled_from(LOW_NAMES),
    high=st.sampled_from(HALF_NAMES),
)
def test_all_kept_is_the_high_type(proto: onnx.ModelProto, low: LowName, high: HalfName) -> None:
    """Whatever the low type, keeping every layer gives what running all in the high type gives."""
    if low == high:
        return
    pair = Pair(low=low, high=high)
    model = loaded(proto, pair)
    x = normal(SIZE, SIZE)
    backend = EmulatedBackend(model, low, 1, high, scales_of(model, pair, x))
    kept = backend.evaluate(Plan.all_high(len(model.table.candidates)), {"x": x})
    pure = loaded(proto, Pair(low=high, high="fp32"))
    expected = EmulatedBackend(pure, high, 1).evaluate(Plan.of(()), {"x": x})
    for name, array in expected.items():
        np.testing.assert_array_equal(kept[name], array)


def test_fixed_layers_keep_their_form(tmp_path: Path) -> None:
    """What another rung decided is FP32 or INT8 whatever the plan says."""
    model = load_text(
        """(float[4,4] x) => (float[4,4] y) <float[4,4] w = {
            1.1, -0.3, 0.2, 0.7, 0.6, 1.3, 0.1, -0.9, 0.4, 0.5, -1.2, 0.8, 0.3, -0.7, 0.9, 1.0}> {
            [a] s = MatMul(x, w) [b] t = Mul(s, s) [c] y = MatMul(t, w) }""",
        tmp_path,
    )
    names = {str(name): name for name in model.table.names}
    scales = scales_of(model, Pair(low="int8", high="fp16"), normal(4, 4))
    model = pin(model, {names["a"]: "settled"}, Form(stored="fp16", quantized="int8"))
    model = pin(model, {names["b"]: "settled"}, Form(stored="fp32"))
    backend = EmulatedBackend(model, "fp16", 1, "fp32", scales)
    assert ("c",) == model.table.names
    for plan, last in ((Plan.of(()), "fp16"), (keeping(model, "c"), "fp32")):
        forms = {
            "a": Form(stored="fp16", quantized="int8"),
            "b": Form(stored="fp32"),
            "c": Form(stored=last),  # type: ignore[arg-type]
        }
        x = normal(4, 4)
        expected = run_as_written(assigned_graph(model, forms, scales), {"x": x})
        np.testing.assert_array_equal(backend.evaluate(plan, {"x": x})["y"], expected["y"])


def test_fp16_against_bf16_is_about_range_only(tmp_path: Path) -> None:
    """A square beyond FP16's range is kept in BF16, which holds it with fewer digits."""
    model = load_text(
        "(float[1] x) => (float[1] y) <float k = {0.0033}> { s = Mul(x, x) y = Mul(s, k) }",
        tmp_path,
    )
    backend = EmulatedBackend(model, "fp16", 1, "bf16")
    feed = {"x": np.array([300], np.float32)}
    assert np.isinf(backend.evaluate(Plan.of(()), feed)["y"]).all()
    kept = backend.evaluate(Plan.of((0, 1)), feed)["y"]
    np.testing.assert_allclose(kept, [297], rtol=0.02)
    assert 297.0 != kept[0]


def test_fp8_of_an_old_model_needs_a_conversion(tmp_path: Path) -> None:
    """ONNX knows FP8 from opset 19 on; what cannot be converted is refused with a hint."""
    body = """(float[2,2] x, bool c) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        s = MatMul(x, w)
        y = If (c) <then_branch = t () => (float[2,2] a) { a = Hardmax<axis = 1>(s) },
                    else_branch = e () => (float[2,2] b) { b = Abs(s) }> }"""
    model = pin_formless(load_text(body, tmp_path, opset=11), Pair(low="fp8", high="fp32"))
    with pytest.raises(ModelError, match="fp8 needs 19") as caught:
        EmulatedBackend(model, "fp8")
    assert "opset 19" in caught.value.hint
