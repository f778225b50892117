"""Networks with what FP16 is known to be bad at: timesteps, massive activations, routing, NMS.

The U-Net follows Stable Diffusion's, with sines of a timestep that goes to 999. In the vision
transformer one channel of a register is in the thousands from the second block on, as in trained
ones (Sun et al., "Massive Activations in Large Language Models", 2024), and its norms are written
out, as exporters do below opset 17. The mixture of experts sends each token to two of
eight. The decoder takes one token and what it kept of those before. All have random weights but
the detector: that is a trained YOLOX with its boxes decoded, and selected by NonMaxSuppression.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from zoo.inputs import LENGTH
from zoo.modules import HEADS, Block, Transformer, angles, turned

GROUPS = 8
EXPERTS, ACTIVE = 8, 2
MASSIVE, LOUD = 11, 60.0
"""The channel that is massive, and the weight that makes it so."""
STRIDES = (8, 16, 32)
MOST, OVERLAP, LEAST = 20, 0.45, 0.1
"""Of NonMaxSuppression: boxes, their largest overlap, the smallest score."""


class Steps(nn.Module):
    """Sines and cosines of a timestep, and two linear layers."""

    speeds: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        half = torch.arange(width // 2)
        self.register_buffer("speeds", 10_000 ** (-half / (width // 2)))
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, 4 * width)

    def forward(self, t: Tensor) -> Tensor:
        turns = t[:, None] * self.speeds[None]
        wide = self.first(torch.cat((turns.cos(), turns.sin()), -1))
        told: Tensor = self.second(functional.silu(wide))
        return told


class Timed(nn.Module):
    """The U-Net's residual block: norms of groups, the step added between two convolutions."""

    def __init__(self, given: int, width: int, told: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(GROUPS, given), nn.GroupNorm(GROUPS, width)
        self.into = nn.Conv2d(given, width, 3, padding=1)
        self.out = nn.Conv2d(width, width, 3, padding=1)
        self.step = nn.Linear(told, width)
        self.side = nn.Identity() if given == width else nn.Conv2d(given, width, 1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        y = self.into(functional.silu(self.first(x)))
        y = y + self.step(functional.silu(step))[:, :, None, None]
        stream: Tensor = self.side(x) + self.out(functional.silu(self.second(y)))
        return stream


class Looks(nn.Module):
    """Attention among the places of a picture, behind a norm of groups."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width)
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, across = x.shape
        flat = self.norm(x).reshape(batch, width, -1).transpose(1, 2)
        query, key, value = (part(flat) for part in self.parts)
        weights = torch.softmax(query @ key.transpose(-1, -2) / width**0.5, -1)
        mixed = self.out(weights @ value).transpose(1, 2)
        stream: Tensor = x + mixed.reshape(batch, width, height, across)
        return stream


class UNet(nn.Module):
    """Three levels down and up again; `latent` (1, 4, 32, 32) and `t` (1,) to the noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        told, widths = 4 * width, (width, 2 * width, 4 * width)
        self.steps = Steps(width)
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList(
            Timed(given, wide, told) for given, wide in zip((width, *widths), widths, strict=False)
        )
        self.halves = nn.ModuleList(nn.Conv2d(wide, wide, 3, 2, 1) for wide in widths[:-1])
        self.middle, self.looks = Timed(widths[-1], widths[-1], told), Looks(widths[-1])
        self.up = nn.ModuleList(
            Timed(given + wide, wide, told)
            for given, wide in zip((widths[-1], *widths[::-1]), widths[::-1], strict=False)
        )
        self.norm, self.last = nn.GroupNorm(GROUPS, width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, latent: Tensor, t: Tensor) -> Tensor:
        step, x, kept = self.steps(t), self.first(latent), []
        for level, block in enumerate(self.down):
            x = block(x, step)
            kept.append(x)
            if level < len(self.halves):
                x = self.halves[level](x)
        x = self.looks(self.middle(x, step))
        for level, block in enumerate(self.up):
            x = block(torch.cat((x, kept.pop()), 1), step)
            if level < len(self.halves):
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        noise: Tensor = self.last(functional.silu(self.norm(x)))
        return noise


def unet() -> nn.Module:
    """Return a U-Net of 64 to 256 channels."""
    return UNet(64)


class WrittenNorm(nn.LayerNorm):
    """LayerNorm in single operators."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return centred / spread * self.weight + self.bias


class Encoding(nn.Module):
    """A vision transformer's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = WrittenNorm(width), WrittenNorm(width)
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        size = width // HEADS
        parts = self.parts(self.first(x)).reshape(batch, length, 3, HEADS, size)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(-1, -2) / size**0.5, -1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        stream: Tensor = x + self.narrow(functional.gelu(self.wide(self.second(x))))
        return stream


class VisionTransformer(nn.Module):
    """Patches of 8 by 8, whose mean gives a thousand logits, and a register beside them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(1, 65, width))
        self.blocks = nn.ModuleList(Encoding(width) for _ in range(depth))
        self.norm, self.head = WrittenNorm(width), nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token, patches), 1) + self.places
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)[:, 1:].mean(1))
        return logits


def vision_transformer() -> nn.Module:
    """Return a transformer of six blocks; the second makes a channel of the register massive.

    One unit of its feed-forward part looks for the register, and writes to that channel alone.
    """
    made = VisionTransformer(192, 6)
    block = made.blocks[1]
    assert isinstance(block, Encoding)
    with torch.no_grad():
        sign = made.token[0, 0] / made.token.norm()
        block.wide.weight[0] = 8 * sign
        block.wide.bias[0] = -16
        block.narrow.weight[MASSIVE, 0] = LOUD
    return made


class Experts(nn.Module):
    """Eight feed-forward parts, of which each token has the two that its router prefers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(EXPERTS))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.softmax(self.router(x), -1)
        best, places = torch.topk(shares, ACTIVE)
        best = best / best.sum(-1, keepdim=True)
        weights = torch.zeros_like(shares).scatter(-1, places, best)
        each = [down(functional.silu(up(x))) for up, down in zip(self.up, self.down, strict=True)]
        mixed: Tensor = (torch.stack(each, -1) * weights[..., None, :]).sum(-1)
        return mixed


class Mixed(nn.Module):
    """Experts in the place of a gated feed-forward part."""

    def __init__(self, block: Block, width: int) -> None:
        super().__init__()
        self.first, self.second = block.first, block.second
        self.attention, self.experts = block.attention, Experts(width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), bias)
        stream: Tensor = x + self.experts(self.second(x))
        return stream


def mixture() -> nn.Module:
    """Return a decoder of four blocks of 128 with experts, for LENGTH ids."""
    made = Transformer(width=128, depth=4, length=LENGTH, decoder=True)
    blocks = [block for block in made.blocks if isinstance(block, Block)]
    made.blocks = nn.ModuleList(Mixed(block, 128) for block in blocks)
    return made


class Step(nn.Module):
    """A decoder's next token: its id, its place, keys and values of those before it."""

    angles: Tensor

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        whole = Transformer(width=width, depth=depth, length=LENGTH, decoder=True)
        self.embedding, self.blocks = whole.embedding, whole.blocks
        self.norm, self.head, self.size = whole.norm, whole.head, width // HEADS
        self.register_buffer("angles", angles(self.size))
        with torch.no_grad():
            self.embedding.weight *= 20
            self.embedding.weight[:, 7] += 300

    def forward(
        self, ids: Tensor, place: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, ...]:
        x, turns = self.embedding(ids), self.angles[place]
        cached: tuple[list[Tensor], list[Tensor]] = ([], [])
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            query, key, value = (
                part(block.first(x)).view(1, 1, HEADS, self.size).transpose(1, 2)
                for part in block.attention.parts
            )
            query, key = (turned(each, turns.cos(), turns.sin()) for each in (query, key))
            key = torch.cat((keys[number], key), 2)
            value = torch.cat((values[number], value), 2)
            weights = torch.softmax(query @ key.transpose(-1, -2) / self.size**0.5, -1)
            x = x + block.attention.out((weights @ value).transpose(1, 2).reshape(x.shape))
            y = block.second(x)
            x = x + block.down(functional.silu(block.gate(y)) * block.up(y))
            for kept, all_of in zip(cached, (key, value), strict=True):
                kept.append(all_of)
        return self.head(self.norm(x)), *map(torch.stack, cached)


def decoder_step() -> nn.Module:
    """Return the zoo's decoder as it runs once for each token, with four layers."""
    return Step(256, 4)


def with_selection(path: Path) -> None:
    """Decode a YOLOX detector's raw output, and select boxes; they become the outputs.

    The file is replaced; the outputs are `boxes` (selected, 4) and `scores` (selected,).
    """
    model = onnx.load(path)
    graph = model.graph
    raw, side = graph.output[0].name, graph.input[0].type.tensor_type.shape.dim[2].dim_value
    cells = [
        (x, y, stride)
        for stride in STRIDES
        for y in range(side // stride)
        for x in range(side // stride)
    ]
    strides = np.array([stride for *_, stride in cells], np.float32)[None, :, None]
    places = np.array([each[:2] for each in cells], np.float32)[None]
    values = {
        "strides": strides,
        "places": places,
        "two": np.array(2, np.float32),
        "most": np.array(MOST),
        "overlap": np.array(OVERLAP, np.float32),
        "least": np.array(LEAST, np.float32),
        "last": np.array(2),
    }
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in values.items()
    )
    node = helper.make_node
    graph.node.extend(
        node(op, given.split(), made.split(), f"select/{made.split()[0]}", **more)
        for op, given, made, more in (
            ("Split", raw, "shift size object class", {"axis": 2, "split": [2, 2, 1, 1]}),
            ("Add", "shift places", "placed", {}),
            ("Mul", "placed strides", "centre", {}),
            ("Exp", "size", "grown", {}),
            ("Mul", "grown strides", "extent", {}),
            ("Div", "extent two", "half", {}),
            ("Sub", "centre half", "low", {}),
            ("Add", "centre half", "high", {}),
            ("Concat", "low high", "corners", {"axis": 2}),
            ("Mul", "object class", "score", {}),
            ("Transpose", "score", "by_class", {"perm": [0, 2, 1]}),
            ("NonMaxSuppression", "corners by_class most overlap least", "found", {}),
            ("Gather", "found last", "chosen", {"axis": 1}),
            ("Squeeze", "corners", "flat", {"axes": [0]}),
            ("Squeeze", "score", "flat_score", {"axes": [0, 2]}),
            ("Gather", "flat chosen", "boxes", {"axis": 0}),
            ("Gather", "flat_score chosen", "scores", {"axis": 0}),
        )
    )
    del graph.output[:]
    for name, sizes in (("boxes", ("selected", 4)), ("scores", ("selected",))):
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes))
    onnx.checker.check_model(model)
    onnx.save(model, path)
