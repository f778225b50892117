"""The networks of `gpu_runs`: where each comes from, what it is fed, and its limit.

A prepared network is a folder with `model.onnx`, `judged/*.npz` and `fresh/*.npz`; one that is
there is taken as it is.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gpu_models import Decoder, write_decoder
from gpu_unet import CONTEXT, LATENT, WORDS, UNet, write_unet

from zoo import inputs
from zoo.judge import Limit, Sample, load
from zoo.networks import NAFNET, SEEDS, SkippedError, package, save

TIMESTEPS = 100
"""Times of the U-Net are drawn below it: FP16 holds them to a sixteenth at least."""
DECODERS = {
    "decoder": Decoder(),
    "decoder1b": Decoder(layers=24, loud=(1, 22)),
    "decoder7b": Decoder(width=4096, layers=32, hidden=11_008, heads=32, loud=(1, 30)),
}
SMALL_DECODER = Decoder(vocabulary=500, width=64, layers=1, hidden=128, heads=4, tokens=16)
SMALL_UNET = UNet(multiplier=0.1, side=8)
OCR = "models/ch_PP-OCRv4_{}_infer.onnx"
PREPARED = "gpu_runs"
TEXTS = "texts"

Rng = np.random.Generator
Draw = Callable[[Rng, Path, int], list[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What networks are made of: a folder of models, and whether they are to be small."""

    models: Path
    small: bool = False
    fresh: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNetwork:
    """A network: `make` writes its model, `draw` makes samples, `unseen` fresh ones."""

    make: Callable[[Path, Source], object]
    draw: Draw
    unseen: Draw | None = None
    judged: int
    bound: float
    limit: Limit = "tol"


def prepare(name: str, source: Source) -> Path:
    """Return the folder of a network, made if it is not there.

    Raises SkippedError.
    """
    sort = f"{'small-' if source.small else ''}{source.fresh}-fresh"
    folder = source.models / PREPARED / sort / name
    if folder.exists():
        return folder
    network, making = NETWORKS[name], folder.with_name(f"{name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    model = making / "model.onnx"
    drawing = {"judged": network.draw, "fresh": network.unseen or network.draw}
    counts = {"judged": min(network.judged, 2) if source.small else network.judged}
    try:
        network.make(model, source)
        for kind, draw in drawing.items():
            rng = np.random.default_rng(SEEDS[kind])
            save(draw(rng, model, counts.get(kind, source.fresh)), making / kind)
    except ImportError as error:
        raise SkippedError(f"{error.name} is not installed") from error
    return making.rename(folder)


def _ocr(kind: str) -> Callable[[Path, Source], None]:
    """Return what copies a model of PP-OCR, from the models or from its package."""

    def make(path: Path, source: Source) -> None:
        there = source.models / f"ppocr_{kind}" / "model.onnx"
        if not there.exists():
            there = package("rapidocr_onnxruntime", source.models) / OCR.format(kind)
        shutil.copyfile(there, path)

    return make


def _minilm(name: str) -> Callable[[Path, Source], None]:
    """Return what copies a model that `tests/minilm.py` wrote, and its inputs beside it."""

    def make(path: Path, source: Source) -> None:
        there = source.models / "minilm"
        if not (there / f"{name}.onnx").exists():
            raise SkippedError(f"run `python tests/minilm.py {there}` first")
        shutil.copyfile(there / f"{name}.onnx", path)
        shutil.copytree(there / "inputs", path.with_name(TEXTS))

    return make


def _nafnet(path: Path, source: Source) -> None:
    shutil.copyfile(NAFNET / "nafnet.onnx", path)


def _decoder(name: str) -> Callable[[Path, Source], object]:
    """Return what writes a decoder; a small one has one block, which is loud where any is."""
    sizes = DECODERS[name]
    small = replace(SMALL_DECODER, loud=(0,) if sizes.loud else ())
    return lambda path, source: write_decoder(path, small if source.small else sizes)


def _unet(multiplier: float = 1.0) -> Callable[[Path, Source], object]:
    sizes = UNet(multiplier=multiplier)
    return lambda path, source: write_unet(path, SMALL_UNET if source.small else sizes)


def _noisy(rng: Rng, model: Path, count: int) -> list[Sample]:
    return load(NAFNET / "inputs")[:count]


def _mirrored(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return the example's pictures, each mirrored along one axis, then the other, then both."""
    pictures = load(NAFNET / "inputs")
    mirrored: list[Sample] = [
        {"image": np.ascontiguousarray(np.flip(picture["image"], axes))}
        for axes in ((2,), (3,), (2, 3))
        for picture in pictures
    ]
    return mirrored[:count]


def _ids(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return ids as the model at the path takes them, few of them often."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    vocabulary = graph.output[0].type.tensor_type.shape.dim[2].dim_value
    tokens = graph.input[0].type.tensor_type.shape.dim[1].dim_value
    shares = 1 / np.arange(1, vocabulary + 1)
    drawn = rng.choice(vocabulary, (count, 1, tokens), p=shares / shares.sum())
    return [{"ids": each.astype(np.int64)} for each in drawn]


def _latents(rng: Rng, model: Path, count: int) -> list[Sample]:
    """Return noise, a time and a context for the model at the path."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    side = graph.input[0].type.tensor_type.shape.dim[3].dim_value
    return [
        {
            "latent": rng.standard_normal((1, LATENT, side, side), np.float32),
            "t": rng.integers(1, TIMESTEPS, 1).astype(np.float32),
            "context": rng.standard_normal((1, WORDS, CONTEXT), np.float32),
        }
        for _ in range(count)
    ]


def _sentences(rng: Rng, model: Path, count: int) -> list[Sample]:
    return load(model.with_name(TEXTS))[:count]


def _reordered(rng: Rng, model: Path, count: int) -> list[Sample]:
    return inputs.reordered(rng, load(model.with_name(TEXTS)), count)


NETWORKS = {
    "nafnet": GpuNetwork(make=_nafnet, draw=_noisy, unseen=_mirrored, judged=8, bound=1e-2),
    "det": GpuNetwork(make=_ocr("det"), draw=inputs.text_pages, judged=3, bound=3e-2),
    "rec": GpuNetwork(make=_ocr("rec"), draw=inputs.text_lines, judged=6, bound=1e-2),
    # What leaves the range of the largest alone is over 1e-2 by a hundredth.
    **{
        name: GpuNetwork(
            make=_decoder(name), draw=_ids, judged=2, bound=2e-2 if name == "decoder7b" else 1e-2
        )
        for name in DECODERS
    },
    "unet": GpuNetwork(make=_unet(), draw=_latents, judged=2, bound=5e-3),
    "unet3b": GpuNetwork(make=_unet(1.75), draw=_latents, judged=2, bound=5e-3),
    **{
        name: GpuNetwork(
            make=_minilm(name),
            draw=_sentences,
            unseen=_reordered,
            judged=6,
            bound=2e-4,
            limit="atol",
        )
        for name in ("minilm13", "minilm17")
    },
}
