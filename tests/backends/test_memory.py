"""What sessions over many nodes or large weights hold on to."""

import gc
import weakref
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from large_model import make

import precision_bisect.backends.emulation.emulator as emulator
import precision_bisect.pipeline.prepare as preparing
import tiny
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.emulator_plugin import forecaster
from precision_bisect.backends.emulation.fixed_edges import for_plan
from precision_bisect.backends.emulation.layer_weights import LayerWeights
from precision_bisect.backends.emulation.switched import switch
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import CheckedGraph, Session, check
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.weights import in_file, stub
from precision_bisect.machine.free_space import trim
from precision_bisect.options import Options
from precision_bisect.pipeline.elsewhere import in_tf32
from precision_bisect.pipeline.evaluators import evaluators
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.search.other_cases import Cases
from precision_bisect.settings.engine_settings import EngineSettings, Tf32
from precision_bisect.settings.targets import TF32
from precision_bisect.trial import Phase, Proposal

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { y = Mul(x, w) }
"""


def sessions() -> list[Session]:
    """Return every session that there is.

    By type: objects of other libraries may warn when they are asked for more.
    """
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Session]


@pytest.mark.parametrize(
    ("nodes", "nbytes", "packs"),
    [(10, 10, True), (10, 2**31, False), (20_000, 10, False)],
)
def test_large_graphs_keep_no_packed_weights(nodes: int, nbytes: int, packs: bool) -> None:
    """A second copy of the weights is kept only where neither they nor the graph are large."""
    graph = CheckedGraph(text=b"", nodes=nodes, weights={}, folder=None, nbytes=nbytes)
    assert packs is graph.packs


def test_a_checked_graph_outlives_its_message() -> None:
    """A session needs nothing of the message that it came from; freed memory can be given back."""
    proto = onnx.parser.parse_model(TEXT)
    graph = check(proto, {})
    del proto
    trim()
    (y,) = Session(graph).run({"x": np.array([1, 2], np.float32)}).values()
    np.testing.assert_array_equal([3, 8], y)


def test_sessions_share_weights_in_a_file(tmp_path: Path) -> None:
    """They are handed no array to copy, and compute the same; a map stays where it is."""
    proto = onnx.parser.parse_model(TEXT)
    weight = np.array([3, 4], np.float32)
    proto.graph.initializer[0].CopyFrom(stub("w", weight))
    shared = in_file({"w": weight}, tmp_path / "weights")
    assert shared["w"] is in_file(shared, tmp_path / "others")["w"]
    graph = check(proto, shared)
    assert {} == graph.weights
    (y,) = Session(graph).run({"x": np.array([1, 2], np.float32)}).values()
    np.testing.assert_array_equal([3, 8], y)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full disk at hand")
def test_a_file_of_weights_that_does_not_fit_is_not_left(tmp_path: Path) -> None:
    """Each session has copies then, as of a small model."""
    file = tmp_path / "weights"
    file.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        in_file({"w": np.zeros(2, np.float32)}, file)
    assert not file.is_symlink()


def test_a_crew_that_leaves_gives_the_session_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once no trial is left a large session goes; a plan that comes all the same opens it.

    Explaining an answer opens sessions of its own, which need that memory.
    """
    monkeypatch.setattr(preparing, "HELD_BYTES", 0)
    model = tiny.write_model(tmp_path / "tiny.onnx")
    options = Options(model=model, inputs=tiny.samples(), tol=1e-2, threads=1, backend="emulated")
    others = {id(each) for each in sessions()}
    prepared = prepare(options, ignore, tmp_path)
    backend, plan = prepared.here, Plan.of([1])
    assert isinstance(backend, EmulatedBackend)
    before = backend.evaluate(plan, tiny.samples()[0])
    own = weakref.WeakSet(each for each in sessions() if id(each) not in others)
    with evaluators(prepared, tmp_path):
        assert len(own) == 1
    gc.collect()
    assert len(own) == 0
    after = backend.evaluate(plan, tiny.samples()[0])
    assert list(before) == list(after)
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])


def test_graphs_of_one_model_share_rounded_weights(tmp_path: Path) -> None:
    """A graph in TF32 beside the first one has no second copy; once both are gone none is left."""
    path, _ = make(tmp_path, 50, 2, 0, width=32)
    model, pair = load_model(path), Pair(low="fp16", high="fp32")
    graphs = [switch(model, pair, Scales(), tf32=tf32) for tf32 in (False, True)]
    rounded = [name for name in graphs[0].weights if name.startswith("precision_bisect/fp16/")]
    assert rounded
    assert all(graphs[0].weights[name] is graphs[1].weights[name] for name in rounded)
    del graphs
    gc.collect()
    assert not model.held[LayerWeights]


@pytest.mark.parametrize("searched", ["on", "off"])
@pytest.mark.parametrize("tf32", [False, True])
def test_judged_in_tf32_each_plan_has_its_own_session(
    tf32: bool, searched: Tf32, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few plans are judged there; one session serves those of a whole search, in TF32 or not."""
    monkeypatch.setattr(emulator, "is_bare", lambda model: True)
    model = load_model(tiny.write_model(tmp_path / "tiny.onnx"))
    others = {id(each) for each in sessions()}
    options = Options(model=model.path, engine=EngineSettings(tf32=searched))
    backend = forecaster(model, options, Scales(), tf32=tf32)
    backend.evaluate(Plan.of([1]), tiny.samples()[0])
    own = weakref.WeakSet(each for each in sessions() if id(each) not in others)
    assert len(own) == 1
    backend.evaluate(Plan.of([0]), tiny.samples()[0])
    gc.collect()
    assert len(own) == (0 if tf32 else 1)


@pytest.mark.parametrize(("held_bytes", "still_open"), [(0, 0), (preparing.HELD_BYTES, 1)])
def test_one_large_session_at_a_time_is_open(
    held_bytes: int, still_open: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials in TF32 come after those without it; sessions of a large model go before theirs open.

    Those of a small one stay: they would be opened again.
    """
    monkeypatch.setattr(preparing, "HELD_BYTES", held_bytes)
    model = tiny.write_model(tmp_path / "tiny.onnx")
    options = Options(model=model, inputs=tiny.samples(), tol=1e-2, threads=1, backend="emulated")
    others = {id(each) for each in sessions()}
    prepared = prepare(options, ignore, tmp_path)
    backend, plan, cases = prepared.here, Plan.of([1]), Cases()
    assert isinstance(backend, EmulatedBackend)
    backend.evaluate(plan, tiny.samples()[0])
    own = weakref.WeakSet(each for each in sessions() if id(each) not in others)
    assert len(own) == 1
    with in_tf32(prepared, cases):
        case = prepared.case.named(TF32)
        assert cases(Proposal(plan=plan, phase=Phase.SPEED, case=case)).error is not None
        gc.collect()
        assert len(own) == still_open


def test_the_graph_of_a_plan_goes_with_its_last_reader(tmp_path: Path) -> None:
    """Nothing of it is left in circles: 20 MB for each plan with 5,000 layers, for a while."""
    path, _ = make(tmp_path, 50, 2, 0, width=32)
    model = load_model(path)
    graph = switch(model, Pair(low="fp16", high="fp32"), Scales())
    low = np.ones(len(model.table.candidates), bool)
    gc.collect()
    for_plan(graph, model, low, bare=True)
    assert 0 == gc.collect()
