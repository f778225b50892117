"""Models with given node names, their exports, and what the exports select by the tools' rules."""

import os
import re
import runpy
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from precision_bisect.exports.export import Export
from precision_bisect.graphs.load import load_model
from precision_bisect.layer_table import LayerName
from precision_bisect.precisions import Pair
from precision_bisect.runs.runfolder import TRTEXEC
from precision_bisect.settings.engine_settings import EngineSettings

NAFNET = Path(__file__).parents[1] / "examples" / "nafnet" / "nafnet.onnx"
NORMS = ["encoders.0/encoders.0.0/norm1", "encoders.0/encoders.0.0/norm2"]
NORMS += [f"decoders.{i}/decoders.{i}.0/norm{j}" for i, j in ((0, 1), (0, 2), (1, 1), (1, 2))]
NORMS += ["decoders.2/decoders.2.0/norm1"]
NAFNET_KEPT = [f"/{norm}/{layer}" for norm in NORMS for layer in ("Pow", "ReduceMean_1")]
"""What a search of the example with tolerance 1e-2 keeps."""
Parse = Callable[[onnx.ModelProto], Any]
SHELLS = [shell for shell in ("sh", "dash", "bash", "busybox") if shutil.which(shell)]
OPERATORS = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Sin", "Cos", "Exp")


def chain(names: Sequence[str]) -> onnx.ModelProto:
    """Return a model of one-input operators in a row whose nodes have these names."""
    nodes = [
        helper.make_node(OPERATORS[i % len(OPERATORS)], [f"t{i}"], [f"t{i + 1}"], name=name)
        for i, name in enumerate(names)
    ]
    ends = [
        helper.make_tensor_value_info(f"t{i}", onnx.TensorProto.FLOAT, [2, 4])
        for i in (0, len(names))
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def export_of(path: Path, kept: Sequence[str], settings: EngineSettings | None = None) -> Export:
    """Return the export of the plan that keeps these layers of the model at `path`, in FP16."""
    settings = settings or EngineSettings()
    return Export(
        model=load_model(path).with_io_types(settings.io_types),
        kept=[LayerName(name) for name in kept],
        pair=Pair(low="fp16", high="fp32"),
        settings=settings,
    )


def words(shell: str) -> list[str]:
    """Return the beginning of a command line of that shell."""
    return ["busybox", "sh"] if shell == "busybox" else [shell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a script came to: exit code, what it said, and the arguments its tool received."""

    code: int
    said: str
    arguments: list[str]


def run_script(folder: Path, mode: str, shell: str, *flags: str, says: str = "") -> Ran:
    """Run trtexec.sh with stand-ins for NVIDIA's tools: they note their arguments and print.

    A tool that was called for its help alone has no arguments.
    """
    with tempfile.TemporaryDirectory() as tools:
        noted = Path(tools) / "noted"
        for tool in ("trtexec", "tensorrt_rtx"):
            script = Path(tools) / tool
            script.write_text(
                f"#!/bin/sh\nprintf '%s' '{says}'\n[ \"$1\" = --help ] ||"
                f" printf '%s\\0' {tool} \"$@\" > '{noted}'\n"
            )
            script.chmod(0o755)
        ran = subprocess.run(
            [*words(shell), str(folder / TRTEXEC), mode, *flags],
            env={"PATH": f"{tools}:{os.environ['PATH']}"},
            cwd=folder,
            capture_output=True,
        )
        arguments = noted.read_bytes().decode().split("\0")[:-1] if noted.exists() else []
    return Ran(code=ran.returncode, said=ran.stderr.decode(), arguments=arguments)


def flag(ran: Ran, name: str) -> str:
    """Return the one argument of that flag."""
    (found,) = [argument for argument in ran.arguments if argument.startswith(f"{name}=")]
    return found


def autocast_selects(text: str, names: Sequence[str]) -> set[str]:
    """Return the names that AutoCast leaves high, by its rule."""
    return {name for name in names if any(re.match(line, name) for line in text.split("\n")[:-1])}


def polygraphy_selects(script: Path, network: Any) -> set[str]:
    """Return the nodes of whose layers the script would mark some, and none of another node."""
    told = runpy.run_path(str(script))
    found = told["to_mark"](network, {**told["WITH_THEM"], **told["KEPT"]})
    for name, layers in found.items():
        for layer in layers:
            assert layer.metadata in ("", f"[ONNX Layer: {name}]")
    return {name for name, layers in found.items() if layers}


def mixed_selects(path: Path, names: Sequence[str]) -> set[str]:
    """Return the layers that the typed model computes in FP32."""
    onnx.checker.check_model(path, full_check=True)
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.value_info, *graph.output)
    }
    high = {n.name for n in graph.node if types[n.output[0]] == onnx.TensorProto.FLOAT}
    return high.intersection(names)
