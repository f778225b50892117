"""Whatever the graph and the plan: the typed graph is valid and means what the emulator means."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from effort import examples
from models import loaded, normal
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, LowName, Pair
from random_graphs import FOLLOWERS, SIZE, random_models
from typed_graphs import check_structure, run_as_written, simulated
from wider_graphs import MOVERS, WIDER_KINDS, WiderMaker

FEED = {"x": normal(SIZE, SIZE)}
ROUNDED_ONCE = ("Relu", "Neg", "Abs", "Add", "Sub", "Mul", "Max", "Clip", "Where", "AddWeight")
"""Operators whose result is the exact one, rounded: there is one way to compute them."""

ROUNDED_INSIDE = (
    *("BatchNormalization", "Conv", "Exp", "Gemm", "GlobalAveragePool", "InstanceNormalization"),
    *("LayerNormalization", "MatMul", "PowWeight", "ReduceMean", "Resize", "Sigmoid", "Softmax"),
    *("Tanh", "ConstantChain"),
)


def written(writer: TypedWriter, plan: Plan, guard: bool = True) -> onnx.ModelProto:
    """Return the typed graph of a plan, written to a file, checked there, and read back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "typed.onnx"
        save_typed(writer.write(plan, guard), path)
        onnx.checker.check_model(path, full_check=True)
        return onnx.load(path)


def some_plans(model: Model, choose: random.Random) -> Iterator[Plan]:
    """Yield the plans all low and all high, and two that keep half of the layers."""
    count = len(model.table.names)
    for kept in ((), range(count), *(choose.sample(range(count), count // 2) for _ in "ab")):
        yield Plan.of(kept)


def as_written(model: Model, writer: TypedWriter, plan: Plan) -> Plan:
    """Return what a plan comes to: layers without a low form are kept all the same."""
    return Plan.of({*plan.kept, *map(model.table.names.index, writer.not_low)})


@examples(20)
@given(
    proto=random_models(WiderMaker, WIDER_KINDS),
    low=st.sampled_from(HALF_NAMES),
    choose=st.randoms(use_true_random=False),
    guard=st.booleans(),
)
def test_every_plan_means_what_the_emulator_means(
    proto: onnx.ModelProto, low: LowName, choose: random.Random, guard: bool
) -> None:
    """Rounding where the graph's types say gives the emulator's outputs bit for bit."""
    model = loaded(proto)
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    backend = EmulatedBackend(model, low, threads=1)
    for plan in some_plans(model, choose):
        typed = written(writer, plan, guard)
        check_structure(model, typed)
        found = run_as_written(simulated(typed), FEED)
        for name, array in backend.evaluate(as_written(model, writer, plan), FEED).items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"{name} of {plan}")


@examples(12)
@given(
    proto=random_models(WiderMaker, WIDER_KINDS),
    low=st.sampled_from(HALF_NAMES),
    guard=st.booleans(),
)
def test_the_all_high_plan_changes_nothing(
    proto: onnx.ModelProto, low: LowName, guard: bool
) -> None:
    """All layers kept gives the input model: the same bits, no Cast, no guard."""
    model = loaded(proto)
    typed = written(
        TypedWriter(model, Pair(low=low, high="fp32")),
        Plan.all_high(len(model.table.names)),
        guard,
    )
    names = [node.name for node in model.proto.graph.node]
    assert names == [node.name for node in typed.graph.node if node.name in names]
    # A model taken to a newer opset may have axes as Constant nodes.
    assert {"Constant"} >= {n.op_type for n in typed.graph.node if n.name not in names}
    wanted = run_as_written(model.proto, FEED)
    for name, array in run_as_written(typed, FEED).items():
        np.testing.assert_array_equal(array, wanted[name])


@examples(12)
@given(
    proto=random_models(WiderMaker, (*ROUNDED_ONCE, *FOLLOWERS, *MOVERS)),
    low=st.sampled_from(HALF_NAMES),
    choose=st.randoms(use_true_random=False),
)
def test_honest_arithmetic_agrees_where_results_are_rounded_once(
    proto: onnx.ModelProto, low: LowName, choose: random.Random
) -> None:
    """Run in real 16-bit arithmetic the typed graph gives the emulator's outputs bit for bit."""
    model = loaded(proto)
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    backend = EmulatedBackend(model, low, threads=1)
    for plan in some_plans(model, choose):
        expected = backend.evaluate(as_written(model, writer, plan), FEED)
        found = ReferenceEvaluator(written(writer, plan)).run(None, FEED)
        for (name, wanted), array in zip(expected.items(), found, strict=True):
            np.testing.assert_array_equal(array, wanted, err_msg=f"{name} of {plan}")


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("op", ROUNDED_INSIDE)
def test_honest_arithmetic_agrees_within_the_roundings_inside(op: str, low: LowName) -> None:
    """An operator of sums over SIZE terms is off by at most one rounding for each term.

    A rounding is at most half a unit in the last place of the largest value that comes or goes,
    which for values near 1 is the largest there is inside, normalizations included.
    """
    for seed in range(5):
        maker = WiderMaker(seed)
        maker.add(op, 0, seed)
        model = loaded(maker.model())
        writer = TypedWriter(model, Pair(low=low, high="fp32"))
        assert {} == writer.not_low
        feed = {"x": normal(SIZE, SIZE, seed=seed)}
        (found,) = ReferenceEvaluator(written(writer, Plan.of(()))).run(None, feed)
        (expected,) = EmulatedBackend(model, low, threads=1).evaluate(Plan.of(()), feed).values()
        largest = max(np.abs(expected).max(), np.abs(feed["x"]).max())
        rounding = 2.0 ** -LOW_TYPES[low].digits * largest
        assert np.abs(found - expected).max() <= SIZE * rounding
