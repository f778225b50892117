"""Operators that ONNX has no schema for: which engines lack them, and what to do then."""

import shlex
from pathlib import Path

import onnx

from precision_bisect.backends.choose_backend import availabilities
from precision_bisect.errors import RefusedError
from precision_bisect.graphs.load import Model
from precision_bisect.settings.targets import TargetName

_CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


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
    found: list[TargetName] = [] if ort_runs else ["onnxruntime"]
    if any(n.domain == _CONTRIB and not onnx.defs.has(n.op_type) for n in proto.graph.node):
        found += ["tensorrt", "tensorrt-rtx"]
    return found


def refused(path: Path, model: Model) -> RefusedError:
    """Return the error for operators that ONNX Runtime does not know, where no TensorRT runs."""
    why = next(each.why for each in availabilities() if each.name == "tensorrt")
    nodes = foreign(model.proto)
    told = ", ".join(dict.fromkeys(f"{node.domain or 'ai.onnx'}:{node.op_type}" for node in nodes))
    cut = ""
    if nodes:
        made = {name for node in model.proto.graph.node for name in node.output}
        read = " ".join(f"{shlex.quote(n)}:auto" for n in nodes[0].input if n in made)
        behind = " ".join(f"{shlex.quote(n)}:auto:auto" for n in nodes[-1].output if n)
        cut = (
            "; or cut the model there, and search the parts: polygraphy surgeon extract "
            f"{shlex.quote(str(path))} --outputs {read} -o before.onnx, and "
            f"--inputs {behind} -o behind.onnx"
        )
    return RefusedError(
        f"ONNX Runtime cannot run the model ({told or 'as the warning says'}), and no TensorRT "
        f"runs here ({why})",
        f"register the operators by --ort-custom-ops LIB.so, or run where TensorRT has them{cut}",
    )
