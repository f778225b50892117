"""A limit of CPU time is as SIGTERM, by its name; where none answers it the end tells it."""

import json
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import tiny
from patience import PATIENCE_S
from precision_bisect.errors import ModelError
from precision_bisect.machine.forked import copies_allowed, in_copy
from precision_bisect.runs.runfolder import RESULT

LIMIT_S = 3600
"""More than any run here takes: what reaches it comes down to it first."""
SPINS = """
import os, pathlib, resource

first = pathlib.Path(__file__).with_name("pid")
first.exists() or first.write_text(str(os.getpid()))
calls = []

def error(outputs, reference):
    calls.append(1)
    if len(calls) > {good} and (first.read_text() == str(os.getpid())) is {here}:
        usage, (_, hard) = (
            resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_CPU)
        )
        used = int(usage.ru_utime + usage.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (used + 1, hard))
        while True:
            pass
    return max(float(abs(o[k] - r[k]).max()) for o, r in zip(outputs, reference) for k in o)
"""
limited = partial(resource.setrlimit, resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))


def run(folder: Path, good: int, *, here: bool) -> "subprocess.CompletedProcess[str]":
    """Run under the limit, which the check reaches after so many good calls."""
    tiny.write_with_samples(folder)
    (folder / "check.py").write_text(SPINS.format(good=good, here=here))
    words = "tiny.onnx --inputs inputs.npz --threads 1 --tol 1e-2 --check check.py:error --out run"
    isolated = ["--isolate", "never" if here else "always", "--backend", "emulated"]
    return subprocess.run(
        [sys.executable, "-m", "precision_bisect", *words.split(), *isolated],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        preexec_fn=limited,
    )


def test_it_ends_a_search_with_the_best_so_far(tmp_path: Path) -> None:
    """The system would end the process without a line, and with nothing written."""
    ended = run(tmp_path, 12, here=True)
    assert 130 == ended.returncode, ended.stderr
    assert f"interrupted by the CPU time limit of {LIMIT_S} s (ulimit -t)" in ended.stderr
    assert "Traceback" not in ended.stderr
    result = json.loads((tmp_path / "run" / RESULT).read_text())
    assert "interrupted" == result["status"] and result["trials"]


def test_in_a_trial_of_a_child_it_is_an_outcome(tmp_path: Path) -> None:
    """It has its own limit, and nobody there to answer."""
    ended = run(tmp_path, 0, here=False)
    assert 3 == ended.returncode, ended.stderr
    assert "SIGXCPU (CPU time limit exceeded)" in " ".join(ended.stdout.split())


def spin() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (1, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    while True:
        pass


def test_in_a_copy_of_the_process_it_is_told() -> None:
    """A copy has let go of who answers here."""
    with copies_allowed(), pytest.raises(ModelError, match="CPU time limit"):
        in_copy(spin, "waiting")


INSIDE = """
import resource
from precision_bisect.machine.answered_signals import AnswersSignals

class Answers(AnswersSignals):
    def interrupt(self, number, frame):
        pass

with Answers():
    print(*resource.getrlimit(resource.RLIMIT_CPU))
print(*resource.getrlimit(resource.RLIMIT_CPU))
"""


def test_the_signal_comes_while_there_is_time_to_write() -> None:
    """At the hard limit, which `ulimit -t` sets as well, there is no signal but SIGKILL."""
    printed = subprocess.run(
        [sys.executable, "-c", INSIDE], capture_output=True, text=True, preexec_fn=limited
    ).stdout
    assert f"{LIMIT_S - LIMIT_S // 10} {LIMIT_S}\n{LIMIT_S} {LIMIT_S}\n" == printed


BEHIND = """
import resource, time
from precision_bisect.machine.answered_signals import AnswersSignals

class Answers(AnswersSignals):
    answered = False

    def interrupt(self, number, frame):
        self.answered = True

_, hard = resource.getrlimit(resource.RLIMIT_CPU)
resource.setrlimit(resource.RLIMIT_CPU, (1, hard))
with Answers() as answers:
    while not answers.answered:
        pass
while time.process_time() < 3:
    pass
"""


def test_a_soft_limit_ends_nothing_that_follows_the_search() -> None:
    """Reports are still to be written then, and the exit code is the run's own."""
    ended = subprocess.run([sys.executable, "-c", BEHIND], capture_output=True)
    assert (0, b"") == (ended.returncode, ended.stderr)
