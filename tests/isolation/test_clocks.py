"""Clocks that are set, and processes that are stopped for a while, as by Ctrl-Z."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import precision_bisect
import tiny
from patience import PATIENCE_S, wait_for
from precision_bisect.runs.results.endings import Status


def figures(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield all seconds in what a file of JSON holds."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from figures(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from figures(inner, name)
    elif name.endswith("_s") and isinstance(value, int | float):
        yield name, value


def test_a_clock_that_is_set_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Budgets, limits and records do not know it: it goes to and fro by years here."""
    tiny.write_with_samples(tmp_path)
    own, calls = time.time, count()
    monkeypatch.setattr(time, "time", lambda: own() + 1e8 * (-1) ** next(calls))
    result = precision_bisect.find(
        tmp_path / "tiny.onnx",
        inputs=tmp_path / "inputs.npz",
        tol=1e-2,
        threads=1,
        backend="emulated",
        max_time_s=1e5,
        trial_timeout_s=1e5,
        out=tmp_path / "run",
    )
    assert Status.FOUND is result.status and set(tiny.KEPT) == set(result.kept)
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    records = [json.loads(text) for text in lines]
    records += [json.loads(path.read_text()) for path in (tmp_path / "run").glob("*.json")]
    seconds = list(figures(records))
    assert seconds and all(0 <= value <= 1e5 for _, value in seconds), seconds


LIMIT_S = 5.0
HERE = f"""
import pathlib, threading
from precision_bisect.machine.stopping import limited, stoppable

stopped, looked = [], threading.Event()
with limited(None, {LIMIT_S}):
    with stoppable(lambda: stopped.append(1)):
        pathlib.Path("begun").touch()
        looked.wait(1.0)
        looked.wait(0.5)
print(len(stopped))
"""
IN_A_CHILD = f"""
import pathlib, threading
from pathlib import Path
from precision_bisect.execution.slot import Limits, Slot
from stopped_child import work

if __name__ == "__main__":
    slot = Slot(spec=Path("spec"), folder=Path("child"))
    slot.call_bare(work)
    print(slot.call_bare(work, limits=Limits(time_s={LIMIT_S})))
    slot.end()
"""
WORK = """
import pathlib, time

def work(folder):
    marks = [pathlib.Path(__file__).with_name(name) for name in ("loaded", "begun")]
    marks[marks[0].exists()].touch()
    time.sleep(0.5)
    return 0
"""


@pytest.mark.parametrize("script", [HERE, IN_A_CHILD], ids=["here", "in a child"])
def test_what_a_process_was_stopped_for_counts_in_no_limit(script: str, tmp_path: Path) -> None:
    """A trial would be told as too slow that took half a second, and no plan is to blame."""
    (tmp_path / "stopped_child.py").write_text(WORK)
    (tmp_path / "script.py").write_text(script)
    with subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        # The end of another process may continue what is stopped in an orphaned group.
        start_new_session=True,
    ) as child:
        wait_for(child, (tmp_path / "begun").exists)
        child.send_signal(signal.SIGSTOP)
        time.sleep(LIMIT_S + 1)
        child.send_signal(signal.SIGCONT)
        printed, said = child.communicate(timeout=PATIENCE_S)
    assert ("0\n", "") == (printed, said)
