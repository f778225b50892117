"""`--backend remote`: what holds between this machine and hosts, tried over a real sshd."""

import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

import tiny
from loopback import Boards, lacks, write_tool
from models import parse, with_weights
from patience import PATIENCE_S, comes
from precision_bisect.backends.remote.ssh_host import Host, Reached, TooLargeError
from precision_bisect.backends.trtexec.trtexec_results import LOG_END, trouble
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExecutorError, PrecisionBisectError, RefusedError
from precision_bisect.graphs.load import load_model
from precision_bisect.plan import Plan
from precision_bisect.protocols import BackendFailure
from precision_bisect.runs.runfolder import LEDGER
from precision_bisect.testing.backend_contract import check_backend
from precision_bisect.trial import TrialStatus
from remote.hosts import backend, command, kept, tiny_model

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
PLANS = 'case "$*" in *plan-*) '
"""The beginning of what a trtexec does with plans alone, ended by `;; esac`."""


def test_it_keeps_the_contract(board: Boards, tmp_path: Path) -> None:
    """Plans compute there what they say; what is left there goes with the backend."""
    work = tmp_path / "work"
    work.mkdir()
    check_backend(lambda model: backend(board, model, work))


def test_a_board_that_cannot_be_used_is_refused_in_one_line(
    board: Boards, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever is wrong shows before the first trial, with what to do."""
    path = tiny_model(tmp_path)
    model = load_model(path)

    def refused(*words: str, **instead: str) -> None:
        with pytest.raises(PrecisionBisectError) as error:
            backend(board, model, tmp_path, options={**board.options, **instead}).versions()
        line = error.value.one_line()
        assert all(word in line for word in words), line
        assert "; " in line

    assert 2 == main([str(path), "--backend-option", "host=one"])
    assert "--backend auto has no option 'host'" in capfd.readouterr().err
    assert 2 == main([str(path), *board.flags(hosts="one")])
    assert "has no option 'hosts'; choose host, trtexec, " in capfd.readouterr().err
    refused("needs a host", "--backend-option host=", host="")
    refused("is no name of a host", host="-oProxyCommand=id")
    refused("none.invalid", "ssh HOST true", host="none.invalid")
    refused("host one has no /none/trtexec", trtexec="/none/trtexec")
    refused("is no absolute path", trtexec="bin/trtexec")
    refused("/bin/false on host one does not build", trtexec="/bin/false")
    refused("host one has no folder /none", folder="/none")
    few = board.home / "few"
    few.mkdir()
    for name, tool in (("sh", "/bin/sh"), ("trtexec", "/bin/true")):
        (few / name).symlink_to(tool)
    board.set_shell(f'PATH={few} exec /bin/sh "$@"')
    refused("host one has no tar")
    board.set_shell('exec /bin/sh "$@"')
    known = board.known.read_text()
    board.known.write_text("")
    refused("one: ", "key", "ssh HOST true")
    board.known.write_text(known)
    (board.home / "key.pub").write_text("")
    refused("one: ", "Permission denied", "ssh HOST true")


def test_what_a_shell_prints_as_it_starts_is_no_answer(board: Boards, tmp_path: Path) -> None:
    """Boards greet, at times for megabytes, with control characters and without an end of line.

    One whose shell calls nothing is named.
    """
    board.set_shell(
        "yes all is well | head -c 10000000\nyes all is well | head -c 10000000 >&2\n"
        "printf '\\033]0;board\\007\\000\\377 mode 15W'\nexec /bin/sh \"$@\"\n"
    )
    made = backend(board, load_model(tiny_model(tmp_path)), tmp_path)
    assert "Orin" == made.versions()["device"]
    with made.build(Plan.of(())) as engine:
        assert engine.run({"x": np.ones((1, 8), np.float32)})
    del made, engine
    board.set_shell("echo This account is not available.\nexit 1\n")
    with pytest.raises(RefusedError, match="one: its shell prints 'This account is not available"):
        backend(board, load_model(tmp_path / "model/model.onnx"), tmp_path).versions()


def test_what_comes_back_is_bounded(board: Boards, tmp_path: Path) -> None:
    """A log without end is cut, a hole of 40 GB not sent, and a host that sends it not heard."""
    reached = Reached(
        tool="trtexec",
        folder=str(board.base),
        config=board.options["ssh-config"],
        most_bytes=2**20,
    )
    host = Host(name="one", reached=reached, work=tmp_path, number=0)

    def call(does: str) -> int:
        write_tool(board.each[0].tools, does)
        host.open()
        (tmp_path / "back").mkdir(exist_ok=True)
        return host.call([], {}, tmp_path / "back", patient=True)

    log = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo '[E] Error[9]: no kernel'; exit 1"
    assert -signal.SIGSEGV == call("kill -s SEGV $$")
    assert 1 == call(log)
    assert 2 * LOG_END == (tmp_path / "back/log").stat().st_size
    assert "Error[9]: no kernel" == trouble(tmp_path / "back/log")
    hole = "truncate -s 40G output-0.json; exit 0"
    with pytest.raises(TooLargeError, match=r"output-0\.json from one is over 1 MiB"):
        call(hole)
    for archiver in ("exec cat /dev/zero", 'exec /bin/tar "$@" --sparse'):
        archives = f'case $1 in cf) {archiver};; esac\nexec /bin/tar "$@"'
        for name, does in (("tar", archives), ("wc", "echo 1")):
            tool = board.each[0].tools / name
            tool.write_text(f"#!/bin/sh\n{does}\n")
            tool.chmod(0o755)
        with pytest.raises(TooLargeError, match="from one is over 1 MiB"):
            call(hole)


def test_unlike_boards_are_refused(two: Boards, tmp_path: Path) -> None:
    """Verdicts of two kinds of GPU are not mixed."""
    write_tool(two.each[1].tools, "echo '[I] Selected Device: Thor'")
    with pytest.raises(PrecisionBisectError, match="device is Orin on one, Thor on two"):
        backend(two, load_model(tiny_model(tmp_path)), tmp_path).versions()


def test_inputs_go_there_once(board: Boards, tmp_path: Path) -> None:
    """Samples of the run stay as long as the connection; copies and former plans do not."""
    seen = board.home / "seen"
    seen.touch()
    seen.chmod(0o666)
    looks = f"(cd ..; ls -i inputs; ls feed ./*.onnx 2> /dev/null; echo -) >> {seen}"
    write_tool(board.each[0].tools, f'case "$*" in *loadInputs*) {looks};; esac')
    sample, copy = ({"x": np.full((1, 8), value, np.float32)} for value in (1, 2))
    made = backend(board, load_model(tiny_model(tmp_path)), tmp_path, [sample])
    for feed in (sample, copy, sample):
        with made.build(Plan.of(())) as engine:
            engine.run(feed)
    calls = [call.split("\n")[:-1] for call in seen.read_text().split("-\n")[:-1]]
    # The number of a file's node changes as it is unpacked once more.
    assert 1 == len({call[0] for call in calls}), calls
    copied = [sum("feed" in line or len(line) == 64 for line in call) for call in calls]
    assert [0, 2, 0] == copied, calls
    assert [1, 1, 1] == [sum(line.endswith(".onnx") for line in call) for call in calls]


def test_a_plan_that_does_not_build_is_an_outcome(board: Boards, tmp_path: Path) -> None:
    """What trtexec says of it is told."""
    write_tool(board.each[0].tools, PLANS + "echo '[E] Error[9]: no kernel'; exit 1;; esac")
    made = backend(board, load_model(tiny_model(tmp_path)), tmp_path)
    with pytest.raises(BackendFailure) as failed:
        made.build(Plan.of(()))
    assert TrialStatus.BUILD_FAILED is failed.value.outcome.status
    assert "Error[9]: no kernel" == failed.value.outcome.message


def test_a_build_past_its_time_ends_there_too(board: Boards, tmp_path: Path) -> None:
    """The limit of builds leaves no trtexec at work; an earlier engine is built there again."""
    slow = PLANS + f"[ -e {board.home / 'slow'} ] && sleep 600;; esac"
    write_tool(board.each[0].tools, slow)
    model, feed = load_model(tiny_model(tmp_path)), {"x": np.ones((1, 8), np.float32)}
    made = backend(board, model, tmp_path, build_timeout_s=20.0)
    try:
        engine = made.build(Plan.of(range(20)))
    except BackendFailure:  # on a busy machine any build may be late
        made = backend(board, model, tmp_path, build_timeout_s=PATIENCE_S)
        engine = made.build(Plan.of(range(20)))
    before = engine.run(feed)
    (board.home / "slow").touch()
    with pytest.raises(BackendFailure) as failed:
        made.build(Plan.of(()))
    assert TrialStatus.TIMED_OUT is failed.value.outcome.status
    assert comes(board.clear), (board.left(), board.each[0].processes())
    (board.home / "slow").unlink()
    with engine:
        after = engine.run(feed)
    assert [*before.items()] and all(np.array_equal(before[name], after[name]) for name in before)


def test_a_slow_link_is_no_slow_build(board: Boards, tmp_path: Path) -> None:
    """What is sent may take longer than a build may; the limit is on the tool alone."""
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "model.onnx"
    weights = {"w": np.ones((8, 60_000), np.float32), "v": np.ones((60_000, 8), np.float32)}
    text = "(float[1, 8] x) => (float[1, 8] y) { m = MatMul(x, w) [k] y = MatMul(m, v) }"
    onnx.save(with_weights(parse(text), weights), path)
    write_tool(board.each[0].tools, "exit 0")
    board.slow_down(100_000)
    begun = time.monotonic()
    with backend(board, load_model(path), tmp_path, build_timeout_s=15.0).build(Plan.of(())):
        # 1.92 MB at that rate take 19 s at least.
        assert time.monotonic() - begun > 15.0


def test_a_trial_that_ends_its_connection_is_crashed(board: Boards, tmp_path: Path) -> None:
    """It is tried a bounded number of times, and has no verdict."""
    calls = board.home / "calls"
    calls.touch()
    calls.chmod(0o666)
    kills = f"echo >> {calls}; pkill -KILL -u $(id -u) -x sshd; sleep 600"
    write_tool(board.each[0].tools, f"{PLANS}{kills};; esac")
    made = backend(board, load_model(tiny_model(tmp_path)), tmp_path)
    with pytest.raises(BackendFailure) as failed:
        made.build(Plan.of(()))
    outcome = failed.value.outcome
    assert (TrialStatus.CRASHED, None) == (outcome.status, outcome.verdict)
    assert outcome.message.startswith("lost: one: ")
    assert 3 == len(calls.read_text().splitlines())


def test_a_full_disk_there_is_one_line(board: Boards, tmp_path: Path) -> None:
    """Whether it is full before or becomes so by the engine, no verdict comes of it."""
    mounted = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=1777", "none", str(board.base)]
    if subprocess.run(mounted, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs")
    try:
        fills = f"dd if=/dev/zero of={board.base}/filling bs=64k 2> /dev/null;; esac"
        write_tool(board.each[0].tools, PLANS + fills)
        made = backend(board, load_model(tiny_model(tmp_path)), tmp_path)
        assert "Orin" == made.versions()["device"]
        with pytest.raises(ExecutorError, match=r"host one is full, or read-only .*; free some"):
            made.build(Plan.of(()))
        with pytest.raises(ExecutorError, match="disk of host one is full"):
            made.build(Plan.of(()))
        del made
        (board.base / "filling").unlink()
        assert comes(board.clear), board.left()
    finally:
        subprocess.run(["umount", "-l", str(board.base)], check=True)


def test_what_a_dead_board_left_goes_at_the_next_start(board: Boards, tmp_path: Path) -> None:
    """A folder of a holder that is gone is removed; one that is held, or is not ours, stays."""
    held, other = f"precision-bisect.{os.getpid()}.abc", "precision-bisect.mine"
    user = board.each[0].user
    for name in ("precision-bisect.999999999.abc", other):
        subprocess.run(["install", "-d", "-o", user, str(board.base / name)], check=True)
    (board.base / held).mkdir()
    backend(board, load_model(tiny_model(tmp_path)), tmp_path).versions()
    assert comes(lambda: {held, other} == set(board.left()))
    (board.base / held).rmdir()
    (board.base / other).rmdir()


@pytest.mark.nightly
def test_a_search_finds_there_what_it_finds_here(board: Boards, tmp_path: Path) -> None:
    """The answer is the emulator's, and verify sees each kept layer honoured there."""
    model = tiny_model(tmp_path)
    assert 0 == main(command(model, board))
    assert sorted(tiny.KEPT) == kept(model)
    assert 0 == main(["verify", str(model.parent / "run"), *board.flags()])


@pytest.mark.nightly
def test_a_board_that_dies_costs_nothing(two: Boards, tmp_path: Path) -> None:
    """The search goes on with the other one, to the same answer."""
    model = tiny_model(tmp_path)
    began = two.home / "began"
    began.touch()
    began.chmod(0o666)
    for board in two.each:
        write_tool(board.tools, f"{PLANS}echo {board.name} >> {began};; esac")
    words = [sys.executable, "-m", "precision_bisect", *command(model, two, "--workers", "2")]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert comes(lambda: {"one", "two"} <= set(began.read_text().split()))
    two.each[0].cut()
    said, _ = run.communicate()
    assert 0 == run.returncode, said
    assert sorted(tiny.KEPT) == kept(model)
    assert "lost" not in said
    assert comes(two.clear), two.left()


@pytest.mark.nightly
def test_a_board_that_hangs_in_mid_build_is_left(two: Boards, tmp_path: Path) -> None:
    """Its connection stays, and nobody answers: another one builds; what it has clears up later.

    The other one's clock is hours ahead.
    """
    begun = two.home / "begun"
    write_tool(two.each[0].tools, f"{PLANS}touch {begun}; sleep 600;; esac")
    ahead = two.each[1].tools
    write_tool(ahead / "real")
    real = f'{ahead}/real/trtexec "$@"; code=$?; touch -d "2 hours" ./* ../*; exit $code'
    write_tool(ahead, real)
    two.home.chmod(0o777)
    made = backend(two, load_model(tiny_model(tmp_path)), tmp_path)
    made.versions()
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(made.build, Plan.of(()))
        assert comes(begun.exists)
        with two.each[0].frozen(), built.result(PATIENCE_S) as engine:
            assert engine.run({"x": np.ones((1, 8), np.float32)})
    del made, built, engine
    gc.collect()
    assert comes(two.clear), two.left()


@pytest.mark.nightly
def test_a_killed_run_leaves_nothing(board: Boards, tmp_path: Path) -> None:
    """SIGKILL clears the board; that runs go on is tested where trials are."""
    model = tiny_model(tmp_path)
    words = [sys.executable, "-m", "precision_bisect", *command(model, board)]
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ledger = model.parent / "run" / LEDGER
    assert comes(lambda: ledger.exists() and bool(board.left()))
    run.kill()
    run.wait()
    assert comes(board.clear), (board.left(), board.each[0].processes())


@pytest.mark.nightly
def test_without_any_board_the_run_ends_in_one_line(
    board: Boards, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was tried is in the ledger; nothing of it is a verdict."""
    made = backend(board, load_model(tiny_model(tmp_path)), tmp_path)
    with made.build(Plan.of(())) as engine:
        board.each[0].cut()
        with pytest.raises(ExecutorError, match=r"no host can be reached: one: .*--resume"):
            engine.run({"x": np.ones((1, 8), np.float32)})
