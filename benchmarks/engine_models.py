"""Models for `engine.py`, each with inputs large enough that a GPU has something to do.

A `Case` is a model file, one batch of inputs, and the limit to search with. Sizes are batch sizes.
"""

import importlib
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.protocols import Sample

REPO = Path(__file__).parents[1]
SEQUENCE = 128
"""Tokens in each row of MiniLM's batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model file, its inputs as samples, and what is known of both.

    `limits` are the limits to search with, as keyword arguments of `find`. With `share` the
    absolute limit is that share of the emulator's all-low error instead, for models of which
    nobody knows what they should achieve.
    """

    path: Path
    samples: Sequence[Sample]
    remark: str
    limits: Mapping[str, float]
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to make a case of a batch size.

    `search` is the size to search with, which the emulator has to compute on the CPU some hundred
    times; `sizes` are those to compare latencies at, tried in order; `small` is for a dry run.
    """

    make: Callable[[Path, int], Case]
    search: int
    sizes: Sequence[int]
    small: int


def nafnet(folder: Path, batch: int) -> Case:
    """Return the example with a batch of its own crops: turned, mirrored, then shifted.

    `image` has shape (batch, 3, 64, 64). Nothing in the graph depends on the batch size.
    """
    example = REPO / "examples" / "nafnet"
    crops = [np.load(path)["image"] for path in sorted((example / "inputs").glob("*.npz"))]
    path = with_batch(example / "nafnet.onnx", folder / f"nafnet-{batch}.onnx", batch)
    images = np.concatenate(list(itertools.islice(_varied(crops), batch)))
    return Case(
        path=path,
        samples=[{"image": images}],
        remark=f"examples/nafnet, batch {batch}: its 8 crops turned, mirrored and shifted",
        limits={"tol": 1e-2},
    )


def _varied(crops: Sequence[NDArray[np.float32]]) -> "itertools.chain[NDArray[np.float32]]":
    return itertools.chain.from_iterable(
        (np.roll(turned, shift, axis=3), np.roll(turned[..., ::-1], shift, axis=3))
        for shift in itertools.count(0, 7)
        for turns in range(4)
        for turned in (np.rot90(crop, turns, axes=(2, 3)) for crop in crops)
    )


def minilm(opset: int) -> Recipe:
    """Return MiniLM as `tests/minilm.py FOLDER` exports it, on rows of several sentences each.

    The three inputs have shape (batch, 128).
    """

    def make(folder: Path, batch: int) -> Case:
        return Case(
            path=folder / f"minilm{opset}.onnx",
            samples=[_rows(folder / "inputs", batch)],
            remark=f"all-MiniLM-L6-v2, opset {opset}, batch {batch}, {SEQUENCE} tokens",
            limits={"atol": 2e-4},
            share=0.6,
        )

    return Recipe(make=make, search=8, sizes=(16, 32, 64, 128), small=1)


def _rows(inputs: Path, batch: int) -> Sample:
    """Return rows of the sentences in ever other orders, joined and cut at `SEQUENCE` tokens."""
    sentences = []
    for path in sorted(inputs.glob("*.npz")):
        sample = np.load(path)
        sentences.append(sample["input_ids"][0][sample["attention_mask"][0] == 1])
    orders = itertools.islice(itertools.cycle(itertools.permutations(sentences)), 0, None, 17)
    ids = np.zeros((batch, SEQUENCE), np.int64)
    mask = np.zeros_like(ids)
    for row, order in zip(range(batch), orders, strict=False):
        tokens = np.concatenate(order)[: SEQUENCE - row % 16]
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def vit(folder: Path, batch: int) -> Case:
    """Return torchvision's vit_b_16 with seeded random weights, `image` (batch, 3, 224, 224).

    torchvision leaves the head at zero; it is drawn, too, so that there is an output to judge.
    """
    path = folder / f"vit_b_16-{batch}.onnx"
    if not path.exists():
        _export_vit(path, batch)
    rng = np.random.default_rng(0)
    coarse = rng.normal(0.0, 1.0, (batch, 3, 14, 14)).repeat(16, axis=2).repeat(16, axis=3)
    image = (coarse + rng.normal(0.0, 0.3, coarse.shape)).astype(np.float32)
    return Case(
        path=path,
        samples=[{"image": image}],
        remark=f"torchvision vit_b_16, random weights (seed 0), batch {batch}, 224x224",
        limits={},
        share=0.7,
    )


def _export_vit(path: Path, batch: int) -> None:
    import torch

    # Not a dependency of any group: the other models do without it.
    models: Any = importlib.import_module("torchvision.models")
    torch.manual_seed(0)
    model = models.vit_b_16(weights=None).eval()
    torch.nn.init.normal_(model.heads.head.weight, std=0.02)
    # The fast path is one fused operator, which has no form in ONNX.
    torch.backends.mha.set_fastpath_enabled(False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (torch.zeros(batch, 3, 224, 224),),
            str(path),
            input_names=["image"],
            output_names=["logits"],
            opset_version=17,
            dynamo=False,
        )


def with_batch(source: Path, target: Path, batch: int) -> Path:
    """Write a model with another first dimension of its inputs and outputs; return its path."""
    proto = onnx.load(source)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    del proto.graph.value_info[:]
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, target)
    return target


RECIPES: Mapping[str, Recipe] = {
    "nafnet": Recipe(make=nafnet, search=16, sizes=(32, 64, 128, 256), small=2),
    "minilm13": minilm(13),
    "minilm17": minilm(17),
    "vit": Recipe(make=vit, search=2, sizes=(4, 8, 16), small=1),
}
