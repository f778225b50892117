"""Packs the models of `gpu_fronts` small: one copy of a network's weights for all of its plans.

Weights lie in a file of FP32 values that the plans' models refer to, as ONNX has it for external
data. Those that a plan stores as FP16 are of a second file, which is the first one rounded:
`unpacked` makes it, and the references of the samples, on the CPU. Where the file has a batch
written into it, there is each model for a full batch, too.
"""

import json
import lzma
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from precision_bisect.graphs.batching import batch_of, rebatched, samples_apart, stacked
from zoo.judge import Sample, load, plain
from zoo.networks import save

SPEC, WHOLE, HALF = "spec.json", "float32.bin", "float16.bin"
ALIGNMENT = 4096
SHARED_BYTES = 1024
"""Smaller weights stay in the models."""
PACKING = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 2**27}]
"""So that what models have in common is stored once."""


def enumerated(outputs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield outputs under names that keep their order."""
    for number, value in enumerate(outputs):
        yield f"{number:03}", value


def pack_network(
    original: Path,
    models: Mapping[str, tuple[Path, Mapping[str, Any]]],
    samples: Sequence[Sample],
    spec: Mapping[str, Any],
    folder: Path,
) -> None:
    """Write a network's folder: models by label, with how each is opened, and samples.

    The first model is the original. The `spec` has the full batch; whether samples are computed
    apart there is tried first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run, proto = plain(original), onnx.load(original)
    batch, scaled = spec["batch"], folder / "scaled.onnx"
    outputs = [dict(enumerated(run(sample))) for sample in samples[:batch]]
    onnx.save(rebatched(proto, batch), scaled)
    own = batch_of(samples[0])
    whole = dict(enumerated(plain(scaled)(stacked(samples, batch))))
    samples_apart(outputs, whole, own, batch)
    scaled.unlink()
    save(list(samples), folder / "samples")
    weights = _Weights(proto, folder / WHOLE)
    table, numbers = [], dict[bytes, int]()
    for label, (path, options) in models.items():
        model = weights.referred(onnx.load(path))
        content = model.SerializeToString(deterministic=True)
        if content not in numbers:
            numbers[content] = number = len(numbers)
            (folder / f"{number}.onnx").write_bytes(content)
            many = rebatched(model, batch)
            if many is not model:
                (folder / f"{number}.batch.onnx").write_bytes(many.SerializeToString())
        table.append({"label": label, "model": numbers[content], "options": options})
    (folder / SPEC).write_text(json.dumps({**spec, "models": table}, indent=1))


class _Weights:
    """The large weights of a model, written one after the other to a file."""

    def __init__(self, proto: onnx.ModelProto, path: Path) -> None:
        self._places: dict[tuple[int, bytes], tuple[str, int]] = {}
        with path.open("wb") as file:
            for tensor in _tensors(proto.graph):
                array = numpy_helper.to_array(tensor)
                if array.dtype == np.float32 and array.nbytes >= SHARED_BYTES:
                    self._add(array, file)

    def _add(self, array: NDArray[Any], file: Any) -> None:
        if (TensorProto.FLOAT, array.tobytes()) in self._places:
            return
        file.write(b"\0" * (-file.tell() % ALIGNMENT))
        offset = file.tell()
        array.tofile(file)
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        self._places[TensorProto.FLOAT, array.tobytes()] = WHOLE, offset
        self._places[TensorProto.FLOAT16, half.tobytes()] = HALF, offset // 2

    def referred(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return a model with what the files have out of it."""
        for node in [node for node in model.graph.node if node.op_type == "Constant"]:
            # External data is of initializers.
            for value in node.attribute:
                if value.name == "value" and len(value.t.raw_data) >= SHARED_BYTES:
                    value.t.name = node.output[0]
                    model.graph.initializer.append(value.t)
                    model.graph.node.remove(node)
        for tensor in model.graph.initializer:
            raw = numpy_helper.to_array(tensor).tobytes()
            place = self._places.get((tensor.data_type, raw))
            if place is not None:
                location, offset = place
                for field in ("raw_data", "float_data", "int32_data"):
                    tensor.ClearField(field)
                tensor.data_location = TensorProto.EXTERNAL
                entries = {"location": location, "offset": offset, "length": len(raw)}
                for key, entry in entries.items():
                    tensor.external_data.add(key=key, value=str(entry))
        return model


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant":
            yield from (value.t for value in node.attribute if value.name == "value")


def archived(folder: Path, archive: Path) -> None:
    """Write a folder as one file, and remove it."""
    with (
        lzma.open(archive, "wb", filters=PACKING) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        # Plans of a network beside each other.
        for path in sorted(folder.rglob("*")):
            tar.add(path, path.relative_to(folder), recursive=False)
    shutil.rmtree(folder)


def unpacked(archive: Path, folder: Path) -> list[Path]:
    """Write the networks of an archive to a folder; return theirs."""
    with lzma.open(archive) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
        tar.extractall(folder, filter="data")
    found = [path.parent for path in sorted(folder.glob(f"*/{SPEC}"))]
    for network in found:
        with np.errstate(over="ignore"):
            np.fromfile(network / WHOLE, "<f4").astype("<f2").tofile(network / HALF)
        if not (network / "references").exists():
            run = plain(network / "0.onnx")
            samples = load(network / "samples")
            save([dict(enumerated(run(sample))) for sample in samples], network / "references")
    return found
