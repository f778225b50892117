"""Engines of real networks, as TensorRT-RTX described them, with what they were built from.

The descriptions are the builder's text: the inspector's JSON of RTX needs a GPU that loads it.

Each is three files in `golden/`: the network without its weights, the builder's text on the
engine's layers, and the plan with the verdicts. This module, run as a script, makes them:

    python tests/inspection/golden_engines.py NAME MODEL RUN [--unguarded]

`RUN` is the folder of a finished run of the model.
"""

import gzip
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from precision_bisect.backends.inspection.engine_layers import parse_layers
from precision_bisect.backends.inspection.honoured import judge_layers
from precision_bisect.backends.tensorrt.build import Recipe, build
from precision_bisect.backends.tensorrt.flavour import load_flavour
from precision_bisect.backends.tensorrt.profiles import shape_ranges
from precision_bisect.exports.finished import read_finished
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.model_files import save_typed
from precision_bisect.graphs.typed.pinning import pin, pin_formless
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import LayerName
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import LayerHonour

FOLDER = Path(__file__).with_name("golden")
NAMES = tuple(sorted(path.name.removesuffix(".json") for path in FOLDER.glob("*.json")))
SMALL = 64
"""Constants of so many values are kept: scales, axes and shapes decide what a network is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenEngine:
    """A plan of a network, and what the builder said of its engine."""

    pair: Pair
    kept: Sequence[LayerName]
    pinned: Mapping[LayerName, str]
    guarded: bool
    text: str

    def verdicts(self, model: Model) -> Sequence[LayerHonour]:
        """Return the verdicts on the kept layers of the model."""
        settled = pin(pin_formless(model, self.pair), self.pinned)
        writer, kept = TypedWriter(settled, self.pair), frozenset(self.kept)
        plan = Plan.of(i for i, name in enumerate(settled.table.names) if name in kept)
        typed = writer.write(plan, guard_islands=self.guarded)
        return judge_layers(settled, plan, typed, parse_layers(self.text), self.pair, rtx=True)


def read(name: str, folder: Path) -> tuple[GoldenEngine, Model, Mapping[str, int]]:
    """Return a golden engine, its network with weights of zero, and the numbers of verdicts.

    The network is written to `folder`.
    """
    known = json.loads((FOLDER / f"{name}.json").read_text())
    proto = onnx.ModelProto.FromString(gzip.decompress((FOLDER / f"{name}.onnx.gz").read_bytes()))
    for tensor in _constants(proto.graph):
        if not tensor.HasField("raw_data"):
            tensor.CopyFrom(_zeros(tensor))
    path = folder / f"{name}.onnx"
    onnx.save(proto, path)
    found = GoldenEngine(
        pair=Pair(low=known["low"], high=known["high"]),
        kept=known["kept"],
        pinned=known["pinned"],
        guarded=known["guarded"],
        text=gzip.decompress((FOLDER / f"{name}.engine.txt.gz").read_bytes()).decode(),
    )
    return found, load_model(path), known["verdicts"]


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors that the network holds, as initializers or in nodes."""
    yield from graph.initializer
    yield from (each.t for node in graph.node for each in node.attribute if each.HasField("t"))


def _zeros(stub: onnx.TensorProto) -> onnx.TensorProto:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(stub.data_type)
    size = dtype.itemsize
    for dim in stub.dims:
        size *= dim
    return onnx.TensorProto(
        name=stub.name, data_type=stub.data_type, dims=stub.dims, raw_data=bytes(size)
    )


def counted(verdicts: Sequence[LayerHonour]) -> dict[str, int]:
    """Return how many layers have which verdict."""
    return dict(sorted(Counter(each.honoured.value for each in verdicts).items()))


def _without_weights(path: Path) -> bytes:
    """Return the network with stubs for its weights, and without documentation."""
    proto = onnx.load(path)
    for tensor in _constants(proto.graph):
        values = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        if values.size > SMALL:
            tensor.ClearField("raw_data")
    for node in proto.graph.node:
        node.ClearField("doc_string")
    del proto.metadata_props[:]
    text: bytes = proto.SerializeToString()
    return text


def make(name: str, path: Path, run: Path, *, guarded: bool) -> Mapping[str, Any]:
    """Build the answer of a run, and write the three files; return what the last one says."""
    model = load_model(path)
    finished = read_finished(run, model)
    assert not finished.fixed
    found = GoldenEngine(
        pair=finished.pair,
        kept=finished.kept,
        pinned=dict(finished.pinned),
        guarded=guarded,
        text=_text_of(finished.with_pinned(model), finished, guarded=guarded),
    )
    told = {
        "low": found.pair.low,
        "high": found.pair.high,
        "guarded": guarded,
        "verdicts": counted(found.verdicts(model)),
        "kept": list(found.kept),
        "pinned": dict(found.pinned),
    }
    FOLDER.mkdir(exist_ok=True)
    for kind, data in (("onnx", _without_weights(path)), ("engine.txt", found.text.encode())):
        (FOLDER / f"{name}.{kind}.gz").write_bytes(gzip.compress(data, mtime=0))
    (FOLDER / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    return told


def _text_of(model: Model, finished: Any, *, guarded: bool) -> str:
    settings = EngineSettings(compute_capability="8.6")
    kept = frozenset(finished.kept)
    plan = Plan.of(i for i, name in enumerate(model.table.names) if name in kept)
    typed = TypedWriter(model, finished.pair).write(plan, guard_islands=guarded)
    ranges = shape_ranges(model.inputs, settings, finished.shapes)
    with tempfile.TemporaryDirectory() as work:
        save_typed(typed, Path(work) / "typed.onnx")
        recipe = Recipe(settings=settings, ranges=ranges)
        return build(load_flavour("tensorrt-rtx"), Path(work) / "typed.onnx", recipe).layers


if __name__ == "__main__":
    name, model, run, *more = sys.argv[1:]
    made = make(name, Path(model), Path(run), guarded="--unguarded" not in more)
    sys.stdout.write(f"{name} {made['verdicts']}\n")
