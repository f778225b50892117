"""Whole runs with speed limits: the run folder, result.json and the screen.

The outputs are a real model's on the emulator; only the clock is simulated.
"""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tiny
from effort import nightly
from models import load_text, normal
from paced import Clock, Clocked
from precision_bisect.backends.cuda.building import TypedSessions
from precision_bisect.backends.cuda.cuda_engine import SessionEngine
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.errors import ExitCode
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.pipeline.run import run_prepared
from precision_bisect.plan import Plan
from precision_bisect.plan_costs import CostGraph
from precision_bisect.precisions import Pair
from precision_bisect.runs.ledger.store import open_ledger
from precision_bisect.runs.monitoring.events import Event, ignore
from precision_bisect.runs.monitoring.run_progress import Progress
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Result
from precision_bisect.runs.runfolder import LEDGER, RESULT, RunFolder
from precision_bisect.search.budget import Budget
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.search.stopwatch import Stopwatch
from precision_bisect.trial import Kind
from precision_bisect_reports.summary import final_screen
from precision_bisect_reports.terminal import sentence


def clocked(folder: Path, samples: int = 1, holdout: int = 0, **limits: Any) -> Prepared:
    """Return the tiny model prepared for an engine whose clock is the cost graph's, with noise."""
    model = tiny.write_model(folder / "tiny.onnx")
    options = Options(
        model=model,
        out=folder / "run",
        inputs=tiny.samples(samples),
        holdout=holdout,
        threads=1,
        tol=1e-2,
        resume=True,
        backend="emulated",
    )
    made = prepare(options, ignore, folder)
    connected = cost_graph(made.case.model, {"x": (1, 8)})
    values = [replace(value, cast_ms=0.01) for value in connected.values]
    graph = CostGraph((0.05,) * connected.size, values)
    assert made.here is not None
    clocked = Clocked(made.here, Clock(graph, base=0.1, noise=0.002))
    # The emulator alone has no latency to limit.
    case = replace(made.case, options=replace(options, backend="auto", **limits))
    return replace(
        made.with_case(case),
        backend=clocked,
        here=clocked,
        graph=graph,
    )


def finish(prepared: Prepared, budget: Budget | None = None) -> Result:
    """Run what was prepared."""
    folder = RunFolder(prepared.case.options.folder)
    return run_prepared(prepared, ignore, budget or Budget(), folder)


def screen(result: Result) -> list[str]:
    """Return the lines of the final screen."""
    stream = io.StringIO()
    for part in final_screen(result, Path("tiny.onnx")):
        Console(file=stream, soft_wrap=True, highlight=False).print(part)
    return stream.getvalue().splitlines()


def test_a_limit_that_holds(tmp_path: Path) -> None:
    """result.json has the limits, the figures and the front; the screen shows them."""
    result = finish(clocked(tmp_path, min_speedup=2.0))
    assert (Status.FOUND, ExitCode.OK) == (result.status, result.exit_code)
    written = json.loads((tmp_path / "run" / RESULT).read_text(encoding="utf-8"))
    speed = written["speed"]
    assert (2.0, None, True) == (speed["min_speedup"], speed["max_latency_ms"], speed["met"])
    assert speed["speedup"] >= 2.0
    assert speed["latency_ms"] == pytest.approx(
        written["latency_ms"]["all_high"] / speed["speedup"], rel=1e-6
    )
    latencies = [row["latency_ms"] for row in written["front"]]
    assert sorted(latencies) == latencies
    assert any(row["passed"] and row["kept"] == written["kept"] for row in written["front"])
    # The commands have few lines then, and the table has room.
    lines = screen(replace(result, out=Path("run")))
    (line,) = [line for line in lines if line.startswith("  speed ")]
    assert "times as fast as all high" in line
    assert "asked: met" in " ".join(" ".join(lines).split())
    rows = [line for line in lines if line.startswith(" " * 14)]
    table = [line for line in rows if "pass" in line or "fail" in line]
    assert table
    assert all(len(line) <= 80 for line in table)


def test_limits_that_exclude_each_other(tmp_path: Path) -> None:
    """Exit code 1, no answer, the front and both nearest misses in the file and on the screen."""
    result = finish(clocked(tmp_path, max_latency_ms=0.2))
    assert (Status.INFEASIBLE, ExitCode.NO_PLAN) == (result.status, result.exit_code)
    assert () == tuple(result.kept)
    assert "the fastest keeps" in result.message
    assert result.front
    lines = screen(result)
    assert lines[1].startswith("No plan satisfies the limits: of ")
    said = " ".join(" ".join(lines).split())
    assert "within the tolerance that were timed none is" in said
    assert any(line.startswith("  front ") for line in lines)
    assert "  Next: loosen one of the limits; result.json lists the front" in lines


@pytest.mark.nightly
def test_a_spent_budget_answers_with_the_best_so_far(tmp_path: Path) -> None:
    """The best plan that passed until then is written, and going on comes to the full answer."""
    (tmp_path / "whole").mkdir()
    whole = finish(clocked(tmp_path / "whole", min_speedup=2.0))
    cut = finish(clocked(tmp_path, min_speedup=2.0), Budget(max_trials=whole.trials // 2))
    assert ExitCode.BUDGET == cut.exit_code
    assert cut.error is not None
    assert cut.error <= 1e-2
    assert finish(clocked(tmp_path, min_speedup=2.0)).kept == whole.kept


@pytest.mark.nightly
def test_limits_may_change_on_resume(tmp_path: Path) -> None:
    """A finished run without limits is gone on with under one: only timings are added."""
    plain = finish(clocked(tmp_path))
    assert plain.speed is None
    limited = finish(clocked(tmp_path, min_speedup=2.0))
    assert limited.speed is not None
    assert limited.speed.met
    assert limited.builds - plain.builds <= 20


@pytest.mark.nightly
def test_progress_tells_the_speed(tmp_path: Path) -> None:
    """While it goes on, the line says how fast the last plan was."""
    sentences = []
    progress = Progress()

    def observe(event: Event) -> None:
        progress.take(event)
        sentences.append(sentence(progress))

    prepared = clocked(tmp_path, min_speedup=2.0)
    folder = RunFolder(prepared.case.options.folder)
    run_prepared(prepared, observe, Budget(), folder)
    assert any("times as fast as all high" in s for s in sentences)


def test_two_real_sessions_are_timed_in_turns(tmp_path: Path) -> None:
    """Two sessions of one graph on ONNX Runtime are about as fast as each other."""
    text = "(float[256,256] x) => (float[256,256] y) { a = MatMul(x, x) y = Exp(a) }"
    model = load_text(text, tmp_path)
    opener = Opener(providers=[CPU], profiles=tmp_path / "profile")
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    everything = Plan.all_high(2)

    def build(folder: str) -> SessionEngine:
        sessions = TypedSessions(writer, opener, tmp_path / folder)
        return SessionEngine(sessions.open(everything), "cpu")

    feed = {"x": normal(256, 256)}
    with (
        Stopwatch(lambda plan: build("baseline"), everything) as stopwatch,
        build("candidate") as engine,
    ):
        engine.run(feed)
        latency = stopwatch.time(Plan.of(()), engine, [feed])
    assert latency is not None
    assert latency.speedup is not None
    assert 0.2 < latency.speedup < 5.0
    assert latency.runs >= 50


@pytest.mark.parametrize(
    ("samples", "holdout", "hasty"),
    [
        (3, 1, True),
        (12, 0, False),
        *nightly((3, 1, False), (12, 0, True)),
    ],
)
def test_what_judges_one_by_one_takes_no_latency_away(
    tmp_path: Path, samples: int, holdout: int, hasty: bool
) -> None:
    """Samples held out, and those that did not choose, are judged in builds without a figure."""
    prepared = replace(clocked(tmp_path, samples, holdout), graph=None)
    assert isinstance(prepared.backend, Clocked)
    prepared.backend.hasty = hasty
    result = finish(prepared)
    assert Status.FOUND is result.status
    assert result.latency_ms is not None and None not in result.latency_ms.values()


@pytest.mark.parametrize(
    "hasty, kinds",
    [
        (True, {Kind.REPEAT, Kind.REBUILD, Kind.AGAIN}),
        (False, {Kind.JUDGE, Kind.REBUILD}),
    ],
)
def test_latencies_are_those_of_builds_as_deployed(
    tmp_path: Path, hasty: bool, kinds: set[Kind]
) -> None:
    """Where other options search, the named points are built afresh; else nothing is built twice.

    No figure is of a build with other options.
    """
    prepared = replace(clocked(tmp_path), graph=None)
    assert isinstance(prepared.backend, Clocked)
    prepared.backend.hasty = hasty
    result = finish(prepared)
    assert Status.FOUND is result.status
    assert result.latency_ms is not None and None not in result.latency_ms.values()
    assert result.latency_spread_ms is not None
    named = {each.point: each.latency_ms for each in result.curve if each.point}
    assert {"all_low", "answer"} <= named.keys() and None not in named.values()
    with open_ledger(tmp_path / "run" / LEDGER, prepared.fingerprint, resume=True) as ledger:
        timed = [each for each in ledger.trials() if each.outcome.evidence.latency]
    assert kinds == {each.proposal.kind for each in timed}


def test_what_is_deployed_was_timed(tmp_path: Path) -> None:
    """By the engine, in a trial of its own; a finished run that goes on says the same."""
    result = finish(replace(clocked(tmp_path), graph=None))
    assert result.deploy is not None and result.deploy.latency is not None
    assert not result.deploy.estimated and not result.deploy.tf32
    assert result.deploy.error is not None and result.deploy.error <= 1e-2
    said = " ".join(" ".join(screen(result)).split())
    assert f"{result.deploy.latency.median_ms:.3g} ms" in said
    again = finish(replace(clocked(tmp_path), graph=None))
    assert (result.deploy, result.builds) == (again.deploy, again.builds)
