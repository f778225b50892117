"""What ONNX Runtime on CUDA makes of kernels that it fuses, against the emulator's prediction.

    python benchmarks/fused_on_gpu.py --out fused

Small networks, each with a kernel that ONNX Runtime fuses of several layers, or with none. All
layers run low, then single pieces of the kernel are kept. Each plan is opened as a typed graph
with the library's default options. Reported by network, type and plan: the largest error of any
output as a share of the largest value, on CUDA and as the emulator predicts it for ONNX Runtime
and for TensorRT; the operators that the optimizer made; or why the file does not open. "Sealed"
is the file with guards before norms, where it has any.
`--provider cpu` tries the script.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from gpu_models import Decoder, write_decoder
from numpy.typing import NDArray

from precision_bisect.backends.cuda.opening import Opener, OpeningError
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.whole_kernels import kernels_of_cuda
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import HalfName, Pair

SEED = 0
LIMIT_S = 210.0
"""After it no further plan is begun."""
LOUD = 600.0
"""The size of what norms read: its square leaves FP16's range."""
NORM = """
  {p}m = ReduceMean<axes = [-1]>({x}) {p}d = Sub({x}, {p}m) {p}q = Pow({p}d, two)
  {p}v = ReduceMean<axes = [-1]>({p}q) {p}e = Add({p}v, eps) {p}r = Sqrt({p}e)
  {p}n = Div({p}d, {p}r) {p}s = Mul({p}n, {p}gamma) {y} = Add({p}s, {p}beta)"""
RMS = """
  {p}q = Pow({x}, two) {p}v = ReduceMean<axes = [-1]>({p}q) {p}e = Add({p}v, eps)
  {p}r = Sqrt({p}e) {p}n = Div({x}, {p}r) {y} = Mul({p}n, {p}gamma)"""
GELU = """
  {p}d = Div({x}, root2) {p}f = Erf({p}d) {p}a = Add({p}f, one) {p}m = Mul({x}, {p}a)
  {y} = Mul({p}m, half)"""
ROWS = "(float[4, 32, 64] x) => (float[4, 32, 64] y)"
TWO = "(float[4, 32, 64] x, float[4, 32, 64] z) => (float[4, 32, 64] y)"
SCORES = "(float[2, 4, 32, 32] x, float[2, 1, 1, 32] z) => (float[2, 4, 32, 32] y)"
IMAGE = "(float[2, 16, 24, 24] x) => (float[2, 16, 24, 24] y)"
VECTORS = {"gamma": (64,), "beta": (64,)}


@dataclass(frozen=True)
class Network:
    """A graph in ONNX's text form, with the shapes of its weights and the size of its inputs."""

    signature: str
    body: str
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    size: float = 1.0
    opset: int = 17


def vision_transformer(blocks: int = 3, width: int = 64, tokens: int = 32) -> Network:
    """Return blocks with written-out norms, attention and GELU, on a stream with loud channels."""
    body, x = "", "x"
    weights: dict[str, tuple[int, ...]] = {}
    for i in range(blocks):
        p = f"b{i}"
        body += NORM.format(p=f"{p}one", x=x, y=f"{p}h")
        for name in "qkv":
            body += f" {p}{name}0 = MatMul({p}h, {p}w{name}) "
            body += f" {p}{name}1 = Reshape({p}{name}0, heads) "
            perm = "0, 2, 3, 1" if name == "k" else "0, 2, 1, 3"
            body += f" {p}{name} = Transpose<perm = [{perm}]>({p}{name}1)"
            weights[f"{p}w{name}"] = (width, width)
        body += f"""
          {p}t = MatMul({p}q, {p}k) {p}u = Mul({p}t, scale) {p}o = Softmax<axis = -1>({p}u)
          {p}c = MatMul({p}o, {p}v) {p}c1 = Transpose<perm = [0, 2, 1, 3]>({p}c)
          {p}c2 = Reshape({p}c1, rows) {p}c3 = MatMul({p}c2, {p}wo) {p}z = Add({x}, {p}c3)"""
        body += NORM.format(p=f"{p}two", x=f"{p}z", y=f"{p}g")
        body += f" {p}l0 = MatMul({p}g, {p}wa) {p}l = Add({p}l0, {p}ba)"
        body += GELU.format(p=f"{p}gelu", x=f"{p}l", y=f"{p}j")
        y = "y" if i == blocks - 1 else f"{p}y"
        body += f" {p}k2 = MatMul({p}j, {p}wb) {y} = Add({p}z, {p}k2)"
        weights |= {f"{p}wo": (width, width), f"{p}wa": (width, 2 * width)}
        weights |= {f"{p}ba": (2 * width,), f"{p}wb": (2 * width, width)}
        for norm in ("one", "two"):
            weights |= {f"{p}{norm}gamma": (width,), f"{p}{norm}beta": (width,)}
        x = y
    return Network(ROWS, body, weights, LOUD, 13)


def networks() -> dict[str, Network]:
    """Return the networks by name."""
    norm = NORM.format(p="", x="x", y="y")
    found = {
        "LayerNorm": Network(ROWS, norm, VECTORS, LOUD, 13),
        "LayerNorm, opset 17": Network(ROWS, norm, VECTORS, LOUD, 17),
        "LayerNorm between products, opset 17": Network(
            ROWS,
            "i = MatMul(x, w)" + NORM.format(p="", x="i", y="o") + " y = MatMul(o, w)",
            {"w": (64, 64), **VECTORS},
            LOUD,
            17,
        ),
        "LayerNorm without bias": Network(
            ROWS, norm.replace("s = Mul", "y = Mul").partition(" y = Add")[0], VECTORS, LOUD, 13
        ),
        "SkipLayerNorm": Network(
            TWO, "w = Add(x, z)" + NORM.format(p="", x="w", y="y"), VECTORS, LOUD, 13
        ),
        "SkipLayerNorm read twice": Network(
            TWO.replace(" y)", " y, float[4, 32, 64] k)"),
            "w = Add(x, z) k = Neg(w)" + NORM.format(p="", x="w", y="y"),
            VECTORS,
            LOUD,
            13,
        ),
        "SkipLayerNorm of the operator": Network(
            TWO, "w = Add(x, z) y = LayerNormalization(w, gamma, beta)", VECTORS, LOUD, 17
        ),
        "RMSNorm": Network(ROWS, RMS.format(p="", x="x", y="y"), VECTORS, LOUD, 13),
        "RMSNorm after Add": Network(
            TWO, "w = Add(x, z)" + RMS.format(p="", x="w", y="y"), VECTORS, LOUD, 13
        ),
        "Gelu": Network(ROWS, GELU.format(p="", x="x", y="y"), {}, 4.0, 13),
        "Gelu after a bias": Network(
            ROWS, "w = Add(x, beta)" + GELU.format(p="", x="w", y="y"), VECTORS, 4.0, 13
        ),
        "SiLU": Network(ROWS, "g = Sigmoid(x) y = Mul(x, g)", {}, 4.0, 13),
        "SiLU of negative values": Network(
            ROWS, "a = Abs(x) n = Neg(a) g = Sigmoid(n) y = Mul(n, g)", {}, 8.0, 13
        ),
        "QuickGELU": Network(ROWS, "a = Mul(x, quick) g = Sigmoid(a) y = Mul(x, g)", {}, 4.0, 13),
        "BiasSoftmax": Network(SCORES, "w = Add(x, z) y = Softmax<axis = 3>(w)", {}, 8.0, 13),
        "Conv and Relu": Network(
            IMAGE,
            "c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Relu(c)",
            {"w": (16, 16, 3, 3), "b": (16,)},
        ),
        "Conv, Add and Relu": Network(
            IMAGE,
            "c = Conv<pads = [1, 1, 1, 1]>(x, w, b) d = Add(c, x) y = Relu(d)",
            {"w": (16, 16, 3, 3), "b": (16,)},
        ),
        "MatMul and Add": Network(
            "(float[32, 64] x) => (float[32, 64] y)",
            "c = MatMul(x, w) y = Add(c, beta)",
            {"w": (64, 64), **VECTORS},
        ),
        "vision transformer": vision_transformer(),
        "vision transformer, opset 17": replace(vision_transformer(), opset=17),
    }
    return found


def write(network: Network, path: Path) -> None:
    """Write a network with drawn weights, whose nodes are named after their outputs."""
    head = f'<ir_version: 8, opset_import: ["": {network.opset}]> g {network.signature}'
    constants = (
        "<float two = {2}, float eps = {0.00001}, float one = {1}, float half = {0.5},"
        " float root2 = {1.4142135}, float quick = {1.702}, float scale = {0.25},"
        " int64[4] heads = {0, 0, 4, 16}, int64[3] rows = {0, 0, 64}>"
    )
    proto = onnx.parser.parse_model(f"{head} {constants} {{ {network.body} }}")
    rng = np.random.default_rng(SEED)
    for name, shape in network.weights.items():
        size = max(shape[:-1], default=1) ** -0.5 if len(shape) < 4 else shape[1] ** -0.5 / 3
        around = 1.0 if name.endswith("gamma") else 0.0
        spread = 0.1 if len(shape) == 1 else size
        array = (around + spread * rng.normal(size=shape)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for node in proto.graph.node:
        node.name = node.output[0]
    onnx.save(proto, path)


def feed(model: Model, size: float) -> dict[str, NDArray[Any]]:
    """Return inputs of a size; channels differ as those of trained networks do."""
    rng = np.random.default_rng(SEED + 1)
    found: dict[str, NDArray[Any]] = {}
    for spec in model.inputs:
        shape = [n if isinstance(n, int) else 1 for n in spec.shape or ()]
        if spec.name == "ids":
            found[spec.name] = rng.integers(0, 500, shape)
        else:
            loud = np.where(rng.random(shape[-1]) < 0.25, size, size / 8)
            found[spec.name] = (rng.normal(size=shape) * loud).astype(np.float32)
    return found


def plans(model: Model) -> Iterator[tuple[str, Plan]]:
    """Yield all low, and single pieces kept: of the first kernels, and what stands before them."""
    names = model.table.names
    yield "all low", Plan.of(())
    kernels = kernels_of_cuda(model)
    some: list[str] = []
    for op_type in dict.fromkeys(kernel.node.op_type for kernel in kernels):
        kernel = next(each for each in kernels if each.node.op_type == op_type)
        typed = [piece for piece in kernel.pieces if piece in names]
        if len(typed) < 2:
            continue
        ends = (typed[0], typed[2 * len(typed) // 5], *typed[-2:])
        some += [*ends, *names[:1]] if len(names) < 16 else ends
    for name in dict.fromkeys(some or names[:2]):
        yield f"{name} kept", Plan.of([[*names].index(LayerName(name))])
    ops = {node.name: node.op_type for node in model.proto.graph.node}
    for what, kept in (("statistics", kernels[:1]), ("all statistics", kernels[1:] and kernels)):
        between = [piece for kernel in kept for piece in _statistics(kernel.pieces, ops)]
        if between:
            yield f"{what} kept", Plan.of([*names].index(LayerName(name)) for name in between)


def _statistics(pieces: tuple[str, ...], ops: Mapping[str, str]) -> list[str]:
    """Return the pieces of a norm from its Pow to its Sqrt, none of other kernels."""
    places = [i for i, name in enumerate(pieces) if ops[name] in ("Pow", "Sqrt")]
    return list(pieces[places[0] : places[-1] + 1]) if len(places) == 2 else []


def error(outputs: Mapping[str, NDArray[Any]], exact: Mapping[str, NDArray[Any]]) -> float:
    """Return the largest error of any output as a share of its largest value."""
    worst = 0.0
    for name, expected in exact.items():
        apart = np.abs(outputs[name].astype(np.float32) - expected).max()
        worst = max(worst, float(apart / np.abs(expected).max()))
        if not np.isfinite(outputs[name].astype(np.float32)).all():
            return float("inf")
    return worst


class Trying:
    """Opens typed files on a provider, with default options."""

    def __init__(self, provider: str, folder: Path) -> None:
        options: dict[str, str] = {} if provider == "cpu" else {"use_tf32": "0"}
        name = "CPUExecutionProvider" if provider == "cpu" else "CUDAExecutionProvider"
        self.providers = [(name, options)]
        self._folder = folder

    def run(
        self, path: Path, inputs: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
        """Return the outputs, and how many of each operator the optimizer left."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        optimised = self._folder / "optimised.onnx"
        options.optimized_model_filepath = str(optimised)
        session = ort.InferenceSession(str(path), options, providers=self.providers)
        names = [output.name for output in session.get_outputs()]
        values = session.run(names, dict(inputs))
        left = onnx.load(optimised, load_external_data=False).graph
        return dict(zip(names, values, strict=True)), Counter(n.op_type for n in left.node)


def row(trying: Trying, model: Model, low: HalfName, plan: Plan, given: Any) -> dict[str, Any]:
    """Return what is known of one plan."""
    inputs, exact, emulators = given
    found: dict[str, Any] = {}
    for target, emulator in emulators.items():
        found[f"emulated_{target}"] = error(emulator.evaluate(plan, inputs), exact)
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    with tempfile.TemporaryDirectory() as folder:
        path, sealed = Path(folder) / "typed.onnx", Path(folder) / "sealed.onnx"
        save_typed(writer.write(plan, guard_islands=False), path)
        save_typed(writer.write(plan, guard_islands=False, seal=True), sealed)
        if path.read_bytes() != sealed.read_bytes():
            try:
                outputs, found["operators_sealed"] = trying.run(sealed, inputs)
                found["real_sealed"] = error(outputs, exact)
            except Exception as refused:
                found["refused_sealed"] = " ".join(str(refused).split())[:300]
        try:
            outputs, found["operators"] = trying.run(path, inputs)
            found["real"] = error(outputs, exact)
        except Exception as refused:
            found["refused"] = " ".join(str(refused).split())[:300]
            opener = Opener(providers=trying.providers, profiles=Path(folder) / "profile")
            try:
                opened = opener.open(path)
                names = [output.name for output in opened.session.get_outputs()]
                values = opened.session.run(names, dict(inputs))
                found["real_otherwise"] = error(dict(zip(names, values, strict=True)), exact)
                found["notes"] = list(opened.notes)
            except (OpeningError, TimeoutError, RuntimeError) as again:
                found["notes"] = [str(again)[:300]]
    return found


def main() -> None:
    """Write `fused.json`, and print a line for each plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.provider == "cuda":
        ort.preload_dlls()
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    kernels: dict[str, Any] = {}
    everything: dict[str, Network | None] = {**networks(), "decoder": None}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trying = Trying(arguments.provider, folder)
        for low in ("fp16", "bf16"):
            for title, network in everything.items():
                if arguments.only not in title:
                    continue
                path = folder / "model.onnx"
                if network is None:
                    sizes = Decoder(
                        vocabulary=500, width=64, layers=3, hidden=128, heads=4, tokens=16
                    )
                    write_decoder(path, sizes)
                else:
                    write(network, path)
                model = load_model(path)
                inputs = feed(model, 1.0 if network is None else network.size)
                emulators = {
                    target: EmulatedBackend(model, low, threads=0, targets=[target])
                    for target in ("onnxruntime", "tensorrt")
                }
                high = Plan.of(range(len(model.table.names)))
                exact = emulators["tensorrt"].evaluate(high, inputs)
                kernels[title] = [[k.node.op_type, list(k.pieces)] for k in kernels_of_cuda(model)]
                for what, plan in plans(model):
                    if time.monotonic() - began > LIMIT_S:
                        break
                    found = {"network": title, "low": low, "plan": what}
                    try:
                        found |= row(trying, model, low, plan, (inputs, exact, emulators))
                    except Exception as failed:
                        found["failed"] = f"{type(failed).__name__}: {failed}"[:300]
                    rows.append(found)
                    print(json.dumps(found), flush=True)
                result = {
                    "onnxruntime": ort.__version__,
                    "provider": arguments.provider,
                    "wall_s": round(time.monotonic() - began, 1),
                    "kernels": kernels,
                    "rows": rows,
                }
                (arguments.out / "fused.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
