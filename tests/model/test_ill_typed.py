"""Files whose 16-bit types do not fit, as exporters write them under autocast."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import precision_bisect
from models import normal, parse, save, with_weights
from precision_bisect.graphs.load import load_model

NORM = """(float[4,8] x) => (float[4,8] y) { [down] h = Cast<to = 10>(x)
    [bad] n = LayerNormalization(h, w) [up] f = Cast<to = 1>(n) [act] y = Sigmoid(f) }"""
CONV = """(float[1,2,4,8] x) => (float[1,2,4,8] y) { [down] h = Cast<to = 10>(x)
    [bad] n = Conv(h, k) [up] f = Cast<to = 1>(n) [act] y = Sigmoid(f) }"""
CONCAT = """(float[4,8] x) => (float[8,8] y) { [down] h = Cast<to = 10>(x)
    [bad] n = Concat<axis = 0>(h, x) [up] f = Cast<to = 1>(n) [act] y = Sigmoid(f) }"""
BODY = """(float[4,8] x, bool c) => (float[4,8] y) { [down] h = Cast<to = 10>(x)
    [if] f = If (c) <then_branch = t () => (float[4,8] o) { [bad] o = Add(h, x) },
                     else_branch = e () => (float[4,8] q) { [id] q = Identity(x) }>
    [act] y = Sigmoid(f) }"""
DECLARED = "(float[4,8] x) => (float16[4,8] y) { [first] f = Tanh(x) [bad] y = Sigmoid(f) }"
NOT_TAKEN = """(float[4,8] x) => (float16[n] y, float[4,8] z) {
    [one] o = Constant<value = float16 {1}>()
    [bad] y = Range(o, o, o) [act] z = Sigmoid(x) }"""
SCALE_APART = """(float[1,2,4,8] x) => (float[1,2,4,8] y) { [down] h = Cast<to = 10>(x)
    [norm] n = BatchNormalization(h, s, s, s, s) [up] f = Cast<to = 1>(n) [act] y = Sigmoid(f) }"""
WEIGHTS = {
    "w": np.ones(8, np.float32),
    "k": np.ones((2, 2, 1, 1), np.float32),
    "s": np.ones(2, np.float32),
}


def write(text: str, folder: Path) -> Path:
    """Write a model with those of the weights that it reads."""
    read = {name: array for name, array in WEIGHTS.items() if f"{name})" in text}
    return save(with_weights(parse(text), read), folder)


@pytest.mark.parametrize(
    ("text", "tensors"),
    [
        (NORM, ["'h' in FLOAT16", "'w' in FLOAT"]),
        (CONV, ["'h' in FLOAT16", "'k' in FLOAT"]),
        (CONCAT, ["'h' in FLOAT16", "'x' in FLOAT"]),
        (BODY, ["'h' in FLOAT16", "'x' in FLOAT"]),
        (DECLARED, ["'f' in FLOAT", "'y' in FLOAT16"]),
        (NOT_TAKEN, ["'o' in FLOAT16"]),
    ],
    ids=["norm", "conv", "concat", "body", "declared", "not taken"],
)
def test_the_node_is_named_and_the_fp32_form_is_searched(
    text: str, tensors: Sequence[str], tmp_path: Path
) -> None:
    """A remark has the node, what it reads in which type, and the way on; the export opens."""
    path = write(text, tmp_path)
    inputs = {
        spec.name: np.array(True)
        if spec.name == "c"
        else normal(*(int(n or 1) for n in spec.shape or ()))
        for spec in load_model(path).inputs
    }
    result = precision_bisect.find(path, inputs=[inputs], threads=1, out=tmp_path / "run")
    (note,) = [note for note in result.notes if "is ill-typed" in note]
    assert "is ill-typed: node 'bad' (" in note
    assert all(tensor in note for tensor in tensors)
    assert "without autocast" in note
    assert result.status.answers
    assert result.rechecked is not None and not result.rechecked.refutes


def test_types_that_an_operator_takes_apart_are_none(tmp_path: Path) -> None:
    """A BatchNormalization has a type of its own for its statistics."""
    assert () == tuple(load_model(write(SCALE_APART, tmp_path)).ill_typed)
