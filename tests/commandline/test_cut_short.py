"""Interrupts after the search: the answer stands, nobody takes it for explained, --resume ends it.

Each run waits in its check, or in what reads its samples, once the search is over, so that the
signal surely meets what explains the answer.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ladder_model
import tiny
from effort import nightly
from patience import PATIENCE_S, wait_for
from precision_bisect.runs.runfolder import RESULT

CHECK = """
import pathlib, time

here = pathlib.Path(__file__).parent

def error(outputs, reference):
    events = here / "run" / "events.jsonl"
    if (here / "wait").exists() and events.exists() and "trials_ended" in events.read_text():
        (here / "waits").touch()
        time.sleep(600)
    return max(float(abs(o[k] - r[k]).max()) for o, r in zip(outputs, reference) for k in o)
"""
FROM_PYTHON = """
import precision_bisect
from precision_bisect.errors import SearchInterrupted

try:
    precision_bisect.find(
        "tiny.onnx", inputs="inputs.npz", tol=1e-2, check="check.py:error", out="run", threads=1,
        backend="emulated", target="tensorrt",
    )
except SearchInterrupted as interrupt:
    result = interrupt.result
    print(result.status, result.cut_short, len(result.kept), (result.out / "report.html").exists())
    raise SystemExit(int(result.exit_code))
"""


def one_pair(folder: Path) -> Sequence[str]:
    """Write a model and a sample; return the words of a run on them, and what it keeps."""
    tiny.write_with_samples(folder)
    return ["tiny.onnx", "--tol", "1e-2"]


def ladder(folder: Path) -> Sequence[str]:
    """Do so with a model that needs every rung of a ladder."""
    ladder_model.write(folder).rename(folder / "ladder.onnx")
    np.savez(folder / "inputs.npz", x=ladder_model.samples()[0]["x"])
    return ["ladder.onnx", "--tol", "0.1", "--ladder", "int8,fp16,fp32"]


KEPT: Mapping[Callable[[Path], Sequence[str]], set[str]] = {
    one_pair: set(tiny.KEPT),
    ladder: {*ladder_model.OUTLIERS, *ladder_model.OVERFLOWING},
}
COMMON: Sequence[str] = [
    "--inputs",
    "inputs.npz",
    "--threads",
    "1",
    "--check",
    "check.py:error",
    "--out",
    "run",
    "--backend",
    "emulated",
    "--target",
    "tensorrt",
]


def interrupted(
    words: Sequence[str], folder: Path, number: signal.Signals
) -> tuple[int, str, str]:
    """Run until the search is over and it waits, send the signal; return code and streams."""
    (folder / "check.py").write_text(CHECK)
    (folder / "wait").touch()
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        wait_for(child, (folder / "waits").exists)
        child.send_signal(number)
        printed, said = child.communicate(timeout=PATIENCE_S)
    (folder / "wait").unlink()
    return child.returncode, printed, said


def result_in(folder: Path) -> dict[str, Any]:
    """Return what the run has written."""
    result: dict[str, Any] = json.loads((folder / "run" / RESULT).read_text())
    return result


@pytest.mark.parametrize("number", [signal.SIGTERM, *nightly(signal.SIGINT)])
@pytest.mark.parametrize("kind", [one_pair, ladder])
def test_an_answer_that_is_not_explained_says_so(
    tmp_path: Path, kind: Callable[[Path], Sequence[str]], number: signal.Signals
) -> None:
    """The exit code is the interrupt's, the answer is whole, and --resume explains it."""
    words = [sys.executable, "-m", "precision_bisect", *kind(tmp_path), *COMMON]
    code, printed, said = interrupted(words, tmp_path, number)
    cut = result_in(tmp_path)
    assert (130, "found", True) == (code, cut["status"], cut["cut_short"]), said
    assert KEPT[kind] == set(cut["kept"])
    assert (tmp_path / "run" / "model.mixed.onnx").exists()
    assert "--resume" in printed and "interrupted after the search" in said
    again = subprocess.run(
        [*words, "--resume"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    whole = result_in(tmp_path)
    assert (0, "found", False) == (again.returncode, whole["status"], whole["cut_short"])
    assert whole["kept"] == cut["kept"] and whole["diagnosis"]
    assert whole["deployment"]["recheck"] is not None
    assert "Traceback" not in said + again.stderr


def test_python_is_told_of_it_with_the_answer(tmp_path: Path) -> None:
    """`find` raises SearchInterrupted, whose result is the answer; its page is written."""
    one_pair(tmp_path)
    code, printed, said = interrupted([sys.executable, "-c", FROM_PYTHON], tmp_path, signal.SIGINT)
    assert (130, f"found True {len(tiny.KEPT)} True\n") == (code, printed), said
