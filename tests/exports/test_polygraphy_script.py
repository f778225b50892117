"""polygraphy_constraints.py marks exactly the kept layers' floats, or stops with one sentence."""

import ast
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import onnx
import pytest

from exports_models import Parse, chain, export_of, polygraphy_selects
from models import parse, save
from precision_bisect.backends.tensorrt.weak import NEVER_MARKED
from precision_bisect.exports.polygraphy_command import write_polygraphy_script
from precision_bisect.exports.write import write_exports
from precision_bisect.run_folder.runfolder import POLYGRAPHY_SCRIPT, RunFolder

DataType = Enum("DataType", ["FLOAT", "HALF", "INT32"])
LayerType = Enum("LayerType", ["REDUCE", "TOPK", "CAST"])


@dataclass
class Tensor:
    """A tensor as TensorRT's bindings show it."""

    dtype: DataType
    is_shape_tensor: bool = False


@dataclass
class WeakLayer:
    """A layer as the bindings of TensorRT 8.6 to 10.x show it, which need a GPU to make one."""

    metadata: str
    type: LayerType
    outputs: list[Tensor]
    name: str = ""
    strongly_typed: bool = False
    output_types: dict[int, DataType] = field(default_factory=dict)
    wanted: DataType | None = None

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def get_output(self, i: int) -> Tensor:
        return self.outputs[i]

    @property
    def precision(self) -> DataType:
        return self.wanted or DataType.FLOAT

    @precision.setter
    def precision(self, value: DataType) -> None:
        self.wanted = None if self.strongly_typed else value

    @property
    def precision_is_set(self) -> bool:
        return self.wanted is not None

    def set_output_type(self, i: int, value: DataType) -> None:
        self.output_types[i] = value


@dataclass
class Network:
    """A network of such layers."""

    layers: list[WeakLayer]

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def get_layer(self, i: int) -> WeakLayer:
        return self.layers[i]


def weak_layer(node: str, kind: LayerType, *types: DataType, **more: Any) -> WeakLayer:
    """Return a layer that comes from an ONNX node."""
    return WeakLayer(f"[ONNX Layer: {node}]", kind, [Tensor(t) for t in types], **more)


def script(path: Path, *names: str) -> dict[str, Any]:
    """Write the script that keeps these layers and return what it defines."""
    path.write_text(write_polygraphy_script(dict.fromkeys(names, "fp32"), ["fp16"]))
    return runpy.run_path(str(path))


def test_precision_and_float_outputs_are_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kept layers get FP32, their integer outputs and all other layers stay as they are."""
    layers = [
        weak_layer("mean", LayerType.REDUCE, DataType.FLOAT),
        weak_layer("mean", LayerType.CAST, DataType.FLOAT),
        weak_layer("top", LayerType.TOPK, DataType.FLOAT, DataType.INT32),
        weak_layer("other", LayerType.REDUCE, DataType.HALF),
        weak_layer("mean | branch (then_branch) | if (If)", LayerType.REDUCE, DataType.FLOAT),
    ]
    script(tmp_path / "s.py", "mean", "top")["postprocess"](network=Network(layers))
    high = DataType.FLOAT
    assert [high, None, high, None, None] == [layer.wanted for layer in layers]
    assert [{0: high}, {}, {0: high}, {}, {}] == [layer.output_types for layer in layers]
    said = "2 layers of the model stay FP32 (2 in TensorRT), given --fp16 "
    assert f"{said}--precision-constraints obey\n" == capsys.readouterr().out


@pytest.mark.parametrize("behind", ["File model.py, line 3\nin forward]", "Local Function: f"])
def test_documentation_behind_a_name_is_passed_over(tmp_path: Path, behind: str) -> None:
    """TensorRT 8.6 and 9 write a node's documentation behind its name, 10 its function."""
    layers = [
        weak_layer(f"mean | {behind}", LayerType.REDUCE, DataType.FLOAT),
        weak_layer("a | b", LayerType.REDUCE, DataType.FLOAT),
        weak_layer(f"meaning | {behind}", LayerType.REDUCE, DataType.FLOAT),
    ]
    script(tmp_path / "s.py", "mean", "a | b")["postprocess"](network=Network(layers))
    assert [DataType.FLOAT, DataType.FLOAT, None] == [layer.wanted for layer in layers]


def test_a_strongly_typed_network_is_refused(tmp_path: Path) -> None:
    """TensorRT 10 does not take a precision there; the script does not go on as if it had."""
    layer = weak_layer("mean", LayerType.REDUCE, DataType.FLOAT, strongly_typed=True)
    with pytest.raises(SystemExit, match="strongly typed: leave --strongly-typed out"):
        script(tmp_path / "s.py", "mean")["postprocess"](network=Network([layer]))


@pytest.mark.parametrize("types", [[], [DataType.INT32]])
def test_a_kept_layer_that_is_not_there_is_named(tmp_path: Path, types: list[DataType]) -> None:
    """Constraints that would select nothing at all stop the build."""
    network = Network([weak_layer("mean", LayerType.REDUCE, *types)])
    with pytest.raises(SystemExit, match="no layer that computes floats for 'mean'"):
        script(tmp_path / "s.py", "mean")["postprocess"](network=network)


def test_one_kept_layer_of_several_that_is_not_there_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layer that the parser folded away is named, the others are marked: as in the search."""
    layer = weak_layer("mean", LayerType.REDUCE, DataType.FLOAT)
    script(tmp_path / "s.py", "mean", "folded")["postprocess"](network=Network([layer]))
    assert DataType.FLOAT == layer.wanted
    counted, missing = capsys.readouterr().out.splitlines()
    assert counted.startswith("1 layers of the model stay FP32 (1 in TensorRT)")
    assert "the network has no layer that computes floats for 'folded'" == missing


def test_it_leaves_alone_what_the_search_leaves_alone(tmp_path: Path) -> None:
    """The kinds of layers are those that builds of the search never mark."""
    assert {*NEVER_MARKED} == {*script(tmp_path / "s.py", "mean")["LEFT_ALONE"]}


def test_a_network_without_metadata_is_searched_by_name(tmp_path: Path) -> None:
    """Where a layer has no metadata its own name counts."""
    layer = WeakLayer("", LayerType.REDUCE, [Tensor(DataType.FLOAT)], name="mean")
    script(tmp_path / "s.py", "mean")["postprocess"](network=Network([layer]))
    assert DataType.FLOAT == layer.wanted


def test_shape_tensors_are_left_alone(tmp_path: Path) -> None:
    """Of two layers of a node the one that computes shapes is not marked."""
    shape = WeakLayer("[ONNX Layer: a]", LayerType.REDUCE, [Tensor(DataType.FLOAT, True)])
    layer = weak_layer("a", LayerType.REDUCE, DataType.FLOAT)
    script(tmp_path / "s.py", "a")["postprocess"](network=Network([shape, layer]))
    assert [None, DataType.FLOAT] == [shape.wanted, layer.wanted]


def test_a_name_inside_a_branch_is_another_layer(parse_rtx: Parse, tmp_path: Path) -> None:
    """A layer of a subgraph that is called like a kept one is not selected."""
    model = parse(
        "(float[4] x, bool c) => (float[4] y) { y1 = If (c) <"
        "then_branch = t () => (float[4] z) { z = Relu(x) }, "
        "else_branch = e () => (float[4] w) { w = Neg(x) }> y = Relu(y1) }"
    )
    model.graph.node[0].name = "if"
    model.graph.node[1].name = model.graph.node[0].attribute[0].g.node[0].name = "relu"
    write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["relu"]))
    assert {"relu"} == polygraphy_selects(tmp_path / POLYGRAPHY_SCRIPT, parse_rtx(model))


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


def test_the_script_stands_alone() -> None:
    """It imports nothing but the standard library, so that it runs where the engine is built."""
    tree = ast.parse(write_polygraphy_script({"a": "fp32"}, ["bf16"], "--tf32"))
    imported = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert ["__future__", "collections", "typing"] == imported
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Import)]


@pytest.mark.parametrize("name", ["it's", '"""', "\\", "層\u2028", "a\nb", "{x}", "FLAGS = ''"])
def test_names_are_literals(name: str, tmp_path: Path) -> None:
    """Whatever is in a name, the script has it as it is, and low type and TF32 as flags."""
    text = write_polygraphy_script({name: "fp32", "b": "fp16"}, ["bf16"], "--tf32")
    assert text.isascii()
    (tmp_path / "s.py").write_text(text)
    found = runpy.run_path(str(tmp_path / "s.py"))
    assert {name: "FP32", "b": "FP16"} == found["KEPT"]
    assert "--bf16 --precision-constraints obey --tf32" == found["FLAGS"]
