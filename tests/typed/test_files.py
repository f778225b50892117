"""Typed graphs on disk: shared weights, stand-alone files, large models."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tiny
from models import keeping, normal, parse, save_external, with_weights
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.errors import RunFolderError
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed import model_files as files
from precision_bisect.graphs.typed.model_files import TypedFolder, save_typed
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, LowName, Pair

BODY = (
    "(float[1, 64] x) => (float[1, 64] y)"
    " { [a] a = MatMul(x, w) [b] b = MatMul(a, v) [c] y = Add(b, c) }"
)
WEIGHTS = {"w": normal(64, 72), "v": normal(72, 64, seed=1), "c": normal(64, seed=2)}


def three_layers(folder: Path) -> Model:
    """Return a model of two large weights, mapped from a file, and a small one."""
    return load_model(save_external(with_weights(parse(BODY), WEIGHTS), folder))


def initializers(path: Path) -> dict[str, np.ndarray]:
    """Return the values of a model's initializers, external ones read in, by name."""
    onnx.checker.check_model(path, full_check=True)
    graph = onnx.load(path).graph
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}


@pytest.mark.parametrize("low", HALF_NAMES)
def test_plans_share_one_weights_file(tmp_path: Path, low: LowName) -> None:
    """A weight is appended when a plan first needs it, and further plans only point to it."""
    model = three_layers(tmp_path)
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    folder = TypedFolder(tmp_path / "typed")
    sizes = []
    for number, kept in enumerate(((), ("a",), ("b",), ("a", "b"))):
        path = folder.save(writer.write(keeping(model, *kept)), f"{number}.onnx")
        sizes.append((tmp_path / "typed" / "weights.bin").stat().st_size)
        found = initializers(path)
        for layer, name in (("a", "w"), ("b", "v")):
            copy = f"precision_bisect/weight/{name}/{low}"
            values = WEIGHTS[name].astype(LOW_TYPES[low].numpy_type)
            expected = WEIGHTS[name] if layer in kept else values
            np.testing.assert_array_equal(found[name if layer in kept else copy], expected)
            assert (copy in found) != (name in found)
        assert path.stat().st_size < 2000
    page, low_bytes = 4096, 64 * 72 * 2
    starts = [3 * page, 6 * page, 11 * page, 11 * page]  # of the weight that was last appended
    lengths = [low_bytes, 2 * low_bytes, 2 * low_bytes, 2 * low_bytes]
    assert [start + length for start, length in zip(starts, lengths, strict=True)] == sizes


@pytest.mark.parametrize("kept", [(), ("a",), ("a", "b", "c")])
def test_weights_that_stay_are_read_where_the_model_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Sequence[str]
) -> None:
    """The low ones alone are written; a session that looks from the root on computes the same."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    model = three_layers(Path("model"))
    typed = TypedWriter(model, Pair(low="fp16", high="fp32")).write(keeping(model, *kept))
    feed = {"x": normal(1, 64)}
    outputs = []
    folders = [TypedFolder(Path("copied")), TypedFolder(Path("shared"), from_root=True)]
    for folder in folders:
        opener = Opener(providers=[CPU], profiles=tmp_path / "profile", data=folder.root)
        session = opener.open(folder.save(typed, "model.onnx")).session
        outputs += session.run(None, feed)
    np.testing.assert_array_equal(*outputs)
    written = Path("shared/weights.bin").stat().st_size
    low = [each.nbytes for each in typed.weights.values() if each.dtype == np.float16]
    assert sum(low) <= written <= sum(low) + 4096 * len(low)
    assert bool(low) is (len(kept) < 3)


SAVE = """
import sys
from pathlib import Path
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair

model, own, low = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
typed = TypedWriter(load_model(model), Pair(low=low, high="fp32")).write(Plan.of(()))
TypedFolder(own, from_root=True, shared=own.with_name("shared")).save(typed, "model.onnx")
"""


def test_processes_share_the_weights_of_a_run(tmp_path: Path) -> None:
    """Each weight is written once for all, by whoever needs it first; all read the same."""
    model = three_layers(tmp_path)
    pairs = {f"{low}-{number}": low for number in range(2) for low in HALF_NAMES}
    source = str(tmp_path / "model.onnx")
    processes = [
        subprocess.Popen([sys.executable, "-c", SAVE, source, str(tmp_path / own), low])
        for own, low in pairs.items()
    ]
    assert {0} == {process.wait() for process in processes}
    sizes = {}
    for own, low in pairs.items():
        typed = TypedWriter(model, Pair(low=low, high="fp32")).write(Plan.of(()))
        assert 0 == (tmp_path / own / "weights.bin").stat().st_size
        graph = onnx.load(tmp_path / own / "model.onnx", load_external_data=False)
        onnx.load_external_data_for_model(graph, tmp_path.anchor)
        loaded = {tensor.name: tensor for tensor in graph.graph.initializer}
        for name, weight in typed.weights.items():
            values = onnx.numpy_helper.to_array(loaded[name])
            np.testing.assert_array_equal(values, weight.source.astype(weight.dtype))
        sizes[low] = [weight.nbytes for weight in typed.weights.values()]
    once = sum(size + -size % 4096 for each in sizes.values() for size in each)
    assert once - 4096 < (tmp_path / "shared" / "weights.bin").stat().st_size <= once


def test_a_weight_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    """What another process had begun, before it was killed, is not taken for a weight."""
    typed = TypedWriter(three_layers(tmp_path), Pair(low="fp16", high="fp32")).write(Plan.of(()))
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "weights.bin").write_bytes(b"half a weight")
    folder = TypedFolder(tmp_path / "own", from_root=True, shared=shared)
    graph = onnx.load(folder.save(typed, "model.onnx"), load_external_data=False)
    onnx.load_external_data_for_model(graph, tmp_path.anchor)
    loaded = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.graph.initializer
    }
    for name, weight in typed.weights.items():
        np.testing.assert_array_equal(loaded[name], weight.source.astype(np.float16))


def test_no_documentation_is_handed_to_engines(tmp_path: Path) -> None:
    """TensorRT 8.6 and 9 write what exporters note of a node behind its name; a copy has none."""
    typed = TypedWriter(three_layers(tmp_path), Pair(low="fp16", high="fp32")).write(Plan.of(()))
    for node in typed.proto.graph.node:
        node.doc_string = "File model.py, line 3"
    path = TypedFolder(tmp_path / "typed").save(typed, "model.onnx")
    assert {""} == {node.doc_string for node in onnx.load(path).graph.node}
    assert {"File model.py, line 3"} == {node.doc_string for node in typed.proto.graph.node}


def test_a_new_folder_begins_anew(tmp_path: Path) -> None:
    """What an earlier run left in the weights file is not counted on."""
    typed = TypedWriter(three_layers(tmp_path), Pair(low="fp16", high="fp32")).write(Plan.of(()))
    TypedFolder(tmp_path / "typed").save(typed, "model.onnx")
    path = TypedFolder(tmp_path / "typed").save(typed, "model.onnx")
    found = initializers(path)["precision_bisect/weight/w/fp16"]
    np.testing.assert_array_equal(found, WEIGHTS["w"].astype(np.float16))


@pytest.mark.parametrize("low", HALF_NAMES)
def test_an_export_is_one_file(tmp_path: Path, low: LowName) -> None:
    """Below 2 GiB an export holds its weights, and nothing else is left beside it."""
    model = three_layers(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    typed = TypedWriter(model, Pair(low=low, high="fp32")).write(
        keeping(model, "b"), guard_islands=False
    )
    save_typed(typed, out / "mixed.onnx")
    assert [out / "mixed.onnx"] == list(out.iterdir())
    found = initializers(out / "mixed.onnx")
    np.testing.assert_array_equal(found["v"], WEIGHTS["v"])
    for name in ("w", "c"):
        values = WEIGHTS[name].astype(LOW_TYPES[low].numpy_type)
        np.testing.assert_array_equal(found[f"precision_bisect/weight/{name}/{low}"], values)
    assert len(found) == 3


def test_an_export_over_the_limit_has_a_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond protobuf's limit the weights lie in a file beside it, by a relative path."""
    model = three_layers(tmp_path)
    typed = TypedWriter(model, Pair(low="fp16", high="fp32")).write(keeping(model, "b"))
    save_typed(typed, tmp_path / "whole.onnx")
    size = (tmp_path / "whole.onnx").stat().st_size
    for limit, parts in ((size, 1), (size - 1, 2)):
        monkeypatch.setattr(files, "_LARGEST_FILE", limit)
        out = tmp_path / str(limit)
        out.mkdir()
        save_typed(typed, out / "mixed.onnx")
        assert parts == len(list(out.iterdir()))
        moved = out.rename(tmp_path / f"moved{limit}")
        np.testing.assert_array_equal(initializers(moved / "mixed.onnx")["v"], WEIGHTS["v"])
        assert (parts == 2) == (moved / "mixed.onnx.data").is_file()
        # The graph alone, beside the data that is there, though it has grown.
        if parts == 2:
            typed.proto.doc_string = "a reason"
        save_typed(typed, moved / "mixed.onnx", again=True)
        np.testing.assert_array_equal(initializers(moved / "mixed.onnx")["v"], WEIGHTS["v"])
        assert parts == len(list(moved.iterdir()))
    grown = tmp_path / f"moved{size}"
    monkeypatch.setattr(files, "_LARGEST_FILE", size)
    save_typed(typed, grown / "mixed.onnx", again=True)
    np.testing.assert_array_equal(initializers(grown / "mixed.onnx")["v"], WEIGHTS["v"])


def test_a_failed_export_leaves_the_old_one(tmp_path: Path) -> None:
    """Where the weights cannot be read the file of before stays, and no other."""
    model = three_layers(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mixed.onnx").write_text("old")
    typed = TypedWriter(model, Pair(low="fp16", high="fp32")).write(Plan.of(()))
    (tmp_path / "model.data").unlink()
    with pytest.raises(FileNotFoundError):
        save_typed(typed, out / "mixed.onnx")
    assert [out / "mixed.onnx"] == list(out.iterdir())
    assert "old" == (out / "mixed.onnx").read_text()


MEASURE = """
import sys
from pathlib import Path
from precision_bisect.graphs.lowtypes import FP16
from precision_bisect.graphs.load import load_model
from precision_bisect.plan import Plan
from precision_bisect.graphs.typed.model_files import TypedFolder, save_typed
from precision_bisect.precisions import Pair
from precision_bisect.graphs.typed.rewrite import TypedWriter

def peak():
    # Not `ru_maxrss`, which begins with what the process had that started this one.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

folder = Path(sys.argv[1])
model = load_model(folder / "model.onnx")
before = peak()
writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
typed = TypedFolder(folder / "typed")
for kept in ((), (0,)):
    typed.save(writer.write(Plan.of(kept)), "model.onnx")
assert not writer.out_of_range
save_typed(writer.write(Plan.of(())), folder / "out.onnx")
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux counts it")
def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    """Weights of 128 MiB are written three times with less than half of that in memory."""
    side, count = 4096, 2
    proto = parse(
        "(float[1, 4096] x) => (float[1, 4096] y) { a = MatMul(x, w0) y = MatMul(a, w1) }"
    )
    nbytes = side * side * 4
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.truncate(count * nbytes)
    for i in range(count):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[side, side])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "w.bin", "offset": i * nbytes, "length": nbytes}.items():
            tensor.external_data.add(key=key, value=str(value))
        proto.graph.initializer.append(tensor)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert 0 == run.returncode, run.stderr
    assert int(run.stdout) < count * nbytes / 2
    assert count * nbytes / 2 < (tmp_path / "out.onnx").stat().st_size


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A full or lost temporary folder says where it is and what to do, in a search too."""
    model = load_model(tiny.write_model(tmp_path / "m.onnx"))
    typed = TypedWriter(model, Pair(low="fp16", high="fp32")).write(Plan.of(()))
    folder = TypedFolder(tmp_path / "typed")
    shutil.rmtree(tmp_path / "typed")
    with pytest.raises(RunFolderError, match="cannot write typed graphs"):
        folder.save(typed, "model.onnx")
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot write typed graphs"):
        TypedFolder(tmp_path / "file")
