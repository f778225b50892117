"""The final screen, for every ending."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from final_screens import DEPLOYMENT, KEPT, RESULT, screen
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Diagnosis, Inputs, Pinned
from precision_bisect.runs.results.unseen import Unseen
from precision_bisect.trial import Stability
from precision_bisect_reports.summary import MOST_LINES, WIDTH, final_screen
from precision_bisect_reports.terminal import TerminalReport


def test_commands_are_quoted_for_the_shell() -> None:
    """Paths with blanks or worse cannot break the command to copy."""
    shown = screen(RESULT)
    assert "sh 'my run/trtexec.sh' strong10" in shown
    assert "precision-bisect verify 'my run'\n" in shown
    cut = replace(RESULT, status=Status.INTERRUPTED)
    assert "precision-bisect 'my run' --resume" in screen(cut)
    shown = screen(replace(cut, out=None), model="a b; rm -rf x.onnx")
    assert "precision-bisect 'a b; rm -rf x.onnx' --resume" in shown


def test_a_run_goes_on_by_its_own_command() -> None:
    """The command that began it is shown again, to resume, with every flag that it had."""
    spent = replace(RESULT, status=Status.BUDGET_EXHAUSTED)
    command = ["precision-bisect", "a b.onnx", "--tol", "1e-2", "--max-trials", "9", "--overwrite"]
    lines = final_screen(spent, Path("a b.onnx"), command=command)
    shown = "\n".join(line.plain for line in lines)
    assert (
        "with more time or trials:\n    precision-bisect 'a b.onnx' --tol 1e-2 --resume\n" in shown
    )
    curve = ["precision-bisect", "curve", "a b.onnx", "--tol=1e-2"]
    stopped = replace(RESULT, status=Status.STOPPED)
    lines = final_screen(stopped, Path("a b.onnx"), command=curve)
    shown = "\n".join(line.plain for line in lines)
    assert "precision-bisect 'a b.onnx' --tol=1e-2 --resume\n" in shown


@pytest.mark.parametrize("status", Status)
def test_the_screen_is_small(status: Status) -> None:
    """With everything that can be said it has 25 lines of 80 columns; the caveat is there."""
    kept = tuple(f"/{'block/' * 12}m{i}/layer{'abcdefghij' * (i + 1)}" for i in range(20))
    full = replace(
        RESULT,
        status=status,
        kept=kept,
        candidates=400,
        certificate=Certificate(minimal=False, checked=kept[:1], unchecked=kept[1:]),
        deployment=DEPLOYMENT,
        stability=Stability(copies=16, failed=1, error_median=0.1, error_max=0.2, jitter=0.1),
        notes=["word " * 40] * 5,
        unresolved={"build_failed": 3},
        pinned=[Pinned(layer="celu", reason="Celu takes no fp16")],
        inputs=Inputs(synthetic=True, samples=4),
    )
    lines = screen(full).splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    assert any("made up" in line for line in lines)


class _Terminal(io.StringIO):
    """What takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


def test_all_of_it_is_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen is cut to 25 lines, on a terminal and in a pipe alike; with -v it is not."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    kept = tuple(f"m{i}/layer{chr(97 + i)}" for i in range(20))
    causes = [Diagnosis(layer=each, cause=Cause.OVERFLOW, evidence="reaches 1e5") for each in kept]
    found = replace(RESULT, kept=kept, diagnosis=causes, notes=["word " * 40] * 9)
    shown = []
    for stream, explain in ((_Terminal(), False), (io.StringIO(), False), (io.StringIO(), True)):
        TerminalReport(stream, io.StringIO(), explain=explain).show(found, Path("model.onnx"))
        shown.append(stream.getvalue())
    terminal, pipe, everything = (len(text.splitlines()) for text in shown)
    assert terminal == pipe <= MOST_LINES < everything
    assert shown[1].count("reaches 1e5") < shown[2].count("reaches 1e5") == len(kept)


def test_commands_can_be_pasted() -> None:
    """A long command is broken with backslashes between its words, never inside quotes."""
    words = " ".join(f"--flag-{i} 'a value {i}'" for i in range(9))
    deployment = replace(DEPLOYMENT, polygraphy=f"polygraphy run {words}")
    shown = screen(replace(RESULT, deployment=deployment))
    broken = shown[shown.index("(cd 'my run'") : shown.index("  Or on ONNX Runtime")]
    assert len(broken.splitlines()) > 2
    together = " ".join(broken.replace("\\\n", " ").split())
    assert f"(cd 'my run' && polygraphy run {words})" == together


@pytest.mark.parametrize("status", Status)
def test_keeping_everything_is_no_answer(status: Status) -> None:
    """No ending says that all layers stay and the rest runs low: there is no rest."""
    shown = screen(replace(RESULT, status=status, candidates=len(KEPT)))
    assert "the rest runs" not in shown
    assert "4 of 4" not in shown
    if status in (Status.BUDGET_EXHAUSTED, Status.INTERRUPTED, Status.ABORTED):
        assert "No answer yet" in shown
        assert "error" not in shown
        assert "certificate" not in shown


@given(st.integers(0, 40), st.integers(0, 5), st.booleans())
def test_what_changes_the_verdict_is_not_crowded_out(kept: int, notes: int, proven: bool) -> None:
    """A list of culprits gives way to: not minimal, fresh inputs are over, judge otherwise."""
    names = [f"/block.{number}/layer/{'Norm' * (number % 7)}Conv" for number in range(kept + 1)]
    causes = [Diagnosis(layer=name, cause=Cause.ROUNDING, evidence="11 bits") for name in names]
    remark = "output 'boxes' looks like boxes of what was detected: " + "--check boxes " * 8
    result = replace(
        RESULT,
        kept=names,
        candidates=50,
        diagnosis=causes,
        deployment=DEPLOYMENT,
        certificate=Certificate(minimal=proven, checked=(), unchecked=names),
        unseen=Unseen(judged=12, failed=1, took_part=4),
        notes=[remark, *(f"remark {number}" for number in range(notes))],
    )
    shown = screen(result)
    assert "looks like boxes" in shown and "All of it" in shown and "Then build" in shown
    assert proven or "not proven minimal" in shown
    assert "1 of 12 inputs that took no part are over" in shown
    assert len(shown.splitlines()) <= MOST_LINES
