"""What converters and rewriters of ONNX files make of models; it runs in their environment.

    python -m engines.tool_runs converters|rewriters FOLDER

FOLDER has models, `NAME.onnx`, with what is fed to each, `NAME.npz`. Files of other tools,
`NAME.TOOL.made`, are judged along. One line of JSON comes back: by name and tool the operators of
the file with the type that each reads, and the outputs; or what the tool or ONNX Runtime says.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from engines.children import Children, one_line

Tool = Callable[[onnx.ModelProto], onnx.ModelProto]
OPENVINO = "OpenVINO compress_to_fp16"


def common(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert by onnxconverter-common."""
    from onnxconverter_common import float16

    converted: onnx.ModelProto = float16.convert_float_to_float16(model, keep_io_types=True)
    return converted


def transformers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert by ONNX Runtime's own tool."""
    from onnxruntime.transformers import float16

    converted: onnx.ModelProto = float16.convert_float_to_float16(model, keep_io_types=True)
    return converted


def slim_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert by onnxslim."""
    import onnxslim

    converted: onnx.ModelProto = onnxslim.slim(model, dtype="fp16")
    return converted


def slim(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite by onnxslim."""
    import onnxslim

    rewritten: onnx.ModelProto = onnxslim.slim(model)
    return rewritten


def sim(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite by onnxsim."""
    import onnxsim

    rewritten: onnx.ModelProto = onnxsim.simplify(model)[0]
    return rewritten


def optimizer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite by onnxoptimizer's own choice of passes."""
    import onnxoptimizer

    passes = onnxoptimizer.get_fuse_and_elimination_passes()
    rewritten: onnx.ModelProto = onnxoptimizer.optimize(model, passes)
    return rewritten


def script(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite by onnxscript."""
    import onnxscript.optimizer

    rewritten: onnx.ModelProto = onnxscript.optimizer.optimize(model)
    return rewritten


def sanitize(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite as `polygraphy surgeon sanitize --fold-constants` does."""
    from polygraphy.backend.onnx import fold_constants

    rewritten: onnx.ModelProto = fold_constants(model)
    return rewritten


TOOLS: Mapping[str, Mapping[str, Tool]] = {
    "converters": {
        "onnxconverter-common": common,
        "onnxruntime.transformers.float16": transformers,
        'onnxslim dtype="fp16"': slim_half,
    },
    "rewriters": {
        "onnxsim": sim,
        "onnxslim": slim,
        "onnxoptimizer": optimizer,
        "onnxscript.optimizer": script,
        "Polygraphy fold_constants": sanitize,
    },
}


def judged(model: onnx.ModelProto, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ONNX Runtime makes of a file, without optimisation."""
    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # each of its exceptions is what came of the file
        return {"not opened": one_line(str(error))}
    try:
        wanted = {value.name: value.type for value in session.get_inputs()}
        fed = {
            name: arrays[name].astype(np.float16) if kind == "tensor(float16)" else arrays[name]
            for name, kind in wanted.items()
        }
        outputs = session.run(None, fed)
    except Exception as error:
        return {"not run": one_line(str(error))}
    return {"outputs": [numbers(output) for output in outputs], "nodes": nodes(model)}


def numbers(output: Any) -> list[float] | None:
    """Return an output as a list of numbers; None where it is none of these."""
    if not isinstance(output, np.ndarray) or output.dtype.kind not in "fiub":
        return None
    return [float(number) for number in np.ravel(output)]


def nodes(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return each node's operator and the type of the first float that it reads."""
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError:
        return [(node.op_type, "") for node in model.graph.node]
    graph = model.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16)
    read = [
        next((types[n] for n in node.input if types.get(n) in floats), 0) for node in graph.node
    ]
    return [
        (node.op_type, TensorProto.DataType.Name(kind) if kind else "")
        for node, kind in zip(graph.node, read, strict=True)
    ]


def by_openvino(path: Path) -> dict[str, Any]:
    """Return what OpenVINO itself computes of a model that it has compressed, in FP32."""
    import openvino

    core = openvino.Core()
    made = path.with_suffix(".xml")
    try:
        openvino.save_model(core.read_model(path), made, compress_to_fp16=True)
        exact = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(made, "CPU", exact)
    except Exception as error:
        return {"refused": one_line(str(error))}
    with np.load(path.with_suffix(".npz")) as file:
        arrays = dict(file)
    try:
        fed = {port: arrays[port.any_name] for port in compiled.inputs}
        outputs = compiled(fed)
    except Exception as error:
        return {"not run": one_line(str(error))}
    return {"outputs": [numbers(outputs[port]) for port in compiled.outputs], "nodes": []}


def one(path: Path, family: str, tool: str) -> dict[str, Any]:
    """Return what became of a model by a tool, or as it is where the tool is ""."""
    with np.load(path.with_suffix(".npz")) as file:
        arrays = dict(file)
    model = onnx.load(path)
    if tool:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                model = TOOLS[family][tool](model)
        except BaseException as error:  # some tools end the process
            return {"refused": one_line(f"{type(error).__name__}: {error}")}
    return judged(model, arrays)


def foreign(path: Path, made: Path) -> dict[str, Any]:
    """Return what became of a file that was made elsewhere."""
    with np.load(path.with_suffix(".npz")) as file:
        arrays = dict(file)
    return judged(onnx.load(made), arrays)


def main(family: str, folder: Path) -> None:
    """Print what became of all models of a folder."""
    children = Children(60)
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.onnx")):
        row = {tool: children.call(one, path, family, tool) for tool in ("", *TOOLS[family])}
        if family == "converters":
            row[OPENVINO] = children.call(by_openvino, path)
        for made in folder.glob(f"{path.stem}.*.made"):
            tool = made.name.removeprefix(f"{path.stem}.").removesuffix(".made")
            row[tool] = children.call(foreign, path, made)
        rows[path.stem] = row
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
