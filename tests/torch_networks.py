"""Small networks in PyTorch, each with weights of a seed and one place that overflows in FP16.

Trained networks have such places: a channel of the stream in the hundreds, which norms square, and
sums over large maps.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WIDTH, HEADS = 32, 4


class RMSNorm(nn.Module):
    """The root mean square's norm, written out as transformers writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """Attention over (batch, length, channels)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        batch, length, _ = x.shape
        parts = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        weights = torch.softmax(query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, -1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH), Attention(), RMSNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """A vision transformer; a channel of its stream is 400 from the second block on."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        blocks = [Block() for _ in range(3)]
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)
        with torch.no_grad():
            blocks[1].attn.proj.bias[3] = 400
            self.head.weight *= 20
            self.head.weight[:, 3] = 0

    def forward(self, x: Tensor) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Residual(nn.Module):
    """A block of a diffusion U-Net: GroupNorm, SiLU and a convolution, twice."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.GroupNorm(4, given),
            nn.SiLU(),
            nn.Conv2d(given, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.skip = nn.Identity() if given == width else nn.Conv2d(given, width, 1)

    def forward(self, x: Tensor) -> Any:
        return self.skip(x) + self.main(x)


class Unet(nn.Module):
    """A U-Net; what enters its bottleneck's gate is squared, and is in the hundreds."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.ModuleList([Residual(8, 16), Residual(16, 16)])
        self.gate = ChannelGate()
        self.up = nn.ModuleDict({"mid": Residual(32, 16), "top": Residual(32, 8)})
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        first = self.down[0](self.stem(x))
        second = self.down[1](nn.functional.avg_pool2d(first, 2))
        deep = self.gate(second)
        deep = self.up["mid"](torch.cat((deep, second), 1))
        deep = nn.functional.interpolate(deep, scale_factor=2.0)
        return self.out(self.up["top"](torch.cat((deep, first), 1)))


class ChannelGate(nn.Module):
    """Global response normalization of ConvNeXt V2: each channel by its energy."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1, 16, 1, 1), 300.0))

    def forward(self, x: Tensor) -> Any:
        energy = ((x * self.scale) ** 2).sum((2, 3), keepdim=True).sqrt()
        return x * energy / energy.mean(1, keepdim=True)


class Detector(nn.Module):
    """A detector of one scale: a backbone with BatchNorm, boxes in pixels, and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()),
            nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        )
        self.cls, self.reg = nn.Conv2d(32, 4, 1), nn.Conv2d(32, 4, 1)
        self.decode = Decode()

    def forward(self, x: Tensor) -> Any:
        found = self.backbone(x)
        boxes = self.decode(self.reg(found))
        return boxes, self.cls(found).flatten(2).softmax(1)


class Decode(nn.Module):
    """Corners of boxes, in units of the image, by way of areas in squared pixels."""

    def forward(self, x: Tensor) -> Any:
        left, top, width, height = x.flatten(2).exp().clamp(max=4).unbind(1)
        area = (width * 500) * (height * 500)
        return torch.stack((left / 4, top / 4, area.sqrt() / 500, width / height), 1)


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "vit": (Vit, (1, 3, 32, 32)),
    "unet": (Unet, (1, 3, 16, 16)),
    "detector": (Detector, (1, 3, 32, 32)),
}
"""Each network and the shape of its input."""


def network(name: str) -> Any:
    """Return the network, with weights of a seed."""
    torch.manual_seed(0)
    return NETWORKS[name][0]().eval()


def samples(name: str, count: int = 4) -> list[dict[str, Any]]:
    """Return samples of a network's input."""
    shape = NETWORKS[name][1]
    draw = np.random.default_rng(0)
    return [{"x": draw.standard_normal(shape, np.float32)} for _ in range(count)]


def exported(name: str, path: Path, *, dynamo: bool, half: bool = False) -> Path:
    """Export a network, or its `half`, by one of PyTorch's two exporters."""
    kind = torch.float16 if half else torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network(name).to(kind),
            (torch.from_numpy(samples(name)[0]["x"]).to(kind),),
            str(path),
            input_names=["x"],
            opset_version=18 if dynamo else 17,
            dynamo=dynamo,
            verbose=False,
        )
    return path
