"""Times that TensorRT reports of its layers, laid over the graphs that it was given.

Engines are real ones of TensorRT-RTX, or what it said of them. Only a GPU runs an engine, so the
times are made up: a context that is written down here reports them to the library's own class.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inspection.golden_engines import NAMES, read
from models import keeping, load_text
from precision_bisect.backends.inspection.engine_layers import (
    EngineLayer,
    EngineTensor,
    parse_layers,
)
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.tensorrt import tensorrt_backend, tensorrt_engine
from precision_bisect.backends.tensorrt.build import BuiltEngine, build
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.layer_times import layer_times, timed_layers
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.backends.timing import WARM_UP_RUNS
from precision_bisect.graphs.typed.pinning import pin, pin_formless
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.speed.island_costs import island_costs
from precision_bisect.settings.engine_settings import EngineSettings


class Reporting:
    """A runner whose context reports the same times in every run, but for the first ones."""

    def __init__(self, reports: Sequence[tuple[str, float]]) -> None:
        self.context = SimpleNamespace(profiler=None, get_tensor_shape=lambda name: (1,))
        self.engine = SimpleNamespace(
            num_io_tensors=0,
            create_engine_inspector=lambda: SimpleNamespace(
                get_engine_information=lambda layout: "{}"
            ),
        )
        self.output_allocator = SimpleNamespace(buffers={})
        self.runs = 0
        self._reports = reports

    def get_input_metadata(self, **_: Any) -> Mapping[str, Any]:
        """Return that it takes nothing."""
        return {}

    def infer(self, feed: Any) -> Mapping[str, Any]:
        """Report the times of a run."""
        assert {} == feed
        self.runs += 1
        slow = 100.0 if self.runs <= WARM_UP_RUNS else 1.0
        for name, ms in self._reports:
            self.context.profiler.report_layer_time(name, slow * ms)
        return {}

    def deactivate(self) -> None:
        """Do nothing."""


def test_times_are_those_of_warm_runs(rtx: Flavour) -> None:
    """Each run's reports of a layer are added up; the first runs do not count."""
    held: list[Any] = []
    runner = Reporting([("a", 1.0), ("loop", 0.25), ("loop", 0.5)])
    assert {"a": 1.0, "loop": 0.75} == layer_times(rtx.module, runner, {}, held)
    assert [runner.context.profiler] == held
    assert isinstance(held[0], rtx.module.IProfiler)


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_of_a_real_engine_that_shows_is_timed(tmp_path: Path, name: str) -> None:
    """A kept layer that the verdicts have found in the engine has its kernels' times."""
    golden, model, _ = read(name, tmp_path)
    settled = pin(pin_formless(model, golden.pair), golden.pinned)
    plan = keeping(settled, *golden.kept)
    typed = TypedWriter(settled, golden.pair).write(plan, guard_islands=golden.guarded)
    layers = parse_layers(golden.text)
    took = {layer.name: float(number) for number, layer in enumerate(layers, 1)}
    times = timed_layers(took, layers, typed.proto, {*golden.kept})
    assert sum(took.values()) == times.total_ms
    covered = frozenset[str]().union(*(kernel.nodes for kernel in times.kernels))
    assert covered <= {node.name for node in typed.proto.graph.node}
    verdicts = judge_layers(settled, plan, typed, layers, golden.pair)
    assert {each.layer for each in verdicts if each.found} <= covered


def test_islands_of_two_real_builds(
    rtx: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend builds a plan and every layer low; what its layers report makes the costs."""
    built: list[BuiltEngine] = []

    def noted(*arguments: Any) -> BuiltEngine:
        built.append(build(*arguments))
        return built[-1]

    def activated(engine: bytes) -> Reporting:
        return Reporting([(layer.name, 2.0) for layer in parse_layers(built[-1].layers)])

    monkeypatch.setattr(tensorrt_backend, "build", noted)
    monkeypatch.setattr(tensorrt_engine, "_activated", activated)
    monkeypatch.setattr(TensorRTBackend, "_why_not", lambda _: "")
    text = """(float[1,8,16,16] x) => (float[1,8,16,16] y) {
      [first] a = Softmax <axis = 1> (x)
      [second] b = Softmax <axis = 2> (a)
      [third] y = Softmax <axis = 3> (b) }"""
    model = load_text(text, tmp_path)
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    settings = EngineSettings(compute_capability="8.6")
    backend = TensorRTBackend(writer, settings, rtx, {}, tmp_path / "work")
    plan = keeping(model, "second")
    times = tuple(backend.kernel_times(each, {}) for each in (plan, Plan.of(())))
    assert ["tensorrt_profiler"] * 2 == [each.method for each in times]
    assert [2.0 * len(each.kernels) for each in times] == [each.total_ms for each in times]
    graph = cost_graph(model, {"x": (1, 8, 16, 16)})
    costs = island_costs(writer, graph, plan, (times[0], times[1]), None)
    (island,) = costs.islands
    assert ["second"] == list(island.layers)
    assert 0.0 < island.ms <= times[0].total_ms


def layer(name: str, read: tuple[str, str], wrote: tuple[str, str], *nodes: str) -> EngineLayer:
    """Return an engine layer that reads and writes one tensor: a name and a type each."""
    ends = [EngineTensor(name=each, dtype=dtype, dims=(4,)) for each, dtype in (read, wrote)]
    return EngineLayer(name=name, inputs=(ends[0],), outputs=(ends[1],), nodes=nodes)


def test_conversions_that_the_builder_adds_stand_with_kept_layers(tmp_path: Path) -> None:
    """Weakly typed no Cast is in the graph: a reformat to FP32 is there for what reads it."""
    model = load_text("(float[4] x) => (float[4] y) { [a] t = Exp(x) [b] y = Sin(t) }", tmp_path)
    layers = [
        layer("a", ("x", "fp16"), ("t", "fp16"), "a"),
        layer("Reformatting CopyNode", ("t", "fp16"), ("t'", "fp32")),
        layer("Other CopyNode", ("y", "fp32"), ("y'", "fp32")),
        layer("b", ("t'", "fp32"), ("y", "fp32"), "b"),
    ]
    took = {each.name: 1.0 for each in layers}
    nodes = {
        each: [*kernel.nodes]
        for each, kernel in zip(
            took, timed_layers(took, layers, model.proto, {"b"}).kernels, strict=True
        )
    }
    assert {
        "a": ["a"],
        "Reformatting CopyNode": ["b"],
        "Other CopyNode": [],
        "b": ["b"],
    } == nodes


def test_names_stand_in_for_what_the_inspector_does_not_tell(tmp_path: Path) -> None:
    """A layer that nothing is known of holds the nodes that its name lists."""
    model = load_text("(float[4] x) => (float[4] y) { [a] t = Exp(x) [b] y = Sin(t) }", tmp_path)
    (kernel,) = timed_layers({"a + b": 1.0}, [], model.proto, set()).kernels
    assert frozenset("ab") == kernel.nodes
