"""Operators that TensorRT's parser takes apart: the emulator follows the table of its steps."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from models import load_text
from parser_models import APART, Apart
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.backends.emulation.semantics import (
    Semantics,
    as_parsed,
    distinct,
    not_imported,
)
from precision_bisect.backends.emulation.steps import TEXTS, StoredSteps
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.lowtypes import FP16
from precision_bisect.graphs.node_views import View
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.settings.targets import TARGETS, Inside, TargetName, parser_steps

LOW = Plan.of(())
PAIR = Pair(low="fp16", high="fp32")
PARSED: tuple[TargetName, ...] = ("tensorrt", "tensorrt-rtx")
KINDS = {
    "Add": "ELEMENTWISE.SUM",
    "Div": "ELEMENTWISE.DIV",
    "Exp": "UNARY.EXP",
    "HardSigmoid": "ACTIVATION.HARD_SIGMOID",
    "Log": "UNARY.LOG",
    "Mul": "ELEMENTWISE.PROD",
    "ReduceL1": "REDUCE.SUM",
    "Sigmoid": "ACTIVATION.SIGMOID",
    "Softmax": "SOFTMAX",
    "Softplus": "ACTIVATION.SOFTPLUS",
    "Sqrt": "UNARY.SQRT",
    "Sub": "ELEMENTWISE.SUB",
    "Tanh": "ACTIVATION.TANH",
}
"""What TensorRT calls the steps of the emulator that round."""
EXACT = {"CAST", "REDUCE.MAX", "UNARY.FLOOR", "UNARY.CEIL"}
CONSTANT = "Constant<value = float[2] {1, 2}>()"
WHOLE = {
    # The same operators in the forms that are one step, or exact.
    "Mean": "(float[6,40] x) => (float[6,40] y) { y = Mean(x) }",
    "Sum": "(float[6,40] x, float[6,40] z) => (float[6,40] y) { y = Sum(x, z) }",
    "Swish": "(float[6,40] x) => (float[6,40] y) { y = Swish(x) }",
    "BatchNormalization": "(float[2,2,4] x) => (float[2,2,4] y) <float[2] s = {1,2}>"
    " { y = BatchNormalization(x, s, s, s, s) }",
}


COMPUTED = (
    "{ y = BatchNormalization(x, s, s, s, s) }",
    f"{{ c = {CONSTANT} y = BatchNormalization(x, c, c, c, c) }}",
    f"{{ c = {CONSTANT} d = Abs(c) y = BatchNormalization(x, s, c, c, d) }}",
)


def rows(op_type: str, word: str) -> list[list[str]]:
    """Return the table's rows of an operator that have this word: layers with their types."""
    found = parser_steps()["operators"].get(op_type, ())
    return [row["layers"] for row in found if row["inside"] == word]


def rounding(layers: Sequence[str]) -> list[str]:
    """Return the kinds of a row's layers that round."""
    return [kind for kind in (layer.split()[0] for layer in layers) if kind not in EXACT]


def own_steps(model: Model, node: onnx.NodeProto, target: TargetName) -> Iterator[str]:
    """Yield what TensorRT calls the emulator's steps that round and that the inputs reach."""
    steps = StoredSteps(model, View(model), target)
    if Semantics(model, target).inside(node) is not Inside.STEPS:
        return
    reached = {f"x{i}" for i, _ in enumerate(node.input)}
    for step in steps.body(node, FP16).graph.node:
        if reached.isdisjoint(step.input):
            continue
        reached.update(step.output)
        if step.op_type in KINDS:
            yield KINDS[step.op_type]


def apart(case: Apart, folder: Path) -> tuple[Model, onnx.NodeProto]:
    """Return the case's model and node."""
    model = load_text(case.text, folder, opset=case.opset)
    return model, model.proto.graph.node[-1]


@pytest.mark.parametrize("target", PARSED)
@pytest.mark.parametrize("name", APART)
def test_the_emulators_steps_are_those_of_the_table(
    name: str, target: TargetName, tmp_path: Path
) -> None:
    """As many, of the same kinds, in the same order."""
    model, node = apart(APART[name], tmp_path)
    table = [rounding(layers) for layers in rows(node.op_type, "steps")]
    assert list(own_steps(model, node, target)) in table


def test_every_operator_that_the_table_takes_apart_has_steps() -> None:
    """None is left out, and none has more; both parsers are taken for one."""
    table = parser_steps()["operators"]
    apart = {op_type for op_type in table if rows(op_type, "steps")}
    for target in PARSED:
        assert apart == set(TEXTS[target])
    assert apart == {name.split()[0].rstrip(",") for name in APART}
    for op_type in TEXTS["onnxruntime"].keys() & apart:
        # Targets are taken for alike where both store the steps of an operator.
        assert TEXTS["onnxruntime"][op_type] is TEXTS["tensorrt"][op_type]


def test_the_table_says_which_parser_it_is_of() -> None:
    """With the operators that it knows nothing of; all of the standard that take floats."""
    table = parser_steps()
    assert table["tensorrt_rtx"] and table["onnx"]
    assert not {*table["operators"]} & {*table["not_parsed"]}
    words = {row["inside"] for found in table["operators"].values() for row in found}
    assert {"whole", "float", "steps", "fused", "recurrence"} == words


def test_what_no_importer_reads_is_said_before_the_search(tmp_path: Path) -> None:
    """With the version, for TensorRT-RTX alone: TensorRT has plug-ins for some of these."""
    text = "(float[2,3,3] x) => (float[2] y) { d = Det(x) y = Neg(d) }"
    model = load_text(text, tmp_path, opset=22)
    version = parser_steps()["tensorrt_rtx"]
    said = f"TensorRT-RTX imports 1 Det by a plug-in or not at all (tensorrt_rtx {version})"
    assert said == not_imported(model, PAIR, ["tensorrt", "tensorrt-rtx"])
    assert "" == not_imported(model, PAIR, ["tensorrt", "onnxruntime"])
    assert {"SwiGLU", "LinearAttention"} <= {*parser_steps()["no_importer"]}
    assert not {*parser_steps()["no_importer"]} & {*parser_steps()["operators"]}


UNKNOWN_FORMS = {
    "1 ScatterElements (reduction add)": "(float[4] x, int64[2] i, float[2] u) => (float[4] y)"
    ' { y = ScatterElements <reduction = "add"> (x, i, u) }',
    "1 ScatterND (reduction max)": "(float[4] x, int64[2,1] i, float[2] u) => (float[4] y)"
    ' { y = ScatterND <reduction = "max"> (x, i, u) }',
    "1 Resize (antialias 1)": "(float[1,1,4,4] x) => (float[1,1,2,2] y)"
    " <float[4] s = {1, 1, 0.5, 0.5}>"
    ' { y = Resize <mode = "linear", antialias = 1> (x, , s) }',
    "1 SplitToSequence, 1 SequenceAt": "(float[4,2] x) => (float[2,2] y)"
    " <int64 two = {2}, int64 first = {0}>"
    " { s = SplitToSequence(x, two) y = SequenceAt(s, first) }",
    "1 ScatterND (reduction add)": "(bool c, float[4] x, int64[2,1] i, float[2] u)"
    " => (float[4] y) { y = If (c) <then_branch = a () => (float[4] t)"
    ' { t = ScatterND <reduction = "add"> (x, i, u) },'
    " else_branch = b () => (float[4] e) { e = Neg(x) }> }",
}
"""What the sentence counts, and a model."""


@pytest.mark.parametrize("counted", UNKNOWN_FORMS)
def test_forms_that_the_parser_refuses_are_named(counted: str, tmp_path: Path) -> None:
    """Else a plan "to build" is handed out for a model that no build of the target reads."""
    model = load_text(UNKNOWN_FORMS[counted], tmp_path, opset=18)
    assert f"TensorRT-RTX imports {counted} by" in not_imported(model, PAIR, ["tensorrt-rtx"])


def test_what_the_parser_takes_of_such_operators_is_not_named(tmp_path: Path) -> None:
    """The default written out, and an operator of that name in a domain of its own."""
    text = (
        "(float[4] x, int64[2] i, float[2] u) => (float[4] y)"
        ' { z = ScatterElements <reduction = "none"> (x, i, u) y = own.Unique(z) }'
    )
    model = load_text(text, tmp_path, opset=18)
    assert "" == not_imported(model, PAIR, ["tensorrt-rtx"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op_type", WHOLE)
def test_forms_of_one_step_are_computed_whole(
    op_type: str, target: TargetName, tmp_path: Path
) -> None:
    """A Sum of two, a Mean of one, a Swish by 1, a BatchNormalization of constants."""
    opset = 24 if op_type == "Swish" else 15
    model = load_text(WHOLE[op_type], tmp_path, opset=opset)
    assert Inside.FP32 is Semantics(model, target).inside(model.proto.graph.node[0])


@pytest.mark.parametrize("body", COMPUTED)
def test_statistics_that_are_folded_are_constants(body: str, tmp_path: Path) -> None:
    """Held, in nodes, or computed of such; the parser makes one scale of all."""
    text = f"(float[2,2,4] x) => (float[2,2,4] y) <float[2] s = {{1,2}}> {body}"
    model = load_text(text, tmp_path, opset=15)
    assert Inside.FP32 is Semantics(model, "tensorrt").inside(model.proto.graph.node[-1])


BY_TARGET: list[tuple[str, TargetName]] = [
    (name, target)
    for target in ("tensorrt", "onnxruntime")
    for name in APART
    if name.split()[0].rstrip(",") in TEXTS[target]
]


@pytest.mark.parametrize("scale", [0.02, 1.0, 30.0])
@pytest.mark.parametrize(("name", "target"), BY_TARGET)
def test_steps_are_stored_in_halves(
    name: str, target: TargetName, scale: float, tmp_path: Path
) -> None:
    """As numpy computes them one by one, up to one unit where its FP32 functions are others."""
    model, _ = apart(APART[name], tmp_path)
    draw = np.random.default_rng(7)
    feed, halves = {}, []
    for spec in model.inputs:
        array = (scale * draw.normal(size=[int(str(size)) for size in spec.shape or ()])).astype(
            np.float16
        )
        halves.append(np.abs(array) if spec.name == "v" else array)
        feed[spec.name] = halves[-1].astype(np.float32)
    with np.errstate(all="ignore"):
        expected = APART[name].steps(*halves)
    assert np.float16 == expected.dtype
    found = EmulatedBackend(model, threads=1, targets=[target]).evaluate(LOW, feed)["y"]
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(expected[~finite], found[~finite])
    off = np.abs(found[finite] - expected[finite].astype(np.float32))
    unit = np.spacing(np.abs(expected[finite])).astype(np.float32)
    # A step that is nearly 0 may be off by a subnormal, and is multiplied by the input.
    tiny = 2.0**-23 * max(float(np.abs(half).max()) for half in halves)
    assert np.mean(off == 0) > 0.95 and (off <= np.maximum(2 * unit, tiny)).all()


@pytest.mark.parametrize(
    ("name", "value", "low"),
    [
        ("LogSoftmax", 20.0, -np.inf),
        ("Mean of 2", 40000.0, np.inf),
        ("Sum of 3", 40000.0, np.inf),
        ("Mish", 60000.0, 60000.0),
        ("Swish", 50000.0, 50000.0),
        ("ReduceLogSumExp", 9.0, 9.0),
    ],
)
def test_what_leaves_the_range_between_steps(
    name: str, value: float, low: float, tmp_path: Path
) -> None:
    """A share of 2e-9 is 0, a sum of 80,000 infinite, where the result by itself would fit."""
    model, _ = apart(APART[name], tmp_path)
    x = np.zeros((6, 40), np.float32)
    x[:, 0] = value
    feed = {spec.name: x if spec.name != "w" else -x for spec in model.inputs}
    backend = EmulatedBackend(model, threads=1, targets=["tensorrt"])
    high, found = (backend.evaluate(plan, feed)["y"] for plan in (Plan.all_high(1), LOW))
    assert np.isfinite(high).all()
    column = -1 if name == "LogSoftmax" else 0
    np.testing.assert_allclose(low, found[0, column], rtol=1e-3)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_of_exponentials_is_stored_as_on_a_gpu(axis: int, tmp_path: Path) -> None:
    """70,000 values of 0.9 come to 12.06, and to infinity in ONNX Runtime on CUDA in FP16."""
    text = f"(float[a,b] x) => (float[c,d] y) {{ y = ReduceLogSumExp<axes = [{axis}]>(x) }}"
    model = load_text(text, tmp_path, opset=13)
    feed = {"x": np.full((70000, 1) if axis == 0 else (1, 70000), 0.9, np.float32)}
    backend = EmulatedBackend(model, threads=1, targets=["onnxruntime"])
    high, low = (backend.evaluate(plan, feed)["y"] for plan in (Plan.all_high(1), LOW))
    np.testing.assert_allclose(high, [[12.056]], rtol=1e-3)
    np.testing.assert_array_equal(low, [[np.inf]])


def test_a_sum_of_many_leaves_the_range_as_on_a_gpu(tmp_path: Path) -> None:
    """21 times 30,000 less 19 times 30,000: infinity in ONNX Runtime on CUDA in FP16."""
    negative = ", ".join(["z"] * 19)
    text = f"(float[4] x) => (float[4] y) {{ z = Neg(x) y = Sum({'x, ' * 21}{negative}) }}"
    model = load_text(text, tmp_path)
    feed = {"x": np.full(4, 30000, np.float32)}
    backend = EmulatedBackend(model, threads=1, targets=["onnxruntime"])
    high, low = (backend.evaluate(plan, feed)["y"] for plan in (Plan.all_high(2), LOW))
    np.testing.assert_array_equal(high, np.full(4, 60000))
    np.testing.assert_array_equal(low, np.full(4, np.inf))


def test_targets_that_store_other_steps_are_told_apart(tmp_path: Path) -> None:
    """ONNX Runtime has a LogSoftmax of its own; nothing is said of it there."""
    model, _ = apart(APART["LogSoftmax"], tmp_path)
    assert ("onnxruntime", "tensorrt") == distinct(model, PAIR, TARGETS)
    version = parser_steps()["tensorrt_rtx"]
    said = "each step of 1 LogSoftmax is stored, taken as TensorRT's parser writes it"
    assert f"{said} (tensorrt_rtx {version})" == as_parsed(model, PAIR, TARGETS)
    assert "" == as_parsed(model, PAIR, ["onnxruntime"])
    assert "" == as_parsed(model, Pair(low="int8", high="fp32"), TARGETS)
