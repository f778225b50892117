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
from judged_outputs import FITTING, check, error, fitted, rows, softmax
from precision_bisect.commandline.main import main
from precision_bisect.errors import UsageError
from precision_bisect.exports import run_onnxruntime
from precision_bisect.exports.one_file import one_file
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.protocols import Sample
from precision_bisect.runs.runfolder import RUN_SCRIPT
from precision_bisect.settings.check_words import READY_MADE
from precision_bisect.testing.comparator_contract import check_comparator
from precision_bisect.trial import Verdict


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
