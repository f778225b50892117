"""Networks of random weights, as the legacy exporter of torch writes them, with inline weights.

ResNet-18 and ConvNeXt-T are built as in torchvision; the encoder follows T5, the decoder Llama
with rotary embeddings. One channel of the decoder's stream is in the hundreds, as in trained ones,
and its RMSNorms square it. Normalizations and scales are drawn, so that no layer is an identity.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.inputs import LENGTH, VOCABULARY
from zoo.judge import Sample

HEADS = 4


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(given, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        same = given == width
        self.side = nn.Identity() if same else nn.Conv2d(given, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.main(x) + self.side(x))


def resnet18() -> nn.Module:
    """Return ResNet-18 for a thousand classes."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *head)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of (batch, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Next(nn.Module):
    """ConvNeXt's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.empty(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(functional.gelu(self.wide(y))).permute(0, 3, 1, 2)
        stream: Tensor = x + self.scale * y
        return stream


def convnext_tiny() -> nn.Module:
    """Return ConvNeXt-T for a thousand classes."""
    parts: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, eps=1e-6)]
    for width, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if width > 96:
            parts += [ChannelNorm(width // 2, eps=1e-6), nn.Conv2d(width // 2, width, 2, 2)]
        parts += [Next(width) for _ in range(depth)]
    head = (nn.AdaptiveAvgPool2d(1), ChannelNorm(768, eps=1e-6), nn.Flatten())
    return nn.Sequential(*parts, *head, nn.Linear(768, 1000))


class RMSNorm(nn.Module):
    """The root mean square's norm, written out as transformers writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean + 1e-6))


class Attention(nn.Module):
    """Attention with a bias on the scores; `rotary` turns queries and keys by their places."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, *, rotary: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.rotary, self.size = rotary, width // HEADS
        turns = angles(self.size)
        self.register_buffer("cos", turns.cos())
        self.register_buffer("sin", turns.sin())

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part(x).view(batch, length, HEADS, self.size).transpose(1, 2) for part in self.parts
        )
        if self.rotary:
            query, key = (turned(each, self.cos, self.sin) for each in (query, key))
            key = key / self.size**0.5
        weights = torch.softmax(query @ key.transpose(-1, -2) + bias, -1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        written: Tensor = self.out(mixed)
        return written


class Block(nn.Module):
    """Attention and a gated feed-forward part, each behind an RMSNorm."""

    def __init__(self, width: int, *, rotary: bool) -> None:
        super().__init__()
        self.first, self.second = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, rotary=rotary)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.attention(self.first(x), bias)
        y = self.second(x)
        stream: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return stream


class Transformer(nn.Module):
    """A stack of blocks over ids: T5's encoder, or a decoder as Llama's with its logits."""

    def __init__(self, *, width: int, depth: int, length: int, decoder: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, rotary=decoder) for _ in range(depth))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False) if decoder else nn.Identity()
        self.far = nn.Embedding(2 * length, HEADS)
        places = torch.arange(length)
        mask = torch.full((length, length), -1e4).triu(1)
        self.register_buffer("mask", mask)
        self.register_buffer("distance", places[:, None] - places[None, :] + length)
        self.decoder = decoder

    def forward(self, ids: Tensor) -> Tensor:
        bias = self.mask if self.decoder else self.far(self.distance).permute(2, 0, 1)
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, bias)
        out: Tensor = self.head(self.norm(x))
        return out


def encoder() -> nn.Module:
    """Return an encoder as T5's, six layers of 256, for LENGTH ids."""
    return Transformer(width=256, depth=6, length=LENGTH, decoder=False)


def decoder() -> nn.Module:
    """Return a decoder as Llama's, six layers of 256, for LENGTH ids; one channel is large."""
    made = Transformer(width=256, depth=6, length=LENGTH, decoder=True)
    with torch.no_grad():
        made.embedding.weight *= 20
        made.embedding.weight[:, 7] += 300
    return made


def write(
    make: Callable[[], nn.Module], sample: Sample, path: Path, outputs: Sequence[str], growing: int
) -> None:
    """Export a network at opset 17 for inputs of the sample's shapes.

    Of inputs with more than `growing` axes, that one is left open.
    """
    torch.manual_seed(0)
    model = make().eval()
    _draw(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            tuple(torch.from_numpy(np.asarray(value)) for value in sample.values()),
            str(path),
            input_names=list(sample),
            output_names=list(outputs),
            dynamic_axes={
                name: {growing: "past"} for name, value in sample.items() if value.ndim > growing
            },
            opset_version=17,
            dynamo=False,
        )


def _draw(model: nn.Module) -> None:
    """Draw what torch begins with ones and zeros: scales, shifts, means and variances."""
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, Residual):
                for weights in part.parameters():
                    if weights.dim() == 4:
                        nn.init.kaiming_normal_(weights, mode="fan_out", nonlinearity="relu")
            if isinstance(part, nn.BatchNorm2d):
                nn.init.normal_(part.get_buffer("running_mean"), 0, 0.2)
                nn.init.uniform_(part.get_buffer("running_var"), 0.5, 2)
                part.bias.normal_(0, 0.1)
            if isinstance(part, nn.BatchNorm2d | nn.LayerNorm | RMSNorm):
                part.weight.uniform_(0.3, 1.5)
            if isinstance(part, Next):
                part.scale.uniform_(-0.5, 0.5)


def angles(size: int) -> Tensor:
    """Return the rotary embedding's angles, shape (LENGTH, size)."""
    speeds = 10_000 ** (-torch.arange(0, size, 2) / size)
    return torch.arange(LENGTH)[:, None] * torch.cat((speeds, speeds))[None]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of channels by angles that grow with the place, as Llama does."""
    middle = x.shape[-1] // 2
    half = torch.cat((-x[..., middle:], x[..., :middle]), -1)
    return x * cos + half * sin
