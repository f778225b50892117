"""A trtexec as far as `judge.sh` needs it, called as a program; TENSORRT=8.6.1 is its version.

Without strong typing layers run in FP16 with --fp16, but those that --layerPrecisions names.

Engines are built by TensorRT-RTX where that is installed, whose words on its layers become the
inspector's JSON; an "engine" file holds the model. ONNX Runtime computes it node by node, as
kernels do: sums in FP32, results rounded to FP16 where the type is that. Flags that trtexec does
not know end it, as there. Without a flag that asks for outputs nothing is computed: libraries are
imported where they are needed, since searches call it a hundred times.
"""

import argparse
import json
import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

MARK = b"engine\n"
Version = tuple[int, int, int]
SWITCHES = ("noTF32",)
MARKS, SHOWS = "markUnfusedTensorsAsDebugTensors", "saveAllDebugTensors"
VALUED = (
    *("onnx", "saveEngine", "exportLayerInfo", "loadEngine", "loadInputs", "shapes"),
    "timingCacheFile",
    *("exportOutput", "exportTimes", "minShapes", "optShapes", "maxShapes", "profilingVerbosity"),
    *("iterations", "duration", "warmUp"),
)
BY_TYPE = ("fp16", "int8", "fp8", "best")
BY_NAME = ("layerPrecisions", "layerOutputTypes", "precisionConstraints")
COMPARES = ("loadRefOutputs", "accuracyAlgorithm", "accuracyThreshold", "atol", "rtol")


def options(version: Version) -> tuple[list[str], list[str]]:
    """Return the switches that a version has, and the options with a value, of those used here.

    Those of NVIDIA/TensorRT, samples/common/sampleOptions.cpp, 8.5.3 to v11.1.
    """
    alone = "skipInference" if version >= (8, 6, 0) else "buildOnly"
    weak = version < (11, 0, 0)
    typed = ["stronglyTyped"] * (version >= (9, 1, 0)) + ["bf16"] * (weak and version >= (9, 1, 0))
    compares = COMPARES * (version >= (11, 1, 0))
    shows = version >= (10, 13, 0)
    switches = [*SWITCHES, alone, *typed, *BY_TYPE * weak, *[MARKS] * shows]
    return switches, [*VALUED, *BY_NAME * weak, *compares, *[SHOWS] * shows]


def banner(version: Version) -> str:
    """Return the first line of whatever the tool says, with `NV_TENSORRT_VERSION`."""
    major, minor, patch = version
    number = major * (10_000 if major >= 10 else 1000) + minor * 100 + patch
    return f"&&&& RUNNING TensorRT.trtexec [TensorRT v{number}] # trtexec\n"


def help_text(version: Version) -> str:
    """Return what `--help` prints."""
    switches, valued = options(version)
    lines = [*(f"  --{name}" for name in switches), *(f"  --{name}=spec" for name in valued)]
    return banner(version) + "".join(f"{line:<36} ...\n" for line in lines)


def main() -> None:
    """Build an engine or run one."""
    major, minor, patch = map(int, os.environ.get("TENSORRT", "10.13.0").split("."))
    version = (major, minor, patch)
    if "--help" in sys.argv:
        sys.stdout.write(help_text(version))
        return
    parser = argparse.ArgumentParser(allow_abbrev=False)
    switches, valued = options(version)
    for switch in switches:
        parser.add_argument(f"--{switch}", action="store_true")
    for name in valued:
        parser.add_argument(f"--{name}")
    sys.stdout.write(banner(version))
    asked, unknown = parser.parse_known_args()
    assert not unknown, f"[E] Unknown option: {unknown[0]}"
    for fact in ("Selected Device: Orin", "Compute Capability: 8.7"):
        sys.stdout.write(f"[11/26/2026-10:00:00] [I] {fact}\n")
    if asked.onnx:
        _build(asked, version)
    else:
        _run(asked)


def _build(asked: argparse.Namespace, version: Version) -> None:
    assert asked.skipInference if version >= (8, 6, 0) else asked.buildOnly
    assert "detailed" == asked.profilingVerbosity
    import onnx

    if cache := asked.timingCacheFile:
        with Path(cache).open("a") as stream:
            stream.write("built\n")
    lows = None
    if not getattr(asked, "stronglyTyped", False):
        lows = _lows(asked, onnx.load(asked.onnx))
    proto = onnx.load(asked.onnx)
    opened = [
        value.name
        for value in proto.graph.input
        if any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    ]
    shapes = _by_name(asked.optShapes)
    assert set(opened) == set(shapes), f"[E] shapes of {opened}, not of {[*shapes]}"
    header = json.dumps(lows).encode() + b"\n"
    Path(asked.saveEngine).write_bytes(MARK + header + proto.SerializeToString())
    names = [node.name for node in proto.graph.node] or ["none"]
    layers: list[Any] = names if lows is not None else _layers(Path(asked.onnx), shapes)
    if getattr(asked, MARKS, False):
        layers = _unfused(proto)
    info = {"Layers": layers, "Bindings": []}
    Path(asked.exportLayerInfo).write_text(json.dumps(info, ensure_ascii=False))


def _lows(asked: argparse.Namespace, proto: "onnx.ModelProto") -> list[str]:
    """Return the nodes that run in FP16; TensorRT's layers are called after them."""
    high = _by_name(asked.layerPrecisions)
    assert not high or asked.precisionConstraints == "obey"
    assert high.keys() <= {node.name for node in proto.graph.node}
    assert _by_name(asked.layerOutputTypes).keys() <= high.keys()
    assert {*high.values()} <= {"fp32"}
    return [node.name for node in proto.graph.node if asked.fp16 and node.name not in high]


def _layers(path: Path, shapes: dict[str, str]) -> list[Any]:
    if find_spec("tensorrt_rtx") is None:
        import onnx

        return [node.name for node in onnx.load(path).graph.node] or ["none"]
    import rtx
    from precision_bisect.backends.inspection.engine_layers import EngineTensor, parse_layers

    def told(tensors: tuple[EngineTensor, ...]) -> list[dict[str, Any]]:
        return [{"Name": t.name, "Dimensions": list(t.dims), "Datatype": t.dtype} for t in tensors]

    sizes = {name: tuple(map(int, text.split("x"))) for name, text in shapes.items()}
    return [
        {
            "Name": layer.name,
            "LayerType": layer.kind,
            "Inputs": told(layer.inputs),
            "Outputs": told(layer.outputs),
            "Constants": told(layer.constants),
            "TacticName": layer.tactic,
            "Metadata": "\x1e".join(f"[ONNX Layer: {name}]" for name in layer.nodes),
        }
        for layer in parse_layers(rtx.build(path, sizes))
    ]


def _unfused(proto: "onnx.ModelProto") -> list[Any]:
    """Return the layers of an engine that fuses nothing, its tensors called as a builder does."""
    return [
        {
            "Name": node.name,
            "LayerType": "kgen",
            "Inputs": [],
            "Outputs": [{"Name": f"{n}_myl0", "Dimensions": []} for n in node.output],
            "Constants": [],
            "TacticName": "",
            "Metadata": f"[ONNX Layer: {node.name}]",
        }
        for node in proto.graph.node
    ]


def _show(proto: "onnx.ModelProto", computed: dict[str, Any]) -> None:
    """Write tensors as `DebugTensorWriter` of NVIDIA/TensorRT does."""
    import numpy as np

    names = [name for node in proto.graph.node for name in node.output]
    for number, name in enumerate(names):
        safe = re.sub(r"[^A-Za-z0-9._,-]", "_", f"{name}_myl0")
        np.save(f"{number:04d}_{safe}.npy", computed[name])


def _by_name(text: str | None) -> dict[str, str]:
    items = (item.rpartition(":") for item in (text or "").split(",") if item)
    return {name: value for name, _, value in items}


def _run(asked: argparse.Namespace) -> None:
    mark, header, model = Path(asked.loadEngine).read_bytes().split(b"\n", 2)
    assert MARK == mark + b"\n", "[E] no engine"
    times = [{"computeMs": each, "latencyMs": each + 1} for each in (0.5, 0.25, 0.75)]
    Path(asked.exportTimes).write_text(json.dumps(times))
    if not asked.exportOutput:
        return
    import numpy as np
    import onnx

    lows = json.loads(header)
    proto = onnx.load_from_string(model)
    shapes, files = _by_name(asked.shapes), _by_name(asked.loadInputs)
    feed = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        sizes = [dim.dim_value for dim in tensor.shape.dim]
        if value.name in shapes:
            sizes = [int(size) for size in shapes[value.name].split("x")]
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feed[value.name] = np.fromfile(files[value.name], kind).reshape(sizes)
    names = [value.name for value in proto.graph.output]
    outputs = _computed(proto, feed, lows)
    if getattr(asked, SHOWS, None):
        assert "numpy" == asked.saveAllDebugTensors
        _show(proto, outputs)
    with Path(asked.exportOutput).open("w") as stream:
        stream.write("[\n")
        for place, (name, array) in enumerate((name, outputs[name]) for name in names):
            values = ", ".join(f"{value:.6g}" for value in array.ravel())
            stream.write(f'{", " * bool(place)}{{ "name" : "{name}"\n')
            stream.write(f'  , "dimensions" : "{"x".join(map(str, array.shape))}"\n')
            stream.write(f'  , "values" : [ {values} ]\n  }}\n')
        stream.write("]\n")
    references = _by_name(getattr(asked, "loadRefOutputs", None))
    assert not references or asked.accuracyAlgorithm == "l0"
    beyond = False
    for name, file in references.items():
        got = outputs[name].astype(np.float64)
        want = np.fromfile(file, outputs[name].dtype).reshape(got.shape).astype(np.float64)
        # As its L0AccuracyValidator does: NaN is beyond no limit.
        over = np.abs(got - want) > float(asked.atol) + float(asked.rtol) * np.abs(want)
        sys.stdout.write(f"[I] Accuracy loss for tensor {name} (L0): {over.mean():.6f}\n")
        beyond |= bool(over.mean() >= float(asked.accuracyThreshold))
    failed = "Accuracy validation FAILED: one or more tensors exceeded the threshold."
    assert not beyond, f"[E] {failed}"


def _computed(
    proto: "onnx.ModelProto", feed: dict[str, Any], lows: list[str] | None
) -> dict[str, Any]:
    """Return every tensor of a graph; of `lows` all are rounded, of None what is typed so."""
    import numpy as np
    import onnxruntime
    from onnx import helper, numpy_helper

    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    found |= feed
    half, single = np.dtype(np.float16), np.dtype(np.float32)
    for node in proto.graph.node:
        taken = {name: found[name] for name in dict.fromkeys(node.input) if name}
        rounds = node.op_type != "Cast" and half in {each.dtype for each in taken.values()}
        rounds = rounds if lows is None else node.name in lows
        if lows is not None and rounds:
            with np.errstate(over="ignore"):
                taken = {k: v.astype(half) if v.dtype == single else v for k, v in taken.items()}
        taken = {k: v.astype(single) if v.dtype == half else v for k, v in taken.items()}
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape
            )
            for name, each in taken.items()
        ]
        wanted = [name for name in node.output if name]
        outputs = [helper.make_empty_tensor_value_info(name) for name in wanted]
        graph = helper.make_graph([node], "node", inputs, outputs)
        alone = helper.make_model(
            graph, opset_imports=proto.opset_import, ir_version=proto.ir_version
        )
        session = onnxruntime.InferenceSession(
            alone.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        for name, each in zip(wanted, session.run(wanted, taken), strict=True):
            with np.errstate(over="ignore"):
                found[name] = each.astype(half) if rounds and each.dtype == single else each
    if lows is not None:
        # Inputs and outputs of an engine are FP32 unless told otherwise.
        found = {k: v.astype(single) if v.dtype == half else v for k, v in found.items()}
    return found


if __name__ == "__main__":
    assert shutil.which("sh")
    try:
        main()
    except AssertionError as error:
        sys.stderr.write(f"[11/26/2026-10:00:00] {error}\n")
        sys.exit(1)
