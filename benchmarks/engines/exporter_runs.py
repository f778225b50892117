"""What the exporters of PyTorch write of modules; it runs in an environment with torch.

    python -m engines.exporter_runs

One line of JSON comes back: by module, exporter and type what is wrong with the file beside the
module as PyTorch runs it, in words; nothing where they do the same.
"""

import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto
from torch import Tensor, nn
from torch.nn import functional

from engines.children import Children, one_line

FAR = 0.03
"""A difference, as a share of the largest output, that the rounding of 16 bits does not make."""
TYPES: Mapping[str, torch.dtype] = {
    "FP32": torch.float32,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
}
AUTOCAST: Mapping[str, torch.dtype] = {
    "autocast FP16": torch.float16,
    "autocast BF16": torch.bfloat16,
}
KINDS = (*TYPES, *AUTOCAST)
EXPORTERS: Mapping[str, Mapping[str, Any]] = {
    "dynamo": {"dynamo": True, "optimize": True},
    "dynamo, optimize=False": {"dynamo": True, "optimize": False},
    "TorchScript": {"dynamo": False, "opset_version": 17},
}


class Calling(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the function makes of the inputs."""
        return self.function(*inputs)


class Autocast(nn.Module):
    """A module under autocast."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the module makes of the inputs."""
        with torch.autocast("cpu", self.dtype):
            found: Tensor = self.module(*inputs)
        return found


@dataclass(frozen=True)
class Subject:
    """A module, what it reads, and the operators that it runs in FP32 by an upcast of its own."""

    make: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    wide: tuple[str, ...] = ()


def _rows(zero: bool = False) -> Tensor:
    rows = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    if zero:
        rows[1] = 0
    return rows


def _heads() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 4, 8, generator=generator) for _ in range(3))
    return q, k, v


def _mask() -> Tensor:
    """Return a mask of the keys that each query sees; the first sees none."""
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[0] = False
    return mask


def _attention(mask: Tensor | None) -> Callable[..., Tensor]:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return function


def _masked_by_infinity(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2)
    return scores.masked_fill(~_mask(), -torch.inf).softmax(-1) @ v


def _masked_by_lowest(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2)
    return scores.masked_fill(~_mask(), torch.finfo(scores.dtype).min).softmax(-1) @ v


def _by_hand(x: Tensor) -> Tensor:
    """Return an RMS norm as decoders write it: in FP32, then back."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _of(function: Callable[..., Tensor], *inputs: Tensor, wide: tuple[str, ...] = ()) -> Subject:
    return Subject(lambda: Calling(function), inputs, wide)


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(2)
        return make().eval()

    return made


def subjects() -> dict[str, Subject]:
    """Return the modules by what is asked of them."""
    rows, zero, image = _rows(), _rows(zero=True), torch.randn(1, 4, 8, 8)
    single = torch.float32
    return {
        "x / (norm(x) + 1e-9), a row of 0": _of(
            lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-9), zero
        ),
        "x / (norm(x) + 1e-6), a row of 0": _of(
            lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-6), zero
        ),
        "rsqrt(mean(x * x) + 1e-8), a row of 0": _of(
            lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-8), zero
        ),
        "log(softmax(40 x) + 1e-9)": _of(lambda x: torch.log((40 * x).softmax(-1) + 1e-9), rows),
        "F.normalize, a row of 0": _of(lambda x: functional.normalize(x, dim=-1), zero),
        "x * 70000 / 70000": _of(lambda x: x * 70000.0 / 70000.0, rows),
        "softmax(x, dtype=float32)": _of(
            lambda x: x.softmax(-1, dtype=single).to(x.dtype), rows, wide=("Softmax",)
        ),
        "softmax(x.float())": _of(
            lambda x: x.float().softmax(-1).to(x.dtype), rows, wide=("Softmax",)
        ),
        "log_softmax(x, dtype=float32)": _of(
            lambda x: x.log_softmax(-1, dtype=single).to(x.dtype), rows, wide=("LogSoftmax",)
        ),
        "mean(x, dtype=float32)": _of(
            lambda x: x.mean(-1, dtype=single).to(x.dtype), rows, wide=("ReduceMean",)
        ),
        "sum(x, dtype=float32)": _of(
            lambda x: x.sum(-1, dtype=single).to(x.dtype), rows, wide=("ReduceSum",)
        ),
        "cumsum(x, dtype=float32)": _of(
            lambda x: x.cumsum(-1, dtype=single).to(x.dtype), rows, wide=("CumSum",)
        ),
        "RMS norm in FP32 by hand": _of(_by_hand, rows, wide=("ReduceMean", "Pow")),
        "nn.RMSNorm": Subject(_seeded(lambda: nn.RMSNorm(16)), (rows,)),
        "nn.LayerNorm": Subject(_seeded(lambda: nn.LayerNorm(16)), (rows,)),
        "Linear, then LayerNorm": Subject(
            _seeded(lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))), (rows,)
        ),
        "Conv, then BatchNorm": Subject(
            _seeded(lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))), (image,)
        ),
        "Conv, then InstanceNorm": Subject(
            _seeded(lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.InstanceNorm2d(4, affine=True))),
            (image,),
        ),
        "Conv, then GroupNorm": Subject(
            _seeded(lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4))), (image,)
        ),
        "Linear, GELU, Linear": Subject(
            _seeded(lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))),
            (rows,),
        ),
        "attention": _of(_attention(None), *_heads()),
        "attention, a boolean mask with an empty row": _of(_attention(_mask()), *_heads()),
        "attention in pieces, masked by -inf": _of(_masked_by_infinity, *_heads()),
        "attention in pieces, masked by its type's lowest": _of(_masked_by_lowest, *_heads()),
        "einsum": _of(lambda x: torch.einsum("ab,cb->ac", x, x), rows),
        "logsumexp": _of(lambda x: x.logsumexp(-1), rows),
        "std": _of(lambda x: x.std(-1), rows),
    }


def export(module: nn.Module, inputs: tuple[Tensor, ...], exporter: str, path: Path) -> None:
    """Write a file by one of the exporters. Raises whatever it does."""
    options = EXPORTERS[exporter]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(module, inputs, path, verbose=False, **options)


def read_types(model: onnx.ModelProto, operators: tuple[str, ...]) -> set[str]:
    """Return the types that operators of a file read first."""
    try:
        shaped = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError:
        shaped = model
    graph = shaped.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type in operators and node.input]
    found = {types.get(node.input[0], 0) for node in nodes}
    return {TensorProto.DataType.Name(kind) for kind in found}


def beside(eager: Tensor, output: Any) -> str:
    """Return in words how an output differs from the module's; nothing where it does not."""
    want, got = eager.detach().float().numpy(), np.asarray(output, np.float32)
    for name, test in (("NaN", np.isnan), ("inf", np.isinf)):
        if (test(got) & ~test(want)).any():
            place = np.argwhere(test(got) & ~test(want))[0]
            return f"{name} for {want[tuple(place)]:.3g}"
        if (test(want) & ~test(got)).any():
            place = np.argwhere(test(want) & ~test(got))[0]
            return f"{got[tuple(place)]:.3g} for {name}"
    fine = np.isfinite(want)
    apart = np.abs(np.where(fine, got - want, 0))
    if apart.max() <= FAR * np.abs(want[fine]).max(initial=0):
        return ""
    place = np.unravel_index(apart.argmax(), apart.shape)
    return f"{got[place]:.3g} for {want[place]:.3g}"


def one(name: str, exporter: str, kind: str) -> str:
    """Return what is wrong with a file, in words; nothing where it is as the module."""
    ort.set_default_logger_severity(4)
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    subject = subjects()[name]
    module, inputs = subject.make(), subject.inputs
    if kind in AUTOCAST:
        module = Autocast(module, AUTOCAST[kind])
    else:
        module = module.to(TYPES[kind])
        inputs = tuple(tensor.to(TYPES[kind]) for tensor in inputs)
    eager = module(*inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            export(module, inputs, exporter, path)
        except Exception as error:  # each of its exceptions is what came of the module
            return one_line(f"no file: {type(error).__name__}")
        model = onnx.load(path)
        words = []
        if kind != "FP32" and kind not in AUTOCAST and subject.wide:
            narrow = read_types(model, subject.wide) & {"FLOAT16", "BFLOAT16"}
            words += ["upcast gone"] if narrow else []
        try:
            onnx.checker.check_model(model, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            words.append("ill-typed")
        written = TensorProto.DataType.Name(model.graph.output[0].type.tensor_type.elem_type)
        wanted = {torch.float32: "FLOAT", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16"}
        if written != wanted[eager.dtype]:
            words.append(f"{written} for {wanted[eager.dtype]}")
        if "BFLOAT16" not in {written, *read_types(model, tuple(_operators(model)))}:
            words += _runs(path, inputs, eager)
    return ", ".join(words)


def _operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def _runs(path: Path, inputs: tuple[Tensor, ...], eager: Tensor) -> list[str]:
    """Return what is wrong with a file where it runs: ONNX Runtime's CPU has little of BF16."""
    try:
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        fed = {key: tensor.numpy() for key, tensor in zip(names, inputs, strict=True)}
        outputs: Any = session.run(None, fed)
    except Exception:
        return ["does not open"]
    words = beside(eager, outputs[0])
    return [words] if words else []


def main() -> None:
    """Print what is wrong with each file."""
    children = Children(120)
    rows = {
        name: {
            exporter: {kind: children.call(one, name, exporter, kind) for kind in KINDS}
            for exporter in EXPORTERS
        }
        for name in subjects()
    }
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
