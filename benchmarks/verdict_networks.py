"""Thirteen small networks for `verdicts.py`, each of another kind.

    pip install --group models && python benchmarks/verdict_networks.py FOLDER

Those of torch are written by its legacy exporter: a ViT, a masked encoder with dynamic shapes,
convolutions with unfolded BatchNorm, a U-Net, stacked LSTMs with a GRU, and a detector, once with
NonMaxSuppression behind. The others are written down here: opset 23 with Attention, If and Loop,
shared weights, FP16 inside, Q/DQ, and operators that are rarely met.
"""

import argparse
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser
from torch import Tensor, nn
from torch.nn import functional

Arrays = Mapping[str, Any]
RNG = np.random.default_rng(0)
WIDTH, HEADS = 64, 4


class Block(nn.Module):
    """A transformer's block; a mask is added to its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before(x)).reshape(batch, length, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (width // HEADS) ** -0.5
        if mask is not None:
            scores = scores + (1 - mask[:, None, None, :]) * -1e4
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        wide: Tensor = functional.gelu(self.wide(self.between(x)))
        moved: Tensor = x + self.narrow(wide)
        return moved


class Vit(nn.Module):
    """Patches, two blocks, and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, WIDTH, 8, 8), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


class Masked(nn.Module):
    """Tokens with a mask, of any number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, mask.float())
        logits: Tensor = self.head(x)
        return logits


class UNet(nn.Module):
    """Two levels with GroupNorm, a transposed convolution and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = self._layer(3, 16), self._layer(16, 32)
        self.deep, self.last = self._layer(32, 32), self._layer(32, 16)
        self.up, self.head = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(16, 3, 1)

    @staticmethod
    def _layer(given: int, width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(given, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.down(functional.avg_pool2d(a, 2))
        c = self.deep(functional.max_pool2d(b, 2))
        c = functional.interpolate(c, scale_factor=2, mode="bilinear", align_corners=False)
        image: Tensor = self.head(self.last(torch.cat([self.up(c + b), a], 1)))
        return image


class Recurrent(nn.Module):
    """Two LSTMs that read both ways, then a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)
        self.lstm = nn.LSTM(32, 32, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(64, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(torch.relu(self.first(x)))
        y, _ = self.gru(y)
        return torch.log_softmax(self.last(y), -1)


class Detector(nn.Module):
    """Boxes and scores of a grid, of which the best twenty are taken."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.body = nn.Sequential(*layers)
        self.classes, self.boxes = nn.Conv2d(32, 4, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        scores = self.classes(y).flatten(2).sigmoid().max(1)[0]
        box = self.boxes(y).flatten(2).transpose(1, 2)
        half = box[..., 2:].exp() / 2
        box = torch.cat([box[..., :2] - half, box[..., :2] + half], -1)
        best, index = scores.topk(20, dim=1)
        return torch.gather(box, 1, index[..., None].expand(-1, -1, 4)), best


def convolutions() -> nn.Module:
    """Return convolutions with BatchNorm, Hardswish and SiLU."""
    made = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.Hardswish()),
        *(nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.SiLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    for each in made.modules():
        if isinstance(each, nn.BatchNorm2d) and each.running_var is not None:
            each.running_var.uniform_(0.5, 2)
    return made


def export(path: Path, module: nn.Module, args: tuple[Tensor, ...], **settings: Any) -> None:
    """Write a module as the legacy exporter does, in evaluation mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), args, path, **{"opset_version": 17, "dynamo": False, **settings}
        )


def of_torch(folder: Path) -> None:
    """Write the networks of torch."""
    torch.manual_seed(0)
    export(folder / "vit.onnx", Vit(), (torch.randn(1, 3, 64, 64),), input_names=["image"])
    tokens = (torch.randint(0, 100, (2, 16)), torch.ones(2, 16, dtype=torch.int64))
    sizes = {name: {0: "b", 1: "s"} for name in ("ids", "mask")}
    export(
        folder / "masked.onnx", Masked(), tokens, input_names=["ids", "mask"], dynamic_axes=sizes
    )
    export(
        folder / "convbn.onnx",
        convolutions(),
        (torch.randn(1, 3, 32, 32),),
        opset_version=15,
        do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
    )
    image = (torch.randn(1, 3, 32, 32),)
    sizes = {"x": {0: "b", 2: "h", 3: "w"}}
    export(folder / "unet.onnx", UNet(), image, input_names=["x"], dynamic_axes=sizes)
    export(folder / "lstm.onnx", Recurrent(), (torch.randn(2, 12, 16),), input_names=["x"])
    names = ["boxes", "scores"]
    export(folder / "det.onnx", Detector(), (torch.randn(1, 3, 64, 64),), output_names=names)
    onnx.save(with_nms(onnx.load(folder / "det.onnx")), folder / "detnms.onnx")


def with_nms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the detector with NonMaxSuppression behind it."""
    numbers = {
        "most": np.array([5]), "overlap": np.array([0.5], np.float32), "axis": np.array([1]),
        "least": np.array([0.01], np.float32), "column": np.array([2]),
    }  # fmt: skip
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in numbers.items())
    steps: Sequence[tuple[str, Sequence[str], str, dict[str, Any]]] = (
        ("Unsqueeze", ["scores", "axis"], "scored", {}),
        ("NonMaxSuppression", ["boxes", "scored", "most", "overlap", "least"], "chosen", {}),
        ("Gather", ["chosen", "column"], "numbers", {"axis": 1}),
        ("Squeeze", ["numbers", "axis"], "row", {}),
        ("Gather", ["boxes", "row"], "kept", {"axis": 1}),
        ("Mul", ["kept", "overlap"], "kept2", {}),
    )
    model.graph.node.extend(
        helper.make_node(op, read, [out], f"nms_{out}", **more) for op, read, out, more in steps
    )
    shape = [1, None, 4]
    model.graph.output.append(helper.make_tensor_value_info("kept2", TensorProto.FLOAT, shape))
    return model


def drawn(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
    """Return normal numbers."""
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def written(body: str, weights: Arrays, opset: int = 17) -> onnx.ModelProto:
    """Return the model of this text, with these weights; every node has a name."""
    head = f'<ir_version: {10 if opset > 17 else 9}, opset_import: ["": {opset}]> g '
    model = parser.parse_model(head + body)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    return model


def with_attention() -> onnx.ModelProto:
    """Return a decoder's block as opset 23 writes it."""
    shapes = {
        "wq": (WIDTH, WIDTH), "wk": (WIDTH, WIDTH // 2), "wv": (WIDTH, WIDTH // 2),
        "wo": (WIDTH, WIDTH), "w1": (WIDTH, 2 * WIDTH), "w2": (2 * WIDTH, WIDTH),
    }  # fmt: skip
    ones = dict.fromkeys(("g1", "g2"), np.ones(WIDTH, np.float32))
    body = """(float[1, 16, 64] x) => (float[1, 16, 64] y) {
        h = RMSNormalization<axis = -1>(x, g1)
        q = MatMul(h, wq) k = MatMul(h, wk) v = MatMul(h, wv)
        a = Attention<q_num_heads = 4, kv_num_heads = 2, is_causal = 1>(q, k, v)
        o = MatMul(a, wo) r = Add(x, o) s = RMSNormalization<axis = -1>(r, g2)
        f = MatMul(s, w1) e = Gelu(f) d = MatMul(e, w2) y = Add(r, d) }"""
    return written(body, ones | {n: drawn(*s, scale=0.15) for n, s in shapes.items()}, opset=23)


def with_branches() -> onnx.ModelProto:
    """Return an If and a Loop between products."""
    weights: Arrays = {
        "w": drawn(8, 8), "v": drawn(8, 8), "wt": drawn(8, 8), "wl": drawn(8),
        "zero": np.float32(0), "trip": np.int64(3), "true": np.array(True),
    }  # fmt: skip
    body = """(float[1, 8] x) => (float[1, 8] y) {
        m = MatMul(x, w) t = ReduceSum<keepdims = 0>(x) c = Greater(t, zero)
        i = If(c) <then_branch = th () => (float[1, 8] p) { p = MatMul(m, wt) },
                   else_branch = el () => (float[1, 8] r) { r = Relu(m) }>
        l = Loop(trip, true, i) <body = lo (int64 n, bool a, float[1, 8] s) =>
            (bool b, float[1, 8] u) { d = Mul(s, wl) u = Tanh(d) b = Identity(a) }>
        e = Softmax(l) y = MatMul(e, v) }"""
    return written(body, weights)


def with_shared_weights() -> onnx.ModelProto:
    """Return products that share a weight, and an embedding that is the head, too."""
    body = """(int64[1, 6] ids) => (float[1, 6, 50] y) {
        e = Gather(table, ids) a = MatMul(e, w) b = Tanh(a) c = MatMul(b, w) d = Add(c, v)
        f = Mul(d, v) t = Transpose<perm = [1, 0]>(table) y = MatMul(f, t) }"""
    return written(body, {"table": drawn(50, 32), "w": drawn(32, 32, scale=0.2), "v": drawn(32)})


def with_halves() -> onnx.ModelProto:
    """Return a model that computes in FP16 in its midst."""
    body = """(float[4, 32] x) => (float[4, 32] y) {
        a = MatMul(x, w) h = Cast<to = 10>(a) b = MatMul(h, v) r = Relu(b)
        c = Cast<to = 1>(r) s = Softmax(c) y = MatMul(s, w) }"""
    return written(body, {"w": drawn(32, 32), "v": drawn(32, 32).astype(np.float16)})


def quantized() -> onnx.ModelProto:
    """Return convolutions between QuantizeLinear and DequantizeLinear, with a float tail."""
    steps = {"x": 0.03, "w1": 0.008, "r": 0.03, "w2": 0.004}

    def pair(name: str) -> str:
        read = f"{name}, {name}_step, {name}_zero"
        back = f"{name}_q, {name}_step, {name}_zero"
        return f"{name}_q = QuantizeLinear({read}) {name}_d = DequantizeLinear({back})"

    body = f"""(float[1, 3, 16, 16] x) => (float[1, 10] y) {{
        {pair("x")} {pair("w1")} c = Conv<pads = [1, 1, 1, 1]>(x_d, w1_d, b1) r = Relu(c)
        {pair("r")} {pair("w2")} d = Conv<pads = [1, 1, 1, 1]>(r_d, w2_d) e = Exp(d)
        p = GlobalAveragePool(e) f = Flatten(p) g = Gemm<alpha = 0.5>(f, w3, b3)
        y = Softmax(g) }}"""
    weights: dict[str, Any] = {
        "w1": drawn(16, 3, 3, 3, scale=0.2), "b1": drawn(16),
        "w2": drawn(16, 16, 3, 3, scale=0.1), "w3": drawn(16, 10), "b3": drawn(10),
    }  # fmt: skip
    weights |= {f"{name}_step": np.float32(step) for name, step in steps.items()}
    return written(body, weights | {f"{name}_zero": np.int8(0) for name in steps})


def with_oddities() -> onnx.ModelProto:
    """Return operators that are rarely met, in a row."""
    weights: Arrays = {
        "axis": np.int64(1), "scale": drawn(4), "shift": drawn(4), "slope": drawn(4, 1, 1),
        "power": np.float32(2.5), "by": np.float32(0.3), "low": np.float32(-3),
        "high": np.float32(3), "zero": np.float32(0), "other": drawn(1, 4, 8, 8),
        "grid": drawn(1, 8, 8, 2, scale=0.5), "w": drawn(8, 8), "v": drawn(4, 6), "b": drawn(6),
        "sizes": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip
    body = """(float[1, 4, 8, 8] x) => (float[1, 6] y) {
        a = CumSum(x, axis) c = InstanceNormalization(a, scale, shift) d = PRelu(c, slope)
        e = Clip(d, low, high) f = Abs(e) g = Pow(f, power) h = Mod<fmod = 1>(g, by)
        i = Greater(x, zero) j = Where(i, h, other) k = GridSample(j, grid)
        l = Einsum<equation = "bchw,wk->bchk">(k, w) m = Resize<mode = "linear">(l, , sizes)
        n = LpNormalization<axis = -1, p = 2>(m) o = ReduceMax<axes = [2, 3], keepdims = 0>(n)
        p = Gemm<alpha = 0.5, beta = 2.0>(o, v, b) y = LogSoftmax(p) }"""
    return written(body, weights)


def main() -> None:
    """Write all networks into a folder."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("folder", type=Path)
    folder: Path = asked.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    of_torch(folder)
    made = {
        "opset23": with_attention(), "ifloop": with_branches(), "shared": with_shared_weights(),
        "half": with_halves(), "qdq": quantized(), "odd": with_oddities(),
    }  # fmt: skip
    for name, model in made.items():
        onnx.save(model, folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
