"""What one version of ONNX Runtime does with models; it needs onnx and NumPy besides.

    python -m engines.ort_sessions FOLDER [cuda]

FOLDER has models, `NAME.onnx`, with what is fed to each, `NAME.npz`. One line of JSON comes back:
by name and level of optimisation the operators of the graph that runs, and the outputs as text, or
why there are none. On the CPU, or on CUDA with the CPU behind it.
"""

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from engines.children import Children, one_line

LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
TYPES = {"tensor(bfloat16)": TensorProto.BFLOAT16, "tensor(float16)": TensorProto.FLOAT16}


CPU = "CPUExecutionProvider"
CUDA = ("CUDAExecutionProvider", {"use_tf32": "0"})
ASSIGNED = "session.record_ep_graph_assignment_info"
"""With it a session tells which provider took each node."""


def one(path: Path, levels: tuple[str, ...], providers: Sequence[Any] = (CPU,)) -> dict[str, Any]:
    """Return by level what became of a model; whether it all ran on the first provider, too."""
    ort.set_default_logger_severity(4)
    if providers[0] != CPU:
        ort.preload_dlls()
    rows: dict[str, Any] = {}
    with np.load(path.with_suffix(".npz")) as file:
        arrays = dict(file)
    for level in levels:
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "saved.onnx"
            options = ort.SessionOptions()
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
            options.optimized_model_filepath = str(saved)
            if len(providers) > 1:
                options.add_session_config_entry(ASSIGNED, "1")
            try:
                session = ort.InferenceSession(path.read_bytes(), options, providers=[*providers])
            except Exception as error:  # each of its exceptions is what came of the model
                rows[level] = {"refused": said(error)}
                continue
            graph = onnx.load(saved).graph
            rows[level] = {"operators": [node.op_type for node in graph.node]}
            if len(providers) > 1:
                parts = session.get_provider_graph_assignment_info()
                rows[level]["alone"] = all(part.ep_name != CPU for part in parts)
            try:
                rows[level]["outputs"] = run(session, arrays)
            except Exception as error:
                rows[level]["fails"] = said(error)
    return rows


def said(error: Exception) -> str:
    """Return the words of ONNX Runtime, without its code and its source."""
    text = re.sub(r"\S*onnxruntime_src\S* .*?\) (?=[A-Z])", "", " ".join(str(error).split()))
    return one_line(text.replace("[ONNXRuntimeError] : ", ""))


def run(session: Any, arrays: dict[str, Any]) -> list[list[float] | None]:
    """Return the outputs as lists of numbers; None for what is no tensor of numbers."""
    binding = session.io_binding()
    for value in session.get_inputs():
        array = arrays[value.name]
        if value.type == "tensor(bfloat16)":
            bits = array.astype(ml_dtypes.bfloat16).view(np.uint16)
            given = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
            binding.bind_ortvalue_input(value.name, given)
        else:
            binding.bind_cpu_input(value.name, array)
    for value in session.get_outputs():
        binding.bind_output(value.name)
    session.run_with_iobinding(binding)
    found: list[list[float] | None] = []
    for value, output in zip(session.get_outputs(), binding.get_outputs(), strict=True):
        if value.type == "tensor(bfloat16)" or not output.is_tensor():
            found.append(None)
        else:
            array = output.numpy()
            numbers = array.dtype.kind in "fiub"
            found.append(np.ravel(array).astype(np.float64).tolist() if numbers else None)
    return found


def main(folder: Path, provider: str = "cpu") -> None:
    """Print what became of all models of a folder."""
    providers = [CUDA, CPU] if provider == "cuda" else [CPU]
    children = Children(60)
    rows = {}
    for path in sorted(folder.glob("*.onnx")):
        levels = LEVELS if path.name.startswith("pattern") else LEVELS[:1]
        rows[path.stem] = children.call(one, path, levels, providers)
    print(json.dumps({"onnxruntime": ort.__version__, "rows": rows}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
