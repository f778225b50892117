"""Real builds by TensorRT-RTX, on any machine: what they give and how they fail."""

import gc
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models import normal, parse, save, with_weights
from precision_bisect.backends.backend_plugin import sample_shapes
from precision_bisect.backends.tensorrt.build import Recipe, build, config_loader
from precision_bisect.backends.tensorrt.build_remarks import Remarks
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.log import collected
from precision_bisect.backends.tensorrt.profiles import ShapeRange, shape_ranges
from precision_bisect.backends.tensorrt.watch import BuildWatch
from precision_bisect.errors import RefusedError
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.types import shape_inputs
from precision_bisect.protocols import BackendFailure, Sample
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Listed, Outcome, TrialStatus

FOR_86 = EngineSettings(compute_capability="8.6")
PLAIN = Recipe(settings=FOR_86, ranges={})
SQUARE = "(float[4] x) => (float[4] y) { s = Mul(x, x) y = Sigmoid(s) }"


def failure_of(rtx: Flavour, source: Path, recipe: Recipe = PLAIN) -> Outcome:
    """Return the outcome of a build that must fail."""
    with pytest.raises(BackendFailure) as caught:
        build(rtx, source, recipe)
    return caught.value.outcome


def test_a_typed_graph_with_casts_builds(
    rtx: Flavour, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The engine comes with its layers described in types, and nothing is printed."""
    body = (
        "(float[8,8] x, float16[8,8] w) => (float[8,8] y)"
        " { h = Cast<to=10>(x) m = MatMul(h, w) t = Tanh(m) y = Cast<to=1>(t) }"
    )
    built = build(rtx, save(parse(body), tmp_path), PLAIN)
    assert len(built.engine) > 1000
    assert built.layers.startswith("Layers:\nName: ")
    assert "Datatype: Half" in built.layers
    assert Remarks() == built.remarks
    assert ("", "") == capfd.readouterr()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "(float[4] x) => (float[4] y) { h = Cast<to=10>(x) y = Add(x, h) }",
            "node_of_y: ElementWiseOperation SUM must have same input types. "
            "But they are of types Float and Half.",
        ),
        (
            "(float[4,4] x, float16[4,4] w) => (float[4,4] y) { y = MatMul(x, w) }",
            "node_of_y: IMatrixMultiplyLayer must have same input types. "
            "`A` is of type Float and `B` is of type Half.",
        ),
        (
            "(float[4] x, bool[4] b) => (float[4] y) { h = Cast<to=10>(x) y = Where(b, x, h) }",
            "node_of_y: ISelectLayer must have `thenInput` and `elseInput` of same types "
            "but has Float and Half.",
        ),
        (
            "(float[2] x) => (float[4] y) { h = Cast<to=10>(x) y = Concat<axis=0>(x, h) }",
            "node_of_y: IConcatenationLayer `inputs` must all be of the same type",
        ),
        (
            "(float[1,2,4] x, float16[2] s) => (float[1,2,4] y)"
            " { y = InstanceNormalization(x, s, s) }",
            "Inputs must be either all FLOAT or all FLOAT16",
        ),
        (
            "(float[2,4,4] x) => (float[2] y) { s = Mul(x, x) y = Det(s) }",
            '[Det -> "y"]: checkDet: false',
        ),
    ],
    ids=["Add", "MatMul", "Where", "Concat", "InstanceNormalization", "unknown operator"],
)
def test_a_refused_graph_is_a_failed_build_in_the_words_of_tensorrt(
    rtx: Flavour, tmp_path: Path, body: str, said: str
) -> None:
    """Errors of parser and type checker are the trial's outcome, on one line."""
    outcome = failure_of(rtx, save(parse(body), tmp_path))
    assert TrialStatus.BUILD_FAILED is outcome.status
    assert said in outcome.message
    assert "\n" not in outcome.message


def test_a_failed_build_leaves_the_next_one_alone(rtx: Flavour, tmp_path: Path) -> None:
    """Messages of one build are not taken for another's."""
    bad = parse("(float[4] x) => (float[4] y) { h = Cast<to=10>(x) y = Add(x, h) }")
    failure_of(rtx, save(bad, tmp_path))
    assert Remarks() == build(rtx, save(parse(SQUARE), tmp_path), PLAIN).remarks


def test_no_garbage_is_collected_while_tensorrt_speaks(rtx: Flavour) -> None:
    """The end of an earlier builder in the midst of a message would wait for ever."""
    with collected(rtx), collected(rtx):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_warnings_become_notes(rtx: Flavour, tmp_path: Path) -> None:
    """A decomposed layer normalisation in half precision is remarked on."""
    body = (
        "(float[2,8,64] x) => (float[2,8,64] y) { h = Cast<to=10>(x) m = ReduceMean<axes=[-1]>(h)"
        " d = Sub(h, m) p = Pow(d, two) v = ReduceMean<axes=[-1]>(p) e = Add(v, eps) s = Sqrt(e)"
        " q = Div(d, s) y = Cast<to=1>(q) }"
    )
    constants = {"two": np.array(2, np.float16), "eps": np.array(1e-3, np.float16)}
    built = build(rtx, save(with_weights(parse(body), constants), tmp_path), PLAIN)
    norms, overflow = built.remarks.notes
    assert "Detected layernorm nodes in FP16" == norms
    assert overflow.startswith("Running layernorm after self-attention with FP16")
    assert [Listed(note=norms, names=("node_of_m", "node_of_p", "node_of_v"))] == list(
        built.remarks.listed
    )


def test_clamped_weights_are_named_once(rtx: Flavour, tmp_path: Path) -> None:
    """A weight that TensorRT clamps is one remark with its name, however many values it has."""
    body = (
        "(float[2,64] x) => (float[2,64] y)"
        " { c = Cast<to=1>(huge) d = MatMul(x, c) y = Add(d, b) }"
    )
    weights = {"b": np.ones(64, np.float32), "huge": np.full((64, 64), 1e300)}
    built = build(rtx, save(with_weights(parse(body), weights), tmp_path), PLAIN)
    (note,) = built.remarks.notes
    assert "One or more weights outside the range of FLOAT was clamped" == note
    assert [Listed(note=note, names=("huge",))] == list(built.remarks.listed)


def test_a_clamped_node_is_not_blamed_on_an_initializer(rtx: Flavour, tmp_path: Path) -> None:
    """What is clamped in a node has no name here, least of all that of a weight before it."""
    model = with_weights(
        parse(
            "(float[2,4] x) => (float[2,4] y) { c = Cast<to=1>(k) d = MatMul(x, c) y = Add(d, b) }"
        ),
        {"b": np.ones(4, np.float32)},
    )
    huge = onnx.numpy_helper.from_array(np.full((4, 4), 1e300))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["k"], value=huge))
    remarks = build(rtx, save(model, tmp_path), PLAIN).remarks
    assert ("One or more weights outside the range of FLOAT was clamped",) == remarks.notes
    assert () == remarks.listed


@pytest.mark.parametrize("value", [1e5, 1e-6, 1e-9])
def test_weights_beyond_fp16_draw_no_remark(rtx: Flavour, tmp_path: Path, value: float) -> None:
    """Of a strongly typed graph TensorRT-RTX says nothing where FP16 cannot hold a weight."""
    body = "(float16[2,64] x) => (float16[2,64] y) { c = Cast<to=10>(w) y = MatMul(x, c) }"
    weights = {"w": np.eye(64, dtype=np.float32) * np.float32(value)}
    built = build(rtx, save(with_weights(parse(body), weights), tmp_path), PLAIN)
    assert Remarks() == built.remarks


def test_a_build_past_its_time_is_timed_out(rtx: Flavour, tmp_path: Path) -> None:
    """The progress monitor cancels the build, and the outcome says the limit."""
    hurried = EngineSettings(compute_capability="8.6", build_timeout_s=1e-6)
    outcome = failure_of(rtx, save(parse(SQUARE), tmp_path), Recipe(settings=hurried, ranges={}))
    assert TrialStatus.TIMED_OUT is outcome.status
    assert "the build took longer than 1e-06 s" == outcome.message


def deep(layers: int) -> onnx.ModelProto:
    """Return a chain of products that takes a moment to build."""
    steps = " ".join(
        f"m{n} = MatMul({f't{n - 1}' if n else 'x'}, w{n}) t{n} = Tanh(m{n})"
        for n in range(layers)
    )
    body = f"(float[8,64] x) => (float[8,64] y) {{ {steps} y = Softmax(t{layers - 1}) }}"
    return with_weights(parse(body), {f"w{n}": normal(64, 64, seed=n) for n in range(layers)})


def test_ctrl_c_ends_a_build(
    rtx: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during a build cancels it and comes through as KeyboardInterrupt."""
    own, asked = BuildWatch._go_on, []

    def press_at_the_third_step(watch: BuildWatch) -> bool:
        asked.append(watch)
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return own(watch)

    monkeypatch.setattr(BuildWatch, "_go_on", press_at_the_third_step)
    with pytest.raises(KeyboardInterrupt) as caught:
        build(rtx, save(deep(60), tmp_path), PLAIN)
    assert isinstance(caught.value.__context__, BackendFailure)


def test_dynamic_sizes_take_the_given_range(rtx: Flavour, tmp_path: Path) -> None:
    """Names that look like patterns to Polygraphy are still only names."""
    model = parse("(float[N] x) => (float[N] y) { y = Sigmoid(x) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "x[0]*"
    fixed = ShapeRange(least=(7,), best=(7,), most=(7,))
    recipe = Recipe(settings=FOR_86, ranges={"x[0]*": fixed})
    assert "Name: x[0]*, Dimensions: [7]," in build(rtx, save(model, tmp_path), recipe).layers


def test_an_input_that_is_a_shape_is_refused(rtx: Flavour, tmp_path: Path) -> None:
    """TensorRT needs the range of its values, which is unknown for an unknown number of them."""
    body = "(float[2,3,4] x, int64[2] s) => (float[M,N] y) { y = Reshape(x, s) }"
    with pytest.raises(RefusedError, match="input 's' gives a shape by its values"):
        build(rtx, save(parse(body), tmp_path), PLAIN)


def recipe_of(source: Path, samples: Sequence[Sample]) -> Recipe:
    """Return the recipe of a model for the shapes that the samples have or give."""
    model = load_model(source)
    values = shape_inputs(model.proto.graph, model.inputs)
    ranges = shape_ranges(model.inputs, FOR_86, sample_shapes(model, samples), values)
    return Recipe(settings=FOR_86, ranges=ranges, values=values)


@pytest.mark.parametrize(
    "body",
    [
        "(float[2,3,4] x, int64[2] s) => (float[M,N] y) { y = Reshape(x, s) }",
        "(float[2,3,4] x, int32[2] s) => (float[M,N] y) { t = Cast<to=7>(s) y = Reshape(x, t) }",
    ],
)
def test_values_of_a_shape_have_the_range_of_the_samples(
    rtx: Flavour, tmp_path: Path, body: str
) -> None:
    """Tuned for is one sample: the largest values of all would be no shape of this model."""
    source = save(parse(body), tmp_path)
    recipe = recipe_of(source, [{"s": np.array([6, 4])}, {"s": np.array([4, 6])}])
    assert {"s": ShapeRange(least=(4, 4), best=(6, 4), most=(6, 6))} == recipe.ranges
    assert "Dimensions: [-1,-1]" in build(rtx, source, recipe).layers
    too_many = {"s": ShapeRange(least=(4, 4), best=(6, 6), most=(6, 6))}
    outcome = failure_of(rtx, source, replace(recipe, ranges=too_many))
    assert "kOPT values for profile 0 violate shape constraints" in outcome.message


def test_one_value_fixes_the_shape(rtx: Flavour, tmp_path: Path) -> None:
    """A scalar is one value; what all samples agree on is built as a constant would be."""
    body = (
        "(float[8,8] x, int64 n) => (float[N,8] y) { z = Constant<value_ints=[0]>()"
        " u = Unsqueeze(n, z) s = Slice(x, z, u, z) y = Tanh(s) }"
    )
    source = save(parse(body), tmp_path)
    built = build(rtx, source, recipe_of(source, [{"n": np.array(5)}]))
    assert "Dimensions: [5,8]" in built.layers


def test_values_that_tensorrt_does_not_read_for_a_shape_are_left_out(
    rtx: Flavour, tmp_path: Path
) -> None:
    """What TensorRT takes for data has no range of values."""
    body = "(float[4] x, int64[1] i) => (float[1] y) { g = Gather(x, i) y = Tanh(g) }"
    recipe = Recipe(
        settings=FOR_86,
        ranges={"i": ShapeRange(least=(0,), best=(2,), most=(3,))},
        values=frozenset("i"),
    )
    assert "Dimensions: [1]" in build(rtx, save(parse(body), tmp_path), recipe).layers


@pytest.fixture
def configured(rtx: Flavour) -> Callable[[EngineSettings], Any]:
    """Return a function from settings to the configuration that a build would get."""

    def configure(settings: EngineSettings) -> Any:
        with collected(rtx):
            from polygraphy.backend.trt import CreateNetwork

            builder, network = CreateNetwork()()
            loader = config_loader(rtx, Recipe(settings=settings, ranges={}))
            return builder, network, loader(builder, network)

    return configure


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_on_only_where_it_is_asked_for(
    rtx: Flavour, configured: Callable[[EngineSettings], Any], tf32: bool
) -> None:
    """TensorRT-RTX turns TF32 on by itself, which would round FP32 layers."""
    _, _, config = configured(
        EngineSettings(compute_capability="8.6", tf32="on" if tf32 else "off")
    )
    assert tf32 == config.get_flag(rtx.module.BuilderFlag.TF32)


def test_settings_reach_the_builder(
    rtx: Flavour, configured: Callable[[EngineSettings], Any]
) -> None:
    """Target, workspace and optimisation level are what the settings say."""
    trt = rtx.module
    _, _, config = configured(
        EngineSettings(compute_capability="8.9", workspace_mib=64, optimization_level=1)
    )
    assert (1, trt.ComputeCapability.SM89, 64 * 2**20, 1) == (
        config.num_compute_capabilities,
        config.get_compute_capability(0),
        config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE),
        config.builder_optimization_level,
    )
    assert trt.ProfilingVerbosity.DETAILED == config.profiling_verbosity
