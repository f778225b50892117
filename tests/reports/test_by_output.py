"""The errors by output, of results that say odd things; the golden screens have the others."""

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
