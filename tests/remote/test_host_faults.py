"""Hosts that die, hang or lose their disk while they work, tried over a real sshd."""

from pathlib import Path

import numpy as np
import pytest

import tiny
from loopback import Boards, lacks, write_tool
from precision_bisect.backends.remote import ssh_host
from precision_bisect.backends.remote.ssh_host import Host, LostConnectionError, Reached
from precision_bisect.commandline.main import main
from precision_bisect.graphs.load import load_model
from precision_bisect.plan import Plan
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.saved import read_result, result_file
from remote.hosts import backend, command, tiny_model

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
UNTIL_LOST = "while [ -e inputs ] || [ -e ../inputs ]; do sleep 1; done; exit 1"
"""What a tool does that hangs: it goes with the folder of the connection."""


@pytest.mark.parametrize("way", ["xf", "cf"], ids=["to the host", "back"])
def test_a_host_that_takes_or_sends_nothing_is_left(
    way: str, board: Boards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays, and nothing moves: it is lost after a while, without any limit."""
    (board.each[0].tools / "tar").write_text(
        f'#!/bin/sh\ncase $1 in {way}) {UNTIL_LOST};; esac\nexec /bin/tar "$@"\n'
    )
    (board.each[0].tools / "tar").chmod(0o755)
    reached = Reached(tool="/bin/true", folder=str(board.base), config=board.options["ssh-config"])
    host = Host(name="one", reached=reached, work=tmp_path, number=0)
    host.open()
    monkeypatch.setattr(ssh_host, "_OPENING_S", 1.0)
    with pytest.raises(LostConnectionError, match=r"^one: what .* does not arrive$"):
        host.call([], {"file": b"content"}, tmp_path, patient=True)


def test_what_is_not_timed_is_run_once(board: Boards, tmp_path: Path) -> None:
    """trtexec runs for 3 s else; a call that times has no use for outputs."""
    calls = board.home / "calls"
    calls.touch()
    calls.chmod(0o666)
    write_tool(board.each[0].tools, f'case "$*" in *loadEngine*) echo "$*" >> {calls};; esac')
    feed = {"x": np.ones((1, 8), np.float32)}
    made = backend(board, load_model(tiny_model(tmp_path)), tmp_path)
    with made.build(Plan.of(())) as engine:
        engine.run(feed)
        latency = engine.time(feed)
    assert latency is not None
    assert 0.5 == latency.median_ms
    judged, timed = calls.read_text().splitlines()
    flags = ["--exportOutput", "--iterations=1", "--duration=0"]
    assert [True] * 3 == [flag in judged for flag in flags]
    assert [False] * 3 == [flag in timed for flag in flags]


@pytest.mark.nightly
def test_a_host_that_is_lost_for_good_ends_the_search_with_what_it_has(
    board: Boards, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The screen says why, and names the host; once it is back, --resume goes on."""
    model, once = tiny_model(tmp_path), board.home / "once"
    board.home.chmod(0o777)
    known = board.known.read_text()
    board.known.chmod(0o666)
    dies = f": > {board.known}; pkill -KILL -u $(id -u) -x sshd; sleep 600"
    begins = f'case "$*" in *onnx=../plan-2*) [ -e {once} ] || {{ touch {once}; {dies}; }};; esac'
    write_tool(board.each[0].tools, begins)
    asked = command(model, board, "--certify", "none")
    assert 3 == main(asked)
    result = read_result(result_file(tmp_path / "model" / "run"), "")
    assert (Status.ABORTED, True) == (result.status, result.trials > 0)
    assert "no host can be reached: one: " in " ".join(capsys.readouterr().out.split())
    board.known.write_text(known)
    assert 0 == main([*asked, "--resume"])
    assert sorted(tiny.KEPT) == sorted(
        read_result(result_file(tmp_path / "model" / "run"), "").kept
    )
