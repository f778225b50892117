"""Plans of several precisions: each export says the same of every layer, or why it cannot."""

import dataclasses
import runpy
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from exports_models import SHELLS, Parse, chain, export_of, flag, polygraphy_selects, run_script
from models import normal, parse, save, with_weights
from precision_bisect.exports.export import Export
from precision_bisect.exports.write import write_exports
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.lowtypes import INT8
from precision_bisect.graphs.quantization.calibration import (
    Calibration,
    calibrate,
    quantized_layers,
)
from precision_bisect.graphs.quantization.scales import read_scales
from precision_bisect.graphs.typed.pinning import pin, pin_formless
from precision_bisect.layer_table import LayerName
from precision_bisect.precisions import HALF_NAMES, HIGH_NAMES, Form, Pair, PrecisionName
from precision_bisect.runs.runfolder import (
    AUTOCAST,
    LAYER_PRECISIONS,
    MIXED_MODEL,
    POLYGRAPHY_SCRIPT,
    SCALES,
    TORCH_AUTOCAST,
    RunFolder,
)
from precision_bisect.settings.engine_settings import EngineSettings
from trtexec_oracle import NAMES, trtexec_parse

ELEMENT_TYPES = {1: "fp32", 10: "fp16", 16: "bf16"}
LADDER = """(float[8, 8] x) => (float[8, 8] y) {
    [exp] a = Exp(x) [one] b = MatMul(a, w) [two] c = MatMul(b, v) [sin] d = Sin(c)
    [three] y = Gemm(d, v) }"""
FEED = {"x": normal(8, 8)}


def in_types(path: Path) -> dict[str, str]:
    """Return what each node of a typed model computes in, int8 where it reads what was."""
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path)
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    quantized = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    return {
        node.name: "int8" if quantized.intersection(node.input) else ELEMENT_TYPES[kind]
        for node in graph.node
        if (kind := types[node.output[0]]) in ELEMENT_TYPES
    }


def said_by_script(path: Path) -> dict[str, str]:
    """Return what the Polygraphy script keeps, each in its type."""
    kept = runpy.run_path(str(path))["KEPT"]
    return {name: kind for name, (kind, _, _) in kept.items()}


@given(names=NAMES, data=st.data())
@examples(10)
def test_each_export_gives_every_layer_its_type(names: list[str], data: st.DataObject) -> None:
    """Whatever the names and the pair: what is written agrees, what is not has a reason."""
    names += data.draw(st.lists(st.sampled_from(["", *names]), max_size=2))
    low = data.draw(st.sampled_from(HALF_NAMES))
    pair = Pair(low=low, high=data.draw(st.sampled_from([h for h in HIGH_NAMES if h != low])))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.onnx"
        onnx.save(chain(names), path)
        model = load_model(path)
        fixed = data.draw(st.lists(st.sampled_from(model.table.names), unique=True))
        model = pin(model, dict.fromkeys(fixed, "a rung"), Form(stored="fp32"))
        left = model.table.names
        kept = data.draw(st.lists(st.sampled_from(left), unique=True)) if left else []
        export = Export(model=model, kept=kept, pair=pair, settings=EngineSettings())
        expected = {
            name: "fp32" if name in fixed else pair.high if name in kept else low
            for name in load_model(path).table.names
        }
        above = {name: kind for name, kind in expected.items() if kind != low}
        folder = RunFolder(Path(place) / "run")
        reasons = write_exports(folder, export)
        for file, reason in reasons.items():
            assert (folder.path / file).exists() == (reason is None), reason
        written = in_types(folder.path / MIXED_MODEL)
        assert expected == {name: written[name] for name in expected}
        if reasons[POLYGRAPHY_SCRIPT] is None:
            assert above == said_by_script(folder.path / POLYGRAPHY_SCRIPT)
        ran = run_script(folder.path, "weak", data.draw(st.sampled_from(SHELLS)))
        if ran.code == 0 and above:
            for named in ("--layerPrecisions", "--layerOutputTypes"):
                # Patterns are checked by `select` as they are written.
                said = trtexec_parse(flag(ran, named), named)
                assert sorted(above.values()) == sorted(said.values())
        if reasons[AUTOCAST] is None:
            assert ("fp32", {"fp32"}) == (pair.high, set(above.values()))


def ladder(folder: Path) -> Export:
    """Return a plan of three precisions: `two` and `sin` FP16, `exp` FP32, the rest INT8."""
    weights = {"w": normal(8, 8, seed=1), "v": normal(8, 8, seed=2)}
    model = load_model(save(with_weights(parse(LADDER), weights), folder))
    model = pin(model, {LayerName("exp"): "a rung"}, Form(stored="fp32"))
    return quantized_export(model, Pair(low="int8", high="fp16"), "two")


def quantized_export(model: Model, pair: Pair, *kept: str) -> Export:
    """Return an export of a pair with INT8, calibrated."""
    model = pin_formless(model, pair)
    how = Calibration(method="minmax", kind=INT8, stored=pair.high)
    scales = calibrate(model, quantized_layers(model, pair), [FEED], how)
    return Export(
        model=model,
        kept=[LayerName(name) for name in kept],
        pair=pair,
        settings=EngineSettings(),
        scales=scales,
    )


def test_a_ladder_of_three_is_the_same_in_all_exports(tmp_path: Path, parse_rtx: Parse) -> None:
    """INT8, FP16 and FP32 side by side: names, script, commands and the model's types agree."""
    folder = RunFolder(tmp_path / "run")
    export = ladder(tmp_path)
    reasons = dict(write_exports(folder, export))
    assert "AutoCast knows one 16-bit type beside fp32, and the plan has fp32, fp16, int8" == (
        reasons.pop(AUTOCAST)
    )
    assert {TORCH_AUTOCAST} == {*filter(reasons.get, reasons)}
    expected: dict[str, PrecisionName] = {"exp": "fp32", "two": "fp16", "sin": "fp16"}
    assert expected == said_by_script(folder.path / POLYGRAPHY_SCRIPT)
    spec = (folder.path / LAYER_PRECISIONS).read_text()
    assert expected == trtexec_parse(f"--layerPrecisions={spec}", "--layerPrecisions")
    written = in_types(folder.path / MIXED_MODEL)
    assert expected | {"one": "int8", "three": "int8"} == {
        name: written[name] for name in export.precisions
    }
    network = parse_rtx(onnx.load(folder.path / MIXED_MODEL))
    assert set(expected) == polygraphy_selects(folder.path / POLYGRAPHY_SCRIPT, network)


def test_weak_commands_of_8_bits_build_the_typed_model(tmp_path: Path) -> None:
    """Names alone do not say how to quantize, so weak reads the scales in the typed model."""
    folder = RunFolder(tmp_path / "run")
    write_exports(folder, ladder(tmp_path))
    arguments = run_script(folder.path, "weak", SHELLS[0]).arguments
    assert arguments[1].endswith(f"/{MIXED_MODEL}")
    assert ["--int8", "--fp16", "--precisionConstraints=obey"] == arguments[2:5]
    flags = runpy.run_path(str(folder.path / POLYGRAPHY_SCRIPT))["FLAGS"]
    assert "--int8 --fp16 --precision-constraints obey" == flags


def test_scales_are_written_and_come_back(tmp_path: Path) -> None:
    """The same files can be written again from the run folder."""
    export = ladder(tmp_path)
    first, again = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "again")
    write_exports(first, export)
    write_exports(again, dataclasses.replace(export, scales=read_scales(first.path)))
    for name in (SCALES, MIXED_MODEL):
        assert (first.path / name).read_bytes() == (again.path / name).read_bytes()


def test_a_pattern_is_not_written_for_8_bits(tmp_path: Path) -> None:
    """A name with a comma needs a pattern, which could select what quantization adds."""
    weights = {"w": normal(8, 8)}
    proto = parse("(float[8, 8] x) => (float[8, 8] y) { a = Exp(x) y = MatMul(a, w) }")
    proto.graph.node[0].name, proto.graph.node[1].name = "a,b", "c"
    model = load_model(save(with_weights(proto, weights), tmp_path))
    export = quantized_export(model, Pair(low="int8", high="fp32"))
    reasons = write_exports(RunFolder(tmp_path / "run"), export)
    assert "'a,b' needs a pattern, which could match what quantization adds" in str(
        reasons[LAYER_PRECISIONS]
    )
    assert reasons[MIXED_MODEL] is None


@pytest.mark.parametrize("pair", [Pair(low="fp16", high="bf16"), Pair(low="bf16", high="fp16")])
def test_autocast_keeps_layers_in_fp32_only(pair: Pair, tmp_path: Path) -> None:
    """It knows no pair of two 16-bit types."""
    onnx.save(chain(["a", "b"]), tmp_path / "model.onnx")
    export = dataclasses.replace(export_of(tmp_path / "model.onnx", ["a"]), pair=pair)
    reasons = write_exports(RunFolder(tmp_path / "run"), export)
    assert str(reasons[AUTOCAST]).startswith("AutoCast knows one 16-bit type beside fp32")


def test_the_typed_model_of_a_ladder_computes_what_it_says(tmp_path: Path) -> None:
    """Run where FP16 is not involved, the export's INT8 layers round as their scales say."""
    weights = {"w": normal(8, 8, seed=1), "v": normal(8, 8, seed=2)}
    model = load_model(save(with_weights(parse(LADDER), weights), tmp_path))
    export = quantized_export(model, Pair(low="int8", high="fp32"), "two", "three")
    folder = RunFolder(tmp_path / "run")
    write_exports(folder, export)
    from typed_graphs import run_as_written

    (found,) = run_as_written(onnx.load(folder.path / MIXED_MODEL), FEED).values()
    a, scales = np.exp(FEED["x"]), export.scales
    scale, per_channel = np.float32(scales.activations["a"]), scales.weights["w"].values
    rounded = np.clip(np.rint(a / scale), -128, 127) * scale
    w = np.rint(weights["w"] / per_channel) * per_channel
    expected = np.sin(rounded @ w @ weights["v"]) @ weights["v"]
    np.testing.assert_allclose(found, expected, atol=1e-4)
