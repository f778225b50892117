"""A library that ends its process over a foreign file ends a search in one line, not without any.

Calls of the library are replaced by ones that abort; the model is an ordinary one.
"""

import errno
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from patience import PATIENCE_S
from precision_bisect.errors import ExitCode, InputError, ModelError
from precision_bisect.machine.forked import copies_allowed, in_copy
from precision_bisect.machine.stopping import TimedOut, limited, stoppable

pytestmark = pytest.mark.usefixtures("allowed")

ABORTS = """
import os
import {module}


def abort(*_, **__):
    os.write(2, b"terminate called: out of range\\n")
    os.abort()


{module}.{call} = abort
"""


FUNCTION = """
<ir_version: 8, opset_import: ["" : 12, "own" : 1]>
g (float[1, 8] x) => (float[1, 8] y) { t = own.Bend(x) y = Sigmoid(t) }
<domain: "own", opset_import: ["" : 12]>
Bend (x) => (y) { y = Tanh(x) }
"""


@pytest.fixture
def allowed() -> Iterator[None]:
    """Let tests work in copies, as the command line's process does."""
    with copies_allowed():
        yield


class Truncated:
    """What ends too early where it is read again."""

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return pickle.loads, (b"",)


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("onnxruntime", "InferenceSession.run"),
        ("onnxruntime", "InferenceSession.__init__"),
        ("onnx.shape_inference", "infer_shapes"),
        ("onnx.inliner", "inline_local_functions"),
        ("onnx.version_converter", "convert_version"),
    ],
    ids=["inference", "optimisation", "shape inference", "functions", "conversion"],
)
def test_a_library_that_aborts_ends_the_run_in_one_line(
    module: str, call: str, tmp_path: Path
) -> None:
    """It has the code of a bad model, names the signal, and says what the library said last."""
    path = tmp_path / "model.onnx"
    model = str(path)
    path.write_bytes(onnx.parser.parse_model(FUNCTION).SerializeToString())
    np.savez(tmp_path / "x.npz", x=np.ones((1, 8), np.float32))
    (tmp_path / "sitecustomize.py").write_text(ABORTS.format(module=module, call=call))
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "precision_bisect", model, "--tol", "1e-6", "--quiet"]
    command += [
        "--low",
        "bf16",
        "--inputs",
        str(tmp_path / "x.npz"),
        "--out",
        str(tmp_path / "run"),
    ]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
        timeout=PATIENCE_S,
    )
    (line,) = ran.stderr.splitlines()
    assert ExitCode.USAGE == ran.returncode
    assert "SIGABRT" in line and "terminate called: out of range" in line
    assert model in line and "; export the model otherwise" in line


def test_what_comes_of_the_work_comes_back() -> None:
    """A value, or the exception with its hint; what is printed meanwhile is printed."""
    assert [1, 2] == in_copy(lambda: [1, 2], "counting")
    error = InputError("too small", "take a larger one")

    def fails() -> None:
        raise error

    with pytest.raises(InputError) as raised:
        in_copy(fails, "failing")
    assert error.one_line() == raised.value.one_line()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_how_the_work_died_is_named(number: signal.Signals) -> None:
    """Whatever signal it is."""
    with pytest.raises(
        ModelError, match=rf"working: its process ended by {number.name}"
    ) as raised:
        in_copy(lambda: os.kill(os.getpid(), number), "working")
    assert ("more memory" in raised.value.hint) is (number == signal.SIGKILL)


def test_what_does_not_come_back_whole_is_no_answer() -> None:
    """The copy ended while it handed it back."""
    with pytest.raises(ModelError, match="working: its process ended"):
        in_copy(Truncated, "working")


def test_threads_of_others_work_here() -> None:
    """What they are inside of could not go on in a copy, which would die of it."""
    with ThreadPoolExecutor(1) as pool:
        assert os.getpid() == pool.submit(in_copy, os.getpid, "working").result()
    assert os.getpid() != in_copy(os.getpid, "working")


def test_nobody_is_told_how_copies_end_where_children_are_ignored() -> None:
    """Shells hand that on (`trap '' CHLD`); the answer counts."""
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert os.getpid() != in_copy(os.getpid, "working")
    finally:
        signal.signal(signal.SIGCHLD, former)


def test_without_files_in_memory_it_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels and sandboxes have none."""

    def refuse(name: str) -> int:
        raise OSError(errno.ENOSYS, name)

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert os.getpid() == in_copy(os.getpid, "working")


def test_limits_reach_the_calls_of_the_copy() -> None:
    """A call there that does not come back is stopped as one here; the time between is none."""

    def hangs() -> None:
        for _ in range(2):
            with stoppable(lambda: None):
                pass
        with stoppable(lambda: None):
            signal.pause()

    with limited(None, 0.2), pytest.raises(TimedOut, match="trial-timeout"):
        in_copy(hangs, "hanging")
