"""The fixed cases: those that have made the command line fall once.

`python tests/fuzz/fuzz_corpus.py` runs them all and prints those that do again.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import fuzz_forked
import fuzz_models
import numpy as np
import onnx
from fuzz_outcomes import FAULTS, kind
from onnx import helper, numpy_helper

from precision_bisect.settings.worker_options import MOST_THREADS

Change = Callable[[onnx.ModelProto], object]
_RUN = ["m.onnx", "--out", "run", *fuzz_models.QUICK, "--tol", "1e-12"]


def _opset(version: int, domain: str = "") -> Change:
    return lambda model: model.opset_import.add(version=version, domain=domain)


def _cast(inputs: list[str], outputs: list[str]) -> Change:
    return lambda model: model.graph.node.append(helper.make_node("Cast", inputs, outputs, to=1))


def _dimension(place: int, size: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_value = size

    return change


def _type(number: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.elem_type = number

    return change


def _segment(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].segment.end = 1


def _segmented_constant(model: onnx.ModelProto) -> None:
    value = numpy_helper.from_array(np.array(1, np.float32))
    value.segment.end = 1
    model.graph.node.append(helper.make_node("Constant", [], ["q"], value=value))


def _scalar_output(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("ReduceMax", ["y"], ["z"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, []))


MODELS: dict[str, Change] = {
    **{f"opset {version}": _opset(version) for version in (2**40, -(2**40), 2**31)},
    "opset of another domain": _opset(2**40, "ai.onnx.ml"),
    "no inputs": _cast([], ["q"]),
    "no outputs": _cast(["x"], []),
    **{f"dimension {size}": _dimension(1, size) for size in (-2, 0, 2**31, -(2**63))},
    **{f"element type {number}": _type(number) for number in (-2, 2**31 - 1)},
    "batch of -2": _dimension(0, -2),
    "segment": _segment,
    "segment in a constant": _segmented_constant,
    "a scalar output": _scalar_output,
}


def _none(folder: Path) -> list[str]:
    """Write a sample without values."""
    model = fuzz_models.plain()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, folder / "m.onnx")
    np.savez(folder / "in.npz", x=np.empty((0, 8), np.float32))
    return [*_RUN[:3], "--inputs", "in.npz", "--threads", "1"]


def _no_bytes(folder: Path) -> list[str]:
    """Write texts of no bytes."""
    (folder / "in").mkdir()
    header = {"descr": "|S0", "fortran_order": False, "shape": (1, 8)}
    with (folder / "in" / "x.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
    return ["m.onnx", "--out", "run", "--inputs", "in"]


def _unasked(folder: Path) -> list[str]:
    """Write an array under a name that nobody asks for."""
    np.savez_compressed(folder / "in.npz", z=np.zeros(1000, np.float32))
    return ["m.onnx", "--out", "run", "--inputs", "in.npz"]


def _pipe(*arguments: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        os.mkfifo(folder / "pipe")
        os.mkfifo(folder / "pipe.npz")
        (folder / "device").symlink_to("/dev/null")
        (folder / "device.npz").symlink_to("/dev/null")
        return list(arguments)

    return write


def _planted(name: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / "run").mkdir()
        (folder.parent / "outside").write_text("precious")
        (folder / "run" / name).symlink_to(folder.parent / "outside")
        return _RUN

    return write


def _ledger_folder(folder: Path) -> list[str]:
    (folder / "run" / "ledger.sqlite").mkdir(parents=True)
    return _RUN


def _many_threads(folder: Path) -> list[str]:
    onnx.save(fuzz_models.plain(), folder / "m.onnx")
    return [*_RUN, f"--threads={MOST_THREADS + 1}"]


OTHERS: dict[str, Callable[[Path], list[str]]] = {
    "samples of nothing": _none,
    "texts of no bytes": _no_bytes,
    "an array that nobody asks for": _unasked,
    "a pipe as model": _pipe("pipe"),
    "a device as model": _pipe("layers", "device"),
    "a pipe as inputs": _pipe(*_RUN[:3], "--inputs", "pipe.npz"),
    "a device as inputs": _pipe(*_RUN[:3], "--inputs", "device.npz"),
    "a pipe as baseline": _pipe(*_RUN, "--baseline", "pipe"),
    "a device as baseline": _pipe(*_RUN, "--baseline", "device"),
    "a pipe as run": _pipe("status", "pipe"),
    "a device as jobs": _pipe("batch", "device"),
    "a folder as ledger": _ledger_folder,
    "more threads than are taken": _many_threads,
    **{
        f"{name} is a link": _planted(name)
        for name in ("ledger.sqlite", "events.jsonl", "status.json", ".lock", "result.json")
    },
}


def _model(change: Change, command: list[str]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        model = fuzz_models.plain()
        change(model)
        onnx.save(model, folder / "m.onnx")
        return command

    return write


def cases() -> dict[str, Callable[[Path], list[str]]]:
    """Return what writes the files of each case and returns its arguments."""
    found = dict(OTHERS)
    for name, change in MODELS.items():
        found[name] = _model(change, _RUN)
        found[f"{name}, listed"] = _model(change, ["layers", "m.onnx"])
    return found


def main() -> int:
    """Run all cases; return 1 where one falls."""
    fuzz_forked.warm()
    fallen = 0
    for name, write in cases().items():
        root = Path(tempfile.mkdtemp(prefix="fuzz-"))
        folder, logs = root / "work", root / "logs"
        folder.mkdir()
        logs.mkdir()
        onnx.save(fuzz_models.plain(), folder / "m.onnx")
        ended = fuzz_forked.run(write(folder), folder, logs)
        if kind(ended) in FAULTS:
            fallen += 1
            print(f"{name}: {kind(ended)} {ended.code} {ended.err[-300:]} {ended.notes}")
        shutil.rmtree(root, ignore_errors=True)
    print(f"{len(cases())} cases, {fallen} fell")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
