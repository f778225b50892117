"""Attention of opset 23 and 24 in real builds of TensorRT-RTX: plans build, and are obeyed."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from effort import nightly
from inspection.engines import DEMOTED, HONOURED, Target, inspect
from models import keeping, save
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.exports.polygraphy_command import DECOMPOSABLE, polygraphy_command
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import HALF_NAMES, LowName, Pair
from precision_bisect.settings.engine_settings import EngineSettings

HEADS, WIDTH, LENGTH = 4, 64, 16
KINDS: Mapping[str, Mapping[str, int | str]] = {
    "plain": {},
    "few keys": {"kv_num_heads": 2},
    "causal": {"is_causal": 1},
    "mask of floats": {"mask": "float"},
    "mask of truths": {"mask": "bool"},
    "few keys, causal, four dimensions": {"kv_num_heads": 2, "is_causal": 1, "rank": 4},
}


def attention(folder: Path, opset: int, kind: Mapping[str, int | str]) -> Model:
    """Return a model of an Attention `k` between low layers: projections before, Tanh behind."""
    settings = {"q_num_heads": HEADS, "kv_num_heads": HEADS, **kind}
    mask, four = settings.pop("mask", ""), settings.pop("rank", 3) == 4
    rng, nodes, weights = np.random.default_rng(0), [], {}
    for name in "qkv":
        heads = settings["q_num_heads" if name == "q" else "kv_num_heads"]
        weights[f"w{name}"] = rng.normal(size=(WIDTH, WIDTH // HEADS * int(heads)))
        nodes.append(helper.make_node("MatMul", ["x", f"w{name}"], [name], f"{name}_proj"))
        if four:
            weights[f"s{name}"] = np.array([1, LENGTH, heads, -1])
            nodes += [
                helper.make_node("Reshape", [name, f"s{name}"], [f"{name}4"], f"{name}_split"),
                helper.make_node("Transpose", [f"{name}4"], [f"{name}t"], perm=[0, 2, 1, 3]),
            ]
    read = [f"{name}t" if four else name for name in "qkv"] + ["m"] * bool(mask)
    own: Any = {k: v for k, v in settings.items() if not (four and k.endswith("heads"))}
    nodes += [
        helper.make_node("Attention", read, ["a"], "k", **own),
        helper.make_node("Tanh", ["a"], ["y"], "tanh"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, LENGTH, WIDTH])]
    if mask == "float":
        inputs.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [LENGTH, LENGTH]))
    if mask == "bool":
        weights["m"] = np.tril(np.ones((LENGTH, LENGTH), bool))
    held = [
        numpy_helper.from_array(a.astype(np.float32) if a.dtype == float else a, name)
        for name, a in weights.items()
    ]
    dims = [1, HEADS, LENGTH, WIDTH // HEADS] if four else [1, LENGTH, WIDTH]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)
    graph = helper.make_graph(nodes, "g", inputs, [output], held)
    imports = [helper.make_opsetid("", opset)]
    return load_model(save(helper.make_model(graph, opset_imports=imports, ir_version=10), folder))


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("opset", [24, *nightly(23)])
def test_every_plan_builds(
    rtx: Flavour, tmp_path: Path, opset: int, kind: Mapping[str, int | str], low: LowName
) -> None:
    """All in FP32, all low, and the Attention alone in FP32, which the engine obeys."""
    model = attention(tmp_path, opset, kind)
    work = tmp_path / "work"
    work.mkdir()
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    backend = TensorRTBackend(writer, EngineSettings(compute_capability="8.6"), rtx, {}, work)
    for kept in (model.table.names, (), ("k",)):
        with backend.build(keeping(model, *kept)) as engine:
            honours = {each.layer: each.honoured for each in engine.evidence().honours}
        assert {name: HONOURED for name in kept if name == "k"} == {
            name: honour for name, honour in honours.items() if name == "k"
        }


def test_without_a_guard_it_is_demoted(rtx: Flavour, tmp_path: Path) -> None:
    """A fused kernel multiplies what is stored low, although the Casts say FP32; it is found out.

    This one has a causal mask and fewer heads of keys; others fail to build without a guard.
    """
    model = attention(tmp_path, 23, {"kv_num_heads": 2, "is_causal": 1})
    found = inspect(rtx, model, ["k"], tmp_path, Target(guard=False))
    assert {"k": DEMOTED} == found.honours
    assert "_gemm_mha" in found.evidence("k")


@pytest.mark.parametrize("kept", [("k", "q_proj"), ("k", "k_proj", "v_proj"), ("k", "tanh")])
def test_its_neighbours_may_be_kept_too(
    rtx: Flavour, tmp_path: Path, kept: tuple[str, ...]
) -> None:
    """Only what comes from low layers gets a guard, and the Attention stays FP32."""
    found = inspect(rtx, attention(tmp_path, 23, {}), kept, tmp_path, Target())
    assert HONOURED == found.honours["k"]


def test_polygraphy_builds_it_by_the_flag_of_the_command(tmp_path: Path) -> None:
    """The command that judges on the target has a flag that Polygraphy knows, and it is needed."""
    model = attention(tmp_path, 23, {"is_causal": 1})
    judged = {"metric": "elementwise", "atol": {"": 1.0}, "rtol": {"": 0.0}}
    samples = [{"x": np.zeros((1, LENGTH, WIDTH), np.float32)}]
    command = shlex.split(polygraphy_command(model, EngineSettings(), judged, samples))
    assert DECOMPOSABLE in command
    main = "from polygraphy.tools import main; import sys; sys.exit(main())"
    build = ["convert", "model.onnx", "-o", "model.engine", "--compute-capabilities", "8.6"]
    for flags, built in (([], False), ([DECOMPOSABLE], True)):
        done = subprocess.run(
            [sys.executable, "-c", main, *build, *flags],
            env={**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": "1"},
            cwd=tmp_path,
            capture_output=True,
        )
        assert built == (done.returncode == 0), done.stdout + done.stderr
