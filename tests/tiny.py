"""A model of 20 layers that needs four of them, and a search of it that can be killed anywhere.

Its `main` searches the model, going on with what OUT holds, and notes every event in LOG; it kills
itself at its KILL_AT-th event, 0 for never.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import precision_bisect
from precision_bisect.backends.emulation.emulator import EmulatedEngine
from precision_bisect.commandline.main import main as command_line
from precision_bisect.errors import SearchInterrupted
from precision_bisect.graphs.module_names import SCOPES
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import Event, TrialFinished, TrialStarted
from precision_bisect.runs.results.result import Result

FLOAT = onnx.TensorProto.FLOAT
OVERFLOW = [("Mul", 400.0), ("Mul", None), ("Sqrt", None), ("Mul", 1 / 400.0)]
STEPS = [
    *[("Abs", None), ("Tanh", None), ("Add", 0.5)],
    *OVERFLOW,
    *[("Tanh", None), ("Add", 1.0), ("Mul", 0.5), ("Sigmoid", None), ("Add", 0.25)],
    *OVERFLOW,
    *[("Tanh", None), ("Sub", 0.5), ("Neg", None), ("Mul", 2.0)],
]
"""Operator and constant second operand; a Mul without one squares, which overflows fp16."""
KEPT = ["n4_Mul", "n5_Sqrt", "n13_Mul", "n14_Sqrt"]


def write_model(path: Path, scale: float = 1.0) -> Path:
    """Write the model of `STEPS`; `scale` multiplies its last constant."""
    nodes, constants, value = [], [], "x"
    for number, (op_type, constant) in enumerate(STEPS):
        operands = [value]
        if constant is not None:
            operands.append(f"c{number}")
            factor = scale if number == len(STEPS) - 1 else 1.0
            array = np.array(constant * factor, np.float32)
            constants.append(numpy_helper.from_array(array, f"c{number}"))
        elif op_type == "Mul":
            operands.append(value)
        value = f"v{number}"
        nodes.append(helper.make_node(op_type, operands, [value], name=f"n{number}_{op_type}"))
    ends = [helper.make_tensor_value_info(name, FLOAT, [1, 8]) for name in ("x", value)]
    graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def write_in_modules(path: Path, root: str = "blocks") -> Path:
    """Write the model as PyTorch exports one of four modules in `root`, five layers in each."""
    proto = onnx.load(write_model(path))
    for place, node in enumerate(proto.graph.node):
        told = ["", root, f"{root}.{place // 5}", node.name]
        node.metadata_props.add(key=SCOPES, value=repr(told))
    onnx.save(proto, path)
    return path


def write_with_samples(folder: Path) -> Path:
    """Write the model, and `inputs.npz` beside it."""
    np.savez(folder / "inputs.npz", x=samples()[0]["x"])
    return write_model(folder / "tiny.onnx")


def samples(count: int = 1) -> list[dict[str, NDArray[np.float32]]]:
    """Return so many samples; the first ones are the same whatever the count."""
    rng = np.random.default_rng(0)
    return [{"x": rng.uniform(0.2, 2.0, (1, 8)).astype(np.float32)} for _ in range(count)]


def search(model: Path, out: Path, **options: Any) -> Result:
    """Search the model on one sample, one thread, unless the options say otherwise."""
    options = {"inputs": samples(), "threads": 1, "tol": 1e-2, **options}
    return ended(precision_bisect.find, model, out=out, **options)


def command(model: Path, out: Path, *arguments: str, first: str = "", tol: str = "1e-2") -> int:
    """Run the main job, or the command `first`, on a model that has its samples beside it."""
    inputs = str(model.parent / "inputs.npz")
    shared = ["--inputs", inputs, "--threads", "1", "--tol", tol, "--out", str(out)]
    return command_line([*([first] if first else []), str(model), *shared, *arguments])


def ended(find: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Return what a search found, also where it was interrupted."""
    try:
        return find(*arguments, **options)
    except SearchInterrupted as interrupted:
        assert isinstance(interrupted.result, Result)
        return interrupted.result


class Killer:
    """Notes starts, evaluations and ends of trials in a file, and dies at one of them."""

    def __init__(self, log: Path, kill_at: int) -> None:
        self._log = log.open("a", buffering=1)
        self._left = kill_at
        self._lock = threading.Lock()

    def note(self, what: str, key: str) -> None:
        """Note one event; die after it if it is the one."""
        with self._lock:
            self._left -= 1
            self._log.write(f"{what} {key}{' killed' if self._left == 0 else ''}\n")
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def observe(self, event: Event) -> None:
        """Note the trials that this process evaluates."""
        if isinstance(event, TrialStarted):
            self.note("started", "/".join(map(str, event.proposal.identity)))
        elif isinstance(event, TrialFinished) and not event.recalled:
            self.note("finished", "/".join(map(str, event.proposal.identity)))


def main(model: str, out: str, log: str, kill_at: str) -> None:
    """Search, noting everything and dying when told."""
    killer = Killer(Path(log), int(kill_at))
    evaluate = EmulatedEngine.run

    def noted(engine: EmulatedEngine, feed: Sample) -> Sample:
        outputs = evaluate(engine, feed)
        killer.note("evaluated", engine.plan.key)
        return outputs

    setattr(EmulatedEngine, "run", noted)  # noqa: B010 - mypy forbids the plain form
    search(Path(model), Path(out), resume=True, observer=killer.observe)


if __name__ == "__main__":
    main(*sys.argv[1:])
