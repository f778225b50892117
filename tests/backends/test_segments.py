"""The emulator in segments gives, bit for bit, what it gives in one session."""

import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import WeakSet

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from models import load_text, loaded, normal
from precision_bisect.backends.emulation import emulator, segment_sessions, segments
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.fixed_edges import for_plan
from precision_bisect.backends.emulation.segments import Segmented, cut
from precision_bisect.backends.emulation.switched import FLAGS_INPUT, SwitchedGraph, switch
from precision_bisect.graphs import ort
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.ort import Session
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.judging.inputs.copies import FACTORS
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.machine.stopping import Stopped, until
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import BackendFailure, Sample
from precision_bisect.search.speed.cheapest import cheapest
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.speed.least_time import least_time
from random_graphs import SIZE, random_models
from wider_graphs import WIDER_KINDS, WiderMaker

NAFNET = Path(__file__).parents[2] / "examples" / "nafnet"
FP16 = Pair(low="fp16", high="fp32")
PAIRS = [
    FP16,
    Pair(low="bf16", high="fp32"),
    Pair(low="fp16", high="bf16"),
]
LONG = 200


@pytest.fixture(autouse=True)
def fine() -> Iterator[None]:
    """Cut small graphs, too, and into small segments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SWITCHES", 2)
        patch.setattr(segments, "FEWEST_SEGMENTS", 2)
        patch.setattr(segments, "WORTH_S", 0.0)
        patch.setattr(segment_sessions, "REPEATED", 2)
        yield


def feed(graph: SwitchedGraph, low: np.ndarray, sample: Sample) -> Sample:
    """Return what a session of the graph reads where these layers run low."""
    return {**sample, FLAGS_INPUT: graph.switches.flags(low)}


def bits(outputs: Sample) -> list[tuple[str, str, bytes]]:
    """Return all that outputs consist of."""
    return [(name, str(array.shape), array.tobytes()) for name, array in outputs.items()]


def opened(graph: SwitchedGraph, model: Model, *, bare: bool = False) -> Segmented:
    """Return the sessions of a graph's segments."""
    parts = deque(cut(graph, model, bare=bare))
    return Segmented(parts, [spec.name for spec in model.outputs], 1)


def chain(folder: Path, start: str = "t0 = Relu (x)") -> Model:
    """Return a chain of `LONG` layers behind others."""
    steps = [start, "h = Constant <value = float[1] {0.7}> ()"]
    steps += [f"t{i + 1} = {('Mul', 'Sub')[i % 2]} (t{i}, h)" for i in range(LONG)]
    lines = "\n".join([*steps, f"y = Neg (t{LONG})"])
    return load_text(f"(float[4] x) => (float[4] y) {{\n{lines}\n}}", folder)


@examples(20)
@given(
    proto=st.one_of(random_models(), random_models(WiderMaker, WIDER_KINDS)),
    pair=st.sampled_from(PAIRS),
    factors=st.booleans(),
    tf32=st.booleans(),
    bare=st.booleans(),
    choose=st.randoms(use_true_random=False),
)
def test_any_graph_in_any_state(
    proto: onnx.ModelProto,
    pair: Pair,
    factors: bool,
    tf32: bool,
    bare: bool,
    choose: random.Random,
) -> None:
    """Whatever the graph, the types and the switches, segments give the bits of one session.

    Those of a bare graph do so with and without their switches.
    """
    model = loaded(proto)
    graph = switch(model, pair, Scales(), factors=factors, tf32=tf32)
    if not list(cut(graph, model)):
        return
    found = opened(graph, model, bare=bare)
    whole = Session(graph.proto, graph.weights, 1, optimised=not bare, packed=True)
    count = len(model.table.candidates)
    sample: Sample = {spec.name: normal(SIZE, SIZE) for spec in model.inputs}
    if factors:
        sample = {**sample, FACTORS: 1 + normal(count) * np.float32(1e-6)}
    states = [np.zeros(count, bool), np.ones(count, bool)]
    states += [np.array([choose.random() < 0.5 for _ in range(count)], bool) for _ in range(4)]
    for low in [*states, *states, *states]:
        given = feed(graph, low, sample)
        assert bits(whole.run(given)) == bits(found.run(given))


def test_opening_ends_with_the_time(tmp_path: Path) -> None:
    """Each step on the way to a trial, and to a fast plan, looks at the clock.

    With 20,000 layers on a busy machine each takes longer than `--max-time` may be exceeded.
    """
    model = chain(tmp_path)
    graph = switch(model, FP16, Scales())
    parts = deque(cut(graph, model))
    low = np.ones(len(model.table.candidates), bool)
    costs = cost_graph(model, {"x": (4,)})
    for step in (
        lambda: TypedWriter(model, FP16),
        lambda: cost_graph(model, {"x": (4,)}),
        lambda: least_time(costs),
        lambda: cheapest(costs, [0.0] * costs.size, 1.0, [Plan.of(())]),
        lambda: switch(model, FP16, Scales()),
        lambda: for_plan(graph, model, low),
        lambda: list(cut(graph, model)),
        lambda: Segmented(parts, ["y"], 1),
    ):
        with until(lambda: True), pytest.raises(Stopped, match="the time was up"):
            step()


def test_a_longer_network_has_more_segments_and_no_longer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open one takes the square of its nodes; what they compute stays the same."""
    monkeypatch.setattr(segments, "MOST_SWITCHES", 10)
    model = chain(tmp_path)
    graph = switch(model, FP16, Scales())
    parts = list(cut(graph, model))
    assert len(parts) == len(graph.switches.layers) // 10 > segments.MOST_SEGMENTS
    assert max(len(part.flags) for part in parts) <= 2 * 10
    whole, cut_up = Session(graph.proto, graph.weights, 1), opened(graph, model)
    low = np.arange(len(model.table.candidates)) % 3 == 0
    given = feed(graph, low, {"x": np.linspace(-1, 1, 4, dtype=np.float32)})
    assert bits(whole.run(given)) == bits(cut_up.run(given))


def test_a_network() -> None:
    """NAFNet's segments give the bits of one session, started at any cut."""
    model = load_model(NAFNET / "nafnet.onnx")
    (sample, *_) = read_samples(NAFNET / "inputs", ["image"])
    graph = switch(model, FP16, Scales())
    assert len(list(cut(graph, model))) == segments.MOST_SEGMENTS
    whole, found = Session(graph.proto, graph.weights, 1), opened(graph, model)
    count = len(model.table.candidates)
    for layer in (0, 0, *range(3, count, 40)):
        low = np.arange(count) == layer
        given = feed(graph, low, sample)
        assert bits(whole.run(given)) == bits(found.run(given))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Return a list that grows by each session that runs."""
    found: list[Session] = []
    real = Session.run_values

    def counted(session: Session, *given: object) -> object:
        found.append(session)
        return real(session, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "run_values", counted)
    return found


def test_what_is_alike_is_computed_once(tmp_path: Path, ran: list[Session]) -> None:
    """A plan runs no segment whose switches, and all before, two earlier plans had so."""
    model = chain(tmp_path)
    graph = switch(model, FP16, Scales())
    found = opened(graph, model)
    runs = []
    for layer in (LONG, LONG, LONG, LONG // 2, 0):
        ran.clear()
        low = np.arange(len(model.table.candidates)) == layer
        found.run(feed(graph, low, {"x": np.ones(4, np.float32)}))
        runs.append(len(ran))
    assert runs == [
        segments.MOST_SEGMENTS,
        segments.MOST_SEGMENTS,
        1,
        segments.MOST_SEGMENTS // 2 + 1,
        segments.MOST_SEGMENTS,
    ]


def test_a_segment_of_no_low_layer_has_a_session_of_its_own(tmp_path: Path) -> None:
    """Without switches it takes two thirds of the time, so it is opened, once."""
    model = chain(tmp_path)
    parts = deque(cut(switch(model, FP16, Scales()), model))
    assert parts[0].off is not None
    flags = np.zeros(len(parts[0].flags), np.bool_)
    sessions = segment_sessions.OpenSessions(parts, 1)
    off = sessions.session(0, flags)
    assert off is sessions.session(0, flags)
    assert off is not sessions.session(0, ~flags)


@pytest.mark.parametrize(
    ("nodes", "switched"), [(0, segment_sessions.MOST_SWITCHED), (2**12, segments.MOST_SEGMENTS)]
)
def test_bare_segments_hold_few_sessions(
    nodes: int, switched: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever plans come, memory is for one session a segment and a few for all flags.

    Segments of a model that is too large to pack its weights share the places for the latter.
    """
    monkeypatch.setattr(ort, "_PREPACK_NODES", nodes)
    model = chain(tmp_path)
    parts = deque(cut(switch(model, FP16, Scales()), model, bare=True))
    count, choose = len(parts), np.random.default_rng(0)
    sizes = [len(part.flags) for part in parts]
    sessions = segment_sessions.BareSessions(parts, 1)
    alive = WeakSet[Session]()
    for number in choose.integers(0, count, 400):
        flags = choose.random(sizes[number]) < choose.choice([0.0, 0.5, 1.0])
        alive.add(sessions.session(number, flags))
    assert count + switched == len(alive)


@pytest.mark.parametrize("most", [0, 48, 2**20])
def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """However little may be kept, results are the same."""
    monkeypatch.setattr(segments, "KEPT_BYTES", most)
    model = chain(tmp_path)
    graph = switch(model, FP16, Scales())
    whole, found = Session(graph.proto, graph.weights, 1), opened(graph, model)
    for number in range(60):
        low = np.arange(len(model.table.candidates)) == 7 * (number % 20)
        given = feed(graph, low, {"x": normal(4)})
        assert bits(whole.run(given)) == bits(found.run(given))
        assert found.kept.nbytes <= most


def test_several_threads_run_it_at_once(tmp_path: Path) -> None:
    """Each thread gets the outputs of its own plan, while others keep and drop activations."""
    model = chain(tmp_path)
    graph = switch(model, FP16, Scales())
    whole, found = Session(graph.proto, graph.weights, 1), opened(graph, model)
    lows = [np.arange(len(model.table.candidates)) == layer for layer in range(0, LONG, 10)]
    given = [feed(graph, low, {"x": np.ones(4, np.float32)}) for low in lows] * 5
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(found.run, given))
    assert [bits(whole.run(each)) for each in given] == [bits(each) for each in told]


@pytest.mark.parametrize("bare", [False, True])
def test_short_inferences_are_left_whole(
    bare: bool, tmp_path: Path, ran: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session takes the place of segments that take under 5 ms, once it has paid to open.

    Bare segments have no switches, and one session of all plans has: they stay.
    """
    model = chain(tmp_path)
    monkeypatch.setattr(emulator, "is_bare", lambda _: bare)
    monkeypatch.setattr(segments, "WORTH_S", 60.0)
    backend = EmulatedBackend(model, threads=1)
    samples = [{"x": np.full(4, value, np.float32)} for value in range(segments.SHORT_RUNS)]
    early = [bits(backend.evaluate(Plan.of([3]), sample)) for sample in samples]
    in_segments = len(ran)
    assert in_segments == segments.SHORT_RUNS * segments.MOST_SEGMENTS
    assert early == [bits(backend.evaluate(Plan.of([3]), sample)) for sample in samples]
    assert bare == (len(ran) > in_segments)


@pytest.mark.parametrize(
    "start",
    [
        "t0 = RandomNormalLike (x)",
        "zero = Constant <value = int64 {0}> ()\nt0 = CumSum (x, zero)",
    ],
)
def test_what_cannot_be_cut_exactly_stays_whole(tmp_path: Path, start: str) -> None:
    """Where values are random or a layer has steps, there are no segments."""
    model = chain(tmp_path, start)
    assert list(cut(switch(model, FP16, Scales()), model)) == []


def test_a_failing_segment_is_no_failing_plan(tmp_path: Path) -> None:
    """What goes wrong in segments is tried in one session; what fails there, too, is told."""
    model = chain(tmp_path)
    backend = EmulatedBackend(model, threads=1)
    with pytest.raises(BackendFailure, match="Invalid rank"):
        backend.evaluate(Plan.of([3]), {"x": np.ones((2, 2), np.float32)})
    (y,) = backend.evaluate(Plan.of([3]), {"x": np.ones(4, np.float32)}).values()
    assert y.shape == (4,)
