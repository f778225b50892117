"""The whole backend on the real TensorRT-RTX: plans become engines that can be looked into."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from models import keeping, load_text, normal, parse, save, with_weights
from precision_bisect.backends.tensorrt.build import BuiltEngine
from precision_bisect.backends.tensorrt.build_remarks import Remarks
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.backends.tensorrt.tensorrt_engine import TensorRTEngine
from precision_bisect.errors import PrecisionBisectError, RefusedError, UsageError
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import BackendFailure
from precision_bisect.runs.runfolder import ENGINE, TIMING_CACHE
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Evidence, Honour, LayerHonour, TrialStatus

FOR_86 = EngineSettings(compute_capability="8.6")
CHAIN = (
    "(float[8,64] x) => (float[8,64] y)"
    " { a = Tanh(x) m = MatMul(a, w) b = Sigmoid(m) n = MatMul(b, v) y = Softmax(n) }"
)

MakeBackend = Callable[..., TensorRTBackend]


@pytest.fixture
def chain(tmp_path: Path) -> Model:
    """Return a model with two products that stand alone."""
    weights = {"w": normal(64, 64), "v": normal(64, 64, seed=1)}
    return load_model(save(with_weights(parse(CHAIN), weights), tmp_path))


@pytest.fixture
def make(rtx: Flavour, chain: Model, tmp_path: Path) -> MakeBackend:
    """Return a function that makes a backend for the chain, or for another model."""

    def make(
        model: Model = chain, settings: EngineSettings = FOR_86, flavour: Flavour = rtx
    ) -> TensorRTBackend:
        shapes = {spec.name: [(8, 64)] for spec in model.inputs}
        writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
        return TensorRTBackend(writer, settings, flavour, shapes, tmp_path / "work")

    return make


def absent_gpu(flavour: Flavour) -> Flavour:
    """Return the library as it is on a machine without a GPU."""
    return replace(flavour, device=None, compute_capability=None, why_not="no GPU was found")


def test_versions_say_what_results_depend_on(rtx: Flavour, make: MakeBackend) -> None:
    """The fingerprint holds library, target and how precisions are expressed."""
    versions = make(flavour=absent_gpu(rtx)).versions()
    assert {
        "tensorrt-rtx": rtx.version,
        "device": "none",
        "compute_capability": "8.6",
        "typing": "strong",
    } == {name: text for name, text in versions.items() if name != "polygraphy"}
    assert ("tensorrt-rtx", False) == (make().name, make().emulated)


def test_kept_products_are_honoured_with_the_guard_and_demoted_without(
    make: MakeBackend, chain: Model
) -> None:
    """What a build made of a kept product that stands alone shows in its evidence."""
    kept = [name for name in chain.table.names if name == "node_of_m"]
    plan = keeping(chain, *kept)
    with make().build(plan) as engine:
        guarded = engine.evidence()
    with make(settings=replace(FOR_86, guard_islands=False)).build(plan) as engine:
        bare = engine.evidence()
    assert [Honour.HONOURED] == [entry.honoured for entry in guarded.honours]
    assert [Honour.DEMOTED] == [entry.honoured for entry in bare.honours]
    assert kept == [entry.layer for entry in bare.honours]
    assert (None, ()) == (bare.latency, bare.notes)


@pytest.mark.parametrize("kept", ["all", "none"])
def test_both_ends_build(make: MakeBackend, chain: Model, kept: str) -> None:
    """All-high and all-low become engines, one after the other from the same files."""
    count = len(chain.table.candidates)
    plan = Plan.all_high(count) if kept == "all" else Plan.of([])
    backend = make()
    for _ in range(2):
        with backend.build(plan) as engine:
            assert len(plan) == len(engine.evidence().honours)


def test_an_engine_that_cannot_run_says_so(rtx: Flavour, make: MakeBackend, chain: Model) -> None:
    """Without a GPU building works, and running is refused in one line."""
    feed = {"x": normal(8, 64)}
    with make(flavour=absent_gpu(rtx)).build(keeping(chain)) as engine:
        for use in (engine.run, engine.time):
            with pytest.raises(RefusedError) as caught:
                use(feed)
            assert "the engine cannot run here: no GPU was found" == caught.value.message


def test_an_engine_that_says_nothing_is_judged_all_the_same(rtx: Flavour) -> None:
    """Where neither the builder nor a GPU describes the engine, no layers are looked at."""
    built = BuiltEngine(engine=b"", layers="", remarks=Remarks(notes=("a remark",)))
    looked_at: list[object] = []

    def judge(layers: Sequence[object]) -> Sequence[LayerHonour]:
        looked_at.append(list(layers))
        return ()

    with TensorRTEngine(rtx, built, "no GPU was found", judge) as engine:
        assert Evidence(notes=("a remark",)) == engine.evidence()
    assert [[]] == looked_at


def test_the_timing_cache_is_saved_beside_the_engine(rtx: Flavour, tmp_path: Path) -> None:
    """Where builds leave a timing cache, it goes with the engine."""
    built = BuiltEngine(engine=b"plan", layers="", remarks=Remarks(), timings=b"timings")
    with TensorRTEngine(rtx, built, "", lambda layers: ()) as engine:
        engine.save(tmp_path)
    assert {ENGINE: b"plan", TIMING_CACHE: b"timings"} == {
        file.name: file.read_bytes() for file in tmp_path.iterdir()
    }


def test_an_engine_for_another_gpu_is_not_run(
    rtx: Flavour, make: MakeBackend, chain: Model
) -> None:
    """What is built for one compute capability is not tried on another."""
    other = replace(rtx, device="RTX 4090", compute_capability="8.9", why_not="")
    with (
        make(flavour=other).build(keeping(chain)) as engine,
        pytest.raises(RefusedError, match=r"built for compute capability 8\.6, and RTX 4090"),
    ):
        engine.run({"x": normal(8, 64)})


def test_saving_keeps_the_engine(make: MakeBackend, chain: Model, tmp_path: Path) -> None:
    """The engine file is what was built, replaces an older one, and nothing else is left."""
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / ENGINE).write_bytes(b"old")
    with make().build(keeping(chain)) as engine:
        engine.save(folder)
    assert [ENGINE] == [file.name for file in folder.iterdir()]
    assert (folder / ENGINE).stat().st_size > 10_000


def test_a_failed_build_is_an_outcome(make: MakeBackend, tmp_path: Path) -> None:
    """An operator that TensorRT does not know fails the build, and pins no layer."""
    model = load_text("(float[2,2] x) => (float y) { s = Mul(x, x) y = Det(s) }", tmp_path)
    with pytest.raises(BackendFailure) as caught:
        make(model).build(Plan.of([]))
    outcome = caught.value.outcome
    assert TrialStatus.BUILD_FAILED is outcome.status
    assert "node_of_y: checkDet: false" == outcome.message
    assert {} == make(model).unbuildable()


def test_layers_without_a_low_form_are_unbuildable(make: MakeBackend, tmp_path: Path) -> None:
    """What no typed graph can hold low is named with the reason, for the search to go round."""
    body = "(float[8,64] x) => (float[8,64] y) { s = Mul(x, x) y = Celu(s) }"
    found = make(load_text(body, tmp_path)).unbuildable()
    assert ["node_of_y"] == list(found)
    assert "Celu" in found[next(iter(found))]


def test_dynamic_sizes_come_from_the_samples(make: MakeBackend, tmp_path: Path) -> None:
    """Without flags the engine is built for the shapes of the samples."""
    body = "(float[N,64] x) => (float[N,64] y) { s = Mul(x, x) y = Tanh(s) }"
    with make(load_text(body, tmp_path)).build(Plan.of([0])) as engine:
        assert 1 == len(engine.evidence().honours)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (EngineSettings(), "cannot build for this machine: no GPU was found; give --compute-cap"),
        (replace(FOR_86, typing="weak"), "cannot mark layers; give --typing strong or auto"),
        (
            EngineSettings(compute_capability="9.0"),
            "cannot build for compute capability 9.0; choose 7.5, 8.0, 8.6",
        ),
    ],
)
def test_what_the_library_cannot_do_is_one_line(
    rtx: Flavour, make: MakeBackend, settings: EngineSettings, said: str
) -> None:
    """Settings that this library cannot follow are refused before the first build."""
    with pytest.raises(PrecisionBisectError) as caught:
        make(settings=settings, flavour=absent_gpu(rtx))
    assert said in caught.value.one_line()


def test_a_library_without_targets_builds_for_the_gpu_at_hand(
    rtx: Flavour, make: MakeBackend
) -> None:
    """TensorRT itself takes no target, and needs a GPU."""
    full = replace(absent_gpu(rtx), name="tensorrt", targets=())
    with pytest.raises(UsageError, match=r"cannot build for compute capability 8\.6"):
        make(flavour=full)
    with pytest.raises(RefusedError) as caught:
        make(settings=EngineSettings(), flavour=full)
    assert caught.value.message.endswith("cannot build for this machine: no GPU was found")
