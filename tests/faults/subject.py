"""What the faults happen to: a search of a small model, whose trials run in child processes.

No plan of the model overflows, so its check (`script.py`, copied beside the model) sees every
evaluation.
"""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import helper, numpy_helper

from patience import comes
from precision_bisect.api import run
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.load import load_model
from precision_bisect.options import Options
from precision_bisect.plan import Plan
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import Observer, ignore
from precision_bisect.runs.results.result import Result

FLOAT = onnx.TensorProto.FLOAT
CANCELLING = [("Add", 2048.0), ("Sub", 2048.0)]
"""FP16 holds no halves beyond 2048, so that both must stay high."""
STEPS = [
    *[("Tanh", None), ("Mul", 0.5)],
    *CANCELLING,
    *[("Add", 0.25), ("Tanh", None), ("Neg", None), ("Sigmoid", None)],
    *CANCELLING,
    *[("Abs", None), ("Mul", 2.0)],
]
KEPT = ["n2_Add", "n3_Sub", "n8_Add", "n9_Sub"]
SAMPLES = 2
TOLERANCE = 1e-2


def prepare(folder: Path) -> Path:
    """Write model, inputs and script into a new folder, and return it."""
    folder.mkdir(parents=True)
    (folder / "temp").mkdir()
    nodes, constants, value = [], [], "x"
    for number, (op_type, constant) in enumerate(STEPS):
        operands = [value]
        if constant is not None:
            operands.append(f"c{number}")
            constants.append(numpy_helper.from_array(np.array(constant, np.float32), f"c{number}"))
        value = f"v{number}"
        nodes.append(helper.make_node(op_type, operands, [value], name=f"n{number}_{op_type}"))
    ends = [helper.make_tensor_value_info(name, FLOAT, [1, 8]) for name in ("x", value)]
    graph = helper.make_graph(nodes, "cancelling", ends[:1], ends[1:], constants)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), folder / "model.onnx")
    shutil.copy(Path(__file__).with_name("script.py"), folder)
    order(folder)
    return folder


def feeds(count: int = SAMPLES) -> list[Sample]:
    """Return so many samples; the first ones are the same whatever the count."""
    rng = np.random.default_rng(0)
    return [{"x": rng.uniform(0.2, 2.0, (1, 8)).astype(np.float32)} for _ in range(count)]


def options(folder: Path, **more: Any) -> Options:
    """Return options for the model of a prepared folder, in child processes unless told so."""
    asked: dict[str, Any] = {
        "inputs": feeds(SAMPLES + more.get("holdout", 0)),
        "check": f"{folder / 'script.py'}:error",
        "tol": TOLERANCE,
        "backend": "emulated",
        "isolate": "always",
        "threads": 1,
        # So that each trial is judged once, and what is begun twice is repeated.
        "copies": 0,
        **more,
    }
    return Options(model=folder / "model.onnx", out=folder / "run", **asked)


def search(folder: Path, observer: Observer = ignore, **more: Any) -> Result:
    """Search the model of a prepared folder; `more` is as in `options`."""
    return run(options(folder, **more), observer)


def order(folder: Path, *orders: dict[str, Any]) -> None:
    """Say what the script of a prepared folder does; see there."""
    (folder / "orders.json").write_text(json.dumps(orders))


def break_start(folder: Path, line: str) -> None:
    """Have the script of a prepared folder run a line when it is loaded from now on."""
    (folder / "broken_start.py").write_text(line)


def noted(folder: Path) -> list[tuple[str, str, int]]:
    """Return the script's log: "begun" or "ended", of which trial, in which process."""
    if not (folder / "log").exists():
        return []
    lines = (line.split() for line in (folder / "log").read_text().splitlines())
    return [(what, trial, int(pid)) for what, trial, pid, _ in lines]


def rows(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return what the ledger says of the trials that have ended: status, verdict, error."""
    path = folder / "run" / "ledger.sqlite"
    if not path.exists():
        return {}
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute(
            "SELECT plan || '/' || samples || '/' || kind || '/' || draw || '/' || case_name, "
            "status, verdict, error, message FROM trials WHERE status IS NOT NULL"
        ).fetchall()
    return {trial: tuple(about) for trial, *about in found}


def error_alone(folder: Path, kept: Sequence[str]) -> float:
    """Return the error of a plan, from emulated and exact outputs of nothing but that."""
    model = load_model(folder / "model.onnx")
    backend = EmulatedBackend(model, "fp16", 1)
    names = model.table.names
    plan, exact = Plan.of(names.index(name) for name in kept), Plan.all_high(len(names))
    outputs = [[backend.evaluate(each, feed) for feed in feeds()] for each in (plan, exact)]
    pairs = zip(*outputs, strict=True)
    return max(float(np.abs(got[y] - want[y]).max()) for got, want in pairs for y in want)


def hanging(folder: Path) -> int:
    """Return how many evaluations have hung."""
    log = folder / "hangs"
    return len(log.read_bytes()) if log.exists() else 0


def left_over(folder: Path) -> list[str]:
    """Return the processes and temporary files of a folder's runs that do not go away."""
    left: list[str] = []

    def gone() -> bool:
        left[:] = [*_files(folder), *processes(folder)]
        return not left

    comes(gone)
    return left


def _files(folder: Path) -> Iterator[str]:
    """Yield what lies in the folder for temporary files, but for ONNX Runtime's own one."""
    for path in (folder / "temp").iterdir():
        if path.name != ".ses":
            yield str(path)


def processes(folder: Path) -> Iterator[str]:
    """Yield the processes that were given the folder, or a place in it for temporary files."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            said = [*process.cmdline(), process.environ().get("TMPDIR", "")]
            if process.pid != os.getpid() and any(str(folder) in each for each in said):
                yield f"{process.pid} {said}"
