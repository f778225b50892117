"""What outputs seem to be is said where it is clear, and never of what only looks alike."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import models
from precision_bisect.commandline.main import main
from precision_bisect.graphs.fp32_outputs import reference_outputs
from precision_bisect.graphs.load import load_model
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.task_heads import Head, image_sizes, recognized_head
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.options import Options
from precision_bisect.protocols import Sample
from zoo.networks import prepare

Array = NDArray[Any]
SIDE, CELLS = 64, 8 * 8 + 4 * 4 + 2 * 2
IMAGE, TOKENS = f"float[1,3,{SIDE},{SIDE}] x", "int64[1,12] x"
VECTOR = "float[1,16] x"
PLAIN = "y = Identity(h)"


def shares(array: Array, axis: int) -> Array:
    """Return probabilities along an axis."""
    powers = np.exp(3 * array)
    return np.asarray(powers / powers.sum(axis, keepdims=True), np.float32)


def raw_head(*, count: int = CELLS, size: float = SIDE, classes: int = 3, seed: int = 0) -> Array:
    """Return YOLO's head of some objects: middles, sizes and scores of each place."""
    rng = np.random.default_rng(seed)
    middles, sides = rng.uniform(0, size, (2, count)), rng.uniform(0.1, 0.4, (2, count)) * size
    scores = rng.uniform(0, 1, (classes, count)) * (rng.uniform(size=count) > 0.9)
    return np.concatenate([middles, sides, scores])[None].astype(np.float32)


def rows(*, seed: int) -> Array:
    """Return rows of corners, score and class."""
    head = raw_head(count=12, seed=seed)[0]
    corners = np.concatenate([head[:2] - head[2:4] / 2, head[:2] + head[2:4] / 2])
    score = np.random.default_rng(seed).uniform(0.1, 1, (1, 12))
    return np.concatenate([corners, score, np.arange(12)[None] % 3]).T[None].astype(np.float32)


def detr(seed: int) -> Sample:
    """Return 20 queries of a DETR, of which 6 find something; the last class is nothing."""
    logits = models.normal(1, 20, 8, seed=seed)
    logits[0, 6:, -1] += 9
    return {
        "logits": logits,
        "pred_boxes": raw_head(count=20, size=1.0, seed=seed)[:, :4].swapaxes(1, 2),
    }


def parts(seed: int) -> Sample:
    """Return shares of four classes beside the logits of a DETR."""
    return {"y": shares(models.normal(1, 20, 4, seed=seed), 2), "logits": detr(seed)["logits"]}


def sigmoid(array: Array) -> Array:
    """Return shares of one class."""
    return np.asarray((1 + np.tanh(array / 2)) / 2, np.float32)


def unit(seed: int, width: int = 128) -> Array:
    """Return vectors of length 1."""
    array = models.normal(2, width, seed=seed)
    return np.asarray(array / np.linalg.norm(array, axis=1, keepdims=True))


Make = Callable[[int], Any]
OF_TOKENS = (TOKENS, "logits", "logits = Identity(h)")
Case = tuple[str, str, str, Make]
"""The input, the output, the graph behind a tensor h, and the outputs by seed."""


def drawn(*shape: int) -> Make:
    """Return what draws numbers of a shape."""
    return lambda seed: models.normal(*shape, seed=seed)


def of_shares(*shape: int) -> Make:
    """Return what draws probabilities along the second axis."""
    return lambda seed: shares(models.normal(*shape, seed=seed), 1)


FOUND: Mapping[str, tuple[Head, Case]] = {
    "YOLOv8": (Head.RAW_BOXES, (IMAGE, "y", PLAIN, lambda s: raw_head(seed=s))),
    "three anchors": (
        Head.RAW_BOXES,
        (IMAGE, "y", PLAIN, lambda s: raw_head(count=3 * CELLS, seed=s)),
    ),
    "YOLOv10": (
        Head.BOXES,
        (IMAGE, "y", "k = Constant<value_ints = [1]>() y, i = TopK(h, k)", lambda s: rows(seed=s)),
    ),
    "DETR": (
        Head.BOXES,
        (IMAGE, "logits, pred_boxes", "logits = Identity(h) pred_boxes = Relu(h)", detr),
    ),
    "shares": (Head.CLASSES, (IMAGE, "y", "s = Softmax(h) y = Identity(s)", of_shares(2, 9))),
    "ImageNet": (Head.CLASSES, (IMAGE, "y", "y = Add(h, h)", drawn(2, 1000))),
    "of a sentence": (Head.CLASSES, (*OF_TOKENS, drawn(4, 5))),
    "of tokens": (Head.CLASSES, (*OF_TOKENS, drawn(1, 12, 9))),
    "a language": (Head.TOKENS, (*OF_TOKENS, drawn(1, 12, 6000))),
    "labels of pixels": (
        Head.MASKS,
        (
            IMAGE,
            "y",
            "y = ArgMax<axis = 1>(h)",
            lambda s: models.normal(1, 6, 16, 16, seed=s).argmax(1),
        ),
    ),
    "shares of pixels": (
        Head.MASKS,
        (IMAGE, "y", "y = Softmax<axis = 1>(h)", of_shares(1, 6, 16, 16)),
    ),
    "one mask": (
        Head.MASKS,
        (
            IMAGE,
            "y",
            "y = Sigmoid(h)",
            lambda s: sigmoid(40 * models.normal(1, 1, SIDE, SIDE, seed=s)),
        ),
    ),
    "enlarged": (Head.MASKS, (IMAGE, "y", "y = Resize(h)", drawn(1, 21, SIDE, SIDE))),
    "vectors": (Head.VECTORS, (VECTOR, "y", PLAIN, unit)),
    "named": (
        Head.VECTORS,
        (VECTOR, "image_embeds", "image_embeds = Identity(h)", lambda s: 7 * unit(s)),
    ),
}
ALIKE: Mapping[str, Case] = {
    "a grey picture": (
        IMAGE,
        "y",
        "y = Sigmoid(h)",
        lambda s: sigmoid(models.normal(1, 1, SIDE, SIDE, seed=s)),
    ),
    "features along time": (IMAGE, "y", PLAIN, drawn(1, 7, CELLS)),
    "a sequence without an image": (VECTOR, "y", PLAIN, lambda s: raw_head(seed=s)),
    "another number of places": (IMAGE, "y", PLAIN, lambda s: raw_head(count=CELLS + 5, seed=s)),
    "boxes in shares": (IMAGE, "y", PLAIN, lambda s: raw_head(size=1.0, seed=s)),
    "distances to be decoded": (IMAGE, "y", PLAIN, lambda s: raw_head(seed=s) - 20),
    "six numbers of a pose": (IMAGE, "y", PLAIN, lambda s: rows(seed=s)),
    "four classes of parts": (IMAGE, "y, logits", "y = Identity(h) logits = Identity(h)", parts),
    "a picture": (IMAGE, "y", PLAIN, drawn(1, 3, SIDE, SIDE)),
    "an enlarged picture": (IMAGE, "y", "y = Resize(h)", drawn(1, 3, SIDE, SIDE)),
    "enlarged features": (IMAGE, "y", "y = Resize(h)", drawn(1, 384, SIDE, SIDE)),
    "features": (IMAGE, "y", "y = Add(h, h)", drawn(2, 512)),
    "rows that add up to 1 by chance": (VECTOR, "y", PLAIN, of_shares(2, 9)),
    "a rotation": (VECTOR, "y", PLAIN, lambda s: unit(s, 4)),
    "one number": (*OF_TOKENS, drawn(4, 1)),
    "speech": ("float[1,400] x", "logits", "logits = Identity(h)", drawn(1, 12, 32)),
    "always the same class": (
        IMAGE,
        "y",
        "y = Softmax(h)",
        lambda _: np.full((1, 2), 0.5, np.float32),
    ),
    "a class beside features": (
        TOKENS,
        "logits, z",
        "logits = Identity(h) z = Relu(h)",
        lambda s: {n: models.normal(4, 5, seed=s) for n in ("logits", "z")},
    ),
}


def recognized(case: Case, folder: Path) -> Any:
    """Return what the outputs of a made-up model are taken for."""
    taken, names, body, make = case
    signature = ", ".join(f"float[N] {name}" for name in names.split(", "))
    cast = "h = Cast<to = 1>(x)" if taken == TOKENS else "h = Relu(x)"
    model = models.load_text(f"({taken}) => ({signature}) {{ {cast} {body} }}", folder)
    made = [make(seed) for seed in range(2)]
    reference = [each if isinstance(each, dict) else {names: each} for each in made]
    shape = [int(side) for side in taken.partition("[")[2].partition("]")[0].split(",")]
    kind = np.int64 if taken == TOKENS else np.float32
    return recognized_head(model, [{"x": np.ones(shape, kind)}] * 2, reference)


@pytest.mark.parametrize("name", FOUND)
def test_heads_are_recognized(name: str, tmp_path: Path) -> None:
    """The advice is one line, and the flags in it make a judge that takes these outputs."""
    head, case = FOUND[name]
    found = recognized(case, tmp_path)
    assert found is not None and head is found.head
    words = shlex.split(str(found))
    flags = {word: words[at + 1] for at, word in enumerate(words) if word.startswith("--")}
    options = Options(model=Path("m.onnx"), check=flags["--check"], tol=float(flags["--tol"]))
    reference = case[3](0)
    sample = reference if isinstance(reference, dict) else {case[1]: reference}
    assert 0 == choose_comparator(options, list(sample)).judge([sample], [sample]).error


@pytest.mark.parametrize("name", ALIKE)
def test_nothing_is_said_of_what_only_looks_alike(name: str, tmp_path: Path) -> None:
    """A wrong check would pass what breaks the model, so none is better."""
    assert recognized(ALIKE[name], tmp_path) is None


def test_it_is_said_before_the_search_unless_somebody_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One warning names the flags; with them, or with limits by output, there is none.

    Four scores have the shape of a box: that they are none is said even to who judges boxes.
    """
    monkeypatch.chdir(tmp_path)
    body = f"({VECTOR}) => (float[1,4] y) <float[16,4] w> {{ h = MatMul(x, w) y = Softmax(h) }}"
    weights = {"w": models.normal(16, 4)}
    models.save(
        models.with_weights(models.parse(body.replace(" <float[16,4] w>", "")), weights), tmp_path
    )
    Path("inputs").mkdir()
    for seed in range(8):
        np.savez(f"inputs/{seed}.npz", x=models.normal(1, 16, seed=seed))
    command = ["model.onnx", "--inputs", "inputs", "--overwrite", "--backend", "emulated"]
    told = "output 'y' [1, 4] looks like scores of classes: --check top1 --tol 0.01 limits"
    for flags, said in (
        ([], 1),
        (["--check", "top1", "--tol", "0.01"], 0),
        (["--tol", "y=1e-2"], 0),
        (["--check", "boxes", "--tol", "0.05"], 1),
    ):
        main([*command, *flags])
        assert said == capsys.readouterr().err.count(told)


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ({"x": (1, 3, 20, 30)}, [(20, 30)]),
        ({"x": (1, 20, 30, 3)}, [(20, 30)]),
        ({"x": (1, 1, 20, 30)}, [(20, 30)]),
        ({"x": (1, 20, 30, 1)}, [(20, 30)]),
        ({"x": (1, 3, 20, 30), "scale": (1, 2)}, [(20, 30)]),
        ({"x": (1, 4, 20, 30)}, []),
        ({"x": (3, 20, 30)}, []),
        ({"x": (1, 3, 20, 30), "z": (1, 3, 20, 30)}, []),
    ],
)
def test_an_image_has_its_size_by_where_its_channels_are(
    shapes: dict[str, tuple[int, ...]], sizes: list[tuple[int, int]]
) -> None:
    """One of grey values has one; where there is no image, or are two, there is no size."""
    inputs = ", ".join(f"float[{','.join(map(str, of))}] {name}" for name, of in shapes.items())
    model = models.loaded(models.parse(f"({inputs}) => (float[a,b,c,d] y) {{ y = Abs(x) }}"))
    sample = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    assert sizes == image_sizes(model, [sample])


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("body_parts", Head.RAW_BOXES),
        ("captcha_boxes", None),
        ("layout", None),
        ("orientation", Head.CLASSES),
        ("ppocr_cls", Head.CLASSES),
        ("ppocr_det", Head.MASKS),
        ("ppocr_rec", None),
        ("nafnet", None),
    ],
)
def test_real_networks(name: str, head: Head | None, tmp_path: Path) -> None:
    """Trained ones: a map of text is a mask; what is not decoded, text, pictures get no advice."""
    folder = prepare(name, tmp_path)
    model = load_model(folder / "model.onnx")
    samples = read_samples(folder / "judged", [spec.name for spec in model.inputs])
    found = recognized_head(model, samples, reference_outputs(model, samples))
    assert head is (found and found.head)
