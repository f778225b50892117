"""FP32 islands of one product or two between low layers, whose weights show in an engine's bytes.

Every weight of an island is filled with one value that FP16 cannot hold: an engine that has the
weights in FP32 has the four bytes of that value over and over, in whatever order it stores them.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from exports_models import export_of
from models import parse, save, with_weights
from precision_bisect.exports.write import mixed_model
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.settings.engine_settings import EngineSettings

REPEATED = 8
"""So many times in a row a value stands in an engine that has its weight in FP32."""


@dataclass(frozen=True)
class Island:
    """A network with `k`, and what is called `k...`, kept; `ends` are its input and its output.

    `weights` have a shape and the value that fills it. An island of two activations has none.
    """

    ends: str
    body: str
    weights: Mapping[str, tuple[tuple[int, ...], float]] = field(default_factory=dict)
    half: bool = False

    def proto(self) -> onnx.ModelProto:
        """Return the FP32 model."""
        arrays = {
            n: np.full(shape, value, np.float32) for n, (shape, value) in self.weights.items()
        }
        proto = parse(f"{self.ends} {{ {self.body} }}", opset=18, ir=10)
        for node in proto.graph.node:
            node.name = node.name or node.output[0]
        return with_weights(proto, arrays)

    def write(self, folder: Path, *, guard: bool = True) -> Path:
        """Write the typed model of the plan."""
        proto = self.proto()
        kept = [node.name for node in proto.graph.node if node.name.startswith("k")]
        settings = EngineSettings(io_types="fp16" if self.half else "model", guard_islands=guard)
        export = export_of(save(proto, folder, "fp32.onnx"), kept, settings)
        save_typed(mixed_model(export), folder / "typed.onnx")
        return folder / "typed.onnx"

    def lost(self, engine: bytes) -> list[str]:
        """Return the weights that an engine does not have in FP32."""
        fills = {name: struct.pack("<f", value) for name, (_, value) in self.weights.items()}
        return [name for name, fill in fills.items() if fill * REPEATED not in engine]


ROWS = "(float[64, 128] x) => (float[64, n] y)"
IMAGE = "(float[1, 16, 8, 8] x) => (float[1, 16, n, m] y)"
BATCH = "(float[2, 32, 32] x) => (float[2, n, m] y)"
BIG, SMALL = 123456.0, 1.23e-9
SQUARE = (128, 128)
ISLANDS: Mapping[str, Island] = {
    "MatMul, weights beyond FP16": Island(
        ROWS, "a = Sigmoid(x) [k] b = MatMul(a, w) y = Tanh(b)", {"w": (SQUARE, BIG)}
    ),
    "MatMul, weights of 1e-9": Island(
        ROWS, "a = Sigmoid(x) [k] b = MatMul(a, w) y = Tanh(b)", {"w": (SQUARE, SMALL)}
    ),
    "Gemm": Island(ROWS, "a = Sigmoid(x) [k] b = Gemm(a, w) y = Tanh(b)", {"w": (SQUARE, BIG)}),
    "Gemm, transposed, with a bias": Island(
        ROWS,
        "a = Sigmoid(x) [k] b = Gemm<transB = 1>(a, w, c) y = Tanh(b)",
        {"w": ((96, 128), BIG), "c": ((96,), 2.5e5)},
    ),
    "Einsum": Island(
        ROWS,
        'a = Sigmoid(x) [k] b = Einsum<equation = "ij,jk->ik">(a, w) y = Tanh(b)',
        {"w": (SQUARE, BIG)},
    ),
    "MatMul with a constant on the left": Island(
        BATCH, "a = Sigmoid(x) [k] b = MatMul(w, a) y = Tanh(b)", {"w": ((2, 32, 32), BIG)}
    ),
    "MatMul of a batch": Island(
        BATCH, "a = Sigmoid(x) [k] b = MatMul(a, w) y = Tanh(b)", {"w": ((2, 32, 32), BIG)}
    ),
    "MatMul of two activations": Island(
        BATCH, "a = Sigmoid(x) c = Cos(x) [k] b = MatMul(a, c) y = Tanh(b)"
    ),
    "Conv of one dimension": Island(
        "(float[1, 16, 32] x) => (float[1, 16, n] y)",
        "a = Sigmoid(x) [k] b = Conv(a, w) y = Tanh(b)",
        {"w": ((16, 16, 3), BIG)},
    ),
    "Conv of two": Island(
        IMAGE, "a = Sigmoid(x) [k] b = Conv(a, w) y = Tanh(b)", {"w": ((16, 16, 3, 3), SMALL)}
    ),
    "Conv of three": Island(
        "(float[1, 16, 6, 6, 6] x) => (float[1, 16, n, m, o] y)",
        "a = Sigmoid(x) [k] b = Conv(a, w) y = Tanh(b)",
        {"w": ((16, 16, 3, 3, 3), BIG)},
    ),
    "Conv with a bias": Island(
        IMAGE,
        "a = Sigmoid(x) [k] b = Conv(a, w, c) y = Tanh(b)",
        {"w": ((16, 16, 3, 3), BIG), "c": ((16,), 2.5e5)},
    ),
    "depthwise Conv": Island(
        IMAGE,
        "a = Sigmoid(x) [k] b = Conv<group = 16>(a, w) y = Tanh(b)",
        {"w": ((16, 1, 3, 3), BIG)},
    ),
    "grouped Conv": Island(
        IMAGE,
        "a = Sigmoid(x) [k] b = Conv<group = 2>(a, w) y = Tanh(b)",
        {"w": ((16, 8, 3, 3), BIG)},
    ),
    "ConvTranspose": Island(
        IMAGE,
        "a = Sigmoid(x) [k] b = ConvTranspose(a, w) y = Tanh(b)",
        {"w": ((16, 16, 2, 2), BIG)},
    ),
    "two products": Island(
        ROWS,
        "a = Sigmoid(x) [k0] b = MatMul(a, v) [k] c = MatMul(b, w) y = Tanh(c)",
        {"v": (SQUARE, BIG), "w": (SQUARE, SMALL)},
    ),
    "MatMul and a kept Add": Island(
        ROWS,
        "a = Sigmoid(x) [k0] b = MatMul(a, w) [k] d = Add(b, c) y = Tanh(d)",
        {"w": (SQUARE, BIG), "c": ((128,), 2.5e5)},
    ),
    "Transpose before, Reshape after": Island(
        "(float[64, 128] x) => (float[128, n, m] y) <int64[3] s = {128, 8, 8}>",
        "a = Sigmoid(x) t = Transpose(a) [k] b = MatMul(t, w) r = Reshape(b, s) y = Tanh(r)",
        {"w": ((64, 64), BIG)},
    ),
    "a kept product by one before": Island(
        ROWS + " <float one = {1}>",
        "a = Sigmoid(x) [k0] c = Mul(a, one) [k] b = MatMul(c, w) y = Tanh(b)",
        {"w": (SQUARE, BIG)},
    ),
    "a kept Add of zero before": Island(
        ROWS + " <float zero = {0}>",
        "a = Sigmoid(x) [k0] c = Add(zero, a) [k] b = MatMul(c, w) y = Tanh(b)",
        {"w": (SQUARE, BIG)},
    ),
    "a Cast from FP32 to FP32 before": Island(
        ROWS,
        "a = Sigmoid(x) c = Cast<to = 1>(a) [k] b = MatMul(c, w) y = Tanh(b)",
        {"w": (SQUARE, BIG)},
    ),
    "Casts to FP64 and back before": Island(
        ROWS,
        "a = Sigmoid(x) d = Cast<to = 11>(a) c = Cast<to = 1>(d) [k] b = MatMul(c, w) y = Tanh(b)",
        {"w": (SQUARE, BIG)},
    ),
    "an FP64 Transpose before": Island(
        "(float[64, 128] x) => (float[128, n] y)",
        "a = Sigmoid(x) d = Cast<to = 11>(a) t = Transpose(d) c = Cast<to = 1>(t)"
        " [k] b = MatMul(c, w) y = Tanh(b)",
        {"w": ((64, 64), BIG)},
    ),
    "at the start": Island(ROWS, "[k] b = MatMul(x, w) y = Tanh(b)", {"w": (SQUARE, BIG)}),
    "at the start, handed over in FP16": Island(
        ROWS, "[k] b = MatMul(x, w) y = Tanh(b)", {"w": (SQUARE, BIG)}, half=True
    ),
    "behind a Reshape of an FP16 input": Island(
        "(float[64, 128] x) => (float[128, n] y) <int64[2] s = {128, 64}>",
        "t = Reshape(x, s) [k] b = MatMul(t, w) y = Tanh(b)",
        {"w": ((64, 64), BIG)},
        half=True,
    ),
    "behind a Cast of the file's own": Island(
        "(float16[64, 128] x) => (float[64, n] y)",
        "c = Cast<to = 1>(x) [k] b = MatMul(c, w) y = Tanh(b)",
        {"w": (SQUARE, BIG)},
    ),
    "at the end": Island(ROWS, "a = Sigmoid(x) [k] y = MatMul(a, w)", {"w": (SQUARE, BIG)}),
    "at the end, handed over in FP16": Island(
        ROWS, "a = Sigmoid(x) [k] y = MatMul(a, w)", {"w": (SQUARE, BIG)}, half=True
    ),
    "in the body of an If": Island(
        "(float[64, 128] x, bool c) => (float[64, n] y)",
        "a = Sigmoid(x) i = If(c) < then_branch = t () => (float[64, 128] p)"
        " { p = MatMul(a, w) }, else_branch = e () => (float[64, 128] q) { q = Abs(a) }>"
        " y = Tanh(i)",
        {"w": (SQUARE, BIG)},
    ),
}
IN_FP32_ANYWAY: Sequence[str] = (
    *("Gemm, transposed, with a bias", "MatMul and a kept Add", "at the start", "at the end"),
    *("two products", "in the body of an If", "a kept Add of zero before"),
)
"""Islands that TensorRT-RTX 1.7.1 keeps without a guard, too."""
