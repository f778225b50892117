"""A folder with small models and scripts for jobs, and the command that runs them."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import tiny
from precision_bisect.commandline.main import main

PROGRAM = 3
"""So many words of a command start the program."""
HEAD = """
[defaults]
backend = "emulated"
inputs = "inputs.npz"
threads = 1
"""

CHECKS = """
import ctypes, os, pathlib, signal, time

def error(outputs, reference):
    return max(float(abs(o[k] - r[k]).max()) for o, r in zip(outputs, reference) for k in o)

def held(outputs, reference):
    with pathlib.Path("calls").open("a") as log:
        log.write(f"{os.getpid()}\\n")
    while holds():
        pathlib.Path("held").touch()
        time.sleep(0.01)
    return error(outputs, reference)

def holds():
    hold, events = pathlib.Path("hold"), pathlib.Path("out/slow/events.jsonl")
    if not hold.exists():
        return False
    if hold.read_text() == "ended":
        return events.exists() and "trials_ended" in events.read_text()
    return len(pathlib.Path("calls").read_text().split()) >= int(hold.read_text())

def forever(outputs, reference):
    pathlib.Path("forever").touch()
    if not pathlib.Path("hurry").exists():
        time.sleep(600)
    return error(outputs, reference)

def meets(outputs, reference):
    here = pathlib.Path(__file__).parent
    (here / f"met-{os.environ.get('CUDA_VISIBLE_DEVICES')}").touch()
    while len(list(here.glob("met-*"))) < 2:
        time.sleep(0.02)
    return error(outputs, reference)

def segfault(outputs, reference):
    os.kill(os.getpid(), signal.SIGSEGV)

def fatal(outputs, reference):
    ctypes.CDLL(None)._exit(1)
"""

LOADER = """
import os, pathlib, signal, time
import numpy as np

def left():
    return os.environ.get("LEFT"), os.getcwd()

assert left() == (None, os.path.dirname(os.path.abspath(__file__)))
os.environ["LEFT"] = "x"
os.chdir("/")

def load_data():
    {body}
    print("I said nothing")
    yield {{"x": np.full((1, 8), 0.5, np.float32)}}
"""
HANGS = """
    calls = pathlib.Path(__file__).with_name('calls')
    written = calls.with_suffix('.part')
    written.write_text(f'{os.getpid()}')
    written.rename(calls)
    time.sleep(600)
"""

Write = Callable[[str], Path]
Command = Callable[..., Sequence[str]]


def filled(folder: Path) -> Write:
    """Put models, inputs and checks into a folder; return what writes a jobs file beside them."""
    tiny.write_model(folder / "a.onnx")
    tiny.write_model(folder / "b.onnx", 2.0)
    np.savez(folder / "inputs.npz", **tiny.samples()[0])  # type: ignore[arg-type]
    (folder / "checks.py").write_text(CHECKS)

    def write_jobs(text: str) -> Path:
        path = folder / "jobs.toml"
        path.write_text(HEAD + text)
        return path

    return write_jobs


def of(folder: Path, *more: str) -> Sequence[str]:
    """Return the command for the jobs file in a folder, whose batch goes to `out`."""
    words = ["batch", str(folder / "jobs.toml"), "--out", str(folder / "out")]
    return [sys.executable, "-m", "precision_bisect", *words, *more]


def ended(folder: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Run the batch to its end, in this process; its jobs have their own."""
    words = of(folder, *more)
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as said:
        code = main(words[PROGRAM:])
    return subprocess.CompletedProcess(words, code, out.getvalue(), said.getvalue())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return what writes a jobs file beside the models `a.onnx` and `b.onnx`, and returns it."""
    return filled(tmp_path)


@pytest.fixture(scope="session")
def gated(tmp_path_factory: pytest.TempPathFactory) -> "subprocess.CompletedProcess[str]":
    """Return how a batch ended whose first job fails a gate, and whose second one has none yet.

    It was moved since: the last of `args` is where it is.
    """
    folder = tmp_path_factory.mktemp("gated")
    filled(folder)(
        '[[job]]\nname = "gated"\nmodel = "a.onnx"\nmax-kept = 1\n'
        '[[job]]\nmodel = "b.onnx"\nbaseline = "later.json"\n'
    )
    ran = ended(folder)
    ran.args = [str((folder / "out").rename(folder / "moved"))]
    return ran


@pytest.fixture
def loader(tmp_path: Path) -> Callable[..., None]:
    """Return what writes a loader of this name and body, by default one that hangs."""

    def write_loader(name: str, body: str = HANGS) -> None:
        (tmp_path / f"{name}.py").write_text(LOADER.format(body=body))

    return write_loader


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Return what gives the command for the jobs file, whose batch goes to `out`."""
    return partial(of, tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return what runs the batch to its end, in this process; its jobs have their own."""
    return partial(ended, tmp_path)
