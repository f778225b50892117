"""What targets store inside operators, against numpy's halves; plans that must pass on several."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from effort import examples
from models import load_text, normal
from precision_bisect.backends.backend_plugin import pick_backend
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.emulator_plugin import choose_target, forecaster
from precision_bisect.backends.emulation.semantics import distinct, own_arithmetic
from precision_bisect.errors import UsageError
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.precisions import LowName, Pair
from precision_bisect.search.evaluation import Evaluator
from precision_bisect.settings.targets import TARGETS, TargetChoice, TargetName
from precision_bisect.trial import Proposal, SampleSet, Verdict

Half = NDArray[np.float16]
PAIR = Pair(low="fp16", high="fp32")
LOW = Plan.of(())
IMAGE = "(float[{batch},8,4,4] x) => (float[{batch},8,4,4] y)"
BY_CHANNEL = "<float[8] s = {1,2,3,4,5,6,7,8}, float[8] b = {8,7,6,5,4,3,2,1}>"
MIXED = """(float[8,512] x) => (float[8,1] y) <float tenth = {0.1}> {
  [scaled] a = Mul(x, tenth) [mean] m = ReduceMean<axes = [-1]>(x) [bent] t = Tanh(a)
  [inner] n = ReduceMean<axes = [-1]>(t) [sum] s = Add(m, n) [last] y = Mul(s, tenth) }"""


def image(body: str, folder: Path, batch: str = "n", opset: int = 17) -> Model:
    """Return a layer over images, the batch of which may be open."""
    return load_text(IMAGE.replace("{batch}", batch) + body, folder, opset=opset)


def on(model: Model, target: TargetName, plan: Plan, x: NDArray[np.float32]) -> NDArray[Any]:
    """Return the one output of a plan as a target computes it."""
    (found,) = (
        EmulatedBackend(model, threads=1, targets=[target]).evaluate(plan, {"x": x}).values()
    )
    return found


def in_halves(model: Model, x: NDArray[np.float32]) -> NDArray[Any]:
    """Return what numpy makes of the model, if all of it is in FP16."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            half = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(half, tensor.name))
    (found,) = ReferenceEvaluator(proto).run(None, {"x": x.astype(np.float16)})
    return np.asarray(found, np.float32)


def halves(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Return values that FP16 holds."""
    return (3 + 5 * normal(*shape, seed=seed)).astype(np.float16).astype(np.float32)


def instance_norm(x: Half, scale: Half, bias: Half) -> Half:
    """Return ONNX Runtime's kernel for batches above 1: FP32 up to the variance, then halves."""
    wide = x.astype(np.float32)
    mean = wide.mean(axis=(2, 3), keepdims=True)
    variance = ((wide - mean) ** 2).mean(axis=(2, 3), keepdims=True).astype(np.float16)
    s, b = (each.reshape(1, -1, 1, 1) for each in (scale, bias))
    root = np.sqrt(variance + np.float16(1e-5))
    found: Half = s * (x - mean.astype(np.float16)) / root + b
    return found


@pytest.mark.parametrize("batch", ["2", "n"])
def test_an_instance_norm_over_several_images(batch: str, tmp_path: Path) -> None:
    """ONNX Runtime's kernel stores each step; other targets round only what comes out."""
    model = image(f"{BY_CHANNEL} {{ y = InstanceNormalization(x, s, b) }}", tmp_path, batch)
    x = halves(2, 8, 4, 4)
    scale = np.arange(1, 9, dtype=np.float16)
    expected = instance_norm(x.astype(np.float16), scale, scale[::-1])
    np.testing.assert_array_equal(expected, on(model, "onnxruntime", LOW, x))
    kept = on(model, "tensorrt", Plan.all_high(1), x)
    np.testing.assert_allclose(on(model, "tensorrt", LOW, x), kept, rtol=2.0**-10, atol=2.0**-14)
    np.testing.assert_array_equal(kept, on(model, "onnxruntime", Plan.all_high(1), x))


@pytest.mark.parametrize("batch", ["1", "n"])
def test_an_instance_norm_over_one_image_is_fp32_inside(batch: str, tmp_path: Path) -> None:
    """CuDNN computes it as a batch norm."""
    model = image(f"{BY_CHANNEL} {{ y = InstanceNormalization(x, s, b) }}", tmp_path, batch)
    x = halves(1, 8, 4, 4)
    plain, stored = (on(model, each, LOW, x) for each in ("tensorrt", "onnxruntime"))
    np.testing.assert_allclose(plain, stored, rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("{ q = ReduceSumSquare<axes = [3]>(x) y = Sub(x, q) }", 13),
        ("<int64[1] a = {3}> { q = ReduceSumSquare(x, a) y = Sub(x, q) }", 18),
        ("<int64[1] a = {3}> { p = Abs(x) q = ReduceLogSum(p, a) y = Sub(x, q) }", 18),
    ],
)
def test_steps_are_stored_as_a_runtime_without_a_kernel_stores_them(
    body: str, opset: int, tmp_path: Path
) -> None:
    """Bit for bit as numpy computes ONNX's functions; TensorRT has FP32 in ReduceLogSum."""
    model, x = image(body, tmp_path, opset=opset), halves(2, 8, 4, 4)
    expected = in_halves(model, x)
    np.testing.assert_array_equal(expected, on(model, "onnxruntime", LOW, x))
    alike = bool((on(model, "tensorrt", LOW, x) == expected).all())
    assert alike == ("SumSquare" in body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{ y = Tanh(x) }", ("tensorrt",)),
        ("{ m = ReduceMean<axes = [3]>(x) y = Sub(x, m) }", ("tensorrt", "onnxruntime")),
        # Neither at one end of the tensor nor at the other: cuDNN stores nothing in between.
        ("{ m = ReduceMean<axes = [0, 2]>(x) y = Sub(x, m) }", ("tensorrt",)),
        ("{ q = Elu(x) y = Sub(x, q) }", ("tensorrt", "onnxruntime")),
        # Both store the squares.
        ("{ q = ReduceSumSquare<axes = [3]>(x) y = Sub(x, q) }", ("tensorrt",)),
    ],
)
def test_targets_that_compute_a_model_alike_count_once(
    body: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    """What stores less comes first, whatever the order of names."""
    model = image(body, tmp_path, batch="2")
    assert expected == distinct(model, PAIR, TARGETS)
    assert expected[-1:] == distinct(model, PAIR, TARGETS[::-1])[-1:] or len(expected) == 1


def test_eight_bits_store_nothing_in_between(tmp_path: Path) -> None:
    """Where no layer stores a 16-bit type, all targets are alike."""
    model = image("{ m = ReduceMean<axes = [3]>(x) y = Sub(x, m) }", tmp_path)
    assert 1 == len(distinct(model, Pair(low="int8", high="fp32"), TARGETS))
    assert 2 == len(distinct(model, Pair(low="int8", high="fp16"), TARGETS))


@examples(20)
@given(
    st.sets(st.integers(0, 5)),
    st.floats(-1.0, 3.5),
    st.integers(0, 20),
    st.sampled_from((1e-4, 1e-3, 1e-2)),
)
def test_a_plan_passes_on_all_if_it_passes_on_each(
    kept: set[int], decades: float, seed: int, limit: float
) -> None:
    """The worst error judges, whatever the plan, and how large the values are."""
    with tempfile.TemporaryDirectory() as folder:
        model = load_text(MIXED, Path(folder))
    feed = {"x": (10.0**decades * (1 + normal(8, 512, seed=seed) / 8)).astype(np.float32)}
    reference = [EmulatedBackend(model, threads=1).evaluate(Plan.all_high(6), feed)]
    comparator = choose_comparator(Options(model=model.path, atol=0.0, rtol=limit), ["y"], {})
    plan = Plan.of(kept)
    samples = {SampleSet.JUDGED: ([feed], reference)}
    backends = [
        EmulatedBackend(model, threads=1, targets=some)
        for some in (*([one] for one in TARGETS), TARGETS)
    ]
    *each, every = (
        Evaluator(
            backend=backend,
            emulator=backend,
            comparator=comparator,
            samples=samples,
            keep=Path(folder),
        )(Proposal(plan=plan))
        for backend in backends
    )
    passed = all(one.verdict is Verdict.PASS for one in each)
    assert (passed, max(one.error or 0.0 for one in each)) == (
        every.verdict is Verdict.PASS,
        every.error or 0.0,
    )


def test_the_emulator_predicts_what_is_asked_for(tmp_path: Path) -> None:
    """A target, or what is installed; a backend is its own."""
    path = tmp_path / "model.onnx"
    for target in TARGETS:
        assert [target] == list(Options(model=path, target=target, backend="emulated").targets)
        assert [target] == list(Options(model=path, backend=target).targets)
    assert TARGETS == Options(model=path, target="all").targets
    assert ["tensorrt"] == list(Options(model=path, backend="another").targets)
    settled = choose_target(Options(model=path, backend="emulated"))
    assert settled.target in TARGETS and [settled.target] == list(settled.targets)


def test_auto_takes_no_other_engine_than_the_target(tmp_path: Path) -> None:
    """Without the target's own engine the emulator predicts it."""
    for target in ("onnxruntime", "all"):
        name, _ = pick_backend(Options(model=tmp_path / "m.onnx", target=target))
        assert name in (target, "emulated")


def test_a_target_beside_another_engine_is_refused(tmp_path: Path) -> None:
    """That engine judges, and its forecasts are of itself."""
    for backend in ("onnxruntime", "another"):
        with pytest.raises(UsageError, match="--target all is for the emulator"):
            Options(model=tmp_path / "m.onnx", target="all", backend=backend)
    assert (
        "onnxruntime"
        == Options(model=tmp_path / "m.onnx", target="onnxruntime", backend="onnxruntime").target
    )


def test_forecasts_are_of_all_targets_that_are_asked_for(tmp_path: Path) -> None:
    """A mean whose sum overflows fails where one target stores it."""
    model = load_text(MIXED, tmp_path)
    feed = {"x": np.full((8, 512), 3000, np.float32)}
    options = Options(model=model.path, backend="emulated", target="all")
    with forecaster(model, options, Scales()).build(LOW) as engine:
        found = [way.run(feed)["y"] for way in engine.ways]
    assert [True, False] == [bool(np.isfinite(each).all()) for each in found]


@pytest.mark.parametrize(("alpha", "gamma"), [(1.0, None), (0.5, None), (1.7, 1.1)])
def test_an_exponential_is_stored_before_one_is_taken_off(
    alpha: float, gamma: float | None, tmp_path: Path
) -> None:
    """ONNX Runtime's Elu and Selu lose small values below zero; others only round the result."""
    attributes = f"alpha = {alpha}" if gamma is None else f"alpha = {alpha}, gamma = {gamma}"
    name = "Elu" if gamma is None else "Selu"
    model = image(f"{{ y = {name}<{attributes}>(x) }}", tmp_path)
    x = (halves(2, 8, 4, 4) / 4096).astype(np.float16)
    one, factor = np.float16(1), np.float16(1 if gamma is None else gamma)
    low = np.float16(alpha) * (np.exp(x) - one)
    expected = factor * np.where(x < 0, low, x)
    wide = x.astype(np.float32)
    np.testing.assert_array_equal(expected, on(model, "onnxruntime", LOW, wide))
    kept = on(model, "onnxruntime", Plan.all_high(1), wide)
    np.testing.assert_allclose(kept, on(model, "tensorrt", LOW, wide), rtol=2.0**-10, atol=1e-7)
    assert np.abs(kept - expected).max() > 1e-4


def test_softsign_and_gelu_by_tanh_are_stored_step_by_step(tmp_path: Path) -> None:
    """Bit for bit as numpy computes ONNX Runtime's FP16 kernels; Gelu's other form is FP32."""
    x = halves(2, 8, 4, 4).astype(np.float16)
    half, one, slope = np.float16(0.5), np.float16(1), np.float16(0.7978845608)
    bend = np.float16(0.044715 * 0.7978845608)
    turned = np.tanh((x * (bend * (x * x) + slope)).astype(np.float32)).astype(np.float16)
    expected = {
        "Softsign(x)": x / (one + np.abs(x)),
        'Gelu<approximate = "tanh">(x)': x * (half + half * turned),
    }
    wide = x.astype(np.float32)
    for call, steps in expected.items():
        model = image(f"{{ y = {call} }}", tmp_path, opset=20)
        np.testing.assert_array_equal(steps, on(model, "onnxruntime", LOW, wide))
        assert not np.array_equal(steps, on(model, "tensorrt", LOW, wide))
    model = image("{ y = Gelu(x) }", tmp_path, opset=20)
    plain, stored = (on(model, each, LOW, wide) for each in ("tensorrt", "onnxruntime"))
    np.testing.assert_array_equal(plain, stored)


NORMS = """(float[2,8,16] x) => (float[2,8,16] y)
  <float[8] s = {1,2,3,4,5,6,7,8}, float[8] b = {8,7,6,5,4,3,2,1},
   float[16] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> {
  a = InstanceNormalization(x, s, b) c = LayerNormalization(a, w) d = LayerNormalization(c, w)
  y = Tanh(d) }"""


@pytest.mark.parametrize(
    ("target", "low", "expected"),
    [
        (
            "tensorrt",
            "fp16",
            "what engines compute inside 1 InstanceNormalization, 2 LayerNormalization was taken "
            "as FP32; ONNX Runtime on CUDA stores each step of 1 InstanceNormalization there",
        ),
        (
            "onnxruntime",
            "fp16",
            "what engines compute inside 2 LayerNormalization was taken as FP32",
        ),
        (
            "all",
            "bf16",
            "what engines compute inside 1 InstanceNormalization, 2 LayerNormalization was taken "
            "as FP32",
        ),
        ("tensorrt", "int8", ""),
    ],
)
def test_what_is_the_engines_own_business_is_said(
    target: TargetChoice, low: LowName, expected: str, tmp_path: Path
) -> None:
    """By operator, with the targets that are known to do otherwise; nothing of FP32 layers."""
    model = load_text(NORMS, tmp_path)
    targets = Options(model=model.path, target=target).targets
    assert expected == own_arithmetic(model, Pair(low=low, high="fp32"), targets)


def test_a_model_without_such_operators_has_no_remark(tmp_path: Path) -> None:
    """A mean in pieces is no business of the engine's own."""
    assert "" == own_arithmetic(load_text(MIXED, tmp_path), PAIR, TARGETS)


RELU6 = """(float[4] x) => (float[4] y) <float low = {0}, float high = {6}> {
  [product] a = Mul(x, x) [relu6] b = Clip(a, low, high) [last] y = Tanh(b) }"""
RUNNING = """(float[4] x) => (float[4] y) <int64 axis = {0}> {
  [product] a = Mul(x, x) [running] b = CumSum(a, axis) [last] y = Tanh(b) }"""


@pytest.mark.parametrize(
    ("text", "layer", "first"), [(RELU6, "relu6", 12), (RUNNING, "running", 14)]
)
def test_what_onnx_runtime_has_no_kernel_of_is_pinned(
    text: str, layer: str, first: int, tmp_path: Path
) -> None:
    """Low it would run on the CPU; the reason names the cure, which works as it says."""
    model = load_text(text, tmp_path, opset=11)
    (name, why), *others = EmulatedBackend(model, targets=["onnxruntime"]).unbuildable().items()
    assert ([], layer) == (others, name)
    assert f"before opset {first} on ONNX Runtime on CUDA: it would run on the CPU" in why
    assert f"raise the opset to {first} (onnx.version_converter), and it runs in FP16" in why
    assert {name} == EmulatedBackend(model, targets=TARGETS).unbuildable().keys()
    assert not EmulatedBackend(model, targets=["tensorrt"]).unbuildable()
    onnx.save(onnx.version_converter.convert_version(model.proto, first), tmp_path / "newer.onnx")
    newer = load_model(tmp_path / "newer.onnx")
    assert not EmulatedBackend(newer, targets=["onnxruntime"]).unbuildable()


POOLED = """(float[1, 2, 4, 4] x) => (float[1, 2, 2, 2] y) {
  [product] a = Mul(x, x) [pool] b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)
  [last] y = Tanh(b) }"""


@pytest.mark.parametrize("opset", [21, 22])
def test_what_a_newer_opset_takes_from_cuda_is_pinned(opset: int, tmp_path: Path) -> None:
    """In FP32, too, it runs on the CPU there; the reason names the opset that has the kernel."""
    model = load_text(POOLED, tmp_path, opset=opset)
    stuck = EmulatedBackend(model, targets=["onnxruntime"]).unbuildable()
    assert (opset == 22) is (["pool"] == [*stuck])
    why = (
        "no FP16 kernel of MaxPool since opset 22 on ONNX Runtime on CUDA: it would run on the CPU"
    )
    assert all(
        f"{why}; export at opset 21, and it runs in FP16" == told for told in stuck.values()
    )
    assert not EmulatedBackend(model, targets=["tensorrt"]).unbuildable()


def test_a_file_that_bf16_converts_has_the_kernels_of_the_newer_opset(tmp_path: Path) -> None:
    """MaxPool in BF16 needs opset 22, where FP16 has none either."""
    model = load_text(POOLED, tmp_path, opset=17)
    both = EmulatedBackend(model, "fp16", high="bf16", targets=["onnxruntime"]).unbuildable()
    assert ["pool"] == [*both]


def test_in_bf16_the_kernels_are_other_ones(tmp_path: Path) -> None:
    """A converted file has the newer opset; what no opset cures is pinned in any."""
    for opset in (11, 17):
        model = load_text(RELU6, tmp_path, opset=opset)
        stuck = EmulatedBackend(model, "bf16", targets=["onnxruntime"]).unbuildable()
        reason = "no BF16 kernel of Clip on ONNX Runtime on CUDA: the file would not open"
        assert {"relu6": reason} == stuck
        assert not EmulatedBackend(model, "bf16", targets=["tensorrt"]).unbuildable()
        # Where BF16 raises the opset of the file, FP16 has its kernel there, too.
        both = EmulatedBackend(model, "fp16", high="bf16", targets=["onnxruntime"])
        assert not both.unbuildable()
