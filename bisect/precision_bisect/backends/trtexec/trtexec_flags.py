"""Flags of trtexec, and the names and files that they can tell it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from operator import attrgetter
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from precision_bisect.backends.backend_plugin import SampleShapes
from precision_bisect.backends.tensorrt.profiles import ShapeRange, is_static, shape_ranges
from precision_bisect.errors import UsageError
from precision_bisect.graphs.graph import all_graphs, rename_tensors
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.types import TensorSpec, shape_inputs
from precision_bisect.protocols import Sample
from precision_bisect.settings.engine_settings import EngineSettings, Shapes

SAVE_ENGINE, EXPORT_OUTPUT = "--saveEngine", "--exportOutput"
"""Flags of what a call is for; each transport names a file that is there only once it is whole."""
STRONG = ("--stronglyTyped", "--skipInference")
"""Flags by which a typed model is built, and not run."""
LAYER_INFO, OUTPUT, TIMES = "layers.json", "output-{}.json", "times-{}.json"
"""What else comes back, in the folder in which trtexec is called; a number is a sample's."""
MARK_UNFUSED = "--markUnfusedTensorsAsDebugTensors"
ONCE = ("--iterations=1", "--duration=0", "--warmUp=0")
"""Flags of a run that is not timed, which else takes 3 s at least."""
SHOW_ONCE = ("--saveAllDebugTensors=numpy", *ONCE)
"""With `MARK_UNFUSED` flags of trtexec 10.13 and later: of a run that writes its tensors to files,
and of its build."""
# A name that trtexec reads, and writes into its JSON, as it is.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", re.ASCII)


def plainly_called(model: Model) -> dict[str, str]:
    """Return the name of each input and output for trtexec: its own where that is harmless."""
    graph = model.proto.graph
    used_names = {
        name for inner in all_graphs(graph) for n in inner.node for name in (*n.input, *n.output)
    }
    called: dict[str, str] = {}
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for number, value in enumerate(values):
            name = value.name
            if not _SAFE.fullmatch(name):
                name = f"{kind}_{number}"
                while name in used_names:
                    name += "_"
            used_names.add(name)
            called.setdefault(value.name, name)
    return called


def call_otherwise(graph: onnx.GraphProto, called: Mapping[str, str]) -> None:
    """Give inputs and outputs of a typed graph these names. Raises UsageError."""
    names = {own: name for own, name in called.items() if own != name}
    for tensor in graph.initializer:
        if tensor.name in names:
            raise UsageError(
                f"the output {tensor.name!r} is a weight, and has no plain name",
                "rename it in the model",
            )
    rename_tensors(graph, names)
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)


def raw(array: NDArray[Any]) -> bytes:
    """Return an array as trtexec loads it: little-endian, in C order, nothing else."""
    array = np.ascontiguousarray(array)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def open_inputs(inputs: Sequence[TensorSpec], values: Set[str]) -> Sequence[str]:
    """Return the inputs that trtexec needs shapes of; those of `values` give one by theirs."""
    return [spec.name for spec in inputs if not is_static(spec) or spec.name in values]


def open_ranges(
    model: Model, settings: EngineSettings, samples: SampleShapes
) -> dict[str, ShapeRange]:
    """Return the ranges of the inputs that trtexec needs shapes of. Raises UsageError.

    They are the user's, and else those of the samples.
    """
    values = shape_inputs(model.proto.graph, model.inputs)
    ranges = shape_ranges(model.inputs, settings, samples, values)
    return {name: ranges[name] for name in open_inputs(model.inputs, values)}


def build_call(onnx: str, common: Iterable[str] = ()) -> Sequence[str]:
    """Return the flags that build a model without running it, all but `SAVE_ENGINE`.

    Those of its types, and `STRONG` for a typed one, are not among them.
    """
    layers = (f"--exportLayerInfo={LAYER_INFO}", "--profilingVerbosity=detailed")
    return [f"--onnx={onnx}", *layers, *common]


def common_flags(
    settings: EngineSettings, ranges: Mapping[str, ShapeRange], called: Mapping[str, str]
) -> Iterator[str]:
    """Yield the flags that every build has, `ranges` of the inputs that are open.

    Raises UsageError for input names that trtexec cannot read.
    """
    if not settings.in_tf32:
        yield "--noTF32"
    if settings.optimization_level is not None:
        yield f"--builderOptimizationLevel={settings.optimization_level}"
    if settings.workspace_mib is not None:
        yield f"--memPoolSize=workspace:{settings.workspace_mib}"
    for flag, pick in (
        ("--minShapes", attrgetter("least")),
        ("--optShapes", attrgetter("best")),
        ("--maxShapes", attrgetter("most")),
    ):
        yield from _shape_flag(flag, {n: pick(sizes) for n, sizes in ranges.items()}, called)


def run_call(
    model: Model,
    called: Mapping[str, str],
    engine: str,
    feed: Sample,
    files: Sequence[str],
    number: int | str = 0,
) -> Sequence[str]:
    """Return the flags that run an engine on a feed, `files` by input, all but `EXPORT_OUTPUT`.

    Of an input that gives a shape by its values these stand in place of its shape.
    """
    values = shape_inputs(model.proto.graph, model.inputs)
    loads = [
        f"{called[spec.name]}:{file}"
        for spec, file in zip(model.inputs, files, strict=True)
        if spec.name not in values
    ]
    shapes = {
        name: tuple(map(int, feed[name].ravel())) if name in values else feed[name].shape
        for name in open_inputs(model.inputs, values)
    }
    load = [f"--loadInputs={','.join(loads)}"] if loads else []
    shape = _shape_flag("--shapes", shapes, called)
    return [f"--loadEngine={engine}", *load, *shape, f"--exportTimes={TIMES.format(number)}"]


def _shape_flag(flag: str, shapes: Shapes, called: Mapping[str, str]) -> Iterator[str]:
    names = {name: called.get(name, name) for name in shapes}
    for name in names.values():
        if not name.isprintable() or "," in name or "'" in name:
            raise UsageError(
                f"trtexec cannot read the input name {name!r}", "rename it in the model"
            )
    if shapes:
        texts = (f"{names[n]}:{'x'.join(map(str, shape))}" for n, shape in shapes.items())
        yield f"{flag}={','.join(texts)}"
