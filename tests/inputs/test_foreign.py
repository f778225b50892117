"""Operators that not every engine has: next steps are for those that have them."""

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

import precision_bisect
from models import parse, save
from precision_bisect.graphs.load import load_model
from precision_bisect.pipeline.foreign import foreign, refused, unknown_to
from precision_bisect_reports.summary import final_screen

OWN = """(float[2,8] x, float[8] b) => (float[2,8] y) {{
    a = Mul(x, x) n = com.microsoft.{operator}(a{bias}) s = Sqrt(n) y = Div(x, s) }}"""


@pytest.mark.parametrize(
    ("operator", "bias", "targets"),
    [("BiasGelu", ", b", ["tensorrt", "tensorrt-rtx"]), ("Gelu", "", [])],
)
def test_what_onnx_runtime_alone_has_is_not_built_elsewhere(
    operator: str, bias: str, targets: list[str], tmp_path: Path
) -> None:
    """TensorRT finds operators by their names: one that ONNX has by the same name is none."""
    proto = parse(OWN.format(operator=operator, bias=bias), domains='"com.microsoft": 1')
    x = np.random.default_rng(0).normal(0, 300, (2, 8)).astype(np.float32)
    feeds = [{"x": x, "b": np.ones(8, np.float32)}]
    path = save(proto, tmp_path)
    result = precision_bisect.find(path, inputs=feeds, out=tmp_path / "run", tol=1e-2, threads=1)
    assert result.kept
    assert targets == list(result.unknown_to)
    shown = "\n".join(line.plain for line in final_screen(result, path, 300))
    assert bool(targets) != ("--trt" in shown)
    assert bool(targets) != ("trtexec.sh" in shown)
    assert [] == foreign(proto)


def test_what_onnx_runtime_does_not_run_is_not_judged_by_it() -> None:
    """A plug-in's operator is foreign, whatever domain it stands in."""
    text = "(float[2] x) => (float[2] y) { a = Relu(x) y = maker.Attend(a) }"
    proto = parse(text, domains='"maker": 1')
    assert ["Attend"] == [node.op_type for node in foreign(proto)]
    assert ["onnxruntime"] == unknown_to(proto, ort_runs=False)
    assert [] == unknown_to(proto, ort_runs=True)


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("a = Mul(x, x) p = maker.Attend(a) y = Sqrt(p)", [["Mul"], ["Sqrt"]]),
        ("a = Mul(x, x) p = maker.Attend(a, x) b = Sqrt(p) y = maker.Choose(b)", [["Mul"]]),
        ("p = maker.Attend(x) y = Sqrt(p)", [["Sqrt"]]),
        ("y = maker.Attend(x)", []),
    ],
    ids=["between", "twice", "first", "alone"],
)
def test_the_parts_around_a_plug_in_are_cut_as_it_is_told(
    body: str, parts: list[list[str]], tmp_path: Path
) -> None:
    """Each part that the refusal names is a model without the plug-in's operators."""
    path = save(
        parse(f"(float[2] x) => (float[2] y) {{ {body} }}", domains='"maker": 1'), tmp_path
    )
    hint = refused(path, load_model(path)).hint
    _, told, commands = hint.partition(f"polygraphy surgeon extract {shlex.quote(str(path))} ")
    assert bool(told) == bool(parts)
    proto = onnx.load(path)
    # Nothing infers what a plug-in gives.
    shapeless = [n for node in foreign(proto) for n in node.output if n != "y"]
    floats = onnx.TensorProto.FLOAT
    proto.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, floats, [2]) for name in (*shapeless, "a")
    )
    inputs, outputs = (
        [each.name for each in of] for of in (proto.graph.input, proto.graph.output)
    )
    cut = []
    for words in commands.split(", and ") if told else []:
        flag, *ends = shlex.split(words.partition(" -o ")[0])
        names = [each.partition(":")[0] for each in ends]
        ends_of = (names, outputs) if flag == "--inputs" else (inputs, names)
        model = onnx.utils.Extractor(proto).extract_model(*ends_of)
        cut.append([node.op_type for node in model.graph.node])
    assert parts == cut
