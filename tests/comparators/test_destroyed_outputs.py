"""No ready-made check passes outputs that are destroyed, whatever lies beside them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator
from numpy.typing import NDArray

from effort import examples
from precision_bisect.errors import UsageError
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.tried_out import try_out
from precision_bisect.options import Options
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.settings.check_words import READY_MADE
from precision_bisect.trial import Verdict

PLACES = 100
"""Rows of an output of boxes, most of which are padding."""


def check(name: str) -> Comparator:
    """Return the check with the limit that its help gives."""
    options = Options(model=Path("m.onnx"), check=name, tol=READY_MADE[name].tol)
    return choose_comparator(options, ["y"])


def error(name: str, got: list[Any], want: list[Any]) -> float:
    """Return the error of samples with one output."""
    told = check(name).judge([{"y": each} for each in got], [{"y": each} for each in want])
    assert told.error is not None
    return told.error


def boxes(rng: Generator, real: int, padding: float = 0.0) -> NDArray[Any]:
    """Return so many boxes of 60 to 200 pixels, filled up with rows of padding."""
    table = np.full((1, PLACES, 4), padding, np.float32)
    low = rng.uniform(20, 400, (real, 2))
    table[0, :real] = np.concatenate([low, low + rng.uniform(60, 200, (real, 2))], -1)
    return table


PADDED: Mapping[str, Callable[[Generator], NDArray[Any]]] = {
    "boxes": lambda rng: boxes(rng, int(rng.integers(1, 60)), float(rng.choice([0, -1]))),
    "ctc": lambda rng: np.eye(6, dtype=np.float32)[np.r_[rng.integers(1, 6, 3), [0] * 30]][None],
    "embeddings": lambda rng: np.r_[rng.normal(size=(3, 16)), np.zeros((20, 16))].astype("f"),
    "iou": lambda rng: rng.integers(1, 6, (1, 9, 9)) * rng.integers(0, 2, (1, 9, 9)),
    "perplexity": lambda rng: np.r_[rng.normal(0, 3, (3, 9)), np.zeros((20, 9))].astype("f"),
    "ssim": lambda rng: np.pad(rng.random((1, 1, 12, 12)), [(0, 0), (0, 0), (9, 9), (9, 9)]),
    "top1": lambda rng: np.r_[rng.normal(size=(3, 9)), np.zeros((60, 9))].astype("f"),
    "top5": lambda rng: np.r_[rng.normal(size=(3, 9)), np.zeros((60, 9))].astype("f"),
}
"""By check an output that is mostly padding."""


@st.composite
def references(draw: st.DrawFn, name: str) -> list[Sample]:
    """Draw samples with outputs that are padded, empty, constant, or of several ranges."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def output(kind: str) -> NDArray[Any]:
        full = PADDED[name](rng)
        match kind:
            case "empty":
                return full[:, :0] if name == "boxes" else full[:0]
            case "constant":
                return np.full_like(full, draw(st.sampled_from([1e-4, 0.5, 7.0, -3.0])))
            case "of another range":
                scaled = name in ("ssim", "embeddings")
                return full * np.float32(draw(st.sampled_from([1e-3, 1e3])) if scaled else 1)
        return full

    kinds = st.sampled_from(["padded", "empty", "constant", "of another range"])
    return [{"y": output(kind)} for kind in draw(st.lists(kinds, min_size=1, max_size=4))]


@pytest.mark.parametrize("name", READY_MADE)
@given(data=st.data())
@examples(20)
def test_zeros_fail_or_the_check_is_refused(name: str, data: st.DataObject) -> None:
    """A reference turned into zeros never passes a check that a run begins with."""
    reference = data.draw(references(name))
    zeros = [{"y": np.zeros_like(sample["y"])} for sample in reference]
    judge = check(name)
    try:
        try_out(judge, reference, f"--check {name}")
    except UsageError:
        return
    assert Verdict.FAIL is judge.judge(zeros, reference).verdict


@pytest.mark.parametrize("name", READY_MADE)
def test_outputs_of_zeros_are_nothing_to_judge(name: str) -> None:
    """A reference that holds nothing cannot lose anything, so the check is refused."""
    nothing = [{"y": np.zeros_like(PADDED[name](np.random.default_rng(0)))}]
    with pytest.raises(UsageError, match="has nothing to judge"):
        try_out(check(name), nothing, f"--check {name}")


@pytest.mark.parametrize("padding", [-100, -1, 0, 4])
@pytest.mark.parametrize("scores", [False, True])
def test_classes_that_weigh_nothing_beside_padding_are_refused(padding: int, scores: bool) -> None:
    """If all but the commonest class may be lost, the check says nothing; of one class it does."""
    labels = np.full(1000, padding)
    labels[:3] = [2, 3, 5]
    outputs = np.eye(6)[labels % 6].astype("f") if scores else labels
    with pytest.raises(UsageError, match="instead of these outputs"):
        try_out(check("top1"), [{"y": outputs}], "--check top1")
    try_out(check("top1"), [{"y": np.eye(6)[[4, 4]].astype("f")}], "--check top1")


@given(seed=st.integers(0, 2**32), real=st.integers(1, 60), padding=st.sampled_from([0.0, -1.0]))
@examples(30)
def test_padding_weighs_nothing(seed: int, real: int, padding: float) -> None:
    """Boxes have the error that they have without padding, also where that is noisy; 8 px fail."""
    rng = np.random.default_rng(seed)
    want = boxes(rng, real, padding)
    for move in (8.0, 300.0, 0.0):
        got = want.copy()
        got[0, :real] += np.float32(move)
        got[0, real:] += rng.normal(0, 1e-3, got[0, real:].shape).astype(np.float32)
        found = error("boxes", [got], [want])
        assert pytest.approx(found) == error("boxes", [got[:, :real]], [want[:, :real]])
        assert (move > 0) == (found > READY_MADE["boxes"].tol)


@pytest.mark.parametrize(
    "columns", ["bbbbs", "bbbbl", "bbbbsl", "bbbbls", "lsbbbb", "lbbbbls", "lbbbbsl", "llsbbbb"]
)
@given(
    seed=st.integers(0, 2**32),
    padding=st.sampled_from([0.0, -1.0]),
    classes=st.sampled_from([1, 2, 80]),
)
@examples(10)
def test_boxes_of_each_class_count(columns: str, seed: int, padding: float, classes: int) -> None:
    """Whatever columns stand beside the boxes and fill them up, those of no class may be lost."""
    rng = np.random.default_rng(seed)
    real, kinds = int(rng.integers(3, 20)), np.array(list(columns))
    want = np.full((1, PLACES, len(kinds)), padding, np.float32)
    want[0, :real, kinds == "b"] = boxes(rng, real)[0, :real].T
    want[0, :real, kinds == "s"] = rng.uniform(0.3, 0.9, real)
    labels = rng.integers(0, classes, (int((kinds == "l").sum()), real))
    want[0, :real, kinds == "l"] = labels
    assert 0.0 == error("boxes", [want], [want])
    for kept in (*(row == 0 for row in labels), np.zeros(real, bool)):
        got = want.copy()
        got[0, :real][~kept] = padding
        others = want.copy()
        others[0, :real][kept] = padding
        lost = [error("boxes", [some], [want]) for some in (got, others)]
        assert [bool((~kept).any()), bool(kept.any())] == [e > 0.01 for e in lost]


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 16), (1, 2, 16, 16), (1, 3, 16, 16)])
@given(seed=st.integers(0, 2**32), ratio=st.sampled_from([1e-4, 1e-3, 1.0]))
@examples(10)
def test_no_channel_or_image_is_destroyed(shape: tuple[int, ...], seed: int, ratio: float) -> None:
    """Each of those that stand in one array fails by its own range, as does noise on black."""
    rng = np.random.default_rng(seed)
    want = rng.random(shape)
    first = (0,) * (len(shape) - 2)
    want[first] *= ratio
    got = want.copy()
    got[first] = want[first].mean()
    assert error("ssim", [got], [want]) > READY_MADE["ssim"].tol
    black = np.zeros((1, 1, 16, 16))
    noisy = ratio * rng.random(black.shape)
    assert error("ssim", [noisy, want], [black, want]) > READY_MADE["ssim"].tol


@given(seed=st.integers(0, 2**32), ranges=st.lists(st.floats(-4, 4), min_size=1, max_size=4))
@examples(20)
def test_an_image_is_judged_by_its_own_range(seed: int, ranges: list[float]) -> None:
    """Beside others, in a batch or as samples, it has the error that it has alone."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.05, (len(ranges), 1, 16, 16))
    plain = rng.random(noise.shape)
    scales = np.power(10.0, ranges).reshape(-1, 1, 1, 1)
    want, got = plain * scales, (plain + noise) * scales
    alone = [error("ssim", [got[[i]]], [want[[i]]]) for i in range(len(ranges))]
    unscaled = [error("ssim", [(plain + noise)[[i]]], [plain[[i]]]) for i in range(len(ranges))]
    assert pytest.approx(unscaled) == alone
    assert pytest.approx(max(alone)) == error("ssim", [got], [want])
    assert pytest.approx(max(alone)) == error("ssim", [*got[:, None]], [*want[:, None]])


def test_an_image_of_one_colour_may_be_rounded() -> None:
    """It has no contrast that rounding could take; another colour fails."""
    want = np.full((1, 1, 16, 16), 0.7)
    rounded = want * (1 + np.random.default_rng(0).uniform(-(2**-11), 2**-11, want.shape))
    assert error("ssim", [rounded], [want]) < READY_MADE["ssim"].tol
    assert error("ssim", [want * 0.8], [want]) > READY_MADE["ssim"].tol
