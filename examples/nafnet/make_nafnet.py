"""Make the NAFNet example: train a small image denoiser, rescale it, export it to ONNX.

The network is NAFNet (Chen et al. 2022, "Simple Baselines for Image Restoration", arXiv
2204.04676) in small, trained here on noisy crops of public-domain and CC0 photographs that
ship inside scikit-image.  Everything is seeded.

People report that NAFNet overflows when it runs in FP16: its residual stream grows large, and
the LayerNorms square it.  A network trained for a few minutes on small images does not reach
such ranges, so after training the residual stream is multiplied by a constant and divided again
in the head.  LayerNorm does not see the scale of its input, so in FP32 the network computes the
same function but for rounding, which the script asserts.  In FP16 the squares inside some of the
LayerNorms then exceed the largest finite value, 65504.

Run ``python make_nafnet.py`` with torch, onnx, onnxruntime, numpy and scikit-image installed.
It writes ``nafnet.onnx`` and ``inputs/*.npz`` beside itself and prints what it measured.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import skimage.data
import torch
from torch import Tensor, nn

FP16_MAX = 65504.0
CROP = 64
SIGMA = 0.12
SEED = 20220410
TRAIN_IMAGES = ("astronaut", "rocket", "retina", "camera", "brick", "grass", "gravel")
TEST_IMAGES = ("chelsea", "coffee")  # never seen in training
SAMPLES = 8


class LayerNorm2d(nn.Module):
    """LayerNorm over the channels of an NCHW tensor, written out in elementary operations."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        variance = centred.pow(2).mean(1, keepdim=True)
        normal: Tensor = centred / torch.sqrt(variance + self.eps) * self.weight + self.bias
        return normal


class SimpleGate(nn.Module):
    """Multiply one half of the channels by the other: NAFNet's only nonlinearity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        halves: tuple[Tensor, ...] = torch.split(x, self.channels, dim=1)  # exports to one Split
        return halves[0] * halves[1]


class NAFBlock(nn.Module):
    """A gated depthwise branch with channel attention, then a gated pointwise branch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.norm1 = LayerNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, wide, 1)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.gate1 = SimpleGate(channels)
        self.attention = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1))
        self.conv3 = nn.Conv2d(channels, channels, 1)
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.norm2 = LayerNorm2d(channels)
        self.conv4 = nn.Conv2d(channels, wide, 1)
        self.gate2 = SimpleGate(channels)
        self.conv5 = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.gate1(self.conv2(self.conv1(self.norm1(x))))
        x = x + self.conv3(y * self.attention(y)) * self.beta
        y = self.gate2(self.conv4(self.norm2(x)))
        x = x + self.conv5(y) * self.gamma
        return x


class NAFNet(nn.Module):
    """A U of NAFBlocks with additive skips, predicting what to add to the image."""

    def __init__(
        self,
        width: int = 16,
        encoders: tuple[int, ...] = (1, 1, 2),
        middle: int = 2,
        decoders: tuple[int, ...] = (1, 1, 1),
    ) -> None:
        super().__init__()
        self.intro = nn.Conv2d(3, width, 3, padding=1)
        self.encoders, self.downs = nn.ModuleList(), nn.ModuleList()
        channels = width
        for blocks in encoders:
            self.encoders.append(nn.Sequential(*(NAFBlock(channels) for _ in range(blocks))))
            self.downs.append(nn.Conv2d(channels, 2 * channels, 2, stride=2))
            channels *= 2
        self.middle = nn.Sequential(*(NAFBlock(channels) for _ in range(middle)))
        self.ups, self.decoders = nn.ModuleList(), nn.ModuleList()
        for blocks in decoders:
            up = nn.Conv2d(channels, 2 * channels, 1, bias=False)
            self.ups.append(nn.Sequential(up, nn.PixelShuffle(2)))
            channels //= 2
            self.decoders.append(nn.Sequential(*(NAFBlock(channels) for _ in range(blocks))))
        self.ending = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.intro(image)
        skips: list[Tensor] = []
        for encoder, down in zip(self.encoders, self.downs, strict=True):
            x = encoder(x)
            skips.append(x)
            x = down(x)
        x = self.middle(x)
        for up, decoder in zip(self.ups, self.decoders, strict=True):
            x = decoder(up(x) + skips.pop())
        denoised: Tensor = self.ending(x) + image
        return denoised


def load_image(name: str) -> Tensor:
    """Return an image bundled with scikit-image as a (3, height, width) tensor in [0, 1]."""
    pixels = np.asarray(getattr(skimage.data, name)(), dtype=np.float32) / 255.0
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=2)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def random_crops(images: list[Tensor], count: int, random: torch.Generator) -> Tensor:
    """Return a batch of crops at random places, each flipped and transposed at random."""
    crops: list[Tensor] = []
    for _ in range(count):
        image = images[int(torch.randint(len(images), (), generator=random))]
        top = int(torch.randint(image.shape[1] - CROP + 1, (), generator=random))
        left = int(torch.randint(image.shape[2] - CROP + 1, (), generator=random))
        crop = image[:, top : top + CROP, left : left + CROP]
        flips = torch.rand(3, generator=random) < 0.5
        crop = crop.flip([1 + axis for axis in range(2) if flips[axis]])
        crops.append(crop.transpose(1, 2) if flips[2] else crop)
    return torch.stack(crops)


def add_noise(clean: Tensor, random: torch.Generator) -> Tensor:
    """Return ``clean`` with Gaussian noise of standard deviation SIGMA, not clipped."""
    return clean + SIGMA * torch.randn(clean.shape, generator=random)


def psnr(image: Tensor, clean: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in dB of each sample of a batch."""
    return -10.0 * torch.log10((image - clean).pow(2).mean((1, 2, 3)) + 1e-8)


def train(model: NAFNet, steps: int, batch: int, peak_rate: float) -> None:
    """Train ``model`` to maximise PSNR, with Adam on a warmed-up cosine schedule."""
    random = torch.Generator().manual_seed(SEED)
    images = [load_image(name) for name in TRAIN_IMAGES]
    optimizer = torch.optim.Adam(model.parameters(), lr=peak_rate, betas=(0.9, 0.9))
    start = time.perf_counter()
    for step in range(steps):
        rate = min(1.0, (step + 1) / 50) * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = peak_rate * rate
        clean = random_crops(images, batch, random)
        loss = -psnr(model(add_noise(clean, random)), clean).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            spent = time.perf_counter() - start
            print(f"step {step + 1:5d}  PSNR {-loss.item():.2f} dB  {spent:.0f} s", flush=True)


@torch.no_grad()
def scaled_stream(model: NAFNet, scale: float) -> NAFNet:
    """Return the same network with its residual stream ``scale`` times as large.

    What writes to the stream is multiplied: the first convolution, the beta and gamma of each
    block, the biases of the downsampling convolutions.  The resampling weights are linear and
    pass the scale on.  What reads from the stream is a LayerNorm, which divides the scale out
    once its epsilon is multiplied by the square, or the last convolution, which is divided.
    """
    scaled = copy.deepcopy(model)
    weights = scaled.state_dict()
    writers = ("intro.weight", "intro.bias", "beta", "gamma")
    for name, weight in weights.items():
        if name.endswith(writers) or (name.startswith("downs.") and name.endswith("bias")):
            weight *= scale
    weights["ending.weight"] /= scale
    for module in scaled.modules():
        if isinstance(module, LayerNorm2d):
            module.eps *= scale**2
    return scaled


def test_crops() -> tuple[Tensor, Tensor]:
    """Return the example's samples, noisy and clean: crops of the photographs held out."""
    random = torch.Generator().manual_seed(SEED + 1)
    clean = torch.cat([random_crops([load_image(n)], SAMPLES // 2, random) for n in TEST_IMAGES])
    return add_noise(clean, random), clean


def export(model: NAFNet, path: Path) -> None:
    """Export ``model`` to one ONNX file whose node names carry the module path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (torch.zeros(1, 3, CROP, CROP),),
            str(path),
            input_names=["image"],
            output_names=["denoised"],
            opset_version=17,
            dynamo=False,
        )
    onnx.checker.check_model(str(path), full_check=True)


def check_export(path: Path, noisy: Tensor, denoised: Tensor) -> None:
    """Assert that the exported network computes in onnxruntime what torch computed."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs = [session.run(None, {"image": sample[None].numpy()})[0] for sample in noisy]
    difference = float(np.abs(np.concatenate(outputs) - denoised.numpy()).max())
    print(f"the export differs from torch by at most {difference:.1e}")
    assert difference < 1e-4


def node_maxima(path: Path, noisy: Tensor) -> dict[str, float]:
    """Run the exported network and return the largest magnitude that each node puts out."""
    model = onnx.load(path)
    inferred = onnx.shape_inference.infer_shapes(model)
    names = {node.output[0]: node.name for node in model.graph.node}
    for value in inferred.graph.value_info:
        if value.name in names and value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            model.graph.output.append(value)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    maxima: dict[str, float] = {}
    for sample in noisy:
        arrays = session.run(outputs, {"image": sample[None].numpy()})
        for output, array in zip(outputs, arrays, strict=True):
            name = names[output]
            maxima[name] = max(maxima.get(name, 0.0), float(np.abs(array).max()))
    return maxima


def report_maxima(maxima: dict[str, float]) -> None:
    """Print the ranges in each LayerNorm and assert that squares alone overflow in FP16."""
    print("\n| LayerNorm | largest square | largest variance | square / 65504 |")
    print("|---|---:|---:|---:|")
    overflowing = 0
    for name in maxima:
        if not name.endswith("/Pow"):
            continue
        norm = name.removesuffix("/Pow")
        square, variance = maxima[name], maxima[f"{norm}/ReduceMean_1"]
        overflowing += square > FP16_MAX
        mark = "**" if square > FP16_MAX else ""
        ratio = f"{mark}{square / FP16_MAX:.2f}{mark}"
        print(f"| `{norm}` | {square:,.0f} | {variance:,.0f} | {ratio} |")
    norms = [n.removesuffix("/Pow") for n in maxima if n.endswith("/Pow")]
    inside = {f"{n}/{op}" for n in norms for op in ("Pow", "ReduceMean_1", "Add")}
    others = {name: value for name, value in maxima.items() if name not in inside}
    largest = max(others, key=others.__getitem__)
    print(f"\n{overflowing} of {len(norms)} LayerNorms square beyond FP16")
    print(f"largest value outside squares and variances: {others[largest]:,.0f} at {largest}")
    assert overflowing >= 4, "too few squares overflow: choose a larger scale"
    assert others[largest] < FP16_MAX / 4, "more than squares come near overflow"


def parse_arguments() -> argparse.Namespace:
    """Return the command line's options, whose defaults made the files in this folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=2500, help="training steps")
    parser.add_argument("--batch", type=int, default=8, help="crops per step")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--width", type=int, default=16, help="channels at full resolution")
    parser.add_argument("--scale", type=float, default=384.0, help="factor on the stream")
    parser.add_argument("--weights", type=Path, help="file to keep the trained weights in")
    return parser.parse_args()


def trained_model(args: argparse.Namespace) -> NAFNet:
    """Return the trained network: from the weights file where there is one, else by training."""
    model = NAFNet(args.width)
    if args.weights is not None and args.weights.exists():
        model.load_state_dict(torch.load(args.weights))
    else:
        train(model, args.steps, args.batch, args.rate)
        if args.weights is not None:
            torch.save(model.state_dict(), args.weights)
    return model.eval()


def main() -> None:
    """Train, rescale, export and check, and write the inputs."""
    args = parse_arguments()
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    model = trained_model(args)
    scaled = scaled_stream(model, args.scale)
    noisy, clean = test_crops()
    with torch.no_grad():
        denoised, rescaled = model(noisy), scaled(noisy)
    before, after = psnr(noisy, clean).mean(), psnr(denoised, clean).mean()
    print(f"held-out PSNR {before:.2f} dB noisy, {after:.2f} dB denoised")
    difference = float((rescaled - denoised).abs().max())
    print(f"stream x {args.scale:g} changes the FP32 output by at most {difference:.1e}")
    assert difference < 1e-4

    here = Path(__file__).resolve().parent
    export(scaled, here / "nafnet.onnx")
    check_export(here / "nafnet.onnx", noisy, rescaled)
    (here / "inputs").mkdir(exist_ok=True)
    for index, sample in enumerate(noisy):
        np.savez(here / "inputs" / f"{index:03d}.npz", image=sample[None].numpy())
    report_maxima(node_maxima(here / "nafnet.onnx", noisy))


if __name__ == "__main__":
    main()
