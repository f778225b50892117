"""Inputs and outputs in FP16: they are judged, and exported."""

import pickle
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tiny
from exports_models import export_of
from models import normal, parse, save
from precision_bisect import find
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.commandline.export_command import export
from precision_bisect.errors import ExitCode, RunFolderError, UsageError
from precision_bisect.exports.fitting_files import fit, stored_samples
from precision_bisect.exports.rerun import Feeds
from precision_bisect.exports.write import mixed_model, save_mixed, write_exports
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import runtime
from precision_bisect.graphs.typed.pinning import pin_formless, pinned_layers
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.layer_table import forms_of
from precision_bisect.options import Options
from precision_bisect.pipeline.prepare import prepare
from precision_bisect.plan import Plan
from precision_bisect.precisions import HALF_NAMES, HalfName, Pair
from precision_bisect.protocols import Sample
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.runfolder import MIXED_MODEL, RunFolder
from precision_bisect.settings.engine_settings import EngineSettings, IoTypes
from precision_bisect_reports.summary import final_screen
from rtx import build
from typed_graphs import run_as_written, simulated

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
    casts = [(n.input[0], n.attribute[0].i) for n in half.node if n.op_type == "Cast"]
    assert len({*casts}) == len(casts)
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


@pytest.mark.parametrize("name", MODELS)
def test_what_is_judged_is_what_is_exported(tmp_path: Path, name: str) -> None:
    """Every plan gives what the exported file gives on the rounded samples, FP16 on FP32 ones."""
    model = load_model(save(parse(MODELS[name][0]), tmp_path)).with_io_types("fp16")
    writer = TypedWriter(model, Pair(low="fp16", high="fp32"))
    backend = EmulatedBackend(model, threads=1)
    feed = {value.name: FEEDS[value.name] for value in model.proto.graph.input}
    stored = {
        key: array.astype(np.float16).astype(np.float32) if array.dtype == np.float32 else array
        for key, array in feed.items()
    }
    layers = range(len(model.table.candidates))
    for kept in (each for count in range(4) for each in combinations(layers, count)):
        typed = writer.write(Plan.of(kept), guard_islands=False).proto
        plain = simulated(typed)
        for value in (*plain.graph.input, *plain.graph.output):
            if value.type.tensor_type.elem_type == FLOAT16:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        expected = backend.evaluate(Plan.of(kept), feed)
        for key, array in run_as_written(plain, stored).items():
            np.testing.assert_array_equal(expected[key], array)
            if array.dtype == np.float32:
                np.testing.assert_array_equal(array.astype(np.float16), array)


QUIET = """(float[1,8] x) => (float[1,8] y) <float k = {1e-9}, float big = {1e5}> {
    [scale] a = Mul(x, k) [ratio] r = Div(x, x) [large] l = Mul(r, big) [back] b = Div(l, big)
    [sum] s = Add(b, a) [end] y = Tanh(s) }"""
"""A quotient that becomes 0/0 where FP16 flushes its operands to 0, and a product beyond FP16."""


def test_an_interface_that_costs_too_much_ends_the_run(tmp_path: Path) -> None:
    """With every layer FP32 the rounded samples give NaN: one line says so, and what to do."""
    path = save(parse(QUIET), tmp_path)
    inputs = [{"x": np.array([[1e-9, 1, 2, 3, 4, 5, 6, 1e-8]], np.float32)}]
    asked: dict[str, Any] = {"inputs": inputs, "threads": 1, "tol": 1e-2}
    found = find(path, out=tmp_path / "plain", **asked)
    assert (Status.FOUND, None) == (found.status, found.interface)
    result = find(path, out=tmp_path / "half", engine=HALF, **asked)
    assert (Status.NOT_PRECISION, ExitCode.NO_PLAN) == (result.status, result.exit_code)
    cost = result.interface
    assert cost is not None
    assert ("fp16", False, float("inf")) == (cost.low, cost.passed, cost.error)
    assert [("x", 0.25, 0.0)] == [(each.name, each.zero, each.infinite) for each in cost.lost]
    assert not (tmp_path / "half" / MIXED_MODEL).exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_says_what_the_interface_costs(tmp_path: Path, workers: int) -> None:
    """It is the trial with every layer high; the exported file holds on the stored samples."""
    path = tiny.write_model(tmp_path / "tiny.onnx")
    result = tiny.search(path, tmp_path / "run", engine=HALF, workers=workers)
    assert result.interface is not None
    assert result.interface.passed
    assert isinstance(result.error, float) and isinstance(result.interface.error, float)
    assert 0 < result.interface.error <= result.error
    inputs, outputs = stored_samples(tmp_path / "run")
    assert np.float16 == inputs[0]["x"].dtype
    assert result.options["engine"]["io_types"] == "fp16"
    (found,) = ran(tmp_path / "run" / MIXED_MODEL, inputs[0])
    (wanted,) = outputs[0].values()
    assert np.abs(found.astype(np.float32) - wanted).max() <= 1e-2
    with pytest.raises(RunFolderError, match="io_types"):
        tiny.search(path, tmp_path / "run", resume=True, workers=workers)


def test_other_processes_round_the_same(tmp_path: Path) -> None:
    """What is sent to a worker makes a model with the interface of the run."""
    path = tiny.write_model(tmp_path / "tiny.onnx")
    options = Options(model=path, inputs=tiny.samples(), engine=HALF, out=tmp_path / "run")
    prepared = prepare(options, ignore, tmp_path)
    sent = pickle.loads(pickle.dumps(prepared.spec)).made(tmp_path).model
    assert sent.interface == prepared.case.model.interface
    assert ({"x"}, True) == ({*sent.interface.inputs}, sent.rounds_ends)


def test_the_interface_of_a_run_goes_with_it(tmp_path: Path) -> None:
    """Exports of a run have the interface that it has judged; another one is refused."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    for name, engine in (("run", EngineSettings()), ("run16", HALF)):
        assert tiny.search(model, tmp_path / name, engine=engine).exit_code is ExitCode.OK
        export(model, tmp_path / name, tmp_path / f"{name}-again", {})
    export(model, tmp_path / "run16", tmp_path / "asked", {"io_types": "fp16"})
    whole = onnx.TensorProto.FLOAT
    kinds = {"run": whole, "run-again": whole, "run16": FLOAT16, "run16-again": FLOAT16}
    for folder, kind in {**kinds, "asked": FLOAT16}.items():
        graph = onnx.load(tmp_path / folder / MIXED_MODEL).graph
        ends = (*graph.input, *graph.output)
        assert {kind} == {value.type.tensor_type.elem_type for value in ends}
        assert {"samples": 1, "unrun": ""} == fit(tmp_path / folder, Feeds(), tmp_path)
    with pytest.raises(UsageError, match="not what the run has judged"):
        export(model, tmp_path / "run", tmp_path / "other", {"io_types": "fp16"})


@pytest.mark.parametrize("name", MODELS)
def test_what_is_exported_can_be_exported_again(tmp_path: Path, name: str) -> None:
    """A model with an FP16 interface, searched and exported anew, opens, and is still the same."""
    path = save(parse(MODELS[name][0]), tmp_path)
    feed = {value.name: FEEDS[value.name] for value in onnx.load(path).graph.input}
    cast = {k: a.astype(np.float16) if a.dtype == np.float32 else a for k, a in feed.items()}
    kept = [*load_model(path).table.names]
    expected = ran(path, feed)
    for generation, layers in enumerate((kept, [], kept, [], [])):
        folder = tmp_path / str(generation)
        folder.mkdir()
        settings = HALF if generation == 0 else EngineSettings()
        write_exports(RunFolder(folder), export_of(path, layers, settings))
        path = folder / MIXED_MODEL
        for wanted, output in zip(expected, ran(path, cast), strict=True):
            np.testing.assert_allclose(wanted, output, atol=4e-3)
        model = load_model(path)
        emulated = EmulatedBackend(model, threads=1).evaluate(Plan.of([]), feed)
        for wanted, value in zip(expected, model.proto.graph.output, strict=True):
            np.testing.assert_allclose(wanted, emulated[value.name], atol=4e-3)


def test_outputs_beyond_the_range_of_fp16_end_the_run(tmp_path: Path) -> None:
    """What the exported file would give as infinity is over every limit."""
    model = tiny.write_model(tmp_path / "tiny.onnx", scale=1e6)
    result = tiny.search(model, tmp_path / "run", engine=HALF)
    assert Status.NOT_PRECISION is result.status
    assert result.interface is not None and result.interface.passed is False
    (lost,) = result.interface.lost
    output = onnx.load(model).graph.output[0].name
    assert (output, 0.0) == (lost.name, lost.zero)
    assert lost.infinite > 0
    screen = " ".join(line.plain for line in final_screen(result, model, 200))
    assert f"of the values of {output!r} become infinite" in screen


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
    model = load_model(path).with_io_types(io_types)
    model = pin_formless(model, Pair(low="fp16", high="fp32"))
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


@pytest.mark.parametrize("low", HALF_NAMES)
@pytest.mark.parametrize("kept", [[], ["a", "b"]], ids=["low", "kept"])
@pytest.mark.parametrize("text", CACHES.values(), ids=CACHES)
def test_a_cache_keeps_the_type_of_the_file(
    tmp_path: Path, text: str, kept: list[str], low: HalfName
) -> None:
    """In an FP16 file it is FP16 in every plan, with no node at either end, and builds."""
    path = save(parse(text.replace("float[", "float16["), opset=24, ir=12), tmp_path)
    pair = Pair(low=low, high="fp32")
    model = pin_formless(load_model(path), pair)
    expected = {"s": "fp16"}
    assert expected == {
        n: f.low.stored for n, f in forms_of(model.table, pair).items() if n == "s"
    }
    export = replace(export_of(path, kept, EngineSettings()), model=model, pair=pair)
    save_mixed(RunFolder(tmp_path), mixed_model(export))
    build(tmp_path / MIXED_MODEL)
    nodes = {node.name: node for node in onnx.load(tmp_path / MIXED_MODEL).graph.node}
    assert ("old", "new") == (nodes["s"].input[0], nodes["s"].output[0])
