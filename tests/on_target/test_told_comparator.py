"""A comparator made again from a result judges as the one that judged the run."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from precision_bisect.errors import PrecisionBisectError
from precision_bisect.exports.finished import Finished
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.judging.comparators.choose_comparator import choose_comparator
from precision_bisect.options import Options
from precision_bisect.pipeline.on_target.exchange import comparator_of
from precision_bisect.pipeline.reopening import Reopened
from precision_bisect.precisions import Pair
from precision_bisect.runs import plain_json
from precision_bisect.runs.saved_options import options_of_result, told_options
from run_folders import result_of

OUTPUTS = ("scores", "it's, $x", "ids")
SCRIPT = """
def worst(outputs, reference):
    return max(float(abs(o["scores"] - r["scores"]).max()) for o, r in zip(outputs, reference))
"""
ASKED: list[dict[str, Any]] = [
    {},
    {"tol": 0.02},
    {"tol": {"scores": 0.5, "it's, $x": 1e-3, "ids": 0.25}},
    {"atol": 0.01},
    {"rtol": 0.01, "metric": "mean"},
    {"tol": 0.1, "metric": "quantile", "quantile": 0.5},
    {"tol": 0.003, "metric": "cosine"},
    {"tol": 20.0, "metric": "psnr"},
    {"tol": 0.01, "check": "embeddings:scores"},
    {"tol": 0.01, "check": "script"},
]


def model_of(folder: Path) -> Model:
    """Write a model with these outputs, one of whole numbers, and read it."""
    shapes = {"scores": [2, 8], "it's, $x": [3], "ids": [8]}
    inputs, outputs, nodes = [], [], []
    for number, (name, shape) in enumerate(shapes.items()):
        kind = TensorProto.INT64 if name == "ids" else TensorProto.FLOAT
        inputs.append(helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, shape))
        outputs.append(helper.make_tensor_value_info(name, kind, shape))
        nodes.append(helper.make_node("Tanh", [f"x{number}"], [f"t{number}"]))
        argmax = name == "ids"
        nodes.append(
            helper.make_node("ArgMax", [f"a{number}"], [name], axis=0, keepdims=0)
            if argmax
            else helper.make_node("Neg", [f"t{number}"], [name])
        )
        if argmax:
            nodes.insert(-1, helper.make_node("Expand", [f"t{number}", "two"], [f"a{number}"]))
    two = helper.make_tensor("two", TensorProto.INT64, [2], [2, 8])
    graph = helper.make_graph(nodes, "outputs", inputs, outputs, [two])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, folder / "m.onnx")
    return load_model(folder / "m.onnx")


def reopened(options: Options, comparator: object) -> Reopened:
    """Return a finished run of which nothing is known but what was asked, and what judged it."""
    told = plain_json.parse(plain_json.dumps(told_options(options)))
    model = load_model(options.model)
    finished = Finished(
        kept=(),
        fixed={},
        asked={},
        pinned={},
        pair=Pair(low="fp16", high="fp32"),
        shapes={},
        result=result_of((), (), fingerprint={"comparator": comparator}),
        path=Path("run/result.json"),
        options=options_of_result(told, options.model),
        code={},
        model=model,
    )
    return Reopened(model=model, finished=finished, options=finished.options, unlike=())


@pytest.mark.parametrize("asked", ASKED)
def test_it_is_made_again(asked: dict[str, Any], tmp_path: Path) -> None:
    """Settings and verdicts are the same, after a way through JSON."""
    check = asked.get("check")
    if check == "script":
        (tmp_path / "judge.py").write_text(SCRIPT)
        check = f"{tmp_path / 'judge.py'}:worst"
    options = Options(model=model_of(tmp_path).path, **{**asked, "check": check})
    made = choose_comparator(options, OUTPUTS, {"ids"})
    told = plain_json.parse(plain_json.dumps(made.settings()))
    again = comparator_of(reopened(options, told), check if "judge.py" in str(check) else None)
    assert made.settings() == again.settings()
    random = np.random.default_rng(0)
    reference: list[dict[str, Any]] = [
        {
            "scores": random.normal(size=(2, 8)).astype(np.float32),
            "it's, $x": random.normal(size=(3,)).astype(np.float32),
            "ids": random.integers(0, 9, (8,)),
        }
        for _ in range(2)
    ]
    for scale in (0.0, 1e-4, 3e-3, 0.3):
        outputs = [
            {k: v + (scale if v.dtype.kind == "f" else 0) for k, v in each.items()}
            for each in reference
        ]
        assert made.judge(outputs, reference) == again.judge(outputs, reference)


SCRIPTED = {"check": "a.py:f", "tol": 1.0}


@pytest.mark.parametrize(
    ("asked", "told", "check", "said"),
    [
        ({}, None, None, "is damaged: --metric elementwise is not what judged the run"),
        ({}, {"metric": 3}, None, "is damaged"),
        ({}, {"atol": {"y": "much"}, "metric": "elementwise"}, None, "is damaged"),
        ({"metric": "of-a-plug-in"}, {}, None, "there is no metric 'of-a-plug-in'"),
        (SCRIPTED, {}, None, "the run judged by the script 'a.py:f'; give it by --check"),
        (SCRIPTED, {}, "ssim", "give it by --check"),
        (SCRIPTED, {"script": "0" * 64}, "other", "is not the script"),
        ({}, {"metric": "elementwise"}, "other", "leave --check out"),
    ],
)
def test_what_cannot_be_made_is_said(
    asked: dict[str, Any], told: object, check: str | None, said: str, tmp_path: Path
) -> None:
    """One line, whatever a result tells; a script that has changed judges nothing."""
    if check == "other":
        (tmp_path / "a.py").write_text("def f(outputs, reference):\n    return 0.0\n")
        check = f"{tmp_path / 'a.py'}:f"
    run = reopened(Options(model=model_of(tmp_path).path, **asked), told)
    with pytest.raises(PrecisionBisectError) as error:
        comparator_of(run, check)
    assert said in error.value.one_line()
