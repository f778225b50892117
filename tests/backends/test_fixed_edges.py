"""A graph for one plan gives, bit for bit, what the graph of all plans gives."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from models import load_text, loaded, normal
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.fixed_edges import for_plan
from precision_bisect.backends.emulation.switched import FLAGS_INPUT, switch
from precision_bisect.graphs import ort
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.settings.targets import TARGETS, TargetName
from random_graphs import SIZE, random_models
from wider_graphs import WIDER_KINDS, WiderMaker


@examples(25)
@given(
    proto=st.one_of(random_models(), random_models(WiderMaker, WIDER_KINDS)),
    pair=st.sampled_from([Pair(low="fp16", high="fp32"), Pair(low="fp16", high="bf16")]),
    target=st.sampled_from(TARGETS),
    bare=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_graph_under_any_plan(
    proto: onnx.ModelProto, pair: Pair, target: TargetName, bare: bool, seed: int
) -> None:
    """Fusions that a switch has kept from happening do not happen now; a bare graph has none."""
    model = loaded(proto)
    graph = switch(model, pair, Scales(), target=target)
    every = Session(graph.proto, graph.weights, 1, optimised=not bare)
    sample = {spec.name: normal(SIZE, SIZE) for spec in model.inputs}
    rng, count = np.random.default_rng(seed), len(model.table.candidates)
    for share in (0.0, 1.0, *rng.random(2)):
        low = rng.random(count) < share
        fixed = for_plan(graph, model, low, bare=bare)
        one = Session(fixed.proto, fixed.weights, 1, optimised=not bare)
        expected = every.run({**sample, FLAGS_INPUT: graph.switches.flags(low)})
        found = one.run({**sample, FLAGS_INPUT: fixed.switches.flags(low)})
        for name, array in expected.items():
            assert array.tobytes() == found[name].tobytes()


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
