"""Whether the exported model opens and runs, and what is stored beside it fits it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from precision_bisect.errors import ModelError
from precision_bisect.exports.rerun import Feeds, NotRun, begins, run_file
from precision_bisect.graphs.graph import all_graphs
from precision_bisect.graphs.ort import LacksKernel, open_file
from precision_bisect.judging.inputs.loops import Loop
from precision_bisect.machine.plain_files import plain_size
from precision_bisect.machine.polygraphy_quiet import quiet, without_torch
from precision_bisect.runs.runfolder import GOLDEN_INPUTS, GOLDEN_OUTPUTS, MIXED_MODEL

# Longest text of a foreign error, in characters.
_SHOWN = 300


class Unfit(Exception):
    """The files do not fit together; the message says why, in one sentence."""


def fit(folder: Path, feeds: Feeds, work: Path) -> Mapping[str, Any]:
    """Check the exported model and what is stored beside it, and run it.

    Return how many stored samples there are, and why it did not run, "" where it did. Raises
    Unfit.
    """
    path = folder / MIXED_MODEL
    graph = _graph(path, work)
    stored = _fitting_samples(folder, graph, feeds.loop) if feeds.stored else ()
    unrun = ""
    try:
        run_file(path, feeds, stored if feeds.samples is None else feeds.samples, work)
    except NotRun as reason:
        unrun = str(reason)
    except ModelError as error:
        raise Unfit(f"it does not open: {error.message[:_SHOWN]}") from error
    return {"samples": len(stored), "unrun": unrun[:_SHOWN].rstrip(".")}


def _fitting_samples(
    folder: Path, graph: onnx.GraphProto, loop: Loop
) -> Sequence[Mapping[str, Any]]:
    """Return the stored inputs, which fit the graph, as outputs of one run do. Raises Unfit."""
    inputs, outputs = stored_samples(folder)
    for number, (feed, wanted) in enumerate(zip(inputs, outputs, strict=True)):
        for value, arrays, file in (
            *((value, feed, GOLDEN_INPUTS) for value in graph.input),
            *((value, wanted, GOLDEN_OUTPUTS) for value in graph.output if loop.plain),
        ):
            if trouble := _misfit(value, arrays):
                raise Unfit(f"{value.name!r} in {file}, sample {number}, {trouble}")
    return inputs


def _graph(path: Path, work: Path) -> onnx.GraphProto:
    """Return inputs, outputs and names of weights of a file that is valid. Raises Unfit."""
    try:
        graph = onnx.load(path, load_external_data=False).graph
        standard = [n for g in all_graphs(graph) for n in g.node if n.domain in ("", "ai.onnx")]
        # The check takes an operator of TensorRT's plugins for a mistake.
        checks = all(onnx.defs.has(node.op_type) for node in standard)
        names = [onnx.TensorProto(name=tensor.name) for tensor in graph.initializer]
        ends = onnx.GraphProto(input=graph.input, output=graph.output, initializer=names)
        # The check reads the file once more: one graph with its weights at a time.
        del graph, standard
    except Exception as error:  # protobuf raises classes of its own
        raise Unfit(f"{path.name} is no valid model: {_line(error)}") from error
    if checks:
        _check(path, work)
    return ends


def _check(path: Path, work: Path) -> None:
    """Raise Unfit for a file that both ONNX's check and ONNX Runtime refuse.

    The check is stricter, of ends of an unknown rank and of domains without a version.
    """
    begins(work, f"onnx {onnx.__version__}", "checks")
    try:
        onnx.checker.check_model(path)
    except Exception as error:  # onnx raises classes of its own
        try:
            open_file(path, threads=1)
        except LacksKernel:
            pass
        except ModelError:
            raise Unfit(f"{path.name} is no valid model: {_line(error)}") from error


@quiet()
@without_torch()
def stored_samples(
    folder: Path,
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Return the stored inputs and outputs, arrays by name, as Polygraphy reads them.

    Raises Unfit, also where there are none or a sample has only one of both.
    """
    from polygraphy.comparator import RunResults
    from polygraphy.json import load_json

    try:
        for name in (GOLDEN_INPUTS, GOLDEN_OUTPUTS):
            plain_size(folder / name)
        inputs = load_json(str(folder / GOLDEN_INPUTS))
        results = RunResults.load(str(folder / GOLDEN_OUTPUTS))
        (outputs,) = results.values()
        counts = len(inputs), len(outputs)
        values = [value for sample in (*inputs, *outputs) for value in sample.values()]
    except Exception as error:  # Polygraphy raises classes of its own
        raise Unfit(f"Polygraphy cannot read the stored samples: {_line(error)}") from error
    if not all(isinstance(value, np.ndarray) for value in values):
        raise Unfit("a stored sample holds what is no array")
    if counts[0] != counts[1] or not counts[0]:
        raise Unfit(f"{counts[0]} stored inputs and {counts[1]} stored outputs")
    return inputs, outputs


def _misfit(value: onnx.ValueInfoProto, arrays: Mapping[str, Any]) -> str:
    """Return why the array of an input or output is not of its type or shape, "" where it is."""
    if value.name not in arrays:
        return "is missing"
    array, tensor = arrays[value.name], value.type.tensor_type
    expected = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if array.dtype != expected:
        return f"is {array.dtype}, and the model has {expected}"
    if not tensor.HasField("shape"):
        return ""
    # What is not positive is no size but says that it is open.
    sizes = [d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim]
    fits = len(sizes) == array.ndim and all(
        size in (None, actual) for size, actual in zip(sizes, array.shape, strict=True)
    )
    return "" if fits else f"has the shape {array.shape}, which the model does not take"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:_SHOWN] or type(error).__name__
