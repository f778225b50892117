"""Graphs of any types, and random assignments of them: what is written is what was asked for."""

import random
import tempfile
from pathlib import Path

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from models import load_text, normal, save
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import LOW_TYPES, QUANTIZED
from precision_bisect.graphs.quantization.calibration import (
    Calibration,
    calibrate,
    quantized_layers,
)
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.pinning import pin, pin_formless
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName, forms_of
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, HIGH_NAMES, LOW_NAMES, Form, Pair
from random_graphs import SIZE, random_models
from typed_graphs import check_structure, run_as_written, simulated, types_of
from wider_graphs import WIDER_KINDS, WiderMaker

FEED = {"x": normal(SIZE, SIZE)}
PAIRS = [Pair(low=low, high=high) for low in LOW_NAMES for high in HIGH_NAMES if low != high]


def calibrated(model: Model, pair: Pair) -> Scales:
    """Return the scales of what the pair quantizes, for the one feed."""
    if pair.low not in QUANTIZED:
        return Scales()
    how = Calibration(method="minmax", kind=QUANTIZED[pair.low], stored=pair.high)
    return calibrate(model, quantized_layers(model, pair), [FEED], how, threads=1)


def some_fixed(model: Model, choose: random.Random) -> Model:
    """Return the model with a few layers fixed to a float type, as rungs of a ladder fix them."""
    for stored in HIGH_NAMES:
        some = [name for name in model.table.names if choose.random() < 0.2]
        model = pin(model, dict.fromkeys(some, "fixed"), Form(stored=stored))
    return model


def check_forms(model: Model, pair: Pair, plan: Plan, typed: onnx.ModelProto) -> None:
    """Assert that each layer that has its form reads and writes exactly the types of it."""
    types = types_of(typed)
    makers = {name: node.op_type for node in typed.graph.node for name in node.output}
    sources = {node.name: node for node in model.proto.graph.node}
    kept = {model.table.names[index] for index in plan.kept}
    for node in typed.graph.node:
        forms = forms_of(model.table, pair).get(LayerName(node.name))
        if forms is None:
            continue
        form = forms.high if node.name in kept else forms.low
        stored = LOW_TYPES[form.stored].onnx_type if form.stored in LOW_TYPES else 1
        floats = {types[name] for name in node.output if types[name] in (1, 10, 16)}
        assert {stored} == floats, node.name
        quantized = [makers.get(name) == "DequantizeLinear" for name in node.input[:2]]
        assert (form.quantized is not None) == any(quantized), node.name
        if form.quantized:
            assert all(quantized), node.name
            assert {stored} == {types[name] for name in node.input if name}
            assert len(sources[node.name].input) == len(node.input)


@examples(12)
@given(
    proto=random_models(WiderMaker, WIDER_KINDS),
    pair=st.sampled_from(PAIRS),
    choose=st.randoms(use_true_random=False),
    guard=st.booleans(),
)
def test_every_assignment_means_what_the_emulator_means(
    proto: onnx.ModelProto, pair: Pair, choose: random.Random, guard: bool
) -> None:
    """Valid, each layer in its own types, no Cast twice, and the emulator's bits."""
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(save(proto, Path(folder)))
        # Layers without a form in a type that they may be fixed to are pinned before that.
        for half in HALF_NAMES:
            formless = TypedWriter(model, Pair(low=half, high="fp32")).not_low
            model = pin(model, formless, Form(stored="fp32"))
        model = pin_formless(some_fixed(model, choose), pair)
        scales = calibrated(model, pair)
        writer = TypedWriter(model, pair, scales)
        assert {} == writer.not_low
        emulator = EmulatedBackend(model, pair.low, 1, pair.high, scales)
        count = len(model.table.names)
        for kept in ((), range(count), choose.sample(range(count), count // 2)):
            plan, path = Plan.of(kept), Path(folder) / "typed.onnx"
            save_typed(writer.write(plan, guard), path)
            onnx.checker.check_model(path, full_check=True)
            typed = onnx.load(path)
            check_structure(model, typed)
            check_forms(model, pair, plan, typed)
            found = run_as_written(simulated(typed), FEED)
            for name, array in emulator.evaluate(plan, FEED).items():
                np.testing.assert_array_equal(found[name], array, err_msg=f"{name} of {plan}")


def test_an_8_bit_layer_reads_a_16_bit_one_in_the_type_of_its_scale(tmp_path: Path) -> None:
    """A scale that is exact in FP32 is not rounded to FP16 for a neighbour's sake."""
    model = load_text(
        "(float[4, 4] x) => (float[4, 4] y) { [a] s = Mul(x, x) [b] y = MatMul(s, x) }", tmp_path
    )
    pair = Pair(low="int8", high="fp32")
    first = {name: "fixed" for name in model.table.names if name == "a"}
    model = pin_formless(pin(model, first, Form(stored="fp16")), pair)
    scales = calibrated(model, pair)
    typed = TypedWriter(model, pair, scales).write(Plan.of(()))
    save_typed(typed, tmp_path / "typed.onnx")
    onnx.checker.check_model(tmp_path / "typed.onnx", full_check=True)
    proto = onnx.load(tmp_path / "typed.onnx")
    types = types_of(proto)
    read = [node.input[0] for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    assert 2 == len(read)
    assert {onnx.TensorProto.FLOAT} == {types[name] for name in read}
    (expected,) = (
        EmulatedBackend(model, "int8", 1, "fp32", scales).evaluate(Plan.of(()), FEED).values()
    )
    np.testing.assert_array_equal(run_as_written(simulated(proto), FEED)["y"], expected)
