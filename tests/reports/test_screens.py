"""The last screen of every ending, and of what else can be said, is the golden one."""

import pytest

from final_screens import screen
from golden_screens import cases, golden
from precision_bisect.runs.results.result import Result

CASES = {str(name): result for name, result in cases()}


@pytest.mark.parametrize(("name", "result"), CASES.items(), ids=CASES)
def test_the_screen_is_the_golden_one(name: str, result: Result) -> None:
    """Each line is as it was: what is said, in which order, and what to do next."""
    assert golden()[name] == screen(result).rstrip("\n")


def test_no_screen_is_left_over() -> None:
    """The file has the screens of these endings and no others."""
    assert [*CASES] == [*golden()]
