"""Which FP32 products ONNX Runtime's CUDA provider gives to tensor cores, and what rounds them.

    python benchmarks/tf32_products.py --out tf32.json

Each operator runs alone, in FP32, with `use_tf32` off and on. Reported: the root mean square
distance of both from double precision, and of the second from products in double precision whose
operands were rounded to TF32, to nearest even or by cutting bits off.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from gpu_job import gpu_query
from onnx import helper, numpy_helper
from torch.nn import functional

FLOAT = onnx.TensorProto.FLOAT
DROPPED = 13
"""Bits of an FP32 mantissa that TF32 does not have."""


@dataclass(frozen=True)
class Case:
    """One operator with the shapes of its operands, and the same in PyTorch."""

    op_type: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    exact: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constant: bool = True


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    found = {}
    for rows, shared, columns in ((64, 64, 64), (256, 1024, 256), (1, 1024, 1000), (7, 33, 5)):
        shapes = ((rows, shared), (shared, columns))
        found[f"MatMul {rows}x{shared}x{columns}"] = Case("MatMul", shapes, torch.matmul)
    found["MatMul batched"] = Case("MatMul", ((16, 197, 768), (768, 3072)), torch.matmul)
    heads = ((8, 12, 128, 64), (8, 12, 64, 128))
    found["MatMul of activations"] = Case("MatMul", heads, torch.matmul, constant=False)
    found["Gemm"] = Case("Gemm", ((32, 512), (256, 512)), lambda x, w: x @ w.T, {"transB": 1})
    pad = {"pads": [1, 1, 1, 1]}

    def conv(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, w, padding=1)

    for name, channels, size in (
        ("", 64, 56),
        (" wide", 512, 14),
        (" of 3", 3, 56),
        (" of 5", 5, 33),
    ):
        images = ((1, channels, size, size), (64, channels, 3, 3))
        found[f"Conv{name}"] = Case("Conv", images, conv, pad)
    found["Conv batch of 8"] = Case("Conv", ((8, 64, 56, 56), (64, 64, 3, 3)), conv, pad)
    found["Conv 1x1"] = Case("Conv", ((1, 256, 28, 28), (128, 256, 1, 1)), functional.conv2d)
    for groups, name in ((64, "depthwise"), (8, "grouped")):
        found[f"Conv {name}"] = Case(
            "Conv",
            ((1, 64, 56, 56), (64, 64 // groups, 3, 3)),
            lambda x, w, groups=groups: functional.conv2d(x, w, padding=1, groups=groups),  # type: ignore[misc]
            {**pad, "group": groups},
        )
    found["Conv 1D"] = Case("Conv", ((1, 64, 400), (64, 64, 5)), functional.conv1d)
    found["Conv 3D"] = Case("Conv", ((1, 16, 8, 16, 16), (16, 16, 3, 3, 3)), functional.conv3d)
    found["ConvTranspose"] = Case(
        "ConvTranspose",
        ((1, 32, 28, 28), (32, 16, 2, 2)),
        lambda x, w: functional.conv_transpose2d(x, w, stride=2),
        {"strides": [2, 2]},
    )
    return found


def nearest(x: torch.Tensor) -> torch.Tensor:
    """Return FP32 values with ten bits of mantissa, to nearest even."""
    bits = x.contiguous().view(torch.int32)
    half = 2 ** (DROPPED - 1) - 1 + ((bits >> DROPPED) & 1)
    rounded: torch.Tensor = ((bits + half) & ~(2**DROPPED - 1)).view(torch.float32)
    return rounded


def cut(x: torch.Tensor) -> torch.Tensor:
    """Return FP32 values whose last bits of mantissa are cut off."""
    bits = x.contiguous().view(torch.int32)
    short: torch.Tensor = (bits & ~(2**DROPPED - 1)).view(torch.float32)
    return short


def run(case: Case, x: torch.Tensor, w: torch.Tensor, *, tf32: bool) -> torch.Tensor:
    """Return what ONNX Runtime computes on CUDA."""
    given = [helper.make_tensor_value_info("x", FLOAT, x.shape)]
    feed, held = {"x": x.numpy()}, [numpy_helper.from_array(w.numpy(), "w")]
    if not case.constant:
        given.append(helper.make_tensor_value_info("w", FLOAT, w.shape))
        feed["w"], held = w.numpy(), []
    node = helper.make_node(case.op_type, ["x", "w"], ["y"], **case.attributes)
    made = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph([node], "one", given, [made], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    provider = ("CUDAExecutionProvider", {"use_tf32": str(int(tf32))})
    session = ort.InferenceSession(proto.SerializeToString(), providers=[provider])
    return torch.from_numpy(np.asarray(session.run(["y"], feed)[0]))


def measured(case: Case) -> dict[str, float]:
    """Return the distances of one case."""
    x, w = (
        torch.randn(*shape, generator=torch.Generator().manual_seed(i))
        for i, shape in enumerate(case.shapes)
    )
    exact = case.exact(x.double(), w.double())
    on = run(case, x, w, tf32=True).double()

    def rms(difference: torch.Tensor) -> float:
        return float(difference.pow(2).mean().sqrt())

    return {
        "off": rms(run(case, x, w, tf32=False).double() - exact),
        "on": rms(on - exact),
        "predicted": rms(case.exact(nearest(x).double(), nearest(w).double()) - exact),
        "from_nearest": rms(on - case.exact(nearest(x).double(), nearest(w).double())),
        "from_cut": rms(on - case.exact(cut(x).double(), cut(w).double())),
    }


def main() -> None:
    """Measure all cases, print them, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    rows = {}
    for name, case in cases().items():
        rows[name] = measured(case)
        print(name, {key: f"{value:.2g}" for key, value in rows[name].items()}, flush=True)
    facts = {"onnxruntime": ort.__version__, "gpu": gpu_query("name"), "cases": rows}
    out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
