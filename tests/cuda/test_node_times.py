"""The times of real sessions on the CPU, laid over the graphs that they were given."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_sessions import GELU, CpuTimes
from models import keeping, load_text, normal
from precision_bisect.backends.cuda import cuda_backend
from precision_bisect.backends.timing import WARM_UP_RUNS
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.speed.island_costs import island_costs
from precision_bisect.search.speed.kernel_times import KernelTimes

CONVOLUTION = """(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4},
  float[1,2,1,1] b = {1,2}> {
  [conv] c = Conv(x, w)
  [add] a = Add(c, b)
  [relu] y = Relu(a) }"""
"""A Conv that takes in what follows it, and keeps its own name."""
MISH = """(float[2,8] x) => (float[2,8] y) {
  [in] a = Neg(x)
  [first] b = Mish(a)
  [second] y = Mish(b) }"""
"""Layers without a kernel on the CPU: their bodies are put in their place, without names."""


def timed(model: Model, plan: Plan, folder: Path, feed: Sample) -> KernelTimes:
    """Return the times of a plan on the CPU."""
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    return CpuTimes(writer, folder).kernel_times(plan, feed)


def computed(times: KernelTimes, names: list[str]) -> list[list[str]]:
    """Return the layers of each kernel that computes any of these, sorted."""
    found = (sorted(kernel.nodes.intersection(names)) for kernel in times.kernels)
    return sorted(filter(None, found))


@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        (GELU, (2, 8), [["act"], ["add", "div", "erf", "mul", "out"]]),
        (CONVOLUTION, (1, 2, 4, 4), [["add", "conv", "relu"]]),
    ],
)
def test_a_fused_kernel_has_all_its_layers(
    tmp_path: Path, text: str, shape: tuple[int, ...], expected: list[list[str]]
) -> None:
    """Whatever a fused kernel is called, the tensors around it tell which layers it computes."""
    model = load_text(text, tmp_path)
    names = list(map(str, model.table.names))
    times = timed(model, Plan.all_high(len(names)), tmp_path, {"x": normal(*shape)})
    assert expected == computed(times, names)
    assert all(kernel.ms > 0 for kernel in times.kernels)
    assert not [*tmp_path.glob("profile*"), *tmp_path.glob("optimised*")]


def test_nodes_without_names_belong_to_their_layer(tmp_path: Path) -> None:
    """A layer that was replaced by its body takes what the nodes of the body take."""
    model = load_text(MISH, tmp_path, opset=18)
    times = timed(model, Plan.all_high(3), tmp_path, {"x": normal(2, 8)})
    nodes = [kernel.nodes for kernel in times.kernels]
    assert {frozenset({each}) for each in ("in", "first", "second")} == {*nodes}
    assert 1 < nodes.count(frozenset({"first"})) == nodes.count(frozenset({"second"}))


def test_what_serves_several_layers_belongs_to_none(tmp_path: Path) -> None:
    """A weight that is cast once for two layers does not make them one."""
    text = """(float[2,8] x, float[8] v) => (float[2,8] y) <float[8] w = {1,2,3,4,5,6,7,8}> {
      [first] a = Add(x, w)
      [exp] e = Exp(a)
      [second] y = Add(e, w) }"""
    model = load_text(text, tmp_path)
    names = list(map(str, model.table.names))
    times = timed(model, Plan.of(()), tmp_path, {"x": normal(2, 8), "v": normal(8)})
    assert frozenset() in [kernel.nodes for kernel in times.kernels]
    assert {1} == {len(each) for each in computed(times, names)}


def test_a_large_model_is_told_by_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its optimised graph is not written; what keeps its name, or has it in its own, is found."""
    monkeypatch.setattr(cuda_backend, "MOST_WRITTEN_BYTES", -1)
    model = load_text(CONVOLUTION, tmp_path)
    times = timed(model, Plan.all_high(3), tmp_path, {"x": normal(1, 2, 4, 4)})
    assert ["conv"] in computed(times, ["add", "conv", "relu"])


def test_what_runs_in_a_loop_is_a_part_of_it(tmp_path: Path) -> None:
    """The nodes of a body are not counted again beside the node that holds them."""
    text = """(float[4] x) => (float[4] y) <int64 n = {3}, bool go = {1}> {
      [in] a = Neg(x)
      [loop] y = Loop(n, go, a) <body = b (int64 i, bool c, float[4] v) => (bool k, float[4] w) {
        [same] k = Identity(c)
        [inner] w = Exp(v) }> }"""
    model = load_text(text, tmp_path)
    times = timed(model, Plan.all_high(len(model.table.names)), tmp_path, {"x": normal(4)})
    nodes = [kernel.nodes for kernel in times.kernels]
    assert [frozenset({"in"}), frozenset({"loop"})] == sorted(filter(None, nodes), key=min)


def test_the_parts_are_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels add up to the nodes' times in the profile, each run's middle half."""
    told: list[list[dict[str, Any]]] = []
    loads = json.loads

    def noted(text: str) -> Any:
        told.append(loads(text))
        return told[-1]

    monkeypatch.setattr(json, "loads", noted)
    model = load_text(
        "(float[64,64] x) => (float[64,64] y) { [m] a = MatMul(x, x) [e] y = Exp(a) }", tmp_path
    )
    times = timed(model, Plan.all_high(2), tmp_path, {"x": normal(64, 64)})
    (events,) = told
    by_node: dict[str, list[float]] = {}
    for each in events:
        if each.get("cat") == "Node":
            by_node.setdefault(each["name"], []).append(each["dur"])
    middles = []
    for took in by_node.values():
        runs = np.sort(took[WARM_UP_RUNS:])
        aside = len(runs) // 4
        middles.append(runs[aside : len(runs) - aside].mean())
    assert times.total_ms == pytest.approx(sum(middles) / 1e3)


def test_a_cast_stands_with_the_island_that_needs_it(tmp_path: Path) -> None:
    """What crosses a Concat to a kept layer is cast behind it, and that costs the layer."""
    text = """(float[64,64] x) => (float[64,64] y) {
      [in] a = Neg(x)
      [move] t = Concat <axis = 0> (a, a)
      [kept] e = Exp(t)
      [back] b, c = Split <axis = 0> (e)
      [out] y = Sub(b, c) }"""
    model = load_text(text, tmp_path)
    plan, feed = keeping(model, "kept"), {"x": normal(64, 64)}
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    timer = CpuTimes(writer, tmp_path)
    times = (timer.kernel_times(plan, feed), timer.kernel_times(Plan.of(()), feed))
    costs = island_costs(writer, cost_graph(model, {"x": (64, 64)}), plan, times, 2.0)
    (island,) = costs.islands
    assert ["kept"] == list(island.layers)
    assert island.casts_ms > 0
    scale = 2.0 / times[0].total_ms
    assert (2.0, times[1].total_ms * scale) == pytest.approx((costs.total_ms, costs.low_ms))
    assert costs.profiled_ms == times[0].total_ms
    assert ["kept"] == [each.layer for each in costs.layers]
