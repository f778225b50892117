"""The errors by output, of results that say odd things; the golden screens have the others."""

import math
from dataclasses import replace
from typing import Any

import pytest

from final_screens import RESULT, screen
from golden_answers import BOXES, SCORES, by_output


@pytest.mark.parametrize(
    "comparator", [None, 3, {"atol": 3}, {"atol": {"boxes": "x"}, "rtol": []}]
)
def test_what_a_file_says_wrongly_is_no_traceback(comparator: Any) -> None:
    """A result of anybody's may hold anything as its settings."""
    result = replace(RESULT, output_errors=(BOXES, SCORES), fingerprint={"comparator": comparator})
    assert "boxes                   0.5     0.02     0.25" in screen(result)


def test_hidden_characters_do_not_reach_the_terminal() -> None:
    """Names of outputs come from the file."""
    result = by_output(replace(BOXES, output="bo\x1b[2Jxes"), SCORES, atol={}, rtol={})
    assert "\x1b" not in screen(result)


@pytest.mark.parametrize(
    ("tolerance", "error", "worst", "words"),
    [
        (40.0, 20.0, 40.0, "error       20 to 40, tolerance 40 (46.02 to 40 dB)"),
        (40.0, 0.0, 0.0, "error       0, tolerance 40 (inf dB)"),
        (40.0, -1.0, math.inf, "error       -1 to inf, tolerance 40 (inf to -inf dB)"),
        (-3.0, 1.0, 1.0, "error       1, tolerance -3\n"),
    ],
)
@pytest.mark.parametrize("metric", ["psnr", "snr"])
def test_what_counts_decibels_is_told_in_decibels(
    tolerance: float, error: float, worst: float, words: str, metric: str
) -> None:
    """A run's error of 20 for 40 dB would be read as 20 dB, which fails."""
    limits = {"metric": metric, "atol": {"boxes": tolerance}}
    result = replace(by_output(BOXES, **limits), tolerance=tolerance, error=error, error_max=worst)
    assert words in screen(result)
