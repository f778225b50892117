"""A graph for one plan gives, bit for bit, what the graph of all plans gives."""

from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from models import load_text, loaded, normal, parse, with_weights
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.fixed_edges import for_plan
from precision_bisect.backends.emulation.switched import FLAGS_INPUT, SwitchedGraph, switch
from precision_bisect.graphs import ort
from precision_bisect.graphs.load import Model, at_least_opset
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.quantization.calibration import scales_for
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.judging.inputs.copies import FACTORS
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, HIGH_NAMES, Pair, QuantizedName
from precision_bisect.protocols import Sample
from precision_bisect.settings.targets import TARGETS, TargetName
from random_graphs import KINDS, SIZE, random_models
from wider_graphs import WIDER_KINDS, WiderMaker

HALVES = [Pair(low=low, high=high) for low, high in product(HALF_NAMES, HIGH_NAMES) if low != high]
IN_8_BITS = [
    Pair(low=low, high=high) for low, high in product(get_args(QuantizedName), HIGH_NAMES)
]
QUANTIZABLE = ("MatMul", "Gemm", "Conv")


def assert_equal_to_that_of_all(
    graph: SwitchedGraph, model: Model, sample: Sample, seed: int, *, bare: bool
) -> None:
    """Assert that graphs for some plans give the bits that the graph of all plans gives."""
    every = Session(graph.proto, graph.weights, 1, optimised=not bare, packed=True)
    rng, count = np.random.default_rng(seed), len(model.table.candidates)
    for share in (0.0, 1.0, *rng.random(2)):
        low = rng.random(count) < share
        fixed = for_plan(graph, model, low, bare=bare)
        one = Session(fixed.proto, fixed.weights, 1, optimised=not bare, packed=True)
        expected = every.run({**sample, FLAGS_INPUT: graph.switches.flags(low)})
        outputs = one.run({**sample, FLAGS_INPUT: fixed.switches.flags(low)})
        for name, array in expected.items():
            assert array.shape == outputs[name].shape
            assert array.tobytes() == outputs[name].tobytes()


@examples(25)
@given(
    proto=st.one_of(random_models(), random_models(WiderMaker, WIDER_KINDS)),
    pair=st.sampled_from(HALVES),
    target=st.sampled_from(TARGETS),
    factors=st.booleans(),
    tf32=st.booleans(),
    bare=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_graph_under_any_plan(
    proto: onnx.ModelProto,
    pair: Pair,
    target: TargetName,
    factors: bool,
    tf32: bool,
    bare: bool,
    seed: int,
) -> None:
    """Fusions that a switch has kept from happening do not happen now; a bare graph has none."""
    model = loaded(proto)
    graph = switch(model, pair, Scales(), target=target, factors=factors, tf32=tf32)
    sample: Sample = {spec.name: normal(SIZE, SIZE) for spec in model.inputs}
    if factors:
        sample = {**sample, FACTORS: 1 + normal(len(model.table.candidates)) * np.float32(1e-3)}
    assert_equal_to_that_of_all(graph, model, sample, seed, bare=bare)


def test_weights_are_packed_where_those_of_all_plans_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products with packed weights are summed in another order: those of all plans decide."""
    text = "(float[4, 512] x) => (float[4, 512] y) { a = Tanh (x) y = MatMul (a, w) }"
    proto = with_weights(parse(text), {"w": normal(512, 512)})
    model, sample, plan = loaded(proto), {"x": normal(4, 512)}, Plan.all_high(2)
    graph = switch(model, HALVES[0], Scales())
    fixed = for_plan(graph, model, np.zeros(2, np.bool_), bare=True)
    nodes = len(fixed.proto.graph.node)
    assert nodes < len(graph.proto.graph.node)
    monkeypatch.setattr(ort, "_PREPACK_NODES", nodes)
    one, every = (EmulatedBackend(model, threads=1, few=few) for few in (True, False))
    assert one.evaluate(plan, sample)["y"].tobytes() == every.evaluate(plan, sample)["y"].tobytes()


@examples(15)
@given(
    proto=random_models(among=(*KINDS, *QUANTIZABLE, *QUANTIZABLE)),
    pair=st.sampled_from(IN_8_BITS),
    bare=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_graph_in_8_bits(proto: onnx.ModelProto, pair: Pair, bare: bool, seed: int) -> None:
    """What is rounded to 8 bits and back is chosen, or left out, as a whole."""
    model = pin_formless(at_least_opset(loaded(proto), 19), pair)
    sample: Sample = {spec.name: normal(SIZE, SIZE) for spec in model.inputs}
    scales = scales_for(model, pair, [sample], Options(model=model.path, threads=1))
    assert_equal_to_that_of_all(switch(model, pair, scales), model, sample, seed, bare=bare)


def test_relu_stays_before_8_bits(tmp_path: Path) -> None:
    """ONNX Runtime's optimizer takes it away before QuantizeLinear to FP8, which has a sign."""
    text = "(float[1, 2] x) => (float[1, 1] y) { r = Relu (x) y = MatMul (r, w) }"
    proto = with_weights(parse(text), {"w": np.ones((2, 1), np.float32)})
    pair = Pair(low="fp8", high="fp32")
    model = pin_formless(at_least_opset(loaded(proto), 19), pair)
    sample: Sample = {"x": np.array([[1.0, -1.0]], np.float32)}
    scales = scales_for(model, pair, [sample], Options(model=model.path, threads=1))
    backend = EmulatedBackend(model, "fp8", 1, scales=scales, few=True)
    assert backend.evaluate(Plan.of(()), sample)["y"] == 1.0


@pytest.mark.parametrize("bare", [False, True])
def test_layers_in_bodies_of_loops(tmp_path: Path, bare: bool) -> None:
    """Bodies capture what a plan decides outside of them, under the names that are left."""
    body = """{
        n = Constant <value = int64 {3}> ()
        go = Constant <value = bool {1}> ()
        a = Mul (x, x)
        s = Sqrt (a)
        l = Loop (n, go, s) <body = inner (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
            d = Identity (c)
            e = Exp (s)
            p = Mul (v, e)
            w = Sub (p, a)
        }>
        q = ReduceSum <keepdims = 0> (l)
        zero = Constant <value = float {0.0}> ()
        b = Greater (q, zero)
        r = If (b) <
            then_branch = one () => (float[4] f) { f = Mul (l, s) },
            else_branch = other () => (float[4] g) { g = Sub (a, l) }
        >
        y = Add (r, s)
    }"""
    model = load_text(f"(float[4] x) => (float[4] y) {body}", tmp_path)
    pair = Pair(low="fp16", high="fp32")
    for tf32 in (False, True):
        graph = switch(model, pair, Scales(), tf32=tf32)
        for seed in range(4):
            sample = {"x": np.array([0.3, -1.7, 0.001, 2.2], np.float32) * (1 + seed)}
            assert_equal_to_that_of_all(graph, model, sample, seed, bare=bare)


@pytest.mark.parametrize("most_nodes", [2**12, 0])
def test_few_plans_come_to_what_all_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_nodes: int
) -> None:
    """The first has a graph of its own, whichever it is; others share one.

    Of a model beyond the most nodes that are optimised each has its own.
    """
    monkeypatch.setattr(ort, "_PREPACK_NODES", most_nodes)
    body = "{ a = Mul (x, x)\n b = Sqrt (a)\n y = Add (b, x) }"
    model = load_text(f"(float[4] x) => (float[4] y) {body}", tmp_path)
    many = EmulatedBackend(model)
    feed = {"x": np.array([300.0, 1.1, 2.3, 1e-3], np.float32)}
    plans = [Plan.of(kept) for kept in ((), (0, 1), (), (0, 1, 2))]
    for start in range(len(plans)):
        few = EmulatedBackend(model, few=True)
        for plan in plans[start:]:
            expected, computed = many.evaluate(plan, feed)["y"], few.evaluate(plan, feed)["y"]
            np.testing.assert_array_equal(expected, computed)
