"""model.mixed.onnx with inputs and outputs in FP16."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import tiny
from exports_models import export_of
from models import normal, parse, save
from precision_bisect.commandline.export_command import export
from precision_bisect.errors import ExitCode, UsageError
from precision_bisect.exports.mixed import mixed_model, save_mixed
from precision_bisect.exports.recheck import fit
from precision_bisect.exports.rerun import Feeds
from precision_bisect.exports.write import write_exports
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import runtime
from precision_bisect.graphs.typed.pinning import pin_formless, pinned_layers
from precision_bisect.precisions import Pair
from precision_bisect.protocols import Sample
from precision_bisect.runs.runfolder import GOLDEN_OUTPUTS, MIXED_MODEL, RunFolder
from precision_bisect.settings.engine_settings import EngineSettings, IoTypes
from rtx import build

FLOAT16 = onnx.TensorProto.FLOAT16
HALF = EngineSettings(io_types="fp16")
MODELS = {
    "low at both ends": ("(float[4] x) => (float[4] y) { [a] h = Tanh(x) [b] y = Neg(h) }", []),
    "high at both ends": (
        "(float[4] x) => (float[4] y) { [a] y = Tanh(x) [b] z = Neg(y) }",
        ["a"],
    ),
    "read by both": (
        "(float[4] x) => (float[4] y, float[4] z) { [a] y = Tanh(x) [b] z = Add(x, y) }",
        ["a"],
    ),
    "an output that others read": (
        "(float[4] x) => (float[4] y, float[4] z) { [a] y = Tanh(x) [b] z = Neg(y) }",
        ["b"],
    ),
    "integers beside": (
        "(float[4] x, int64[4] i) => (float[4] y, int64[4] j)"
        " { [a] f = Cast<to=1>(i) [b] y = Add(x, f) [c] j = Neg(i) }",
        ["b"],
    ),
    "inside an If": (
        "(float[4] x, bool c) => (float[4] y) { [a] h = Tanh(x) [b] y = If (c) <"
        " then_branch = t () => (float[4] p) { p = Neg(x) },"
        " else_branch = e () => (float[4] q) { q = Abs(h) }> }",
        ["a"],
    ),
}
FEEDS: dict[str, np.ndarray] = {
    "x": normal(4),
    "i": np.array([1, -2, 3, 0]),
    "c": np.array(True),
}


def ran(path: Path, feed: Sample) -> list[np.ndarray]:
    """Run a model as a user of ONNX Runtime does."""
    session = runtime().InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, feed)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_it_computes_the_same(tmp_path: Path, name: str) -> None:
    """Up to the rounding of what goes in and out; what is no FP32 stays as it is."""
    text, kept = MODELS[name]
    path = save(parse(text), tmp_path)
    folders = {"plain": EngineSettings(), "half": HALF}
    for folder, settings in folders.items():
        (tmp_path / folder).mkdir()
        assert (
            write_exports(RunFolder(tmp_path / folder), export_of(path, kept, settings))[
                MIXED_MODEL
            ]
            is None
        )
    plain, half = (onnx.load(tmp_path / folder / MIXED_MODEL).graph for folder in folders)
    feed = {value.name: FEEDS[value.name] for value in plain.input}
    cast = {
        key: array.astype(np.float16) if array.dtype == np.float32 else array
        for key, array in feed.items()
    }
    wanted = ran(tmp_path / "plain" / MIXED_MODEL, feed)
    found = ran(tmp_path / "half" / MIXED_MODEL, cast)
    for exact, got, value in zip(wanted, found, half.output, strict=True):
        kind = np.float16 if exact.dtype == np.float32 else exact.dtype
        assert (kind, onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)) == (
            got.dtype,
            kind,
        )
        np.testing.assert_allclose(exact, got, atol=4e-3)


def test_low_ends_need_no_casts(tmp_path: Path) -> None:
    """Where what reads and gives is FP16 already nothing is cast."""
    path = save(parse(MODELS["low at both ends"][0]), tmp_path)
    write_exports(RunFolder(tmp_path), export_of(path, [], HALF))
    ops = [node.op_type for node in onnx.load(tmp_path / MIXED_MODEL).graph.node]
    assert "Cast" not in ops


def test_stored_samples_have_the_types_of_the_model(tmp_path: Path) -> None:
    """In a run's folder, and where it is exported again, in the types of the model or in FP16."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    for name, engine in (("run", EngineSettings()), ("run16", HALF)):
        assert tiny.search(model, tmp_path / name, engine=engine).exit_code is ExitCode.OK
    export(model, tmp_path / "run", tmp_path / "model", EngineSettings())
    export(model, tmp_path / "run", tmp_path / "half", HALF)
    export(model, tmp_path / "run16", tmp_path / "half16", HALF)
    whole = onnx.TensorProto.FLOAT
    kinds = {"run": whole, "model": whole, "run16": FLOAT16, "half": FLOAT16, "half16": FLOAT16}
    for folder, kind in kinds.items():
        graph = onnx.load(tmp_path / folder / MIXED_MODEL).graph
        ends = (*graph.input, *graph.output)
        assert {kind} == {value.type.tensor_type.elem_type for value in ends}
        assert {"samples": 1, "unrun": ""} == fit(tmp_path / folder, Feeds(), tmp_path)


def test_samples_that_were_rounded_are_not_taken_for_exact(tmp_path: Path) -> None:
    """A run's own samples stay as they are, and rounded ones judge no model of more digits."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    tiny.search(model, tmp_path / "run", engine=HALF)
    reasons = export(model, tmp_path / "run", tmp_path / "model", EngineSettings()).reasons
    assert "the run stored 'x' in FP16" in str(reasons[GOLDEN_OUTPUTS])
    with pytest.raises(UsageError, match="rounds the samples"):
        export(model, tmp_path / "run", None, HALF)


def test_samples_beyond_the_range_of_fp16_are_told(tmp_path: Path) -> None:
    """What the exported model would give as infinity is no golden output."""
    model = tiny.write_model(tmp_path / "tiny.onnx", scale=1e6)
    result = tiny.search(model, tmp_path / "run", engine=HALF)
    assert any("values beyond the range of float16" in note for note in result.notes)
    assert not (tmp_path / "run" / GOLDEN_OUTPUTS).exists()


def test_other_types_are_refused() -> None:
    """One line says what there is."""
    with pytest.raises(UsageError) as caught:
        EngineSettings(io_types="int8")  # type: ignore[arg-type]
    assert "io_types cannot be 'int8'; choose model, fp16" == caught.value.one_line()


CACHE = (
    "(float[1, 2, 4, 16] x, float[1, 2, 8, 16] old{})"
    " => (float[n, m, o, p] y, float[1, 2, 8, 16] new)"
    " {{ [a] u = Tanh(x) [s] new = TensorScatter(old, u{}) [b] y = Sigmoid(new) }}"
)
CACHES = {
    "at the start": CACHE.format("", ""),
    "at places": CACHE.format(", int64[1] i", ", i"),
}


@pytest.mark.parametrize("io_types", ["model", "fp16"])
@pytest.mark.parametrize("kept", [[], ["a", "b"]], ids=["low", "kept"])
@pytest.mark.parametrize("text", CACHES.values(), ids=CACHES)
def test_no_cast_stands_at_a_cache(
    tmp_path: Path, text: str, kept: list[str], io_types: IoTypes
) -> None:
    """TensorRT-RTX builds a TensorScatter: its cache and result keep the type of the model."""
    path = save(parse(text, opset=24, ir=12), tmp_path)
    settings = EngineSettings(io_types=io_types)
    model = pin_formless(load_model(path), Pair(low="fp16", high="fp32"))
    assert {"s"} == pinned_layers(model).keys()
    save_mixed(
        RunFolder(tmp_path), mixed_model(replace(export_of(path, kept, settings), model=model))
    )
    build(tmp_path / MIXED_MODEL)
    graph = onnx.load(tmp_path / MIXED_MODEL).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    free = FLOAT16 if io_types == "fp16" else onnx.TensorProto.FLOAT
    shared = dict.fromkeys(("old", "new"), onnx.TensorProto.FLOAT)
    assert {"x": free, "y": free, **shared} == {n: types[n] for n in ("x", "y", "old", "new")}
