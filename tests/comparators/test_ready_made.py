"""Checks that come along: 0 for equal outputs, figures as defined, no shape makes them raise."""

import ast
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import models
from precision_bisect.commandline.main import main
from precision_bisect.errors import UsageError
from precision_bisect.exports import run_onnxruntime
from precision_bisect.exports.one_file import one_file
from precision_bisect.judging.comparators.choose_comparator import ReadyMade, choose_comparator
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.options import Options
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.runs.runfolder import RUN_SCRIPT
from precision_bisect.settings.check_words import READY_MADE
from precision_bisect.testing.comparator_contract import check_comparator
from precision_bisect.trial import Verdict


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Return probabilities along the last axis."""
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True), np.float32)


def corners(count: int, seed: int = 0) -> NDArray[Any]:
    """Return boxes of 10 to 60 pixels in an image of 600."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 540, (count, 2))
    return np.concatenate([low, low + rng.uniform(10, 60, (count, 2))], -1).astype(np.float32)


def rows(count: int, seed: int = 0) -> NDArray[Any]:
    """Return boxes with their scores: (count, 5)."""
    scores = np.random.default_rng(seed).uniform(0.1, 1, (count, 1)).astype(np.float32)
    return np.concatenate([corners(count, seed), scores], -1)


def check(name: str, tol: float = 0.01, outputs: Sequence[str] = ("y",)) -> Comparator:
    """Return the comparator of `--check NAME --tol TOL` for a model with these outputs."""
    return choose_comparator(Options(model=Path("m.onnx"), check=name, tol=tol), outputs)


def fitted(
    name: str, reference: Sequence[Sample], images: Sequence[tuple[int, int]] = ()
) -> ReadyMade:
    """Return the same, for outputs that look like the reference."""
    outputs = tuple(reference[0])
    return ReadyMade(name=name, outputs=outputs, tolerance=0.01).fitted(reference, images)


def error(name: str, got: Any, want: Any) -> float:
    """Return the error of one sample with one output, or several by name."""
    both = [each if isinstance(each, dict) else {"y": each} for each in (got, want)]
    found = check(name, outputs=tuple(both[1])).judge([both[0]], [both[1]]).error
    assert found is not None
    return found


IMAGE = np.random.default_rng(0).random((2, 3, 24, 20)).astype(np.float32)
FITTING: Mapping[str, Sequence[NDArray[Any]]] = {
    "boxes": [rows(20)[None], rows(20, seed=1)[None]],
    "ctc": [softmax(models.normal(2, 12, 9)), softmax(models.normal(2, 12, 9, seed=1))],
    "embeddings": [models.normal(4, 16), models.normal(4, 16, seed=1)],
    "iou": [models.normal(1, 6, 9, 9), models.normal(1, 6, 9, 9, seed=1)],
    "perplexity": [models.normal(1, 8, 30), models.normal(1, 8, 30, seed=1)],
    "ssim": [IMAGE, IMAGE[::-1]],
    "top1": [models.normal(16, 10), models.normal(16, 10, seed=1)],
    "top5": [models.normal(16, 10), models.normal(16, 10, seed=1)],
}
"""Outputs by the check that is made for them."""


def test_the_names_are_those_of_the_checks() -> None:
    """What the command line offers is what is tested here."""
    assert set(READY_MADE) == set(FITTING)


@pytest.mark.parametrize("name", FITTING)
def test_each_keeps_the_contract(name: str) -> None:
    """Every one keeps what comparators promise, and is found sound before a search."""
    reference = [{"y": each} for each in FITTING[name]]
    check_comparator(check(name), reference)
    try_out(check(name), reference, f"--check {name}")


@pytest.mark.parametrize("name", FITTING)
def test_more_noise_is_no_smaller_error(name: str) -> None:
    """The figure is 0 for equal outputs and grows with what is wrong."""
    want = FITTING[name][0]
    noise = models.normal(*want.shape, seed=5) * np.float32(100 if name == "boxes" else 1)
    found = [error(name, want + np.float32(scale) * noise, want) for scale in (0, 0.03, 0.3, 3)]
    assert 0 == found[0] < found[-1]
    assert sorted(found) == found


LOGITS = np.array([[3, 2, 1, 0, -1, -2, -3, 0.5], [0, 1, 2, 3, 4, 5, 6, 7]], np.float32)
SWAPPED = LOGITS[:, [1, 0, 2, 3, 4, 5, 6, 7]]
LINES = np.eye(5, dtype=np.float32)
ONE_HOT = np.eye(3, dtype=np.float32)
IMAGES = np.ones((1, 1, 16, 16), np.float32)
BOX = np.array([[0, 0, 10, 10, 0.5]], np.float32)
MOVED = np.array([[1, 0, 11, 10, 0.5]], np.float32)


@pytest.mark.parametrize(
    ("name", "got", "want", "expected"),
    [
        ("top1", SWAPPED, LOGITS, 1 / 2),
        ("top1", np.array([[1, 2, 9, 4]]), np.array([[1, 2, 3, 4]]), 1 / 4),
        # The second class of four dimensions: one of 2 x 2 pixels.
        ("top1", *(np.eye(3, dtype=np.float32)[p].transpose(2, 0, 1)[None] for p in
                   ([[0, 1], [2, 1]], [[0, 1], [2, 2]])), 1 / 4),
        ("top5", SWAPPED, LOGITS, 0.0),
        ("top5", -LOGITS, LOGITS, 6 / 10),
        # Blank is 0: 1 2 2 3 against 1 2 blank 2 3.
        ("ctc", LINES[[0, 1, 2, 2, 3, 0]], LINES[[1, 2, 0, 2, 3, 0]], 1 / 4),
        ("ctc", LINES[[0, 1, 2, 2, 3, 0]][None], LINES[[0, 1, 2, 2, 4, 0]][None], 1 / 3),
        # Blank is the last: 1 2 against 1.
        ("ctc", LINES[[4, 1, 2, 4]][:, None], LINES[[4, 1, 4, 4]][:, None], 1.0),
        # Of class 1 one of two places, of class 2 the one and another; 3 is nobody's.
        ("iou", np.array([[1, 2, 2, 3]]), np.array([[1, 1, 2, 2]]), 1 - (1 / 2 + 1 / 3) / 2),
        # One channel says where something is: from half of a probability, from 0 of a logit.
        *(("iou", np.array([0.9, 0.6, 0.2, 0.1]).reshape(shape) - shift,
           np.array([0.9, 0.4, 0.2, 0.6]).reshape(shape) - shift, 1 - (1 / 3 + 1 / 3) / 2)
          for shape in ((1, 1, 2, 2), (1, 2, 2, 1)) for shift in (0, 0.5)),
        # Half of the pixels are of another class; classes lie along the last axis, or the second.
        *(("iou", ONE_HOT[np.tile([[0, 1], [2, 2]], (2, 2))][None].transpose(order),
           ONE_HOT[np.tile([[0, 1], [0, 1]], (2, 2))][None].transpose(order), 1 / 2)
          for order in ((0, 1, 2, 3), (0, 3, 1, 2))),
        ("embeddings", np.array([[1, 0], [0, 2.0]]), np.array([[1, 0], [1, 1.0]]), 1 - 0.5**0.5),
        ("embeddings", np.zeros((2, 3)), np.ones((2, 3)), 1.0),
        # Constant images have no structure: luminance alone, with C1 of their own value.
        ("ssim", IMAGES, 0.8 * IMAGES, 1 - (1.6 + 0.64e-4) / (1 + 0.64 + 0.64e-4)),
        ("boxes", MOVED, BOX, 1 - 90 / 110),
        ("boxes", MOVED[:, :4], BOX[:, :4], 1 - 90 / 110),
        ("boxes", np.concatenate([BOX, MOVED + 300]), BOX, 1 - 2 * 0.5 / (0.5 + 0.5 + 1)),
        ("boxes", BOX[:0], BOX, 1.0),
        ("boxes", BOX[:0], BOX[:0], 0.0),
    ],
)  # fmt: skip
def test_figures_are_as_defined(
    name: str, got: NDArray[Any], want: NDArray[Any], expected: float
) -> None:
    """Small outputs have the errors that the definitions give by hand."""
    assert pytest.approx(expected, abs=1e-6) == error(name, got, want)


@pytest.mark.parametrize("as_shares", [False, True])
def test_perplexity_is_the_rise_for_texts_of_the_reference(as_shares: bool) -> None:
    """exp(cross entropy) / exp(entropy) - 1, of logits and of probabilities alike."""
    want, got = (models.normal(1, 6, 40, seed=seed) for seed in (1, 2))
    p, q = softmax(want), softmax(got)
    apart = np.exp(-(p * np.log(q)).sum(-1).mean()) / np.exp(-(p * np.log(p)).sum(-1).mean()) - 1
    given = (q, p) if as_shares else (got + 3, want)
    assert pytest.approx(float(apart), rel=1e-4) == error("perplexity", *given)


def detector(order: Sequence[int], *, move: float = 0.0) -> dict[str, NDArray[Any]]:
    """Return a detector's outputs with its boxes in this order."""
    at, scores = corners(6) + np.float32(move), np.linspace(0.9, 0.4, 6, dtype=np.float32)
    labels = np.array([1, 2, 3, 1, 2, 3])
    return {"labels": labels[order], "scores": scores[order], "boxes": at[order]}


def layouts(found: Mapping[str, NDArray[Any]]) -> Mapping[str, dict[str, NDArray[Any]]]:
    """Return the same boxes as exporters write them."""
    boxes, scores, labels = (found[name] for name in ("boxes", "scores", "labels"))
    parts = boxes, scores[:, None], labels[:, None].astype(np.float32)
    centred = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], -1)
    by_class = scores[:, None] * np.eye(4, dtype=np.float32)[labels]
    first = np.zeros_like(parts[1])
    return {
        "torchvision": dict(found),
        "a batch": {name: array[None] for name, array in found.items()},
        "scores by class": {"b": boxes[None], "s": by_class[None]},
        "centred": {"b": centred[None], "s": by_class[None]},
        "end to end": {"y": np.concatenate(parts, -1)[None]},
        "paddle": {"y": np.concatenate([parts[2], parts[1], boxes], -1)},
        "with the image": {"y": np.concatenate([first, boxes, parts[2], parts[1]], -1)},
        "padded": {
            name: np.concatenate([array, np.zeros((3, *array.shape[1:]), array.dtype)])[None]
            for name, array in found.items()
        },
    }


@pytest.mark.parametrize("softmax_of", [False, True])
def test_logits_of_boxes_are_judged_as_their_scores(softmax_of: bool) -> None:
    """By sigmoid or, where a last class is nothing, by softmax: most boxes find nothing."""
    got, want = models.normal(20, 6), models.normal(20, 6, seed=1)
    for logits in (got, want):
        logits[6:, :5] -= 6
        logits[:, 5] = 0
    boxes = {"b": corners(20)[None]}

    def judged(scores: Callable[[NDArray[Any]], NDArray[Any]]) -> float:
        return error("boxes", *({"s": scores(each)[None], **boxes} for each in (got, want)))

    if softmax_of:
        by_logits, by_scores = judged(lambda x: x), judged(lambda x: softmax(x)[:, :5])
    else:
        by_logits = judged(lambda x: x[:, :5])
        by_scores = judged(lambda x: 1 / (1 + np.exp(-x[:, :5])))
    assert 0.0 < by_scores < 1.0
    assert pytest.approx(by_scores, abs=1e-5) == by_logits


@pytest.mark.parametrize("layout", layouts(detector(range(6))))
def test_boxes_are_found_in_every_layout(layout: str) -> None:
    """Order says nothing; a class or a box that moved does, by the same figure in each layout."""
    want = layouts(detector(range(6)))[layout]
    assert 0.0 == error("boxes", layouts(detector([3, 0, 5, 4, 2, 1]))[layout], want)
    moved = [
        error(
            "boxes", layouts(detector(range(6), move=2.0))[each], layouts(detector(range(6)))[each]
        )
        for each in (layout, "torchvision")
    ]
    assert 0.05 < moved[0]
    assert pytest.approx(moved[1], abs=1e-5) == moved[0]
    relabelled = detector(range(6))
    relabelled["labels"][0] = 2
    assert 0.1 < error("boxes", layouts(relabelled)[layout], want)


def raw_head(*, old: bool, move: float = 0.0, count: int = 20) -> NDArray[np.float32]:
    """Return the six boxes of `detector` in a head that has places for more."""
    centred = layouts(detector(range(6), move=move))["centred"]
    columns = [centred["b"][0], *([np.ones((6, 1))] if old else []), centred["s"][0]]
    rows = np.concatenate(columns, -1).astype(np.float32)
    rows = np.concatenate([rows, np.zeros((count - 6, rows.shape[1]), np.float32)])[None]
    return rows if old else rows.swapaxes(1, 2)


@pytest.mark.parametrize("old", [False, True])
def test_a_raw_head_is_judged_as_its_boxes_are(old: bool) -> None:
    """The figure is that of boxes of their own; another place is another box."""
    want = raw_head(old=old)
    moved = error("boxes", raw_head(old=old, move=2.0), want)
    apart = [layouts(detector(range(6), move=move))["torchvision"] for move in (2.0, 0.0)]
    assert pytest.approx(error("boxes", *apart), abs=1e-5) == moved
    assert 0.0 == error("boxes", want, want)
    assert 1.0 == error("boxes", np.roll(want, 6, axis=1 if old else 2), want)
    assert error("boxes", want[:, 1:], want) == np.inf
    with pytest.raises(UsageError, match="scores outside of 0 to 1"):
        error("boxes", want, want * 2)


ODD: Mapping[str, NDArray[Any]] = {
    "a scalar": np.array(0.5, np.float32),
    "nothing": np.zeros((0,), np.float32),
    "no rows": np.zeros((0, 6), np.float32),
    "no columns": np.zeros((3, 0), np.float32),
    "one column": np.ones((3, 1), np.float32),
    "a row": models.normal(8),
    "five numbers": models.normal(3, 5),
    "boxes": rows(7),
    "more boxes": rows(9, seed=2)[None],
    "classes": np.array([[1, 2, 3]]),
    "truth values": np.array([True, False]),
    "an image": models.normal(1, 3, 16, 16),
    "channels last": models.normal(16, 16, 3),
    "bytes": np.arange(256, dtype=np.uint8).reshape(16, 16),
    "five dimensions": models.normal(1, 2, 3, 4, 5),
    "half": models.normal(4, 6).astype(np.float16),
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), list(product(READY_MADE, ODD)))
def test_no_shape_makes_them_raise(name: str, kind: str) -> None:
    """A reference fits or is refused by the name of its output; then no other shape raises."""
    reference = [{"odd": ODD[kind]}]
    judge = check(name, outputs=["odd"])
    try:
        assert 0.0 == judge.judge(reference, reference).error
    except UsageError as refused:
        assert "'odd'" in refused.message and refused.hint
        return
    for other in ODD.values():
        found = judge.judge([{"odd": other}], reference)
        assert found.error is not None and found.error >= 0
        if np.shape(other) != np.shape(ODD[kind]) and name not in ("boxes", "ctc"):
            assert (Verdict.FAIL, math.inf) == (found.verdict, found.error)


def test_each_of_many_outputs_is_judged() -> None:
    """All outputs count unless some are named, whatever characters their names have."""
    want: Sample = {"a:0": LOGITS, "b,c": LOGITS}
    got = {"a:0": LOGITS, "b,c": SWAPPED}
    names = list(want)
    assert 0.5 == check("top1", outputs=names).judge([got], [want]).error
    assert 0.5 == check("top1:b,c", outputs=names).judge([got], [want]).error
    assert 0.0 == check("top1:a:0", outputs=names).judge([got], [want]).error
    with pytest.raises(UsageError, match="'d', which is no output"):
        check("top1:a:0,d", outputs=names)


MODEL = (
    "(float[2,8] x) => (float[2,8] y, float[2,1] z) { y = Relu(x) z = ReduceMax<axes=[-1]>(y) }"
)
REFUSED: Mapping[str, tuple[Sequence[str], str]] = {
    "no limit": (["--check", "top1:y"], "give --tol 0.01, the share of classes"),
    "an output that does not fit": (
        ["--check", "top1", "--tol", "0.01"],
        "output 'z' [2, 1] of float32 has no scores of 2 classes",
    ),
    "no output": (["--check", "top1:", "--tol", "0.01"], "write --check top1:OUTPUT"),
    "another output": (["--check", "ssim:q", "--tol", "0.01"], "its outputs are y, z"),
    "a wrong name": (["--check", "top2", "--tol", "0.01"], "or one of boxes, ctc, embeddings"),
    "two limits": (["--check", "top1", "--atol", "0.01"], "one figure of its own"),
    "a limit that passes all": (
        ["--check", "top1:y", "--tol", "1"],
        "passes zeros instead",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command line says what does not fit, and what to do, before anything is searched."""
    monkeypatch.chdir(tmp_path)
    models.save(models.parse(MODEL), tmp_path)
    np.savez("inputs.npz", x=models.normal(2, 8))
    said, expected = REFUSED[case]
    assert 2 == main(["model.onnx", "--inputs", "inputs.npz", "--backend", "emulated", *said])
    line = capfd.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("precision-bisect: ") and expected in line


@pytest.mark.parametrize(
    ("shape", "image", "axis"),
    [
        ((1, 21, 30, 30), None, 1),
        ((1, 30, 30, 21), None, 3),
        ((1, 21, 48, 64), None, 1),
        ((1, 48, 64, 21), None, 3),
        ((1, 21, 24, 32), None, None),
        # More classes than pixels along a side.
        ((1, 16, 20, 150), None, 3),
        ((1, 150, 16, 20), None, 1),
        # The sides are those of the sample's image, or the second axis is as likely.
        ((1, 15, 10, 12), (40, 48), 1),
        ((1, 10, 12, 15), (40, 48), 3),
        ((1, 9, 9, 9), None, None),
        ((1, 15, 12, 18), None, None),
    ],
)
def test_classes_of_pixels_are_found(
    shape: tuple[int, ...], image: tuple[int, int] | None, axis: int | None
) -> None:
    """Images of TensorFlow have their classes last: the other axis would compare nothing."""
    scores = models.normal(*shape)
    images = [image] if image else []
    if axis is None:
        with pytest.raises(UsageError, match="along the second or the last axis"):
            fitted("top1", [{"y": scores}], images)
        axis = 1
        scores = softmax(scores.swapaxes(1, 3)).swapaxes(1, 3)
    chosen = np.moveaxis(np.eye(shape[axis], dtype=np.float32)[scores.argmax(axis)], -1, axis)
    top1 = fitted("top1", [{"y": scores}], images)
    assert top1.judge([{"y": chosen}], [{"y": scores}]).error == 0
    assert fitted("iou", [{"y": scores}], images).forms == {"y": axis}


@pytest.mark.parametrize(("shape", "axis"), [((1, 4, 30), 1), ((1, 30, 4), 2), ((3, 9, 9), 1)])
def test_probabilities_tell_their_axis(shape: tuple[int, ...], axis: int) -> None:
    """Classes of times may lie before the times; scores that tell nothing have them last."""
    scores = models.normal(*shape)
    shares = softmax(scores.swapaxes(axis, -1)).swapaxes(axis, -1)
    assert fitted("perplexity", [{"y": shares}]).forms == {"y": {"axis": axis, "shares": True}}
    assert fitted("top1", [{"y": scores}]).forms == {"y": 2}


@pytest.mark.parametrize("name", FITTING)
def test_a_part_of_the_samples_is_judged_as_all_are(name: str) -> None:
    """What an output is was read once: one sample that looks otherwise is judged by the same."""
    blank = np.eye(9, dtype=np.float32)
    odd = {
        "boxes": np.concatenate([corners(1), [[1.5]]], -1, dtype=np.float32)[None],
        "ctc": blank[[8, 8, 1, 8]][None].repeat(2, 0),
        "iou": np.abs(models.normal(1, 6, 6, 6)),
    }.get(name, FITTING[name][0])
    whole = [{"y": each} for each in FITTING[name]]
    got, want = [{"y": odd * np.float32(0.5)}], [{"y": odd}]
    alone, among = (
        fitted(name, whole).judge([*got, *same], [*want, *same]).error for same in ([], whole)
    )
    assert alone is not None and among is not None
    assert (alone > 0) == (among > 0)


def test_labels_and_scores_that_pass_through_are_judged_on_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy moves an input that is an output, too: labels are then no whole numbers any more."""
    monkeypatch.chdir(tmp_path)
    graph = "(float[20,4] x, float[20,2] more) => (float[20,6] dets) "
    graph += "{ boxes = Mul(x, x) dets = Concat<axis=1>(boxes, more) }"
    models.save(models.parse(graph), tmp_path)
    scores, labels = np.linspace(0.2, 1, 20), np.arange(20) % 7 + 80
    more = np.stack([scores, labels], -1, dtype=np.float32)
    Path("inputs").mkdir()
    for seed in range(4):
        np.savez(f"inputs/{seed}.npz", x=np.sqrt(corners(20, seed)), more=more)
    flags = ["--check", "boxes", "--tol", "0.05", "--backend", "emulated"]
    assert 0 == main(["model.onnx", "--inputs", "inputs", *flags])


def definitions(text: str) -> Counter[str]:
    """Return how often each name is defined at the top of a script."""
    found: Counter[str] = Counter()
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names = [
            name.id for each in targets for name in ast.walk(each) if isinstance(name, ast.Name)
        ]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        found.update(names)
    return found


def test_the_script_for_the_target_has_them() -> None:
    """`run_onnxruntime.py` holds each definition once, and imports nothing of this package."""
    text = one_file(RUN_SCRIPT, {})
    assert {1} == set(definitions(text).values())
    assert {"judge_task", "matched_boxes", "multiple"} <= set(definitions(text))
    assert "precision_bisect." not in "".join(
        ast.unparse(n) for n in ast.parse(text).body if isinstance(n, ast.Import | ast.ImportFrom)
    )


@pytest.mark.parametrize("name", FITTING)
def test_the_script_judges_as_the_run_does(name: str) -> None:
    """By the definitions in the script the same outputs have the same error; NaN never passes."""
    scope: dict[str, Any] = {"__name__": "script", "__file__": "script.py"}
    exec(compile(one_file(RUN_SCRIPT, {}), "script.py", "exec"), scope)
    judge: Callable[..., run_onnxruntime.Judged] = scope["by_check"]
    want = [{"y": each} for each in FITTING[name]]
    scope["SETTINGS"]["limits"] = fitted(name, want).settings()
    got = [{"y": each[..., ::-1].copy()} for each in FITTING[name]]
    assert check(name).judge(got, want).error == judge(got, want).error
    assert judge(want, want).passed
    got[0]["y"].flat[0] = np.nan
    assert math.inf == judge(got, want).error
