"""A session as an engine: what it computes, how long it takes, what its kernels tell."""

from pathlib import Path

import numpy as np
import pytest

from kernel_sessions import GELU
from models import load_text, normal
from precision_bisect.backends.cuda.building import CudaKernel, Trace, TypedSessions
from precision_bisect.backends.cuda.cuda_engine import SessionEngine
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.backends.timing import LEAST_RUNS
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.protocols import BackendFailure
from precision_bisect.search.stopwatch import Stopwatch
from precision_bisect.trial import Honour, TrialStatus


def engine(model: Model, folder: Path) -> SessionEngine:
    """Return the all-high plan on the CPU provider."""
    opener = Opener(providers=[CPU], profiles=folder / "profile")
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    sessions = TypedSessions(writer, opener, folder / "typed")
    return SessionEngine(sessions.open(Plan.all_high(len(model.table.candidates))), "cpu")


def test_outputs(tmp_path: Path) -> None:
    """The outputs come by name and are the graph's."""
    model = load_text(
        "(float[4] x) => (float[4] y, float[4] z) { y = Neg(x) z = Abs(y) }", tmp_path
    )
    x = normal(4)
    with engine(model, tmp_path) as built:
        outputs = built.run({"x": x})
    assert ["y", "z"] == list(outputs)
    np.testing.assert_array_equal(-x, outputs["y"])
    np.testing.assert_array_equal(np.abs(x), outputs["z"])


def test_evidence(tmp_path: Path) -> None:
    """A layer is honoured when its own kernel ran in FP32; a fused one cannot be observed."""
    model = load_text(GELU, tmp_path)
    with engine(model, tmp_path) as built:
        assert () == built.evidence().honours
        built.run({"x": normal(2, 8)})
        honours = {entry.layer: entry for entry in built.evidence().honours}
    assert (Honour.HONOURED, "ran as Sigmoid on float") == (
        honours["act"].honoured,
        honours["act"].evidence,
    )
    assert {Honour.NOT_OBSERVABLE} == {honours[name].honoured for name in ("div", "erf", "out")}


def test_profile_is_removed(tmp_path: Path) -> None:
    """The record of the first run is read and removed, and later runs are not recorded."""
    model = load_text(GELU, tmp_path)
    with engine(model, tmp_path) as built:
        built.run({"x": normal(2, 8)})
        built.run({"x": normal(2, 8)})
    assert [] == list(tmp_path.glob("profile*"))


@pytest.mark.parametrize("size", ["1", "n"])
def test_another_batch_is_timed(size: str, tmp_path: Path) -> None:
    """A batch that the file fixes has a session of its own; what is judged stays as it was."""
    model = load_text(f"(float[{size},8] x) => (float[{size},8] y) {{ y = Tanh(x) }}", tmp_path)
    feeds = [{"x": normal(1, 8, seed=seed)} for seed in range(2)]
    with engine(model, tmp_path) as built:
        alone = built.run(feeds[0])["y"]
        latency = Stopwatch(batch=3).time(Plan.of(()), built, feeds)
        np.testing.assert_array_equal(alone, built.run(feeds[0])["y"])
    assert latency is not None
    assert 3 == latency.batch
    assert [] == list(tmp_path.glob("profile*"))


@pytest.mark.parametrize("size", ["1", "n"])
def test_another_batch_is_timed_beside_what_has_not_run(size: str, tmp_path: Path) -> None:
    """The stopwatch builds every layer high for it alone, so nothing was judged there before."""
    model = load_text(f"(float[{size},8] x) => (float[{size},8] y) {{ y = Tanh(x) }}", tmp_path)
    high, feeds = Plan.of(range(len(model.table.candidates))), [{"x": normal(1, 8)}]
    with (
        Stopwatch(lambda _: engine(model, tmp_path), high, batch=3) as stopwatch,
        engine(model, tmp_path) as built,
    ):
        latency = stopwatch.time(Plan.of(()), built, feeds)
    assert latency is not None and latency.speedup is not None
    assert 3 == latency.batch


def test_no_timed_run_is_recorded(tmp_path: Path) -> None:
    """An engine that is timed before it has run has its record behind it: that slows runs down."""
    model = load_text(GELU, tmp_path)
    with engine(model, tmp_path) as built:
        built.time({"x": normal(2, 8)})
        assert [] == list(tmp_path.glob("profile*"))
        assert Honour.HONOURED in {each.honoured for each in built.evidence().honours}


def test_failed_run(tmp_path: Path) -> None:
    """A run that fails is an outcome in ONNX Runtime's words, on one line."""
    model = load_text(GELU, tmp_path)
    with engine(model, tmp_path) as built, pytest.raises(BackendFailure) as caught:
        built.run({"x": normal(3, 8)})
    outcome = caught.value.outcome
    assert TrialStatus.RUN_FAILED == outcome.status
    assert outcome.message.startswith("Got invalid dimensions for input: x")


def test_latency(tmp_path: Path) -> None:
    """The latency is a median over enough runs, with its spread, in milliseconds."""
    model = load_text(GELU, tmp_path)
    with engine(model, tmp_path) as built:
        latency = built.time({"x": normal(2, 8)})
    assert latency is not None
    assert latency.runs > LEAST_RUNS
    assert 0 < latency.median_ms < 100
    assert latency.spread_ms >= 0


def kernel(name: str, *types: str, provider: str = "CUDAExecutionProvider") -> CudaKernel:
    """Return a kernel that ran on these types."""
    return CudaKernel(name=name, op_type="Op", provider=provider, types=frozenset(types))


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ([kernel("/a/Mul")], Honour.HONOURED),
        ([kernel("/a/Mul", "float")], Honour.HONOURED),
        ([kernel("/a/Mul/MatMulScaleFusion/", "float")], Honour.HONOURED),
        ([kernel("/a/Mul", "float16")], Honour.DEMOTED),
        ([kernel("/a/Mul", "bfloat16")], Honour.DEMOTED),
        ([kernel("/a/Mul", "float", "float16")], Honour.NOT_OBSERVABLE),
        ([kernel("/a/Mul/LayerNormFusion/", "float16")], Honour.NOT_OBSERVABLE),
        ([kernel("/a/Mul/SkipFusion/", "float")], Honour.NOT_OBSERVABLE),
        ([kernel("/a/Mul_1", "float")], Honour.NOT_OBSERVABLE),
        ([], Honour.NOT_OBSERVABLE),
    ],
)
def test_honour(kernels: list[CudaKernel], expected: Honour) -> None:
    """Only what the types of a layer's own kernel show is claimed; the SkipFusion is a layer."""
    trace = Trace(kernels, {"/a/Mul", "/a/Mul_1", "/a/Mul/SkipFusion/"})
    assert expected == trace.honour(LayerName("/a/Mul"), "fp32").honoured


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["float16"], Honour.HONOURED),
        (["float", "float16"], Honour.HONOURED),
        (["float"], Honour.HONOURED),
        (["bfloat16"], Honour.DEMOTED),
        (["bfloat16", "float16"], Honour.NOT_OBSERVABLE),
    ],
)
def test_honour_of_a_rung(types: list[str], expected: Honour) -> None:
    """What is kept in FP16 is honoured in FP16 and above it."""
    trace = Trace([kernel("/a/Mul", *types)], {"/a/Mul"})
    assert expected == trace.honour(LayerName("/a/Mul"), "fp16").honoured


def test_low_on_cpu() -> None:
    """Of the low layers those are told that a kernel of the CPU provider computed."""
    kernels = [
        kernel("a", "float", provider=CPU),
        kernel("b", "float16"),
        kernel("c", provider=CPU),
    ]
    low = [LayerName(name) for name in "ab"]
    assert ["a"] == Trace(kernels, {"a", "b", "c"}).on_cpu(low)
