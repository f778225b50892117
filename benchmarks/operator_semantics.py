"""How a library computes the inside of FP16 operators: one node at a time, against FP32 inside.

    python benchmarks/operator_semantics.py --out operators.json

Each operator runs in FP16 by the CUDA provider of ONNX Runtime, alone in its graph, without
optimisation, on inputs that FP16 holds exactly. What FP32 (the CPU provider) makes of the same
inputs, rounded once to FP16, is what the emulator takes it for. Reported, by operator and kind of
inputs: the largest distance in units of FP16's last place (of the largest output, where sums
cancel), and how many values are not finite on one side alone. `--provider cpu` tries the script.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from gpu_job import gpu_query
from numpy.typing import NDArray
from onnx import helper, numpy_helper

HALF, FULL = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
Array = NDArray[Any]
HIDDEN = 8


@dataclass(frozen=True)
class Case:
    """One operator: `shapes` of its FP16 inputs, the first of which is scaled; other inputs."""

    op_type: str
    shapes: tuple[tuple[int, ...], ...]
    opset: int = 17
    outputs: int = 1
    others: Mapping[int, Array] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    positive: bool = False


def ints(*values: int) -> Array:
    """Return an INT64 tensor."""
    return np.array(values, np.int64)


def reductions() -> Iterator[tuple[str, Case]]:
    """Yield every reduction along the last axes, the first, and one between."""
    for name in ("Mean", "Sum", "L1", "L2", "SumSquare", "LogSumExp", "LogSum", "Max", "Prod"):
        for place, axes in (("last", [2]), ("first", [0]), ("between", [1]), ("all", [0, 1, 2])):
            case = Case(
                f"Reduce{name}",
                ((8, 32, 64),),
                18,
                others={1: ints(*axes)},
                positive=name == "LogSum",
            )
            yield f"Reduce{name} {place}", case


def sums_of_many() -> Iterator[tuple[str, Case]]:
    """Yield operators of many values, whose sums or products an engine may store on the way."""
    up_and_down = {
        i: np.full((16, 256), 30000 if i <= 20 else -30000, np.float16) for i in range(1, 40)
    }
    yield "Sum of 40", Case("Sum", ((16, 256),), others=up_and_down)
    yield (
        "ReduceLogSumExp of 70000",
        Case("ReduceLogSumExp", ((1, 70000),), 18, others={1: ints(1)}),
    )
    for name, places in (("ScatterElements", (8000,)), ("ScatterND", (8000, 1))):
        for reduction, value in (("add", 0.4), ("mul", 1.001)):
            updates: dict[int, Array] = {
                1: np.zeros(places, np.int64),
                2: np.full(8000, value, np.float16),
            }
            yield (
                f"{name} {reduction} of 8000",
                Case(name, ((8,),), 18, others=updates, attributes={"reduction": reduction}),
            )


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    image, rows = (2, 8, 16, 16), (16, 256)
    unary = (
        *("Sigmoid", "Tanh", "Exp", "Erf", "Sin", "Cos", "Softplus", "Softsign", "Elu", "Selu"),
        *("HardSigmoid", "HardSwish", "Neg", "Abs", "LeakyRelu", "Floor", "Round", "Reciprocal"),
        *("Relu", "ThresholdedRelu"),
    )
    found = {name: Case(name, (rows,)) for name in unary}
    found |= {name: Case(name, (rows,), positive=True) for name in ("Sqrt", "Log")}
    found |= {"Gelu": Case("Gelu", (rows,), 20), "Mish": Case("Mish", (rows,), 18)}
    found["Gelu tanh"] = Case("Gelu", (rows,), 20, attributes={"approximate": "tanh"})
    found |= {
        name: Case(name, (rows, rows)) for name in ("Add", "Sub", "Mul", "Div", "Max", "PRelu")
    }
    found["Pow 2"] = Case("Pow", (rows,), others={1: np.array(2, np.float16)})
    found["Pow 2.5"] = Case("Pow", (rows,), others={1: np.array(2.5, np.float16)}, positive=True)
    found["Pow 0.5"] = Case("Pow", (rows,), others={1: np.array(0.5, np.float16)}, positive=True)
    found["Sum of 3"] = Case("Sum", (rows, rows, rows))
    found |= dict(sums_of_many())
    found["Mean of 3"] = Case("Mean", (rows, rows, rows))
    found["Mod"] = Case("Mod", (rows, rows), attributes={"fmod": 1})
    found |= dict(reductions())
    found["GlobalAveragePool"] = Case("GlobalAveragePool", ((2, 8, 64, 64),))
    found["GlobalMaxPool"] = Case("GlobalMaxPool", (image,))
    pool = {"kernel_shape": [8, 8]}
    found["AveragePool"] = Case("AveragePool", (image,), attributes=pool)
    found["LpPool"] = Case("LpPool", (image,), attributes={**pool, "p": 2})
    found["GlobalLpPool"] = Case("GlobalLpPool", (image,), attributes={"p": 2})
    found["Softmax"] = Case("Softmax", (rows,), attributes={"axis": -1})
    found["Softmax between"] = Case("Softmax", ((4, 32, 64),), attributes={"axis": 1})
    found["LogSoftmax"] = Case("LogSoftmax", (rows,), attributes={"axis": -1})
    found["LayerNormalization"] = Case("LayerNormalization", (rows, (256,), (256,)))
    found["RMSNormalization"] = Case("RMSNormalization", (rows, (256,)), 23)
    found["InstanceNormalization"] = Case("InstanceNormalization", (image, (8,), (8,)))
    found["GroupNormalization"] = Case(
        "GroupNormalization", (image, (8,), (8,)), 21, attributes={"num_groups": 2}
    )
    found["MeanVarianceNormalization"] = Case("MeanVarianceNormalization", (image,))
    found["LpNormalization"] = Case("LpNormalization", (rows,), attributes={"p": 2})
    found["LRN"] = Case("LRN", (image,), attributes={"size": 3})
    ones = {i: np.abs(drawn((8,), i)) for i in (1, 2, 3, 4)}
    found["BatchNormalization"] = Case("BatchNormalization", (image,), others=ones)
    found["MatMul"] = Case("MatMul", (rows, (256, 64)))
    found["MatMul long"] = Case("MatMul", ((4, 16384), (16384, 4)))
    found["MatMul batched"] = Case("MatMul", ((3, 16, 256), (3, 256, 64)))
    found["MatMul vector"] = Case("MatMul", (rows, (256,)))
    found["Gemm"] = Case("Gemm", (rows, (256, 64), (64,)), attributes={"alpha": 0.5, "beta": 2.0})
    found["Einsum"] = Case("Einsum", (rows, (256, 8)), attributes={"equation": "ab,bc->ac"})
    pads = {"pads": [1, 1, 1, 1]}
    found["Conv"] = Case("Conv", (image, (16, 8, 3, 3), (16,)), attributes=pads)
    found["Conv 1x1"] = Case("Conv", ((1, 512, 8, 8), (16, 512, 1, 1)))
    found["Conv depthwise"] = Case("Conv", (image, (8, 1, 3, 3)), attributes={**pads, "group": 8})
    found["Conv 1D"] = Case("Conv", ((2, 8, 64), (16, 8, 5)))
    found["Conv 3D"] = Case("Conv", ((1, 4, 8, 8, 8), (8, 4, 3, 3, 3)))
    found["ConvTranspose"] = Case(
        "ConvTranspose", (image, (8, 4, 2, 2)), attributes={"strides": [2, 2]}
    )
    for mode in ("linear", "cubic"):
        none: Array = np.array([], np.float16)
        scales = {1: none, 2: np.array([1, 1, 1.7, 1.7], np.float32)}
        found[f"Resize {mode}"] = Case(
            "Resize", (image,), others=scales, attributes={"mode": mode}
        )
    found["GridSample"] = Case("GridSample", (image, (2, 8, 8, 2)))
    found["CumSum"] = Case("CumSum", (rows,), others={1: np.array(1, np.int64)})
    for name, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = ((12, 2, 4), (1, gates * HIDDEN, 4), (1, gates * HIDDEN, HIDDEN))
        found[name] = Case(name, weights, outputs=1, attributes={"hidden_size": HIDDEN})
    heads = {"q_num_heads": 4, "kv_num_heads": 4}
    tokens = ((2, 16, 64),) * 3
    found["Attention 23"] = Case("Attention", tokens, 23, attributes=heads)
    found["Attention 24"] = Case("Attention", tokens, 24, attributes=heads)
    ends = {1: np.array(-3, np.float16), 2: np.array(3, np.float16)}
    found["Clip"] = Case("Clip", (rows,), others=ends)
    return found


def drawn(shape: tuple[int, ...], seed: int) -> Array:
    """Return normal values that FP16 holds exactly."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def _cancelling(array: Array) -> Array:
    """Return values whose sum leaves FP16 on the way: large ones, taken back later."""
    flat = array.reshape(-1)
    half = flat.size // 2
    flat = np.concatenate([np.abs(flat[:half]), -np.abs(flat[:half]), flat[2 * half :]])
    return (flat * 900).astype(np.float16).reshape(array.shape)


KINDS: Mapping[str, Callable[[Array], Array]] = {
    "normal": lambda x: x,
    "large": lambda x: (x * 300).astype(np.float16),
    "larger": lambda x: (x * 6000).astype(np.float16),
    "small": lambda x: (x / 4000).astype(np.float16),
    "offset": lambda x: (x + 100).astype(np.float16),
    "cancelling": _cancelling,
}


def graph_of(case: Case, inputs: Mapping[int, Array], elem: int) -> onnx.ModelProto:
    """Return the operator alone, its float tensors of `elem`."""
    dtype = np.float16 if elem == HALF else np.float32
    names, given, held = [], [], []
    for i in range(max([*inputs, *case.others]) + 1):
        name = f"x{i}"
        if i in inputs:
            given.append(helper.make_tensor_value_info(name, elem, inputs[i].shape))
        else:
            value = np.asarray(case.others[i])
            if value.dtype == np.float16:
                value = value.astype(dtype)
            held.append(numpy_helper.from_array(value, name))
        names.append(name)
    outputs = ["y", *(f"z{i}" for i in range(case.outputs - 1))]
    node = helper.make_node(case.op_type, names, outputs, **case.attributes)
    made = helper.make_tensor_value_info("y", elem, None)
    graph = helper.make_graph([node], "one", given, [made], held)
    opsets = [helper.make_opsetid("", case.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(proto: onnx.ModelProto, feed: Mapping[str, Array], provider: Any) -> tuple[Array, bool]:
    """Return the output, and whether the provider itself computed it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=[provider])
    placed = {each.ep_name for each in session.get_provider_graph_assignment_info()}
    wanted = provider if isinstance(provider, str) else provider[0]
    return session.run(["y"], dict(feed))[0], placed == {wanted}


def compared(case: Case, kind: str, provider: Any) -> dict[str, Any]:
    """Return how far the provider's FP16 is from FP32 inside."""
    inputs = {i: drawn(shape, i) for i, shape in enumerate(case.shapes)}
    first = np.abs(inputs[0]) if case.positive else inputs[0]
    inputs[0] = KINDS[kind](first)
    if case.positive:
        inputs[0] = np.abs(inputs[0])
    feed = {f"x{i}": array for i, array in inputs.items()}
    got, there = run(graph_of(case, inputs, HALF), feed, provider)
    exact_feed = {name: array.astype(np.float32) for name, array in feed.items()}
    exact, _ = run(graph_of(case, inputs, FULL), exact_feed, "CPUExecutionProvider")
    with np.errstate(all="ignore"):
        wanted = exact.astype(np.float16)
        units = np.spacing(np.abs(wanted)).astype(np.float64)
    finite = np.isfinite(got) & np.isfinite(wanted)
    odd = int(np.sum(np.isfinite(got) != np.isfinite(wanted)))
    found: dict[str, Any] = {"placed": there, "not_finite_on_one_side": odd}
    if finite.any():
        far = np.abs(got[finite].astype(np.float64) - exact[finite])
        top = units[finite][np.abs(wanted[finite]).argmax()]
        found["ulps"] = round(float((far / units[finite]).max()), 2)
        found["ulps_of_largest"] = round(float(far.max() / top), 2)
    return found


def main() -> None:
    """Measure, print a row for each operator, and write all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    cuda = ("CUDAExecutionProvider", {"use_tf32": "0"})
    provider: Any = cuda if given.provider == "cuda" else "CPUExecutionProvider"
    rows: dict[str, dict[str, Any]] = {}
    for name, case in cases().items():
        rows[name] = {}
        for kind in KINDS:
            try:
                rows[name][kind] = compared(case, kind, provider)
            except Exception as error:  # a library's refusal is a row, too
                rows[name] = {"refused": str(error).splitlines()[0][:200]}
                break
        print(name, json.dumps(rows[name]))
    whole = {
        "onnxruntime": ort.__version__,
        "provider": given.provider,
        "gpus": gpu_query("name", "driver_version") or [],
        "operators": rows,
    }
    given.out.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
