"""trtexec.sh has the right command for each kind of TensorRT, or says why it has none."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from effort import examples
from exports_models import SHELLS, chain, export_of, flag, run_script
from fake_trtexec import help_text
from models import parse, save, with_weights
from precision_bisect.backends.backend_plugin import sample_shapes
from precision_bisect.backends.tensorrt.profiles import shape_ranges
from precision_bisect.exports.write import write_exports
from precision_bisect.precisions import Pair
from precision_bisect.runs.runfolder import (
    LAYER_PRECISIONS,
    MIXED_MODEL,
    POLYGRAPHY_SCRIPT,
    TRTEXEC,
    RunFolder,
)
from precision_bisect.settings.engine_settings import EngineSettings
from trtexec_oracle import trtexec_profile

SHELL = SHELLS[0]
ENGINE = "--saveEngine=a.engine"


def test_each_kind_of_tensorrt_has_its_command(tmp_path: Path) -> None:
    """Strong typing builds the typed model: by a flag in 10, by a tool of its own in RTX."""
    onnx.save(chain(["a", "b"]), tmp_path / "model.onnx")
    write_exports(RunFolder(tmp_path), export_of(tmp_path / "model.onnx", ["a"]))
    mixed = f"--onnx={tmp_path}/{MIXED_MODEL}"
    expected = {
        "strong10": ["trtexec", mixed, "--stronglyTyped", "--noTF32", "--saveEngine=a b"],
        "strong11": ["trtexec", mixed, "--stronglyTyped", "--noTF32", "--saveEngine=a b"],
        "rtx": ["tensorrt_rtx", mixed, "--noTF32", "--saveEngine=a b"],
    }
    says = {"strong10": help_text((10, 3, 0)), "strong11": help_text((11, 1, 0)), "rtx": ""}
    ran = {
        mode: run_script(tmp_path, mode, SHELL, "--saveEngine=a b", says=says[mode])
        for mode in expected
    }
    assert expected == {mode: one.arguments for mode, one in ran.items()}


def test_settings_of_the_run_are_handed_on(tmp_path: Path) -> None:
    """Shapes, TF32, optimisation level and workspace are those of the run's engines."""
    path = save(parse("(float[N,4] x, float s) => (float[N,4] y) { y = Mul(x, s) }"), tmp_path)
    settings = EngineSettings(
        tf32="on",
        workspace_mib=64,
        optimization_level=4,
        min_shapes={"x": (1, 4)},
        opt_shapes={"x": (8, 4), "s": ()},
        max_shapes={"x": (16, 4)},
    )
    write_exports(RunFolder(tmp_path), export_of(path, [], settings))
    expected = [
        "trtexec",
        f"--onnx={path}",
        "--fp16",
        "--builderOptimizationLevel=4",
        "--memPoolSize=workspace:64",
        "--minShapes=x:1x4",
        "--optShapes=x:8x4",
        "--maxShapes=x:16x4",
        ENGINE,
    ]
    assert expected == run_script(tmp_path, "weak", SHELL, ENGINE).arguments
    assert "dynamic inputs" not in (tmp_path / TRTEXEC).read_text()


def test_every_dynamic_input_has_all_three_shapes(tmp_path: Path) -> None:
    """trtexec fills no single input of a flag: the user's shapes, then those of the samples."""
    body = (
        "(float[N,4] a, float[N,4] b, float[4] c) => (float[N,4] y)"
        " { d = Add(a, b) y = Mul(d, c) }"
    )
    path = save(parse(body), tmp_path)
    settings = EngineSettings(opt_shapes={"a": (2, 4)}, max_shapes={"a": (8, 4)})
    shapes: dict[str, list[tuple[int, ...]]]
    shapes = {"a": [(3, 4)], "b": [(1, 4), (8, 4)], "c": [(4,)]}
    export = dataclasses.replace(export_of(path, [], settings), shapes=shapes)
    write_exports(RunFolder(tmp_path), export)
    assert "dynamic inputs" not in (tmp_path / TRTEXEC).read_text()
    inputs = {spec.name: spec.shape or () for spec in export.model.inputs}
    for mode in ("strong10", "weak"):
        profile = trtexec_profile(run_script(tmp_path, mode, SHELL).arguments[1:], inputs)
        assert {
            "a": ((2, 4), (2, 4), (8, 4)),
            "b": ((1, 4), (8, 4), (8, 4)),
        } == profile


def test_a_model_without_dynamic_inputs_gets_no_shapes(tmp_path: Path) -> None:
    """trtexec refuses shapes for it, though the run has some and the user may give them."""
    path = save(parse("(float[2,4] x) => (float[2,4] y) { y = Relu(x) }"), tmp_path)
    settings = EngineSettings(opt_shapes={"x": (2, 4)})
    export = dataclasses.replace(export_of(path, [], settings), shapes={"x": [(2, 4)]})
    write_exports(RunFolder(tmp_path), export)
    arguments = run_script(tmp_path, "weak", SHELL).arguments[1:]
    assert {} == trtexec_profile(arguments, {"x": (2, 4)})


def test_an_input_that_gives_a_shape_is_built_for_its_values(tmp_path: Path) -> None:
    """trtexec takes values where it takes the sizes of other inputs, negative ones as well."""
    body = (
        "(float[N,12] a, int64[3] s, int64 n) => (float[P,Q,R] y)"
        " { r = Reshape(a, s) z = Constant<value_ints=[0]>() u = Unsqueeze(n, z)"
        " e = Slice(r, z, u, z) y = Relu(e) }"
    )
    export = export_of(save(parse(body), tmp_path), [])
    samples = [
        {"a": np.ones((rows, 12)), "s": np.array([-1, *last]), "n": np.array(rows)}
        for rows, last in ((2, (3, 4)), (4, (2, 6)))
    ]
    shapes = sample_shapes(export.model, samples)
    write_exports(RunFolder(tmp_path), dataclasses.replace(export, shapes=shapes))
    arguments = run_script(tmp_path, "strong10", SHELL).arguments[1:]
    inputs = {"a": ("N", 12), "s": (None,) * 3, "n": (None,)}
    assert {
        "a": ((2, 12), (4, 12), (4, 12)),
        "s": ((-1, 2, 4), (-1, 3, 4), (-1, 3, 6)),
        "n": ((2,), (4,), (4,)),
    } == trtexec_profile(arguments, inputs)


SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    given=st.dictionaries(st.sampled_from("abc"), st.tuples(SIZES, SIZES), max_size=3),
    sampled=st.fixed_dictionaries({name: st.lists(SIZES, min_size=1) for name in "abc"}),
    static=st.sets(st.sampled_from("abc")),
)
def test_trtexec_builds_for_the_shapes_of_the_run(
    tmp_path: Path,
    given: dict[str, tuple[tuple[int, int], tuple[int, int]]],
    sampled: dict[str, list[tuple[int, int]]],
    static: set[str],
) -> None:
    """Whatever was given of which input, trtexec's own rules lead to the profile of the run."""
    spec = {name: "2,2" if name in static else f"{name}n,{name}m" for name in "abc"}
    ins = ", ".join(f"float[{spec[name]}] {name}" for name in "abc")
    outs = ", ".join(f"float[{spec[name]}] {name}y" for name in "abc")
    nodes = " ".join(f"{name}y = Relu({name})" for name in "abc")
    path = save(parse(f"({ins}) => ({outs}) {{ {nodes} }}"), tmp_path)
    best = {n: tuple(map(min, *pair)) for n, pair in given.items() if n not in static}
    most = {n: tuple(map(max, *pair)) for n, pair in given.items() if n not in static}
    engine = EngineSettings(opt_shapes=best, max_shapes=most)
    shapes = {name: [(2, 2)] if name in static else found for name, found in sampled.items()}
    export = dataclasses.replace(export_of(path, [], engine), shapes=shapes)
    write_exports(RunFolder(tmp_path), export)
    ours = {name: value for name, value in shapes.items() if name not in best}
    expected = {
        name: (sizes.least, sizes.best, sizes.most)
        for name, sizes in shape_ranges(export.model.inputs, engine, ours).items()
    }
    inputs = {each.name: each.shape or () for each in export.model.inputs}
    assert expected == trtexec_profile(run_script(tmp_path, "rtx", SHELL).arguments[1:], inputs)


def test_a_dynamic_model_without_shapes_is_remarked_on(tmp_path: Path) -> None:
    """Where trtexec would take 1 for each dynamic dimension, the script says so."""
    path = save(parse("(float[N,4] x) => (float[N,4] y) { y = Relu(x) }"), tmp_path)
    write_exports(RunFolder(tmp_path), export_of(path, []))
    assert "dynamic inputs" in (tmp_path / TRTEXEC).read_text()


def test_an_input_name_that_trtexec_cannot_read_leaves_no_script(tmp_path: Path) -> None:
    """Shapes cannot be given for an input with a comma in its name."""
    model = parse("(float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    model.graph.input[0].name = model.graph.node[0].input[0] = "a,b"
    path = save(model, tmp_path)
    folder = RunFolder(tmp_path)
    folder.write(TRTEXEC, "stale")
    reasons = write_exports(
        folder, export_of(path, [], EngineSettings(opt_shapes={"a,b": (1, 4)}))
    )
    assert "trtexec cannot read the input name 'a,b'" == reasons[TRTEXEC]
    assert not (tmp_path / TRTEXEC).exists()


def test_bf16_has_its_own_flag(tmp_path: Path) -> None:
    """The low type of the plan is the one that the rest runs in."""
    onnx.save(chain(["a", "b"]), tmp_path / "model.onnx")
    pair = Pair(low="bf16", high="fp32")
    export = dataclasses.replace(export_of(tmp_path / "model.onnx", ["a"]), pair=pair)
    write_exports(RunFolder(tmp_path), export)
    assert "--bf16" == run_script(tmp_path, "weak", SHELL).arguments[2]


def test_without_a_typed_model_strong_says_why(tmp_path: Path) -> None:
    """A model that cannot be converted to BF16's opset is not typed; weak goes on by names."""
    model = parse(
        """(float[4] x, bool c) => (float[4] y) { [exp] e = Exp(x) y = If (c) <
            then_branch = t () => (float[4] z) { z = Hardmax<axis = 0>(e) },
            else_branch = f () => (float[4] w) { w = Identity(e) }> }""",
        opset=11,
    )
    path, pair = save(model, tmp_path), Pair(low="bf16", high="fp32")
    reasons = write_exports(
        RunFolder(tmp_path), dataclasses.replace(export_of(path, ["exp"]), pair=pair)
    )
    strong, weak = (run_script(tmp_path, mode, SHELL) for mode in ("strong10", "weak"))
    assert (1, f"there is no {MIXED_MODEL}: {reasons[MIXED_MODEL]}\n") == (
        strong.code,
        strong.said,
    )
    assert "bf16 needs 13; onnx converts Hardmax wrongly" in strong.said
    assert f"no command by layer names: {reasons[MIXED_MODEL]}\n" == weak.said


def test_nothing_kept_needs_no_constraints(tmp_path: Path) -> None:
    """When everything may run low, weak is the plain flag of the low type."""
    onnx.save(chain(["a"]), tmp_path / "model.onnx")
    reasons = write_exports(RunFolder(tmp_path), export_of(tmp_path / "model.onnx", []))
    ran = run_script(tmp_path, "weak", SHELL)
    expected = ["trtexec", f"--onnx={tmp_path}/model.onnx", "--fp16", "--noTF32"]
    assert [*expected, f"--saveEngine={tmp_path}/trtexec.engine"] == ran.arguments
    assert "no layer is kept" == reasons[LAYER_PRECISIONS]


def test_an_output_that_is_no_float_gets_no_type(tmp_path: Path) -> None:
    """TopK's indices are INT32 or INT64 by version, so its outputs are left open."""
    model = parse(
        "(float[2,8] x) => (float[2,3] v, int64[2,3] i) <int64[1] k = {3}>"
        " { e = Exp(x) v, i = TopK(e, k) }"
    )
    model.graph.node[0].name, model.graph.node[1].name = "exp", "topk"
    write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["exp", "topk"]))
    ran = run_script(tmp_path, "weak", SHELL)
    assert "--layerPrecisions=exp:fp32,topk:fp32" == flag(ran, "--layerPrecisions")
    assert "--layerOutputTypes=exp:fp32" == flag(ran, "--layerOutputTypes")


def test_a_name_that_a_subgraph_has_too_is_not_written(tmp_path: Path) -> None:
    """TensorRT's names do not tell a layer from one inside a branch that is called the same."""
    model = parse(
        "(float[4] x, bool c) => (float[4] y) { r = Relu(x) y = If (c) <"
        "then_branch = t () => (float[4] z) { z = Relu(r) }, "
        "else_branch = e () => (float[4] w) { w = Neg(r) }> }"
    )
    model.graph.node[0].name = model.graph.node[1].attribute[0].g.node[0].name = "relu"
    reasons = write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["relu"]))
    assert "layer 'relu' has no name of its own in the model" in str(reasons[LAYER_PRECISIONS])
    assert reasons[POLYGRAPHY_SCRIPT] == reasons[LAYER_PRECISIONS]
    assert 1 == run_script(tmp_path, "weak", SHELL).code


ATTENTION = (
    "(float[1,4,8] x) => (float[1,4,8] y)"
    " { [a] m = MatMul(x, w) [k] y = Attention<q_num_heads = 2, kv_num_heads = 2>(m, m, m) }"
)


@pytest.mark.parametrize("says", ["  --decomposableAttentions=spec  by names", "no such flag"])
@pytest.mark.parametrize("mode", ["strong10", "strong11", "rtx"])
def test_an_attention_may_be_decomposed(tmp_path: Path, mode: str, says: str) -> None:
    """Where the tool knows the flag it is given, for every Attention; where it does not, not."""
    weights = {"w": np.ones((8, 8), np.float32)}
    path = save(with_weights(parse(ATTENTION, opset=23, ir=10), weights), tmp_path)
    write_exports(RunFolder(tmp_path), export_of(path, ["k"]))
    ran = run_script(tmp_path, mode, SHELL, ENGINE, says=says)
    given = [each for each in ran.arguments if each.startswith("--decomposable")]
    assert ["--decomposableAttentions=*"] * ("spec" in says) == given


GRU = (
    "(float[3,1,2] x) => (float[3,1,1,2] y)"
    " { [a] t = Tanh(x) [k] y = GRU<hidden_size = 2>(t, w, r) }"
)


GELU = "(float[4] x) => (float[4] y) { [a] t = Gelu(x) [k] y = Tanh(t) }"
SWISH = "(float[4] x) => (float[4] y) { [a] t = Swish(x) [k] y = Gelu(t) }"


@pytest.mark.parametrize(
    ("body", "opset", "kept", "strong", "weak", "told"),
    [
        (GELU.replace("Gelu", "Exp"), 17, ["k"], "", "", ""),
        (GELU, 20, ["k"], "", ", 10.0 or later", "Gelu from 10.0 on"),
        (ATTENTION, 23, ["k"], *[", 10.14 or later"] * 2, "Attention from 10.14 on"),
        (SWISH, 24, ["k"], *[", 11.0 or later"] * 2, "Gelu from 10.0, Swish from 11.0 on"),
        (GRU, 17, ["a"], ", 10.2 or later", "", "GRU below FP32 from 10.2 on"),
        (GRU, 17, ["k"], "", "", ""),
    ],
    ids=["old", "Gelu", "Attention", "Swish", "low GRU", "high GRU"],
)
def test_the_lowest_version_is_told(
    tmp_path: Path, body: str, opset: int, kept: list[str], strong: str, weak: str, told: str
) -> None:
    """The script says from which version on the parser takes what the model has."""
    weights = {name: np.ones((1, 6, 2), np.float32) for name in "wr"} if body is GRU else {}
    if body is ATTENTION:
        weights = {"w": np.ones((8, 8), np.float32)}
    path = save(with_weights(parse(body, opset=opset, ir=10), weights), tmp_path)
    write_exports(RunFolder(tmp_path), export_of(path, kept))
    text = (tmp_path / TRTEXEC).read_text()
    assert f"TensorRT 10{strong}: {MIXED_MODEL}" in text
    assert f"TensorRT 8.6 to 10.x{weak}: the model itself" in text
    assert bool(told) == ("\n# TensorRT takes " in text) and told in text
