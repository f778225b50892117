"""A run whose output nobody reads any more: its search and its exit code stay what they are."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

import tiny
from effort import nightly
from patience import PATIENCE_S

LOST = (("stdout", "stderr"), ("stdout",), ("stderr",))
FLAGS: Sequence[tuple[str, ...]] = ((), ("--json",), ("--tol", "1e-30"))
DAILY, *NIGHTLY = product(LOST, FLAGS)


@pytest.mark.parametrize(
    ("lost", "flags"),
    [DAILY, *nightly(*NIGHTLY)],
)
def test_a_reader_that_has_gone_costs_nothing(
    lost: tuple[str, ...], flags: tuple[str, ...], tmp_path: Path
) -> None:
    """As under `| head -1` or a dying `tee`: the result is written, the code is its own."""
    model = tiny.write_with_samples(tmp_path)
    ours, theirs = os.pipe()
    os.close(ours)
    out, err = (theirs if name in lost else subprocess.DEVNULL for name in ("stdout", "stderr"))
    command = [sys.executable, "-m", "precision_bisect", str(model), "--threads", "1"]
    command += ["--inputs", str(tmp_path / "inputs.npz"), "--out", str(tmp_path / "run")]
    code = subprocess.run(
        [*command, *(flags or ("--tol", "1e-2"))],
        stdout=out,
        stderr=err,
        check=False,
        timeout=PATIENCE_S,
    ).returncode
    os.close(theirs)
    status = json.loads((tmp_path / "run" / "result.json").read_text())["status"]
    assert (status, code) in (("found", 0), ("not_precision", 1), ("infeasible", 1))


@pytest.mark.skipif(sys.platform == "win32", reason="it is a shell that closes streams")
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", *nightly(">&-", "2>&-")])
def test_a_caller_without_streams_costs_nothing(tmp_path: Path, closed: str) -> None:
    """A service may have none, and the processes that it begins for trials are to have theirs."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    flags = ["--isolate", "always", "--tol", "1e3", "--threads", "1"]
    command = shlex.join([sys.executable, "-m", "precision_bisect", str(model), *flags])
    code = subprocess.run(
        f"{command} {closed}", shell=True, cwd=tmp_path, timeout=PATIENCE_S
    ).returncode
    result = tmp_path / "tiny.onnx.precision-bisect" / "result.json"
    assert (0, "nothing_to_keep") == (code, json.loads(result.read_text())["status"])


BEGUN = """
import pathlib, subprocess, sys
from precision_bisect.execution.child import begin
begin(pathlib.Path("log"))
subprocess.run(["sh", "-c", "echo out; echo err >&2"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it is a shell that closes streams")
@pytest.mark.parametrize("closed", ["", "<&- >&- 2>&-", ">&- 2>&-", "2>&-"])
def test_what_a_trial_begins_prints_into_its_log(tmp_path: Path, closed: str) -> None:
    """A compiler without streams would write its messages into the first file that it opens."""
    command = f"{shlex.join([sys.executable, '-c', BEGUN])} {closed}"
    subprocess.run(command, shell=True, cwd=tmp_path, timeout=PATIENCE_S, check=True)
    assert ["out", "err"] == (tmp_path / "log").read_text().splitlines()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_too_few_open_files_are_no_lost_output(tmp_path: Path) -> None:
    """What the system refuses is named, wherever it does, and never as lost output."""
    model = tiny.write_with_samples(tmp_path)
    script = """
import resource, sys
from precision_bisect.commandline.main import main
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", script, str(model), "--inputs", str(tmp_path / "inputs.npz")]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run"), "--isolate", "always"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    last = done.stderr.splitlines()[-1]
    assert (2, "") == (done.returncode, done.stdout)
    assert last.startswith("precision-bisect: "), done.stderr
    assert "cannot write the output" not in last
