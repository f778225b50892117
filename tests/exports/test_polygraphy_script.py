"""polygraphy_constraints.py marks exactly the kept layers' floats, or stops with one sentence."""

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import vermin

from exports_models import NAFNET, NAFNET_KEPT, chain, export_of
from models import parse, save
from precision_bisect.backends.tensorrt.build import Marks, prepare_network
from precision_bisect.backends.tensorrt.flavour import Flavour, use_in_polygraphy
from precision_bisect.exports.one_file import one_file
from precision_bisect.exports.polygraphy_command import write_polygraphy_script
from precision_bisect.exports.write import write_exports
from precision_bisect.graphs.typed.high_nodes import ToldNode, told
from precision_bisect.judging.comparators import matched_boxes, metrics, task_checks
from precision_bisect.judging.inputs import closed_loop
from precision_bisect.runs.runfolder import (
    POLYGRAPHY_SCRIPT,
    RUN_SCRIPT,
    TORCH_AUTOCAST,
    RunFolder,
)
from weak_networks import Parsed, markable, parsed

BODY = (
    "(float[2,4] x) => (float[2,2] y, int64[2,2] i)"
    " { h = ReduceMean <axes = [1]> (x) g = Sub(x, h) k = Constant<value = int64[1] {2}>()"
    " y, i = TopK(g, k) }"
)
NAMES = ["mean", "other", "k", "top"]


def network_of(rtx: Flavour, names: Sequence[str] = NAMES) -> Parsed:
    """Return the network of a model of four nodes with these names."""
    model = parse(BODY)
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    return parsed(rtx.module, model)


def script(path: Path, *names: str) -> dict[str, Any]:
    """Write the script that keeps these layers and return what it defines."""
    kept: dict[str, ToldNode] = dict.fromkeys(names, ("fp32", (), ()))
    path.write_text(write_polygraphy_script(kept, {}, ["fp16"]))
    return runpy.run_path(str(path))


def test_precision_and_float_outputs_are_set(
    rtx: Flavour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kept layers get FP32, their integer outputs and all other layers stay as they are."""
    held = network_of(rtx)
    with markable(rtx.module) as noted:
        script(tmp_path / "s.py", "mean", "top")["postprocess"](network=held.network)
    assert {"mean": "FLOAT", "top": "FLOAT"} == noted.precision
    assert {"mean": {0: "FLOAT"}, "top": {0: "FLOAT"}} == noted.outputs
    said = "layers of the model that stay: 2 FP32 (2 in TensorRT), given --fp16 "
    assert f"{said}--precision-constraints obey\n" == capsys.readouterr().out


@pytest.mark.parametrize("behind", ["File model.py, line 3\nin forward]", "Local Function: f"])
def test_documentation_behind_a_name_is_passed_over(
    rtx: Flavour, tmp_path: Path, behind: str
) -> None:
    """TensorRT 8.6 and 9 write a node's documentation behind its name, 10 its function."""
    held = network_of(rtx, ["mean", "a | b", "k", "meaning"])
    for layer in held.layers:
        if layer.name in ("mean", "meaning"):
            layer.metadata = f"[ONNX Layer: {layer.name} | {behind}]"
    with markable(rtx.module) as noted:
        script(tmp_path / "s.py", "mean", "a | b")["postprocess"](network=held.network)
    assert {"mean", "a | b"} == set(noted.precision)


def test_a_strongly_typed_network_is_refused(rtx: Flavour, tmp_path: Path) -> None:
    """TensorRT 10 does not take a precision there; the script does not go on as if it had."""
    held = network_of(rtx)
    said = "strongly typed: leave --strongly-typed out"
    with markable(rtx.module, strongly_typed=True), pytest.raises(SystemExit, match=said):
        script(tmp_path / "s.py", "mean")["postprocess"](network=held.network)


@pytest.mark.parametrize("name", ["gone", "k"])
def test_a_kept_layer_that_is_not_there_is_named(rtx: Flavour, tmp_path: Path, name: str) -> None:
    """Constraints that would select nothing at all stop the build."""
    held = network_of(rtx)
    said = f"no layer that computes floats for '{name}'"
    with markable(rtx.module), pytest.raises(SystemExit, match=said):
        script(tmp_path / "s.py", name)["postprocess"](network=held.network)


def test_one_kept_layer_of_several_that_is_not_there_is_said(
    rtx: Flavour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layer that the parser folded away is named, the others are marked: as in the search."""
    held = network_of(rtx)
    with markable(rtx.module) as noted:
        script(tmp_path / "s.py", "mean", "folded")["postprocess"](network=held.network)
    assert {"mean": "FLOAT"} == noted.precision
    _, missing = capsys.readouterr().out.splitlines()
    assert "the network has no layer that computes floats for 'folded'" == missing


def test_layers_of_branches_stay_high(rtx: Flavour, tmp_path: Path) -> None:
    """What is inside an If is FP32 in the typed model, and marked here; its neighbours are not."""
    model = parse(
        "(float[4] x, bool c) => (float[4] y) { h = Exp(x) g = If (c) <"
        "then_branch = t () => (float[4] z) { z = Relu(h) }, "
        "else_branch = e () => (float[4] w) { w = Neg(h) }> y = Tanh(g) }"
    )
    names = ["exp", "if", "tanh"]
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    for branch, name in zip(model.graph.node[1].attribute, ["relu", "neg"], strict=True):
        branch.g.node[0].name = name
    held = parsed(rtx.module, model)
    write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), []))
    with markable(rtx.module) as noted:
        runpy.run_path(str(tmp_path / POLYGRAPHY_SCRIPT))["postprocess"](network=held.network)
    assert {"neg", "relu"} == {name.rpartition("/")[2] for name in noted.precision}


def test_polygraphy_runs_it_and_rtx_is_told_of_strong_typing(tmp_path: Path) -> None:
    """Polygraphy's own tool calls the script; without weak typing it ends in one sentence."""
    pytest.importorskip("tensorrt_rtx")
    onnx.save(chain(["a", "b"]), tmp_path / "model.onnx")
    write_exports(RunFolder(tmp_path), export_of(tmp_path / "model.onnx", ["a"]))
    ran = subprocess.run(
        [
            *(Path(sys.executable).parent / "polygraphy", "convert", "model.onnx"),
            *("-o", "model.engine", "--compute-capabilities", "8.6"),
            *("--trt-network-postprocess-script", POLYGRAPHY_SCRIPT),
        ],
        env={**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.stderr.splitlines()[-1] == (
        "this TensorRT has no weak typing (11 and RTX are strongly typed): "
        "build model.mixed.onnx instead, without this script"
    )
    assert 1 == ran.returncode
    assert not (tmp_path / "model.engine").exists()


def test_polygraphy_marks_with_it_what_builds_mark(
    rtx: Flavour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polygraphy's own loader parses the model and calls the script, on layers that take marks."""
    use_in_polygraphy(rtx)
    from polygraphy.backend.common import InvokeFromScript
    from polygraphy.backend.trt import NetworkFromOnnxPath, PostprocessNetwork

    export = export_of(NAFNET, NAFNET_KEPT)
    write_exports(RunFolder(tmp_path), export)
    func = InvokeFromScript(str(tmp_path / POLYGRAPHY_SCRIPT), "postprocess")
    with markable(rtx.module) as noted:
        builder, network, parser = PostprocessNetwork(NetworkFromOnnxPath(str(NAFNET)), func)()
    with markable(rtx.module) as built:
        high = told(export.high, export.model.table)
        marks = Marks(kept=tuple(export.kept), high=high, low="fp16")
        prepare_network(marks, [], network)
    assert built == noted
    assert {*NAFNET_KEPT} <= set(noted.precision)
    del parser, network, builder


def test_quantization_is_left_alone(rtx: Flavour, tmp_path: Path) -> None:
    """A layer behind a DequantizeLinear is marked, but not the scale, which is no data of its."""
    model = parse(
        "(float[4,8] x) => (float[4,8] y) <float s = {0.1}, int8 z = {0}> {"
        " [q] q = QuantizeLinear(x, s, z) [dq] d = DequantizeLinear(q, s, z)"
        " [exp] e = Exp(d) [tanh] y = Tanh(e) }"
    )
    held = parsed(rtx.module, model)
    write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["exp"]))
    with markable(rtx.module) as noted:
        runpy.run_path(str(tmp_path / POLYGRAPHY_SCRIPT))["postprocess"](network=held.network)
    assert {"exp": "FLOAT"} == noted.precision


def test_the_script_stands_alone() -> None:
    """It imports nothing but the standard library, so that it runs where the engine is built."""
    kept: dict[str, ToldNode] = {"a": ("fp32", ("x",), ("y",))}
    tree = ast.parse(write_polygraphy_script(kept, {}, ["bf16"], "--tf32"))
    imported = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert ["__future__", "collections", "collections.abc", "typing"] == imported
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Import)]


@pytest.mark.parametrize("script", [POLYGRAPHY_SCRIPT, RUN_SCRIPT, TORCH_AUTOCAST])
def test_each_script_is_of_a_python_of_tensorrt_8(script: str) -> None:
    """TensorRT 8.6 is used from Python 3.8 on: nothing in what is written is younger.

    That is said of it, too, where it is said of what the script takes along.
    """
    text = one_file(script, {})
    _, oldest = vermin.detect(text)
    assert oldest <= (3, 8)
    ast.parse(text, feature_version=(3, 8))
    assert {"3.8"} >= {*re.findall(r"Python (3\.\d+)", text)}


def test_the_modules_that_scripts_take_along_say_which_python() -> None:
    """Their style is that of an older Python: the reason is at the top of each."""
    for taken in (closed_loop, matched_boxes, metrics, task_checks):
        assert "Python 3.8" in (taken.__doc__ or "")


@pytest.mark.parametrize("name", ["it's", '"""', "\\", "層\u2028", "a\nb", "{x}", "FLAGS = ''"])
def test_names_are_literals(name: str, tmp_path: Path) -> None:
    """Whatever is in a name, the script has it as it is, and low type and TF32 as flags."""
    kept: dict[str, ToldNode] = {name: ("fp32", (name,), ()), "b": ("fp16", (), ("b",))}
    others: dict[str, ToldNode] = {f"{name}{name}": ("fp32", (), (name,))}
    text = write_polygraphy_script(kept, others, ["bf16"], "--tf32")
    assert text.isascii()
    (tmp_path / "s.py").write_text(text)
    found = runpy.run_path(str(tmp_path / "s.py"))
    assert (kept, others) == (found["KEPT"], found["WITH_THEM"])
    assert "--bf16 --precision-constraints obey --tf32" == found["FLAGS"]
