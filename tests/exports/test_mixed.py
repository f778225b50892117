"""model.mixed.onnx has the plan's types, and nothing stale is left beside it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from exports_models import chain, export_of, mixed_selects
from models import load_text, normal, parse, save, with_weights
from precision_bisect.errors import RunFolderError
from precision_bisect.exports.export import Export
from precision_bisect.exports.write import not_as_planned, remove_exports, write_exports
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.precisions import Pair
from precision_bisect.runs.belonging import exported_texts
from precision_bisect.runs.runfolder import (
    AUTOCAST,
    EXPORTS,
    JUDGING,
    LAYER_PRECISIONS,
    LEDGER,
    MIXED_DATA,
    MIXED_MODEL,
    POLYGRAPHY_SCRIPT,
    RESULT,
    TORCH_AUTOCAST,
    RunFolder,
)
from precision_bisect.settings.engine_settings import EngineSettings


def test_pinned_layers_stay_high_everywhere(tmp_path: Path) -> None:
    """What cannot run low is kept by every export, though no search has chosen it."""
    onnx.save(chain(["a", "b", "c"]), tmp_path / "model.onnx")
    export = export_of(tmp_path / "model.onnx", ["a"])
    names = export.model.table.names
    pinned = export.model.table.pinned({names[2]: "because"})
    export = replace(export, model=replace(export.model, table=pinned))
    reasons = write_exports(RunFolder(tmp_path), export)
    assert {TORCH_AUTOCAST} == {*filter(reasons.get, reasons)}
    assert {"a", "c"} == mixed_selects(tmp_path / MIXED_MODEL, list(names))
    assert "a:fp32,c:fp32" == (tmp_path / "layerPrecisions.txt").read_text()
    assert "a\\Z\nc\\Z\n" == (tmp_path / "autocast-exclude.txt").read_text()
    assert "2 of 3 layers" in (tmp_path / "trtexec.sh").read_text()


def test_types_that_contradict_the_plan_are_seen(tmp_path: Path) -> None:
    """A typed graph of another plan differs in the layers in which the plans do."""
    onnx.save(chain(["a", "b", "c"]), tmp_path / "model.onnx")
    export = export_of(tmp_path / "model.onnx", ["a"])
    other = export_of(tmp_path / "model.onnx", ["b"])
    typed = TypedWriter(export.model, Pair(low="fp16", high="fp32")).write(other.plan)
    assert [] == list(not_as_planned(other, typed))
    assert ["a", "b"] == list(not_as_planned(export, typed))


def test_a_layer_without_a_low_form_is_a_reason(tmp_path: Path) -> None:
    """A plan that runs a layer low which cannot is not written as something else."""
    model = load_text("(float[4] x) => (float[4] y) { s = Relu(x) y = Celu(s) }", tmp_path)
    export = Export(
        model=model, kept=[], pair=Pair(low="fp16", high="fp32"), settings=EngineSettings()
    )
    (stuck,) = TypedWriter(model, Pair(low="fp16", high="fp32")).not_low
    reason = write_exports(RunFolder(tmp_path), export)[MIXED_MODEL]
    assert reason is not None
    assert reason.startswith(f"layer {stuck!r} of the typed model: Celu ")


@pytest.mark.parametrize("guard", [True, False])
def test_guards_are_those_of_the_settings(guard: bool, tmp_path: Path) -> None:
    """A lone kept matrix product has a guard in front, unless that is switched off."""
    body = "(float[2,4] x) => (float[2,4] y) { a = Sigmoid(x) b = MatMul(a, w) y = Sigmoid(b) }"
    model = with_weights(parse(body), {"w": normal(4, 4)})
    for node in model.graph.node:
        node.name = node.output[0]
    settings = EngineSettings(guard_islands=guard)
    write_exports(RunFolder(tmp_path), export_of(save(model, tmp_path), ["b"], settings))
    written = onnx.load(tmp_path / MIXED_MODEL)
    assert guard == ("Max" in [node.op_type for node in written.graph.node])


def test_the_file_has_the_weights(tmp_path: Path) -> None:
    """Weights that the graph holds as stubs are in the file, in the type that is read."""
    body = "(float[2,64] x) => (float[2,64] y) { a = MatMul(x, w) y = MatMul(a, w) }"
    weights = normal(64, 64)
    model = with_weights(parse(body), {"w": weights})
    for node in model.graph.node:
        node.name = node.output[0]
    write_exports(RunFolder(tmp_path / "run"), export_of(save(model, tmp_path), ["y"]))
    written = onnx.load(tmp_path / "run" / MIXED_MODEL)
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in written.graph.initializer]
    large = sorted((array for array in arrays if array.size > 1), key=lambda a: a.itemsize)
    assert [np.float16, np.float32] == [array.dtype for array in large]
    np.testing.assert_array_equal(weights.astype(np.float16), large[0])
    np.testing.assert_array_equal(weights, large[1])


def test_stale_exports_do_not_survive(tmp_path: Path) -> None:
    """A file that cannot be written any more is gone; so are all after a run without answer."""
    onnx.save(chain(["", "b"]), tmp_path / "model.onnx")
    folder = RunFolder(tmp_path / "run")
    for name in (*EXPORTS, *exported_texts(), RESULT, LEDGER):
        folder.write(name, "stale")
    reasons = dict(write_exports(folder, export_of(tmp_path / "model.onnx", ["node_of_t1"])))
    left = {RESULT, LEDGER, *JUDGING, *(name for name, why in reasons.items() if why is None)}
    assert {MIXED_MODEL, "trtexec.sh"} <= left
    assert left.isdisjoint({LAYER_PRECISIONS, AUTOCAST, POLYGRAPHY_SCRIPT})
    assert left == {path.name for path in folder.path.iterdir()}
    assert "no names of PyTorch's modules" in str(reasons.pop(TORCH_AUTOCAST))
    assert all("no name of its own" in str(r) for n, r in reasons.items() if n not in left)
    assert not (folder.path / MIXED_DATA).exists()
    remove_exports(folder)
    assert {RESULT, LEDGER} == {path.name for path in folder.path.iterdir()}


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """Where the typed model cannot be stored the error names the file and what to do."""
    onnx.save(chain(["a"]), tmp_path / "model.onnx")
    folder = RunFolder(tmp_path / "run")
    (folder.path / MIXED_MODEL).mkdir()
    with pytest.raises(RunFolderError, match=r"cannot write .*model\.mixed\.onnx"):
        write_exports(folder, export_of(tmp_path / "model.onnx", ["a"]))


def test_modules_are_kept_in_pytorch_whatever_the_files_hold(tmp_path: Path) -> None:
    """A fused form that keeps nothing costs PyTorch's users no script: they run none of it."""
    onnx.save(chain(["a", "b", "c"]), tmp_path / "model.onnx")
    export = replace(export_of(tmp_path / "model.onnx", []), modules=["blocks.1.norm"])
    assert write_exports(RunFolder(tmp_path), export)[TORCH_AUTOCAST] is None
    assert "= ('blocks.1.norm',)\n" in (tmp_path / TORCH_AUTOCAST).read_text()
