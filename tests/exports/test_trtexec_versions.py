"""trtexec.sh asks the tool what it can, and takes the way, or refuses by name."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from exports_models import SHELLS, chain, export_of, run_script
from fake_trtexec import Version, help_text
from models import parse, save, with_weights
from precision_bisect.exports.write import write_exports
from precision_bisect.runs.runfolder import RunFolder

STRONG = ("strong10", "strong11", "rtx")
V8, V9, V10, V11 = (8, 6, 1), (9, 3, 0), (10, 3, 0), (11, 1, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with the exports of a plan that keeps a layer."""
    onnx.save(chain(["a", "b"]), tmp_path / "model.onnx")
    write_exports(RunFolder(tmp_path), export_of(tmp_path / "model.onnx", ["a"]))
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("mode", STRONG)
@pytest.mark.parametrize("version", [V9, V10, (10, 16, 1), V11])
def test_the_typed_model_is_never_built_without_its_flag(
    folder: Path, shell: str, mode: str, version: Version
) -> None:
    """Whatever way is called: a tool that knows the flag gets it, or the types would be hints."""
    ran = run_script(folder, mode, shell, says=help_text(version))
    assert (0, 1) == (ran.code, ran.arguments.count("--stronglyTyped"))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("mode", STRONG)
def test_the_typed_model_is_refused_where_nothing_types_strongly(
    folder: Path, shell: str, mode: str
) -> None:
    """TensorRT 8.6 would take its FP32 layers for low ones: one line names the version."""
    ran = run_script(folder, mode, shell, says=help_text(V8))
    said = "trtexec" if mode != "rtx" else "tensorrt_rtx"
    said += " (TensorRT v8601) has no strong typing, so it cannot build this mode: take weak\n"
    assert (1, said, []) == (ran.code, ran.said, ran.arguments)


@pytest.mark.parametrize(
    ("mode", "typed"), [("strong10", True), ("strong11", True), ("rtx", False)]
)
@pytest.mark.parametrize("says", ["", "no such flag: --help", "&&&& RUNNING [TensorRT v"])
def test_a_tool_that_tells_nothing_is_given_the_flag(
    folder: Path, mode: str, typed: bool, says: str
) -> None:
    """One that does not know it ends there, and TensorRT-RTX types strongly without it."""
    ran = run_script(folder, mode, SHELLS[0], says=says)
    assert (0, typed) == (ran.code, "--stronglyTyped" in ran.arguments)


def test_a_tool_of_strong_typing_alone_needs_no_flag(folder: Path) -> None:
    """Should a later version forget the flag, nothing is lost."""
    for mode in STRONG:
        ran = run_script(folder, mode, SHELLS[0], says="  --onnx=<file>  ...")
        assert (0, False) == (ran.code, "--stronglyTyped" in ran.arguments)


@pytest.mark.parametrize("shell", SHELLS)
def test_precisions_by_name_are_refused_where_there_are_none(folder: Path, shell: str) -> None:
    """TensorRT 11 ends with four unknown options; the script says what to call instead."""
    ran = run_script(folder, "weak", shell, says=help_text(V11))
    assert (1, [], 1) == (ran.code, ran.arguments, ran.said.count("\n"))
    assert "trtexec (TensorRT v110100) has no --fp16, which weak needs: take strong10" in ran.said
    for version in (V8, V9, V10):
        ran = run_script(folder, "weak", shell, says=help_text(version))
        assert (0, False) == (ran.code, "--stronglyTyped" in ran.arguments)


QDQ = """(float[4,8] x) => (float[4,8] y) {
    [q] q = QuantizeLinear(x, s, z) [d] d = DequantizeLinear(q, s, z)
    [wq] v = QuantizeLinear(w, s, z) [wd] u = DequantizeLinear(v, s, z)
    [product] h = MatMul(d, u) [square] g = Mul(h, h) [back] y = Sqrt(g) }"""


def quantized(kind: int, folder: Path) -> Path:
    """Write a model with such a quantization of its own."""
    weights = {"s": np.array(0.1, np.float32), "w": np.ones((8, 8), np.float32)}
    model = with_weights(parse(QDQ, opset=19, ir=9), weights)
    model.graph.initializer.append(onnx.helper.make_tensor("z", kind, [], [0]))
    return save(model, folder)


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [(onnx.TensorProto.INT8, "--int8"), (onnx.TensorProto.FLOAT8E4M3FN, "--fp8")],
)
@pytest.mark.parametrize("kept", [["square"], ["product", "square", "back"], []])
def test_quantization_of_the_model_is_allowed_and_left_alone(
    kind: int, allowed: str, kept: Sequence[str], tmp_path: Path
) -> None:
    """Q/DQ needs its flag beside FP16, and gets no constraint, whatever is kept around it."""
    write_exports(RunFolder(tmp_path), export_of(quantized(kind, tmp_path), kept))
    ran = run_script(tmp_path, "weak", SHELLS[0], says=help_text(V10))
    assert [allowed, "--fp16"] == ran.arguments[2:4]
    constraints = [word.partition("=")[2] for word in ran.arguments if word.startswith("--layer")]
    assert [",".join(f"{name}:fp32" for name in kept)] * 2 * bool(kept) == constraints
    if kept:
        script = (tmp_path / "polygraphy_constraints.py").read_text()
        assert f'FLAGS = "{allowed} --fp16 --precision-constraints obey"' in script
        assert not {"'q'", "'d'", "'wq'", "'wd'"} & set(script.replace(":", " ").split())


def test_two_kinds_of_quantization_are_refused(tmp_path: Path) -> None:
    """trtexec takes --int8 or --fp8, not both."""
    path = quantized(onnx.TensorProto.INT8, tmp_path)
    model = onnx.load(path)
    zero = onnx.helper.make_tensor("f", onnx.TensorProto.FLOAT8E4M3FN, [], [0])
    model.graph.initializer.append(zero)
    for node in model.graph.node[2:4]:
        node.input[2] = "f"
    onnx.save(model, path)
    write_exports(RunFolder(tmp_path), export_of(path, ["square"]))
    ran = run_script(tmp_path, "weak", SHELLS[0], says=help_text(V10))
    assert (1, []) == (ran.code, ran.arguments)
    assert "does not build INT8 beside FP8 by weak typing" in ran.said
