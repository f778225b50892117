"""A limit of a pixel is a pixel: it says nothing relative, unless that is asked for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import models
from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.commandline.main import main
from precision_bisect.exports.polygraphy_command import polygraphy_command
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.judging.comparators.comparison_remarks import limits_in_words, wide_remark
from precision_bisect.options import Options
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import Verdict

WANT = {"boxes": np.linspace(40, 600, 64, dtype=np.float32), "scores": np.ones(4, np.float32)}
"""Boxes in pixels: 25 of them are less than 100% of each."""
SAID = "absolute limit: from 0.1 on a relative one has to be asked for by --rtol"
NOTHING = "sets none beside --atol: from 0.1 on a relative one has to be asked for by --rtol"


def options_of(*words: str) -> Options:
    """Return what these flags ask for."""
    return to_options(run_parser().parse_args(["m.onnx", *words]))


def verdict(off: float, *words: str) -> Verdict:
    """Judge boxes that are off by so many pixels by what a command line says."""
    comparator = choose_comparator(options_of(*words), list(WANT))
    got = {**WANT, "boxes": WANT["boxes"] + np.float32(off)}
    return comparator.judge([got], [WANT]).verdict


@pytest.mark.parametrize("metric", ["elementwise", "max", "mean", "quantile"])
@pytest.mark.parametrize(
    "words",
    [
        ["--tol", "boxes=1,scores=0.01"],
        ["--tol", "boxes=1,0.01"],
        ["--tol", "1"],
        ["--tol", "0.01", "--atol", "boxes=1"],
        ["--tol", "1", "--rtol", "scores=0.5", "--atol", "boxes=1"],
    ],
)
def test_a_pixel_is_a_pixel(metric: str, words: Sequence[str]) -> None:
    """Boxes 25 pixels wrong fail by one pixel, and half a pixel passes, by every such metric."""
    verdicts = [verdict(off, "--metric", metric, *words) for off in (0.5, 1.5, 25.0)]
    assert [Verdict.PASS, Verdict.FAIL, Verdict.FAIL] == verdicts


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tol", "0.01"], ""),
        (["--atol", "0.01", "--rtol", "0.5"], "atol 0.01, rtol 0.5"),
        (["--atol", "boxes=1,scores=0.01"], "atol 0.01 to 1"),
    ],
)
def test_limits_that_differ_are_told(words: Sequence[str], told: str) -> None:
    """Errors are multiples of them; a single one is the tolerance itself."""
    assert told == limits_in_words(choose_comparator(options_of(*words), list(WANT)))


def test_who_asks_for_a_share_gets_it() -> None:
    """By --rtol, boxes may be off by so much of their size."""
    assert Verdict.PASS == verdict(25.0, "--tol", "1", "--rtol", "1")
    assert Verdict.PASS == verdict(25.0, "--tol", "0.01", "--rtol", "boxes=1")


@pytest.mark.parametrize("metric", ["elementwise", "max", "mean", "quantile"])
@pytest.mark.parametrize(
    "words",
    [
        ["--tol", "0.1"],
        ["--tol", "boxes=0.5,scores=0.1"],
        ["--tol", "0.3", "--atol", "30"],
        ["--tol", "0.3", "--atol", "boxes=30"],
        ["--atol", "30"],
        ["--tol", "0.3", "--rtol", "0.01"],
        ["--tol", "0.3,scores=0.2", "--rtol", "boxes=0.05"],
    ],
)
def test_no_wide_share_slips_in(metric: str, words: Sequence[str]) -> None:
    """Whatever is given by --tol and --atol, no relative limit of 10% or more is set."""
    settings = choose_comparator(options_of("--metric", metric, *words), list(WANT)).settings()
    assert all(limit < 0.1 for limit in settings["rtol"].values())
    options = options_of("--metric", metric, *words)
    by_api = Options(model=Path("m.onnx"), metric=metric, tol=options.tol, atol=options.atol)
    by_api = replace(by_api, rtol=options.rtol)
    assert settings == choose_comparator(by_api, list(WANT)).settings()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tol", "0.01"], ""),
        (["--tol", "1"], f"--tol 1 is an {SAID}"),
        (["--tol", "boxes=2,scores=0.01"], f"--tol boxes=2 is an {SAID}"),
        (["--tol", "1", "--rtol", "1"], ""),
        (["--atol", "1"], ""),
        (["--tol", "1", "--rtol", "0"], ""),
        (["--tol", "1", "--rtol", "0", "--atol", "0.01"], ""),
        (["--tol", "1", "--rtol", "boxes=1"], f"--tol 1 is an {SAID}"),
        (["--tol", "1", "--atol", "30"], f"--tol 1 {NOTHING}"),
        (["--tol", "1", "--atol", "boxes=30"], f"--tol 1 is an {SAID}"),
        (["--tol", "boxes=2,scores=0.01,5"], f"--tol boxes=2 is an {SAID}"),
        (
            ["--tol", "boxes=2,3", "--atol", "boxes=1"],
            f"--tol boxes=2 {NOTHING}; --tol 3 is an {SAID}",
        ),
        (["--metric", "psnr", "--tol", "40"], ""),
    ],
)
def test_it_is_said_once(words: Sequence[str], said: str) -> None:
    """Who gives a wide limit hears that it is absolute, and nobody else does."""
    options = options_of(*words)
    assert said == wide_remark(choose_comparator(options, list(WANT)), options)


def test_a_share_of_classes_is_no_wide_limit() -> None:
    """A limit of classes is the share that may differ, whatever its size."""
    options = options_of("--tol", "scores=0.2,0.01")
    assert "" == wide_remark(choose_comparator(options, list(WANT), ["scores"]), options)


def test_a_search_keeps_what_pixels_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Boxes that FP16 puts up to 16 pixels off are not "nothing to keep" by one pixel."""
    body = (
        "(float[64] x) => (float[64] boxes) <float k = {40000}>"
        " { r = Relu(x) s = Add(r, k) boxes = Sub(s, k) }"
    )
    model = models.save(models.parse(body), tmp_path)
    np.savez(tmp_path / "inputs.npz", x=WANT["boxes"])
    words = [str(model), "--inputs", str(tmp_path / "inputs.npz"), "--backend", "emulated"]
    assert 0 == main([*words, "--tol", "boxes=1", "--out", str(tmp_path / "run")])
    told = capsys.readouterr()
    assert 1 == (told.out + told.err).count(SAID)


def test_the_target_judges_alike(tmp_path: Path) -> None:
    """Polygraphy is told the same: no relative limit beside a pixel."""
    model = models.load_text("(float[4] x) => (float[4] boxes) { boxes = Neg(x) }", tmp_path)
    limits = choose_comparator(options_of("--tol", "1"), ["boxes"]).settings()
    feeds = [{"x": np.ones(4, np.float32)}]
    command = polygraphy_command(model, EngineSettings(), limits, feeds)
    assert command.endswith("--atol 1 --rtol 0")
