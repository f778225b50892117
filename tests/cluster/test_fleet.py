"""Searches on Dask clusters: real schedulers and workers on loopback, some of them killed."""

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import tiny
from fleet import HELD, NOTED, Fleet, Search, ending, fleet
from patience import PATIENCE_S, wait_until
from precision_bisect.cluster import cluster_client
from precision_bisect.cluster import cluster_plugin as reach
from precision_bisect.cluster.cluster_client import ClusterClient
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExecutorError
from precision_bisect.execution.slot import Limits
from precision_bisect.machine.stopping import Stopped, until
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.search.workers import still_working

DIES_ONCE = NOTED.replace(
    "    while",
    "    if called in (9, 10):\n"
    '        os.write(2, b"about to die\\n")\n'
    "        os.kill(os.getpid(), 11)\n"
    "    while",
)
"""The calls after the HELD-th, the second of which is another attempt, cost the process."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """Return the search by two children of one process."""
    search = Search(tmp_path_factory.mktemp("alone") / "alone")
    search.let_go()
    assert 0 == search.run("--workers", "2", "--isolate", "always")[0]
    return search


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Yield a scheduler with two workers."""
    with fleet(tmp_path_factory.mktemp("pair") / "pair", ["a", "b"]) as made:
        yield made


def test_a_worker_is_killed_and_another_joins(alone: Search, pair: Fleet, tmp_path: Path) -> None:
    """The answer is the same, no trial is lost or judged twice, and each worker is sent all once.

    The one that joins finds no model under the driver's path, so it has what it was sent.
    """
    search = Search(tmp_path / "search")
    hidden = search.model.with_name("hidden.onnx")
    with search.running("--workers", "2", "--cluster", pair.address) as driver:
        search.wait_for_hold(driver)
        victim = next(worker for worker in pair.processes if worker.pid == search.calls[-1])
        victim.kill()
        search.model.rename(hidden)
        joined = pair.worker("c")
        pair.wait_for("c")
        assert list(pair.folder.glob("c/*/*/precision-bisect-*/model/tiny.onnx"))
        search.let_go()
        wait_until(lambda: joined.pid in search.calls)
        hidden.rename(search.model)
        assert 0 == ending(driver)[0]
    assert alone.answer() == search.answer()
    assert sorted(alone.verdicts()) == sorted(search.verdicts())
    assert len(set(search.verdicts())) == len(search.verdicts())
    assert len(alone.calls) + 1 == len(search.calls)
    for name in "abc":
        run, trials = pair.plugins(name)
        assert f"{run}-1" == trials


@pytest.mark.nightly
def test_a_driver_that_is_killed_leaves_nothing_on_the_workers(
    pair: Fleet, tmp_path: Path
) -> None:
    """After kill -9 of the driver the workers remove its files and end its children."""
    search = Search(tmp_path / "search")
    before = set(pair.folders())
    with search.running("--cluster", pair.address) as driver:
        search.wait_for_hold(driver)
        assert before < set(pair.folders())
        driver.kill()
    wait_until(lambda: before == set(pair.folders()))


def test_workers_without_space_are_no_use(pair: Fleet, tmp_path: Path) -> None:
    """A search that needs more than is free on the workers' disks says so, and where."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    options = Options(model=model, inputs=tiny.samples(), tol=1e-2, backend="emulated")
    spec = prepare(options, ignore, tmp_path).spec
    with Client(pair.address, set_as_default=False) as client:
        site = ClusterClient(client, "precision-bisect-space")
        site.survey(spec)
        with site.trials(spec, Limits(), 1) as (_, count):
            assert 2 == count
        with pytest.raises(ExecutorError, match=r"can be used: \d+ MiB are free in /.*needs 4398"):
            site.trials(spec, Limits(), 2**62).__enter__()
        site.take_away(site.key)


def test_a_scheduler_that_hangs_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections stay, and Dask's calls wait for ever: no call of ours does."""
    monkeypatch.setattr(cluster_client, "PATIENCE_S", 1.0)
    monkeypatch.setattr(cluster_client, "_AWAY_S", 0.5)
    with (
        fleet(tmp_path / "fleet") as made,
        Client(made.address, set_as_default=False) as client,
    ):
        site = ClusterClient(client, "precision-bisect-hangs")
        parting = ClusterClient(client, "precision-bisect-parts")
        os.kill(made.scheduler.pid, signal.SIGSTOP)
        try:
            parting.take_away(parting.key)
            with until(lambda: True), pytest.raises(Stopped):
                site.watch(None)
            with pytest.raises(ExecutorError, match=f"at {re.escape(made.address)} is lost"):
                site.watch(None)
            site.take_away(site.key)
        finally:
            os.kill(made.scheduler.pid, signal.SIGCONT)
            # A command that ends beside a trial that was given up ends its process.
            wait_until(lambda: not still_working())


@pytest.mark.nightly
def test_an_unlike_worker_is_refused_or_passed_over(pair: Fleet, tmp_path: Path) -> None:
    """A worker with another version takes no trials when it joins, and is named at the start."""
    other = tmp_path / "other" / "precision_bisect-9.9.dist-info"
    other.mkdir(parents=True)
    other.joinpath("METADATA").write_text("Name: precision-bisect\nVersion: 9.9\n")
    path = os.pathsep.join([str(other.parent), os.environ.get("PYTHONPATH", "")])
    search = Search(tmp_path / "search")
    with search.running("--cluster", pair.address) as driver:
        search.wait_for_hold(driver)
        unlike = pair.worker("unlike", {"PYTHONPATH": path})
        pair.wait_for("unlike")
        search.let_go()
        assert 0 == ending(driver)[0]
    assert tiny.KEPT == search.answer()["kept"]
    assert len(pair.plugins("unlike")) == 2
    assert unlike.pid not in search.calls
    code, said = search.run("--resume", "--cluster", pair.address)
    assert 2 == code
    *_, line = said.splitlines()
    assert "precision-bisect is 0.1.0 on this machine and 9.9 on worker tcp://" in line
    unlike.kill()


@pytest.mark.nightly
def test_a_lost_scheduler_ends_the_run_with_what_it_has(alone: Search, tmp_path: Path) -> None:
    """Nothing is lost: the run is resumed without the cluster, to the same answer."""
    search = Search(tmp_path / "search")
    with fleet(tmp_path / "fleet", ["a", "b"]) as made:
        with search.running("--workers", "2", "--cluster", made.address) as driver:
            search.wait_for_hold(driver)
            made.scheduler.kill()
            screen, said = driver.communicate(timeout=PATIENCE_S)
        before = search.verdicts()
        assert 3 == driver.returncode
        assert f"the cluster at {made.address} is lost" in " ".join(screen.split())
        assert "Traceback" not in said
    search.let_go()
    assert 0 == search.run("--workers", "2", "--resume")[0]
    assert without_counts(alone.answer()) == without_counts(search.answer())
    assert sorted(alone.verdicts()) == sorted(search.verdicts())
    assert len(before) >= 6


@pytest.mark.nightly
def test_a_local_cluster_survives_what_trials_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segfault costs a child and not Dask's worker; a trial that costs the worker is crashed.

    What the child printed comes to the run folder. Dask leaves nothing among the temporary files.
    """
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    search = Search(tmp_path / "search", DIES_ONCE)
    with search.running("--cluster", "local") as driver:
        search.wait_for_hold(driver)
        os.kill(search.calls[-1], signal.SIGKILL)
        search.let_go()
        code, said = ending(driver)
    assert 0 == code
    assert tiny.KEPT == search.answer()["kept"]
    assert 1 == len(set(search.calls[:HELD])) == len(set(search.calls[HELD:]))
    (log,) = search.out.glob("logs/*-crashed.log")
    assert "about to die" in log.read_text()
    assert 1 == search.events().count("1 worker of the cluster died of it")
    assert "distributed" not in said and "Traceback" not in said
    assert [] == list(temporary.glob("*dask*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster", "nowhere"], "nowhere is no address"),
        (["--cluster", "local", "--isolate", "never"], "leave out --isolate never"),
        (
            ["--cluster", "local", "--workers", "gpu:0", "--backend", "auto"],
            "start one Dask worker for each GPU",
        ),
    ],
)
def test_what_cannot_work_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """A wrong cluster is wrong usage, said in one line."""
    model = tiny.write_with_samples(tmp_path)
    asked = ["--inputs", str(tmp_path / "inputs.npz"), "--out", str(tmp_path / "run")]
    assert 2 == main([str(model), *asked, "--backend", "emulated", *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_scheduler_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody at the address is an error with a hint, before anything is recorded."""
    monkeypatch.setattr(reach, "CONNECT_S", 0.2)
    model = tiny.write_model(tmp_path / "tiny.onnx")
    nobody = "tcp://127.0.0.1:9"
    with pytest.raises(ExecutorError, match=f"no Dask scheduler answers at {re.escape(nobody)}: "):
        tiny.search(model, tmp_path / "run", executor="dask", executor_address=nobody)
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


def without_counts(answer: Mapping[str, Any]) -> str:
    """Return the answer as text without what a resumed run counts in another way."""
    return re.sub(r'"recalled": \d+', "", json.dumps(answer, sort_keys=True))
