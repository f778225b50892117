"""A run ends soon after its time, whatever it is at: each inference looks at the clock.

Opening a session, work in a copy of the process, the check of files and code of others end by it,
too.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precision_bisect
import tiny
from effort import nightly
from models import load_text
from patience import PATIENCE_S
from precision_bisect.commandline.main import main
from precision_bisect.exports import recheck
from precision_bisect.graphs import ort
from precision_bisect.judging.comparators.script import FunctionComparator, Guarded
from precision_bisect.judging.inputs.input_files import read_samples
from precision_bisect.machine import interrupts, stopping
from precision_bisect.machine.answered_signals import Interrupted
from precision_bisect.machine.forked import Fresh, copies_allowed, in_copy
from precision_bisect.machine.stopping import Stopped, limited, until
from precision_bisect.options import Options
from precision_bisect.pipeline import run
from precision_bisect.pipeline.evaluators import evaluators
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.pipeline.run import run_prepared
from precision_bisect.plan import Plan
from precision_bisect.protocols import Comparator, Sample
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.saved import read_result
from precision_bisect.runs.runfolder import RESULT, RunFolder
from precision_bisect.search.budget import OVERTIME, OVERTIME_S, Budget
from precision_bisect.settings.worker_options import Isolate
from precision_bisect.trial import Proposal
from simulated import Simulated, driver_of


@dataclass
class Inferences:
    """A clock that an inference of ONNX Runtime advances by one second, and nothing else."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def counting(self, patch: pytest.MonkeyPatch) -> None:
        """Count every run of a session, which still takes place."""
        for name in ("run", "run_values"):
            own = getattr(ort.Session, name)

            def counted(session: Any, given: Mapping[str, Any], *more: Any, own: Any = own) -> Any:
                outputs = own(session, given, *more)
                self.seconds += 1
                return outputs

            patch.setattr(ort.Session, name, counted)


def took(folder: Path, patch: pytest.MonkeyPatch, most_s: float | None) -> float:
    """Return the seconds that a run of the small model takes, an inference being one."""
    rng = np.random.default_rng(3)
    feeds = [{"x": rng.normal(1, 0.3, (1, 8)).astype(np.float32)} for _ in range(6)]
    path = tiny.write_model(folder / "tiny.onnx")
    options = Options(
        model=path, inputs=feeds, tol=1e-2, out=folder / "run", threads=1, max_time_s=most_s
    )
    work = folder / "work"
    work.mkdir()
    prepared = prepare(options, ignore, work)
    clock = Inferences()
    clock.counting(patch)
    run_prepared(
        prepared, ignore, Budget(max_time_s=most_s, clock=clock), RunFolder(options.folder)
    )
    return clock.seconds


def test_a_command_that_python_calls_begins_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `--max-time` is its own, however old the process is, as that of a notebook."""
    model = tiny.write_with_samples(tmp_path)
    monkeypatch.setattr(interrupts, "_command_begun", time.monotonic() - 1e6)
    words = [
        str(model),
        "--inputs",
        str(tmp_path / "inputs.npz"),
        "--tol",
        "1e-2",
        "--threads",
        "1",
    ]
    assert 0 == main([*words, "--max-time", "10000s", "--out", str(tmp_path / "run")])


def test_what_ends_a_run_is_not_ended_by_the_clock(tmp_path: Path) -> None:
    """An error there would take the place of the answer: memory is given back all the same."""
    path = tiny.write_model(tmp_path / "tiny.onnx")
    options = Options(model=path, out=tmp_path / "run", threads=1)
    (work := tmp_path / "work").mkdir()
    prepared = prepare(options, ignore, work)
    with until(lambda: True), evaluators(prepared, tmp_path):
        pass


def interrupted() -> None:
    raise Interrupted


@pytest.mark.parametrize("kind", [Exception, BaseException])
@pytest.mark.parametrize("fails", [False, True], ids=["judges", "fails"])
@pytest.mark.parametrize("installed", [False, True], ids=["function", "plug-in"])
@pytest.mark.parametrize(
    ("ends", "ended"), [(stopping.look_at_clock, Stopped), (interrupted, Interrupted)]
)
def test_a_check_that_catches_everything_gives_no_verdict_after_its_end(
    ends: Callable[[], None],
    ended: type[BaseException],
    installed: bool,
    fails: bool,
    kind: type[BaseException],
) -> None:
    """What it makes of the end of the time, or of Ctrl-C, is no judgement, nor a fault of its."""
    over = False

    def check(outputs: Sequence[Sample], reference: Sequence[Sample]) -> float:
        nonlocal over
        over = ended is Stopped
        with suppress(kind):
            ends()
        if fails:
            raise ValueError("cut off")
        return 0.0

    comparator: Comparator = FunctionComparator(check, "check", 0.1)
    if installed:
        comparator = Guarded(comparator=comparator, name="check")
    outputs = [{"y": np.ones(3, np.float32)}]
    with until(lambda: over), pytest.raises(ended):
        comparator.judge(outputs, outputs)


SHARES = (0.05, 0.1, 0.3, 0.4, 0.5, 0.7, 0.9, 0.97)


@pytest.mark.parametrize("share", [0.8, *nightly(*SHARES)])
def test_no_phase_goes_on_past_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Ranking, copies, advice, other targets and causes: wherever the time ends, so does all."""
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    with monkeypatch.context() as patch:
        whole = took(tmp_path / "whole", patch, None)
    most_s = float(int(share * whole))
    with monkeypatch.context() as patch:
        seconds = took(tmp_path / "cut", patch, most_s)
    assert seconds <= (1 + OVERTIME) * most_s + OVERTIME_S + 1


@contextmanager
def over_once_begun() -> Iterator[None]:
    """Have the time end as soon as a call is at work, which then looks at no clock itself."""
    # So long nothing here takes: the limit only has a thread watch the calls.
    with limited(1e6, None), until(lambda: bool(stopping._LIMITS.calls)):
        yield


def spin() -> None:
    """Come to no end."""
    while True:
        pass


def catch_all() -> None:
    """Come to no end, whatever is raised at first."""
    with suppress(BaseException):
        time.sleep(600)
    time.sleep(600)


@pytest.mark.parametrize("endless", [partial(time.sleep, 600), spin, catch_all])
def test_code_of_others_is_ended(endless: Callable[[], None]) -> None:
    """It looks at no clock, and no library is at work that could be told to stop."""
    with limited(1e6, None), until(lambda: True), pytest.raises(Stopped):
        endless()


LOADS = """
import time
class Late:
    load = lambda self: time.sleep(600)
def load_data():
    return [{"x": Late()}]
"""


def test_samples_that_are_read_when_the_time_ends_are_no_bad_samples(tmp_path: Path) -> None:
    """Code that answers all that a library raises would have the user save them again."""
    script = tmp_path / "samples.py"
    script.write_text(LOADS)
    with limited(1e6, None), until(lambda: True), pytest.raises(Stopped):
        read_samples(script, ["x"])


def test_nothing_ends_code_once_the_time_counts_no_more() -> None:
    """What is left to do is to write the result; the signal's handler is the former one."""
    former = signal.getsignal(signal.SIGVTALRM)
    with limited(1e6, None):
        with suppress(Stopped), until(lambda: True):
            spin()
        signal.raise_signal(signal.SIGVTALRM)
    assert former == signal.getsignal(signal.SIGVTALRM)


def test_no_signal_ends_code_that_sets_limits() -> None:
    """What it sets would stay set after the block."""
    wake = "import signal\nsignal.raise_signal(signal.SIGVTALRM)\n"

    def over() -> bool:
        # The thread that watches the time is to send no signal of its own.
        return threading.current_thread() is threading.main_thread()

    with limited(1e6, None), until(over):
        exec(compile(wake, stopping.__file__, "exec"))
        with pytest.raises(Stopped):
            exec(compile(wake, "script.py", "exec"))


def test_code_of_others_in_a_thread_is_left(tmp_path: Path) -> None:
    """No signal reaches it, nor one who waits for it in another thread than the main one."""
    begun, release = threading.Event(), threading.Event()

    def endless(plan: Plan, feed: Sample) -> float:
        begun.set()
        release.wait(PATIENCE_S)
        return float(len(plan))

    driver, ledger = driver_of(tmp_path, Simulated(endless), workers=2)
    with ledger:
        with until(begun.is_set), pytest.raises(Stopped):
            driver.consider_all([Proposal(plan=Plan.of([1]))])
        assert not driver.trials and not ledger.orphans()
    release.set()


HANGS = """
import pathlib, time
calls = []
def error(outputs, reference):
    calls.append(1)
    if len(calls) > 8:
        pathlib.Path({mark!r}).touch()
        time.sleep(600)
    pairs = zip(outputs, reference)
    return float(max(abs(one[name] - other[name]).max() for one, other in pairs for name in other))
"""


@pytest.mark.parametrize("isolate", ["never", "always"])
def test_a_check_that_hangs_ends_with_the_time(
    isolate: Isolate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process or in a child: the run has its result."""
    tiny.write_with_samples(tmp_path)
    mark = tmp_path / "hangs"
    script = tmp_path / "check.py"
    script.write_text(HANGS.format(mark=str(mark)))
    monkeypatch.setattr(
        run, "Budget", partial(Budget, clock=lambda: 1e6 if mark.exists() else 0.0)
    )
    result = precision_bisect.find(
        tmp_path / "tiny.onnx",
        inputs=tmp_path / "inputs.npz",
        tol=1e-2,
        threads=1,
        check=f"{script}:error",
        isolate=isolate,
        backend="emulated",
        max_time_s=1e5,
        out=tmp_path / "run",
    )
    assert mark.exists()
    assert Status.BUDGET_EXHAUSTED is result.status
    assert result.status is read_result(tmp_path / "run" / RESULT, "").status


def test_a_session_that_is_being_opened_is_given_up(tmp_path: Path) -> None:
    """ONNX Runtime takes the square of the nodes for it: minutes for tens of thousands."""
    steps = "".join(f"v{i + 1} = Tanh(v{i}) " for i in range(8000))
    text = f"(float[4] v0) => (float[4] y) {{ {steps} y = Identity(v8000) }}"
    model = load_text(text, tmp_path)
    with over_once_begun(), pytest.raises(Stopped):
        ort.Session(model.proto, model.weights, threads=1)


def test_work_in_a_copy_of_the_process_is_given_up() -> None:
    """Shape inference of a foreign file looks at no clock."""
    with copies_allowed(), over_once_begun(), pytest.raises(Stopped):
        in_copy(lambda: time.sleep(600), "waiting")


def test_the_check_of_files_is_given_up(tmp_path: Path) -> None:
    words = ["-c", "import time; time.sleep(600)"]
    process = Fresh(words, tmp_path)
    check = recheck._Beside(process, lambda _: None, tmp_path, called="the check", limit_s=600.0)
    with check, until(lambda: True):
        given_up = check.ended()
    assert ("not_judged", "the check was broken off: the time was up") == (
        given_up.outcome,
        given_up.message,
    )
