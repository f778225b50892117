"""Tiny models whose answer is known, searched through the Python API and the real emulator."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import precision_bisect
from effort import nightly
from precision_bisect.commandline.main import main
from precision_bisect.exports.trtexec_names import parse_layer_precisions, select

FLOAT = onnx.TensorProto.FLOAT
Step = tuple[str, str, float | None]
"""A node: its name, operator, and constant second operand (None: the value itself again)."""


def chain(path: Path, steps: list[Step], width: int = 4) -> Path:
    """Write a model that applies the steps one after the other to `x` of shape (1, width)."""
    nodes, constants = [], []
    value = "x"
    for number, (name, op_type, constant) in enumerate(steps):
        operands = [value]
        if constant is not None:
            operands.append(f"c{number}")
            constants.append(numpy_helper.from_array(np.array(constant, np.float32), f"c{number}"))
        elif op_type != "Neg":
            operands.append(value)
        value = f"v{number}"
        nodes.append(helper.make_node(op_type, operands, [value], name=name))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", FLOAT, [1, width])],
        [helper.make_tensor_value_info(value, FLOAT, [1, width])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def row(*values: float) -> list[dict[str, NDArray[np.float32]]]:
    """Return one sample of shape (1, n)."""
    return [{"x": np.array([values], np.float32)}]


OVERFLOW: list[Step] = [("square", "Mul", None), ("scale", "Mul", 1 / 300)]
CANCELLATION: list[Step] = [("up", "Add", 400.0), ("down", "Sub", 400.0)]
UNDERFLOW: list[Step] = [("a", "Mul", 1e-5), ("b", "Mul", 1e-4), ("back", "Div", 1e-9)]
KNOWN = {
    "overflow": (OVERFLOW, (300.0, 300.0, 290.0, 280.0), ["square", "scale"]),
    "cancellation": (CANCELLATION, (0.01, 0.05, 0.3, 0.7), ["up", "down"]),
    "underflow": (UNDERFLOW, (1.0, 0.5, 0.25, 0.7), ["b", "back"]),
}


@pytest.mark.parametrize("strategy", ["guided", *nightly("ddmin", "exhaustive")])
@pytest.mark.parametrize("case", KNOWN)
def test_known_cause(case: str, strategy: str, tmp_path: Path) -> None:
    """Each strategy keeps exactly the layers that need it, and the cause is named."""
    steps, values, kept = KNOWN[case]
    result = precision_bisect.find(
        chain(tmp_path / "m.onnx", steps),
        inputs=row(*values),
        out=tmp_path / "run",
        strategy=strategy,
    )
    assert "found" == result.status
    assert kept == list(result.kept)
    assert result.certificate.minimal
    assert case in {diagnosis.cause for diagnosis in result.diagnosis}


def test_nothing_to_keep(tmp_path: Path) -> None:
    """A model that is exact in FP16 ends before any search, with exit code 0."""
    model = chain(tmp_path / "m.onnx", [("double", "Mul", 2.0), ("flip", "Neg", None)])
    result = precision_bisect.find(model, inputs=row(1, 2, 3, 4), out=tmp_path / "run")
    assert "nothing_to_keep" == result.status
    assert 0 == result.exit_code
    assert [] == list(result.kept)


def test_bf16_keeps_other_layers_than_fp16(tmp_path: Path) -> None:
    """What only overflows needs nothing in BF16; what only cancels needs it all the more."""
    overflow = chain(tmp_path / "o.onnx", OVERFLOW)
    result = precision_bisect.find(
        overflow, inputs=row(300, 300, 290, 280), out=tmp_path / "o", low="bf16"
    )
    assert "nothing_to_keep" == result.status
    cancellation = chain(tmp_path / "c.onnx", CANCELLATION)
    result = precision_bisect.find(
        cancellation, inputs=row(0.01, 0.05, 0.3, 0.7), out=tmp_path / "c", low="bf16"
    )
    assert ["up", "down"] == list(result.kept)


def test_reference_with_nan_is_no_precision_problem(tmp_path: Path) -> None:
    """A model whose FP32 output is NaN ends with that, before any trial."""
    model = chain(tmp_path / "m.onnx", [("zero", "Sub", None), ("nan", "Div", None)])
    result = precision_bisect.find(model, inputs=row(1, 2, 3, 4), out=tmp_path / "run")
    assert "not_precision" == result.status
    assert 1 == result.exit_code
    assert 0 == result.trials
    assert "NaN" in result.message


def planted(count: int, culprits: set[int]) -> list[Step]:
    """Return steps of which only the culprits, weights above 65504, break in FP16."""
    steps: list[Step] = []
    while len(steps) < count:
        number = len(steps)
        if number + 1 in culprits:
            steps += [
                (f"before{number}", "Mul", 2.0**-10),
                (f"culprit{number + 1}", "Mul", 2.0**17),
                (f"after{number}", "Mul", 2.0**-7),
            ]
        else:
            steps.append((f"flip{number}", "Neg", None))
    return steps


@pytest.mark.parametrize("size", [200, *nightly(1000)])
def test_a_planted_set_of_five_is_found(size: int, tmp_path: Path) -> None:
    """Five culprits among many layers are found exactly, with few trials."""
    culprits = {size * place // 1000 for place in (101, 344, 500, 711, 960)}
    steps = planted(size, culprits)
    result = precision_bisect.find(
        chain(tmp_path / "m.onnx", steps), inputs=row(1, 2, 3, 4), out=tmp_path / "run"
    )
    assert size == result.candidates
    assert [f"culprit{number}" for number in sorted(culprits)] == list(result.kept)
    assert result.certificate.minimal
    assert result.trials <= 30
    assert result.evaluations <= 400


@pytest.mark.parametrize(
    "name", ["scope::op:0", "<script>alert(1)</script>", "第一层/归一化 ", "[red]a*b,c'd[/red]"]
)
def test_any_name_survives(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Odd names come out of file and screen unharmed, and the export selects just these."""
    steps: list[Step] = [
        ("flip", "Neg", None),
        (name, "Mul", None),
        (f"{name}/scale", "Mul", 1 / 300),
    ]
    model = chain(tmp_path / "m.onnx", steps)
    np.savez(tmp_path / "in.npz", x=np.full((1, 4), 300, np.float32))
    out = tmp_path / "run"
    code = main([str(model), "--inputs", str(tmp_path / "in.npz"), "--out", str(out)])
    screen = capsys.readouterr().out
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert 0 == code
    assert [name, f"{name}/scale"] == result["kept"]
    assert name.rpartition("/")[2] in screen
    if result["layer_precisions"] is None:
        assert result["layer_precisions_reason"]
    else:
        universe = [step[0] for step in steps]
        selected = select(parse_layer_precisions(result["layer_precisions"]), universe)
        assert dict.fromkeys(result["kept"], "fp32") == selected


def test_layers_lists_candidates_and_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`layers` prints both as text and as JSON, in network order."""
    path = tmp_path / "m.onnx"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "m (float[2, 3] x) => (float[3, 2] y) {"
        "t = Transpose<perm = [1, 0]>(x)  y = Sqrt(t) }"
    )
    onnx.save(model, path)
    assert 0 == main(["layers", str(path)])
    text = capsys.readouterr().out
    assert "1 candidate of 2 nodes" in text
    assert "moves values only" in text
    assert 0 == main(["layers", str(path), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert ["node_of_t", "node_of_y"] == [row["name"] for row in rows]
    assert [False, True] == [row["candidate"] for row in rows]


def test_held_out_samples_tell_what_the_answer_lacks(tmp_path: Path) -> None:
    """A layer that only a held-out sample needs is not kept, and that it fails is told."""
    model = chain(tmp_path / "m.onnx", [*CANCELLATION, *OVERFLOW])
    samples = [*row(0.01, 0.05, 0.3, 0.7), *row(300, 300, 290, 280)]
    result = precision_bisect.find(model, inputs=samples, out=tmp_path / "run", holdout=1)
    assert ("nothing_to_keep", []) == (result.status, result.kept)
    assert result.unseen is not None
    assert (1, 1, 1.0) == (
        result.unseen.judged,
        result.unseen.failed,
        result.unseen.share_at_most,
    )
    assert result.certificate.minimal


def test_a_model_that_learns_on_is_too_noisy(tmp_path: Path) -> None:
    """Two runs of the same plan that differ by more than the tolerance are the run's ending.

    Plans update the statistics of a norm in training mode; the reference, which gives them away,
    does not.
    """
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "m (float[2, 2, 4] x) => (float[2, 2, 4] y, float[2] m, float[2] v)"
        "<float[2] a = {1, 1}, float[2] b = {0, 0}, float[2] c = {0, 0}, float[2] d = {1, 1}> {"
        "e = Exp(x)  y, m, v = BatchNormalization<training_mode = 1>(e, a, b, c, d) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    sample = {"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 2, 4)}
    result = precision_bisect.find(tmp_path / "m.onnx", inputs=[sample], out=tmp_path / "run")
    assert "infeasible" == result.status
    assert "two runs of the same plan differ" in result.message
    assert result.noise_floor is not None and result.noise_floor > 1e-2


def test_ctrl_c_while_explaining_keeps_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search is over by then: the result is written, without a diagnosis, and says so."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("precision_bisect.pipeline.explanation.diagnose", interrupted)
    model, samples = chain(tmp_path / "m.onnx", OVERFLOW), row(300, 300, 290, 280)
    with pytest.raises(precision_bisect.SearchInterrupted) as broken_off:
        precision_bisect.find(model, inputs=samples, out=tmp_path / "run")
    result = broken_off.value.result
    assert isinstance(result, precision_bisect.Result)
    assert result.cut_short and "found" == result.status
    assert ["square", "scale"] == json.loads((tmp_path / "run/result.json").read_text())["kept"]
    assert 0 == len(result.diagnosis)
