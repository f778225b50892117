"""What only a GPU can show: FP16 computed in FP16, and what becomes of mixed graphs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ladder_model import OUTLIERS, OVERFLOWING, samples, write
from models import OVERFLOW, keeping, load_text, normal, parse, save, with_weights
from precision_bisect.api import find
from precision_bisect.backends.cuda.cuda_backend import CudaBackend
from precision_bisect.backends.cuda.gpu_reference import GpuReference
from precision_bisect.backends.cuda.provider import why_no_cuda
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.emulator_plugin import choose_forecasts, forecaster
from precision_bisect.exports.export import Export
from precision_bisect.exports.judging import Judge
from precision_bisect.exports.recheck import judging
from precision_bisect.exports.write import write_deployed
from precision_bisect.graphs.fp32_outputs import ReferenceSession
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.graphs.typed.pinning import pin_formless, pin_unbuildable
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.judging.comparators.polygraphy_plugin import PolygraphyComparator, Tolerance
from precision_bisect.options import Options
from precision_bisect.pipeline.deploying import deployed_session
from precision_bisect.plan import Plan
from precision_bisect.precisions import LowName, Pair
from precision_bisect.protocols import Backend
from precision_bisect.runs.runfolder import RunFolder
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.settings.sample_options import ENGINE_REFERENCE
from precision_bisect.settings.targets import TargetName
from precision_bisect.settings.worker_options import ForecastOn
from precision_bisect.testing.backend_contract import check_backend
from precision_bisect.trial import Honour

TROUBLE = why_no_cuda()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(TROUBLE is not None, reason=str(TROUBLE))]

BY_CHANNEL = "<float[8] s = {1,2,3,4,5,6,7,8}, float[8] b = {8,7,6,5,4,3,2,1}>"
BLOCK = """(float[4,16,64] x) => (float[4,16,64] y) {
  [query] q = MatMul(x, wq)
  [gate] g = Tanh(q)
  [product] p = Mul(q, g)
  [project] o = MatMul(p, wo)
  [bias] b = Add(o, bo)
  [residual] r = Add(b, x)
  [norm] n = LayerNormalization<axis = -1>(r, gamma, beta)
  [again] y = Add(n, r) }"""
"""A block whose Adds and LayerNormalization ONNX Runtime likes to fuse, whatever their types."""


def backend(model: Model, folder: Path, low: LowName = "fp16") -> CudaBackend:
    """Return the backend with its default settings."""
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    return CudaBackend(writer, EngineSettings(), folder)


def block(folder: Path) -> Model:
    """Save and load the block with seeded weights."""
    shapes = {"wq": (64, 64), "wo": (64, 64), "bo": (64,), "gamma": (64,), "beta": (64,)}
    weights = {name: normal(*shape, seed=i) / 8 for i, (name, shape) in enumerate(shapes.items())}
    return load_model(save(with_weights(parse(BLOCK), weights), folder))


def test_fp16_is_fp16(tmp_path: Path) -> None:
    """300 * 300 is infinite low and 90000 high: the kernels compute what the types say."""
    model = load_text(OVERFLOW, tmp_path)
    feed = {"x": np.full(1, 300, np.float32)}
    found = {}
    for plan in (Plan.of(()), Plan.all_high(2)):
        with backend(model, tmp_path).build(plan) as engine:
            found[len(plan)] = float(engine.run(feed)["y"][0])
    assert np.isinf(found[0])
    assert 300.0 == pytest.approx(found[2], rel=1e-6)


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    """It computes what a plan asks for."""
    check_backend(lambda model: backend(model, tmp_path))


def test_layer_without_kernel_is_pinned(tmp_path: Path) -> None:
    """A layer for which CUDA has no kernel lands on the CPU; it is found and told."""
    text = "(float[4] x) => (float[4] y) { [tan] t = Tan(x) [sigmoid] y = Sigmoid(t) }"
    stuck = backend(load_text(text, tmp_path), tmp_path).unbuildable()
    assert ["tan"] == list(stuck)


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_plans_of_a_block_run(tmp_path: Path, low: LowName) -> None:
    """Whatever is kept of a block, it builds, and its outputs are close to FP32's.

    Every seventh subset of the layers is tried.
    """

    def make(model: Model) -> Backend:
        return backend(model, tmp_path, low)

    pair = Pair(low=low, high="fp32")
    model = pin_formless(block(tmp_path), pair)
    model = pin_unbuildable(model, make(model), low)
    cuda = make(model)
    count = len(model.table.candidates)
    feed = {"x": normal(4, 16, 64, seed=9)}
    with cuda.build(Plan.all_high(count)) as engine:
        expected = engine.run(feed)["y"]
    for mask in range(0, 2**count, 7):
        with cuda.build(Plan.from_key(format(mask, "x"))) as engine:
            error = np.abs(engine.run(feed)["y"] - expected).max()
        assert error < (0.02 if low == "fp16" else 0.2), mask


def test_kept_layer_is_honoured(tmp_path: Path) -> None:
    """A kept layer between low ones is seen to run in FP32, from its own kernel's types."""
    model = block(tmp_path)
    with backend(model, tmp_path).build(keeping(model, "product")) as engine:
        engine.run({"x": normal(4, 16, 64)})
        (honour,) = engine.evidence().honours
    assert (Honour.HONOURED, "ran as Mul on float") == (honour.honoured, honour.evidence)


def test_tf32_is_off(tmp_path: Path) -> None:
    """A product of FP32 matrices has FP32's accuracy, ten bits more than TF32's."""
    weight = normal(512, 512)
    model = load_model(
        save(
            with_weights(
                parse("(float[512,512] x) => (float[512,512] y) { y = MatMul(x, w) }"),
                {"w": weight},
            ),
            tmp_path,
        )
    )
    x = normal(512, 512, seed=1)
    with backend(model, tmp_path).build(Plan.all_high(1)) as engine:
        outputs = engine.run({"x": x})["y"]
    exact = x.astype(np.float64) @ weight.astype(np.float64)
    assert np.abs(outputs - exact).max() < 1e-3


def test_latency_and_versions(tmp_path: Path) -> None:
    """The latency is a plausible figure, and the versions name the device."""
    model = block(tmp_path)
    cuda = backend(model, tmp_path)
    with cuda.build(Plan.of(())) as engine:
        engine.run({"x": normal(4, 16, 64)})
        latency = engine.time({"x": normal(4, 16, 64)})
    assert latency is not None
    assert 0.01 < latency.median_ms < 10
    assert latency.spread_ms < latency.median_ms
    assert ("CUDA", "off") == (cuda.versions()["provider"], cuda.versions()["tf32"])
    assert "compute capability" in cuda.versions()["device"]


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_forecasts_are_the_cpus_but_for_the_order_of_sums(tmp_path: Path, low: LowName) -> None:
    """The emulator's graph says the same on CUDA: exactly rounded, within a rounding of the sums.

    Every plan of the block is tried. A value at the border of two roundings may take the other.
    """
    model = block(tmp_path)
    options = Options(model=model.path, low=low, backend="onnxruntime")
    told = [choose_forecasts(options, model, seconds).forecast_on for seconds in (0.001, 1.0)]
    assert ["cpu", "cuda"] == told
    cpu, gpu = (forecaster(model, options, Scales(), on_gpu=where) for where in (False, True))
    feed = {"x": normal(4, 16, 64, seed=9)}
    count = len(model.table.candidates)
    for mask in range(2**count):
        plan = Plan.from_key(format(mask, "x"))
        here, there = (each.evaluate(plan, feed)["y"] for each in (cpu, gpu))
        step = 2.0**-9 if low == "fp16" else 2.0**-6
        assert np.abs(here - there).max() <= (1e-5 if len(plan) == count else 4 * step), mask
        assert np.abs(here - there).mean() <= step / 16, mask


def test_a_run_with_forecasts_on_the_gpu(tmp_path: Path) -> None:
    """The answer is that of a run whose forecasts are the CPU's; none of them had to move."""
    model = load_text(OVERFLOW, tmp_path)
    feed = {"x": np.full(1, 300, np.float32)}
    where: tuple[ForecastOn, ...] = ("cpu", "cuda")
    cpu, gpu = (
        find(
            model.path,
            tol=1e-2,
            inputs=[feed],
            backend="onnxruntime",
            forecast_on=each,
            out=tmp_path / each,
        )
        for each in where
    )
    assert cpu.kept == gpu.kept and gpu.status == cpu.status == "found"
    assert gpu.evaluations and not any("forecasts" in note for note in gpu.notes)


@pytest.mark.parametrize("low", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 32, 8, 8), [1]),
        ((2, 32, 8, 8), [1]),
        ((8, 384), [-1]),
        ((8, 384), [0, 1]),
        ((24, 7), [0]),
        ((2, 3, 16, 16), [2, 3]),
        ((2, 3, 300, 300), [-2, -1]),
        ((3, 1, 16, 1), [0, 1]),
        ((2, 5, 6, 7), [0, 2]),
    ],
)
@pytest.mark.parametrize("size", [1.0, 3000.0])
def test_means_are_as_forecast(
    shape: tuple[int, ...], axes: list[int], size: float, low: LowName, tmp_path: Path
) -> None:
    """Whose sums are stored, and what becomes infinite of it, is as the emulator has it."""
    dims = ", ".join(f"d{i}" for i in range(len(shape)))
    mean = f"ReduceMean<axes = {axes}>(x)"
    text = f"(float[{dims}] x) => (float y) {{ [mean] m = {mean} [neg] y = Neg(m) }}"
    model = load_text(text, tmp_path)
    options = Options(model=model.path, low=low, backend="onnxruntime")
    feed = {"x": np.float32(size) * (1 + normal(*shape, seed=3) / 8)}
    with backend(model, tmp_path, low).build(Plan.of(())) as engine:
        (found,) = engine.run(feed).values()
    (expected,) = forecaster(model, options, Scales()).evaluate(Plan.of(()), feed).values()
    step = 2.0**-10 if low == "fp16" else 2.0**-7
    np.testing.assert_allclose(found, expected, rtol=2 * step)


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        (f"{BY_CHANNEL} {{ y = InstanceNormalization(x, s, b) }}", 17),
        ("{ q = ReduceSumSquare<axes = [3]>(x) y = Sub(x, q) }", 13),
        ("<int64[1] a = {3}> { p = Abs(x) q = ReduceLogSum(p, a) y = Sub(x, q) }", 18),
    ],
)
def test_steps_are_as_forecast(body: str, opset: int, tmp_path: Path) -> None:
    """What ONNX Runtime computes is at least twice as near to stored steps as to FP32 inside."""
    text = f"(float[n,8,16,16] x) => (float[n,8,16,16] y) {body}"
    model = load_text(text, tmp_path, opset=opset)
    feed = {"x": (3 + 5 * normal(2, 8, 16, 16)).astype(np.float16).astype(np.float32)}
    with backend(model, tmp_path).build(Plan.of(())) as engine:
        found = engine.run(feed)["y"]
    targets: tuple[TargetName, ...] = ("tensorrt", "onnxruntime")
    plain, stored = (
        EmulatedBackend(model, threads=1, targets=[each]).evaluate(Plan.of(()), feed)["y"]
        for each in targets
    )
    # Both are alike where TensorRT has the same steps.
    assert np.abs(found - stored).mean() <= np.abs(found - plain).mean() / 2


@pytest.mark.parametrize("kept", [(), ("root",), ("shifted",)])
def test_a_norm_is_as_forecast(kept: tuple[str, ...], tmp_path: Path) -> None:
    """Its variance overflows where a sum is stored: not where it runs low as a whole."""
    text = """(float[4, 64] x) => (float[4, 64] y) <float two = {2}, float e = {1}> {
      [mean] m = ReduceMean<axes = [-1]>(x) [centred] d = Sub(x, m) [square] p = Pow(d, two)
      [variance] v = ReduceMean<axes = [-1]>(p) [sum] a = Add(v, e) [root] r = Sqrt(a)
      [quotient] q = Div(d, r) [scaled] s = Mul(q, w) [shifted] y = Add(s, b) }"""
    weights = {"w": normal(64, seed=1), "b": normal(64, seed=2)}
    model = load_model(save(with_weights(parse(text, opset=13), weights), tmp_path))
    options = Options(model=model.path, low="fp16", backend="onnxruntime")
    feed, plan = {"x": 40 * normal(4, 64)}, keeping(model, *kept)
    with backend(model, tmp_path).build(plan) as engine:
        found = engine.run(feed)["y"]
    expected = forecaster(model, options, Scales()).evaluate(plan, feed)["y"]
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_a_ladder(tmp_path: Path) -> None:
    """What is kept in FP16 is honoured in FP16: every rung has its verdicts, and its layers."""
    found = find(
        write(tmp_path),
        tol=0.1,
        inputs=samples(),
        backend="onnxruntime",
        ladder=("int8", "fp16", "fp32"),
        out=tmp_path / "out",
    )
    assert ("found", {}) == (found.status, found.unresolved)
    assert [*OUTLIERS, *OVERFLOWING] == found.kept


def test_its_own_engine_is_the_reference(tmp_path: Path) -> None:
    """Every layer high, in a child process, gives what ONNX Runtime does on the CPU."""
    model = load_text(OVERFLOW, tmp_path)
    kept = [
        find(
            model.path,
            inputs=[{"x": np.array([300], np.float32)}],
            backend="onnxruntime",
            reference=reference,
            out=tmp_path / f"run{number}",
        ).kept
        for number, reference in enumerate((None, ENGINE_REFERENCE))
    ]
    assert kept[0] == kept[1] != []


PRODUCT = """(float[64,512] x) => (float[64,512] y, float[64,512] z) {
  [product] p = MatMul(x, w) [flipped] y = Neg(p) [bent] z = Tanh(x) }"""


def product(folder: Path) -> Path:
    """Save a model whose product keeps more digits than TF32 and FP16 have."""
    return save(with_weights(parse(PRODUCT), {"w": normal(512, 512)}), folder)


def test_what_is_judged_is_what_is_deployed(tmp_path: Path) -> None:
    """The exported files pass in a fresh process; under TF32, the library's default, not."""
    found = find(
        product(tmp_path),
        atol=4e-3,
        rtol=1e-6,
        inputs=[{"x": normal(64, 512, seed=1)}],
        backend="onnxruntime",
        out=tmp_path / "out",
    )
    assert "found" == found.status
    recheck = found.rechecked
    assert (
        recheck is not None and "pass" == recheck.outcome and recheck.library_defaults is not None
    )
    assert "fail" == recheck.library_defaults.outcome
    assert ["use_tf32=0"] == list(recheck.library_defaults.options)
    ran = subprocess.run([sys.executable, tmp_path / "out" / "run_onnxruntime.py"])
    assert 0 == ran.returncode


def test_the_users_own_options_judge(tmp_path: Path) -> None:
    """With TF32 allowed the same model is no precision problem: FP32 itself leaves the limits."""
    found = find(
        product(tmp_path),
        atol=4e-3,
        rtol=1e-6,
        inputs=[{"x": normal(64, 512, seed=1)}],
        backend="onnxruntime",
        engine=EngineSettings(ort_options={"use_tf32": "1"}),
        out=tmp_path / "out",
    )
    assert "not_precision" == found.status
    assert "on" == found.fingerprint["versions"]["tf32"]


def test_a_layer_of_16_bits_on_the_cpu_is_no_verdict(tmp_path: Path) -> None:
    """Tan has no kernel on CUDA: the script refuses to pass what the CPU computes in FP32."""
    text = "(float[4] x) => (float[4] y) { [tan] t = Tan(x) [sigmoid] y = Sigmoid(t) }"
    model = load_text(text, tmp_path)
    x = normal(4)
    judge = Judge(
        samples=[{"x": x}],
        reference=[{"y": 1 / (1 + np.exp(-np.tan(x)))}],
        limits={"metric": "elementwise", "atol": {"y": 0.1}, "rtol": {"y": 0.1}},
        backend="emulated",
        options=deployed_session(EngineSettings()),
    )
    pair = Pair(low="fp16", high="fp32")
    export = Export(model=model, kept=[], pair=pair, settings=EngineSettings())
    write_deployed(RunFolder(tmp_path / "out"), export, judge)
    with judging(tmp_path / "out" / "run_onnxruntime.py", tmp_path) as script:
        found = script.ended()
    assert "not_judged" == found.outcome
    assert "'tan' would run on the CPU, in FP32 instead of 16 bits" == found.message


def test_a_build_afresh_is_as_deployed(tmp_path: Path) -> None:
    """A search opens with what plans fast, an answer as the library does; each trial says how."""
    cuda = backend(block(tmp_path), tmp_path)
    algorithms = []
    for afresh in (False, True):
        with cuda.build(Plan.of(()), afresh=afresh) as engine:
            engine.run({"x": normal(4, 16, 64)})
            opening = engine.evidence().opening
            assert opening is not None
            algorithms.append(opening.options["cudnn_conv_algo_search"])
    assert ["DEFAULT", "EXHAUSTIVE"] == algorithms


@pytest.mark.parametrize("tolerance", [1e-3, 1e-12])
def test_references_come_from_the_gpu_where_it_agrees_with_the_cpu(
    tmp_path: Path, tolerance: float
) -> None:
    """Both compute FP32; below what they differ by the CPU's own outputs are taken."""
    model = block(tmp_path)
    on_cpu, feed = ReferenceSession(model), {"x": normal(4, 16, 64)}
    known = on_cpu(feed)
    judge = PolygraphyComparator(
        metric="max",
        atol=Tolerance(default=tolerance),
        rtol=Tolerance(default=0.0),
        outputs=("y",),
    )
    found = GpuReference(model, on_cpu, (feed, known), judge)(feed)
    assert np.abs(found["y"] - known["y"]).max() < 1e-4
    assert (tolerance > 1e-6) == bool((found["y"] != known["y"]).any())
