"""What samples hold is told in figures, and what does not look like what a model saw is said."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from models import load_text
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode
from precision_bisect.judging.inputs.input_check import figures, oddities
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import InputRead, SamplesRead
from precision_bisect_reports.terminal import TerminalReport

IMAGE = "(float[1, 3, 4, 4] x) => (float[N, C, H, W] y)"
MEANS = "<float[1, 3, 1, 1] m = {123.7, 116.3, 103.5}>"
PER_CHANNEL = "<float[3] m = {123.7, 116.3, 103.5}, float[3] v = {3400, 3300, 3300}>"
SMALL = "<float[1, 3, 1, 1] m = {0.485, 0.456, 0.406}>"
INSIDE = {
    "divided": "<float d = {255}> { y = Div(x, d) }",
    "multiplied": "<float d = {0.0039}> { y = Mul(d, x) }",
    "a Constant": "{ d = Constant<value_float = 127.5>() y = Div(x, d) }",
    "a constant put through": "<float d = {255}> { e = Identity(d) y = Div(x, e) }",
    "means": MEANS + " { y = Sub(x, m) }",
    "means by channel": (
        "<float[3] m = {123.7, 116.3, 103.5}, int64[4] s = {1, 3, 1, 1}>"
        " { r = Reshape(m, s) y = Sub(x, r) }"
    ),
    "turned first": MEANS + " { t = Transpose<perm = [0, 1, 3, 2]>(x) y = Sub(t, m) }",
    "channels swapped": (
        "<int64[3] i = {2, 1, 0}, float d = {255}> { s = Gather<axis = 1>(x, i) y = Div(s, d) }"
    ),
    "normalised": PER_CHANNEL + " { y = BatchNormalization(x, v, v, m, v) }",
}
OUTSIDE = {
    "nothing": "{ y = Relu(x) }",
    "small means": SMALL + " { y = Sub(x, m) }",
    "a small divisor": SMALL + " { y = Div(x, m) }",
    "after another layer": "<float d = {255}> { r = Relu(x) y = Div(r, d) }",
}


def remarks(body: str, samples: Sequence[Sample], folder: Path) -> list[str]:
    """Return what is odd about samples of a model."""
    model = load_text(body, folder)
    return list(oddities(model, samples, figures(samples, model.inputs, "", None)))


def photo(highest: float, seed: int = 0) -> Sample:
    """Return an image whose values reach from 0 to `highest`."""
    values: NDArray[np.float32] = np.linspace(0, highest, 48, dtype=np.float32)
    return {"x": np.random.default_rng(seed).permutation(values).reshape(1, 3, 4, 4)}


@pytest.mark.parametrize("highest", [255.0, 1.0])
@pytest.mark.parametrize("case", [*INSIDE, *OUTSIDE])
def test_the_scale_of_images_is_that_of_the_first_layers(
    case: str, highest: float, tmp_path: Path
) -> None:
    """Pixels as they are suit a model that scales them itself; scaled ones suit the others."""
    inside = case in INSIDE
    body = f"{IMAGE} {INSIDE.get(case) or OUTSIDE[case]}"
    said = remarks(body, [photo(highest), photo(highest, seed=1)], tmp_path)
    if inside == (highest == 255):
        assert [] == said
    else:
        (line,) = said
        advice = "give pixels as they are" if inside else "trained on pixels from 0 to 1"
        assert f"input 'x' has values from 0 to {highest:g}" in line and advice in line


def test_what_are_no_images_may_have_any_range(tmp_path: Path) -> None:
    """Values up to 255 of another shape are not taken for pixels."""
    samples = [{"x": np.linspace(0, 255, 8, dtype=np.float32)[None]}]
    assert [] == remarks("(float[1, 8] x) => (float[1, 8] y) { y = Relu(x) }", samples, tmp_path)


def test_values_all_alike(tmp_path: Path) -> None:
    """Floats that never change are said; masks of ones are usual."""
    body = f"{IMAGE} {{ y = Relu(x) }}"
    (flat,) = remarks(body, [{"x": np.full((1, 3, 4, 4), 0.5, np.float32)}], tmp_path)
    assert "input 'x' is 0.5 throughout" in flat
    mask = "(int64[4] x) => (float[4] y) { y = Cast<to = 1>(x) }"
    assert [] == remarks(mask, [{"x": np.ones(4, np.int64)}], tmp_path)


def test_figures_of_all_inputs(tmp_path: Path) -> None:
    """Lowest, highest and mean over all samples, of any shapes; of texts there are none."""
    body = "(float[N] x, string[1] t) => (float[N] y) { y = Relu(x) }"
    model = load_text(body, tmp_path)
    text = np.array(["a"], object)
    samples = [{"x": np.array(each, np.float32), "t": text} for each in ([1, 2], [3, 4, 5])]
    read = figures(samples, model.inputs, "in", None)
    shapes = [(2,), (3,)]
    assert [
        InputRead(name="x", dtype="float32", shapes=shapes, lowest=1, highest=5, mean=3),
        InputRead(name="t", dtype="object", shapes=[(1,)], lowest=None, highest=None, mean=None),
    ] == read.inputs


def test_of_many_samples_and_inputs_some_are_told() -> None:
    """At most four inputs and two shapes are, and how many samples the figures are of."""
    inputs = [
        InputRead(
            name=f"x{number}",
            dtype="int64",
            shapes=[(2,), (3,), (4,)],
            lowest=0,
            highest=9,
            mean=4.5,
        )
        for number in range(6)
    ]
    said = io.StringIO()
    report = TerminalReport(io.StringIO(), said)
    report(SamplesRead(path="in", samples=70, looked_at=64, inputs=inputs))
    told = "int64 (2) or (3), …, 0 to 9, mean 4.5"
    assert said.getvalue() == (
        f"Read 70 samples from in (figures of the first 64): x0 {told}; x1 {told}; x2 {told}; "
        f"x3 {told}; 2 more inputs\n"
    )


def test_what_a_user_sees_of_a_folder_of_photos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pixels need a scale, what was read and how is one line, and other flags end a resume."""
    monkeypatch.chdir(tmp_path)
    load_text(f"{IMAGE} {{ r = Relu(x) y = Sqrt(r) }}", tmp_path)
    Path("photos").mkdir()
    for seed in range(2):
        pixels = photo(255, seed)["x"].reshape(4, 4, 3).astype(np.uint8)
        Image.fromarray(pixels).save(f"photos/{seed}.png")
    command = ["model.onnx", "--inputs", "photos", "--channels", "bgr", "--resume"]
    assert ExitCode.USAGE == main(command)
    (line,) = capsys.readouterr().err.splitlines()
    assert "values from 0 to 255" in line and "give --normalize imagenet" in line
    assert not Path("model.onnx.precision-bisect").exists()
    command += ["--scale", "1"]
    assert ExitCode.OK == main(command)
    said = capsys.readouterr().err
    assert (
        "Read 2 samples from photos: x float32 (1, 3, 4, 4), 0 to 255, mean 127; images of 4x4 "
        "(width x height), nchw, bgr (if training had the other order: --channels rgb)\n" in said
    )
    assert ExitCode.OK == main(command)
    assert "Found" not in capsys.readouterr().err
    for changed, told in (
        (["--scale", "1/255"], "--scale was 1.0, now 0.00392"),
        (["--resize", "crop"], "--resize was stretch, now crop"),
        (["--mean", "100,101,102"], "--mean was 0.0,0.0,0.0, now 100.0,101.0,102.0"),
        (["--channels", "rgb"], "--channels was bgr, now rgb"),
    ):
        assert ExitCode.USAGE == main([*command, *changed])
        (*_, line) = capsys.readouterr().err.splitlines()
        assert "cannot resume" in line and told in line and "other inputs" not in line


MASKED = "(int64[N, S] ids, int64[N, S] attention_mask) => (int64[N, S] y) "
MASKED += "{ y = Mul(ids, attention_mask) }"


@pytest.mark.parametrize(
    ("lengths", "width", "odd"),
    [
        ([[4], [6]], None, "'attention_mask' hides nothing in any sample"),
        ([[8, 8], [8, 8]], 8, "'attention_mask' hides nothing in any sample"),
        ([[5, 5], [5, 5]], 8, "'attention_mask' is the same in all samples"),
        ([[5, 8], [5, 8]], 8, None),
        ([[5], [8]], 8, None),
    ],
)
def test_masks_that_are_all_alike_are_told(
    lengths: list[list[int]], width: int | None, odd: str | None, tmp_path: Path
) -> None:
    """Without padding in any sample, or with the same in all, what it breaks would be missed."""
    samples: list[Sample] = []
    for rows in lengths:
        mask = np.array([np.arange(width or rows[0]) < length for length in rows], np.int64)
        samples.append({"ids": np.full_like(mask, 7), "attention_mask": mask})
    said = remarks(MASKED, samples, tmp_path)
    assert (odd is not None) == len(said) and all(odd in line for line in said if odd)
    assert all("padded and unpadded samples" in line for line in said)


def test_other_inputs_with_masks_in_their_names_are_no_masks(tmp_path: Path) -> None:
    """A mask of scores, or ids of masked words, says nothing of padding."""
    body = "(float[1, 4] mask_scores) => (float[1, 4] y) { y = Neg(mask_scores) }"
    scores: NDArray[np.float32] = np.array([[0.5, 1, 0, 0]], np.float32)
    assert [] == remarks(body, [{"mask_scores": scores}], tmp_path)
