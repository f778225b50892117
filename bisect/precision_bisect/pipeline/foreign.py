"""Nodes that engines refuse, and what to do then: unknown operators, types that do not fit."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from precision_bisect.backends.backend_plugin import availabilities
from precision_bisect.errors import ModelError, RefusedError, counted
from precision_bisect.graphs.graph import captured
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.ort import LacksKernel, open_file
from precision_bisect.settings.targets import TargetName

# The domain of ONNX Runtime's own operators.
_CONTRIB = "com.microsoft"


def foreign(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes whose operators neither ONNX has nor ONNX Runtime brings along."""
    return [
        node
        for node in proto.graph.node
        if node.domain != _CONTRIB and not onnx.defs.has(node.op_type, node.domain)
    ]


def unknown_to(proto: onnx.ModelProto, *, ort_runs: bool) -> list[TargetName]:
    """Return the targets that lack operators of the model.

    `ort_runs` tells whether ONNX Runtime can run it. TensorRT's parser finds operators by their
    names in whatever domain, so that it lacks those of ONNX Runtime's own that ONNX has not.
    """
    targets: list[TargetName] = [] if ort_runs else ["onnxruntime"]
    if any(n.domain == _CONTRIB and not onnx.defs.has(n.op_type) for n in proto.graph.node):
        targets += ["tensorrt", "tensorrt-rtx"]
    return targets


def refused(path: Path, model: Model) -> RefusedError:
    """Return the error for operators that ONNX Runtime does not know, where no TensorRT runs."""
    why = next(backend.why for backend in availabilities() if backend.name == "tensorrt")
    nodes = foreign(model.proto)
    ops = ", ".join(dict.fromkeys(f"{node.domain or 'ai.onnx'}:{node.op_type}" for node in nodes))
    parts = ", and ".join(_parts(model.proto, nodes)) if nodes else ""
    extract = f"polygraphy surgeon extract {shlex.quote(str(path))} {parts}"
    cut = f"; or cut the model there, and search the parts: {extract}" if parts else ""
    return RefusedError(
        f"ONNX Runtime cannot run the model ({ops or 'as the warning says'}), and no TensorRT "
        f"runs here ({why})",
        f"register the operators by --ort-custom-ops LIB.so, or run where TensorRT has them{cut}",
    )


def ill_typed_remark(model: Model) -> str:
    """Say that a file with 16-bit floats does not open for its types, "" where it does."""
    faults = model.ill_typed
    # What is said of types that an unknown operator gives is not certain.
    if not faults or foreign(model.proto):
        return ""
    try:
        open_file(model.path, threads=1)
    except LacksKernel:
        return ""
    except ModelError:
        more = f", and {counted(len(faults) - 1, 'more node')} likewise" * (len(faults) > 1)
        return (
            f"{model.path} is ill-typed: {faults[0]}{more}; ONNX Runtime does not open it, so its "
            "FP32 form is searched; export it without autocast to deploy it as it is"
        )
    return ""


def _parts(proto: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> Iterator[str]:
    """Yield how to extract what leads to the first of these nodes, and what follows the last.

    Polygraphy runs ONNX Runtime to find the shape and type of an input where it is to.
    """
    graph = proto.graph.node
    outputs = {name for node in graph for name in node.output}
    read = {name for node in graph for name in (*node.input, *captured(node))}
    before = [f"{shlex.quote(name)}:auto" for name in nodes[0].input if name in outputs]
    behind = [f"{shlex.quote(name)}:SHAPE:TYPE" for name in nodes[-1].output if name in read]
    if before:
        yield f"--outputs {' '.join(before)} -o before.onnx"
    if behind:
        yield (
            f"--inputs {' '.join(behind)} -o behind.onnx, with shape and type as the operator "
            "gives them, such as [1,8]:float32"
        )
