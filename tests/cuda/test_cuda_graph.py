"""Latencies on ONNX Runtime are those of a CUDA graph, where one can be captured."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from models import load_text, normal, parse, save, with_weights
from precision_bisect.api import find
from precision_bisect.backends.cuda.cuda_backend import CudaBackend
from precision_bisect.backends.cuda.provider import why_no_cuda
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.settings.engine_settings import EngineSettings

TROUBLE = why_no_cuda()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(TROUBLE is not None, reason=str(TROUBLE))]

SQUARE = """(float[64,512] x) => (float[64,512] y) <float up = {300}, float down = {1.1e-5}> {
  [product] p = MatMul(x, w) [bent] a = Tanh(p) [up] b = Mul(a, up) [square] c = Mul(b, b)
  [down] d = Mul(c, down) [last] y = Tanh(d) }"""


def backend(model: Model, folder: Path) -> CudaBackend:
    """Return the backend with its default settings."""
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    return CudaBackend(writer, EngineSettings(), folder)


def test_what_is_timed_is_replayed_and_what_judges_is_not(tmp_path: Path) -> None:
    """A replay reads where it was captured: a run of other values is launched as usual."""
    text = "(float[64] x) => (float[64] y) { [tanh] t = Tanh(x) [square] y = Mul(t, t) }"
    cuda = backend(load_text(text, tmp_path), tmp_path)
    first, second = ({"x": normal(64, seed=seed)} for seed in (1, 2))
    with cuda.build(Plan.of(()), afresh=True) as engine:
        before = [engine.run(feed)["y"] for feed in (first, second)]
        methods = [engine.time(feed) for feed in (first, second, first)]
        after = [engine.run(feed)["y"] for feed in (first, second)]
    assert ["cuda_graph"] * 3 == [latency and latency.method for latency in methods]
    assert np.array_equal(before, after)
    assert not np.array_equal(after[0], after[1])


@pytest.mark.parametrize(
    "text",
    [
        # The shape of its output is known on the host alone.
        "(float[64] x) => (int64[1,N] y) { [square] s = Mul(x, x) [where] y = NonZero(s) }",
        # Tan has no kernel on CUDA.
        "(float[64] x) => (float[64] y) { [tan] t = Tan(x) [square] y = Mul(t, t) }",
    ],
)
def test_what_cannot_be_captured_is_launched(tmp_path: Path, text: str) -> None:
    """It has a latency all the same, and computes what it did."""
    model = load_text(text, tmp_path)
    feed = {"x": normal(64)}
    everything = Plan.all_high(len(model.table.candidates))
    with backend(model, tmp_path).build(everything, afresh=True) as engine:
        before = engine.run(feed)["y"]
        latency = engine.time(feed)
        assert latency is not None
        assert "host_clock" == latency.method
        assert np.array_equal(before, engine.run(feed)["y"])


def test_the_plan_to_deploy_is_timed_beside_fp32(tmp_path: Path) -> None:
    """Both with TF32, which FP32 holds with; the ledger decides where a run goes on."""
    path = save(with_weights(parse(SQUARE), {"w": normal(512, 512) / 16}), tmp_path)
    inputs = [{"x": normal(64, 512, seed=seed)} for seed in range(2)]
    search = partial(
        find, path, tol=1e-2, inputs=inputs, backend="onnxruntime", out=tmp_path / "out"
    )
    found = search()
    assert "found" == found.status and found.tf32 is not None and found.tf32.fp32_passed
    assert found.deploy is not None and found.deploy.tf32 and not found.deploy.estimated
    latency = found.deploy.latency
    assert latency is not None and "cuda_graph" == latency.method
    assert latency.speedup == found.tf32.speedup
    assert found.deploy.error is not None and found.deploy.error <= 1e-2
    again = search(resume=True)
    assert (found.kept, found.deploy, found.builds) == (again.kept, again.deploy, again.builds)
