"""Where norms as one operator need fewer layers, the screen says how to search that."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from final_screens import RESULT
from precision_bisect.runs.results.advised import Advised, Tried
from precision_bisect_reports.next_steps import next_steps

COMMAND = ["precision-bisect", "m.onnx", "--tol", "1e-2", "--out", "my run"]


def first_step(kept: int, *, passed: bool = True) -> tuple[str, list[str]]:
    """Return the first thing to do, and the words of its command."""
    tried = Tried(error=0.004, on_samples=True, kept=kept, before=len(RESULT.kept))
    advice = Advised(
        id="whole-rmsnormalization", title="", evidence="", passed=passed, tried=tried
    )
    step = next(iter(next_steps(replace(RESULT, advice=[advice]), Path("m.onnx"), COMMAND)))
    return step.what, shlex.split(step.commands[0])


def test_the_search_that_keeps_fewer() -> None:
    """Its figures are those of the trial, and it leaves this run's folder alone."""
    what, words = first_step(1)
    assert (
        "First: search it with RMSNorm as one operator: 1 instead of 4 layers hold (error 0.004)"
        == what
    )
    assert [*COMMAND[:4], "--fuse-norms", "--out", "my run.fused"] == words


@pytest.mark.parametrize(("kept", "passed"), [(4, True), (1, False)])
def test_nothing_is_said_where_it_does_not_help(kept: int, passed: bool) -> None:
    """It has to hold, with fewer layers."""
    assert "--fuse-norms" not in first_step(kept, passed=passed)[1]
