"""Inputs whose size decides the error: found by a rule, tried at the ends of their range, told."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import precision_bisect
from precision_bisect.commandline.main import main
from precision_bisect.errors import UsageError
from precision_bisect.judging.inputs.copies import at_ends, range_by_type
from precision_bisect.pipeline.input_ranges import sized_inputs
from precision_bisect.protocols import Sample
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.results.saved import read_saved
from precision_bisect.settings.reading import parse_ranges
from precision_bisect_reports.promise import in_range
from precision_bisect_reports.summary import final_screen

GROWING = {
    "Sin": "(float[4] x) => (float[4] y) { a = Mul(x, x) y = Sin(a) }",
    "Cos": "(float t, float[4] x) => (float[4] y) { a = Cos(t) y = Mul(a, x) }",
    "Tan": "(float[4] x) => (float[4] y) { y = Tan(x) }",
    "CumSum": "(float[4] x) => (float[4] y) <int64 a = {0}> { y = CumSum(x, a) }",
    "Range": "(float t) => (float[N] y) <float a = {0}, float d = {1}> { y = Range(a, t, d) }",
    "Mod": "(float[4] x) => (float[4] y) <float k = {3}> { y = Mod<fmod = 1>(x, k) }",
    "Floor": "(float[4,4] x) => (float[4,4] y) { t = Transpose(x) m = MatMul(t, x) y = Floor(m) }",
    "Ceil": "(float[4] x) => (float[4] y) { y = Ceil(x) }",
    "Round": "(float[4] x) => (float[4] y) { y = Round(x) }",
    "GridSample": "(float[1,1,4,4] v, float[1,2,2,2] g) => (float[1,1,2,2] y) "
    "{ y = GridSample(v, g) }",
    # A float index, and an integer that becomes a float.
    "Cast": "(float[4] x, float[9] w) => (float[4] y) <int64 a = {0}> "
    "{ i = Cast<to = 7>(x) y = Gather<axis = 0>(w, i) }",
}
STOPPED = {
    "an embedding": "(int64[4] i, float[9,4] w) => (float[4,4] y) "
    "{ e = Gather(w, i) y = Floor(e) }",
    "a convolution": "(float[1,1,4,4] x, float[1,1,1,1] w) => (float[1,1,4,4] y) "
    "{ c = Conv(x, w) y = Floor(c) }",
    "a norm": "(float[2,4] x, float[4] w) => (float[2,4] y) "
    "{ c = LayerNormalization(x, w) y = Sin(c) }",
    "a Softmax": "(float[2,4] x) => (float[2,4] y) { c = Softmax(x) y = Round(c) }",
    "a shape": "(float[2,4] x) => (int64[2] y) { s = Shape(x) y = Identity(s) }",
    "a condition": "(bool[4] b, float[4] x) => (float[4] y) { c = Cast<to = 9>(x) "
    "w = Where(c, x, x) y = Relu(w) }",
    "values of a GridSample": "(float[1,1,4,4] v) => (float[1,1,2,2] y) "
    "<float[1,2,2,2] g = {0,0,0,0,0,0,0,0}> { y = GridSample(v, g) }",
}


@pytest.mark.parametrize("op_type", GROWING)
def test_operators_that_grow_with_an_input_are_found(op_type: str, tmp_path: Path) -> None:
    """Whatever moves or scales the input on the way; each is named once."""
    found = sized_inputs(models.load_text(GROWING[op_type], tmp_path))
    assert [op_type] == [each.op_type for each in found]


@pytest.mark.parametrize("what", STOPPED)
def test_the_way_ends_where_the_size_is_forgotten(what: str, tmp_path: Path) -> None:
    """Behind these the size of an input says nothing."""
    assert [] == sized_inputs(models.load_text(STOPPED[what], tmp_path))


def test_an_integer_is_followed_through_its_cast(tmp_path: Path) -> None:
    """Positions of a rotary embedding: the Cast and the Cos both lose digits."""
    body = (
        "(int64[1,4] p, float[1,4] x) => (float[1,4] y) "
        "{ f = Cast<to = 1>(p) c = Cos(f) y = Mul(c, x) }"
    )
    found = sized_inputs(models.load_text(body, tmp_path))
    assert ["Cast", "Cos"] == [each.op_type for each in found]


UNET = """(float t, float[1,16] x) => (float[1,16] y) <float k = {0.7}> {
  [scale] a = Mul(t, freqs) [phase] p = Mul(a, k) [cos] c = Cos(p) [embed] e = MatMul(c, w)
  [act] r = Relu(e) [add] s = Add(r, x) [head] y = MatMul(s, v) }"""


WEIGHTS = {
    "freqs": np.exp(-np.arange(16) / 16 * 9.2).astype(np.float32)[None],
    "w": models.normal(16, 16) * np.float32(0.2),
    "v": models.normal(16, 16, seed=1) * np.float32(0.2),
}


def unet(folder: Path, times: Sequence[float], **options: Any) -> Result:
    """Search the head of a network with timesteps, given samples at these times."""
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    path = models.save(models.with_weights(models.parse(UNET), WEIGHTS), folder)
    feeds: list[Sample] = [
        {"t": np.array(t, np.float32), "x": rng.normal(size=(1, 16)).astype(np.float32)}
        for t in times
    ]
    return precision_bisect.find(
        path, inputs=feeds, tol=0.02, out=folder / "run", backend="emulated", threads=1, **options
    )


def screen(result: Result) -> str:
    """Return the final screen as one line."""
    lines = final_screen(result, Path("model.onnx"))
    return " ".join(" ".join(line.plain for line in lines).split())


def test_the_ends_of_a_range_are_tried(tmp_path: Path) -> None:
    """Timesteps 37 and 74 say nothing of 999; with a sample there the answer keeps more."""
    few = unet(tmp_path / "few", [37, 74], ranges={"t": (0, 999)})
    (told,) = few.input_ranges
    assert ("t", ["Cos"], ["cos"]) == (told.input, told.operators, told.layers)
    assert ([37.0, 74.0], [0.0, 999.0]) == (told.samples, told.range)
    # 0.7 x 74 lies from 32 to 64, and 0.7 x 999 from 512 to 1024.
    assert (2**-5, 0.5) == (told.step, told.step_at_ends)
    assert (False, 4, 2) == (told.passed, told.variants, told.failed)
    assert told.error is not None and told.error > 0.02
    assert "FAILS on 2 of 4 made-up variants at its ends" in screen(few)
    assert read_saved(tmp_path / "few" / "run").result.input_ranges == few.input_ranges
    many = unet(tmp_path / "many", [37, 74, 999], ranges={"t": (0, 999)})
    (told,) = many.input_ranges
    assert (True, 6, 0) == (told.passed, told.variants, told.failed)
    assert len(many.kept) > len(few.kept)
    assert "holds on 6 made-up variants" in in_range(told, "fp16")


def test_an_input_is_told_once(tmp_path: Path) -> None:
    """Its variants are tried once, whatever operators read it."""
    text = UNET.replace("[embed] e = MatMul(c, w)", "[sin] n = Sin(a) [both] b = Add(c, n) "
                        "[embed] e = MatMul(b, w)")  # fmt: skip
    path = models.save(models.with_weights(models.parse(text), WEIGHTS), tmp_path)
    feeds: list[Sample] = [{"t": np.array(74, np.float32), "x": models.normal(1, 16)}]
    result = precision_bisect.find(
        path, inputs=feeds, tol=0.02, out=tmp_path / "run", backend="emulated", threads=1,
        ranges={"t": (0, 999)},
    )  # fmt: skip
    (told,) = result.input_ranges
    assert ({"Sin", "Cos"}, 2) == ({*told.operators}, told.variants)
    # Without the factor of 0.7 the sine reads more.
    assert 999.0 == told.reads_at_ends
    assert in_range(told, "fp16").startswith(" and ".join(told.operators) + " depend on")


def test_without_a_range_one_is_asked_for(tmp_path: Path) -> None:
    """What nobody has said is not made up: the flag that says it is told."""
    (told,) = unet(tmp_path, [37, 74]).input_ranges
    assert (None, None, 0) == (told.range, told.passed, told.variants)
    assert "--range t=LOW:HIGH" in in_range(told, "fp16")


def test_a_range_of_any_input_is_tried(tmp_path: Path) -> None:
    """An input that the rule does not name is tried, too, where its range is given."""
    result = unet(tmp_path, [3, 4], ranges={"x": (-8, 8)})
    (told,) = [each for each in result.input_ranges if each.input == "x"]
    assert ([], [], 4) == (told.operators, told.layers, told.variants)
    assert in_range(told, "fp16").startswith("x: your samples have ")


def test_small_values_are_not_told(tmp_path: Path) -> None:
    """Where the low type has fine steps the rule has nothing to say."""
    assert () == tuple(unet(tmp_path, [0.5, 1.0]).input_ranges)


def test_variants_move_as_a_whole() -> None:
    """Positions stay as far apart, within the range and in their type; scalars stay scalars."""
    feeds: list[Sample] = [{"p": np.array([[0, 1, 5]]), "t": np.array(37, np.float32)}]
    up, down = at_ends(feeds, "p", (-10, 99))
    assert ([[94, 95, 99]], [[-10, -9, -5]]) == (up["p"].tolist(), down["p"].tolist())
    assert np.int64 == up["p"].dtype
    narrow, _ = at_ends(feeds, "p", (97, 99))
    assert [[97, 97, 99]] == narrow["p"].tolist()
    last, _ = at_ends(feeds, "t", (0, 999))
    assert ((), 999.0) == (last["t"].shape, float(last["t"]))


def test_a_range_is_suggested_by_the_type() -> None:
    """Bytes have a range; wider types and floats have none that data keep to."""
    assert (0.0, 255.0) == range_by_type(np.zeros(2, np.uint8))
    assert (-128.0, 127.0) == range_by_type(np.zeros(2, np.int8))
    for kind in (np.int32, np.int64, np.float16, np.float32, np.bool_):
        assert range_by_type(np.zeros(2, kind)) is None


def test_ranges_are_parsed() -> None:
    """Comma separated or repeated; the last equals sign ends a name."""
    expected = {"t": (0.0, 999.0), "a=b:c": (-1.0, 1e3)}
    assert expected == parse_ranges(["t=0:999,a=b:c=-1:1e3"])
    assert expected == parse_ranges(["t=0:999", "a=b:c=-1:1e3"])


@pytest.mark.parametrize("text", ["", "t", "t=", "t=5", "t=0:1:2", "=0:1", "t=a:b", "t=0:1,t=0:2"])
def test_text_is_no_range(text: str) -> None:
    """What cannot be read is quoted with its flag, and how to write it."""
    with pytest.raises(UsageError, match="--range") as refused:
        parse_ranges([text])
    assert refused.value.hint


def test_a_range_from_python_is_checked(tmp_path: Path) -> None:
    """What is no pair of numbers is wrong usage, too."""
    for odd in (5, (1,), "ab", (1, 2, 3), (None, 2)):
        with pytest.raises(UsageError, match="ranges cannot have"):
            unet(tmp_path, [3], ranges={"t": odd})


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("t=9:9", "--range cannot have (9.0, 9.0) for 't'"),
        ("t=nan:9", "the lower end first"),
        ("t=0:inf", "the lower end first"),
        ("q=0:9", "--range names 'q', which is no input of the model; its inputs are t, x"),
    ],
)
def test_a_wrong_range_is_one_line(
    said: str, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage ends before the search, with what to write."""
    path = models.save(
        models.parse("(float t, float[4] x) => (float[4] y) { y = Mul(t, x) }"), tmp_path
    )
    assert 2 == main([str(path), "--range", said, "--out", str(tmp_path / "run")])
    (line,) = [each for each in capfd.readouterr().err.splitlines() if "--range" in each]
    assert expected in line
