"""Every reason for which a node is no layer to decide on, shown by a model."""

from pathlib import Path

import pytest

from models import load_text
from precision_bisect.graphs.typed.pinning import pin_formless
from precision_bisect.layer_table import Exclusion
from precision_bisect.precisions import Pair

IF = (
    "(bool c, float[1] x) => (float[1] y) { [n] y = If (c) <"
    "then_branch = t () => (float[1] a) { a = Exp(x) },"
    "else_branch = e () => (float[1] b) { b = Neg(x) }> }"
)
CASES = {
    Exclusion.FOLLOWER: "(float[2] x) => (float[2] y) { [n] y = Identity(x) }",
    Exclusion.CONSTANT: "(float[1] x) => (float[1] y) <float[1] a = {1}>"
    " { [n] b = Exp(a) y = Add(x, b) }",
    Exclusion.SHAPE: "(float[m] x) => (int64[1] y) { s = Shape(x) [n] y = Add(s, s) }",
    Exclusion.NOT_FLOAT: "(float[2] x) => (bool[2] y) { [n] y = Less(x, x) }",
    Exclusion.DOUBLE: "(double[2] x) => (double[2] y) { [n] y = Exp(x) }",
    Exclusion.CAST: "(int64[2] x) => (float[2] y) { [n] y = Cast<to = 1>(x) }",
    Exclusion.QUANTIZATION: "(int8[2] x) => (float[2] y) <float s = {1}>"
    " { [n] y = DequantizeLinear(x, s) }",
    Exclusion.CONTROL_FLOW: IF,
    Exclusion.RANDOM: "(float[2] x) => (float[2] y) { [n] y = RandomNormalLike(x) }",
    Exclusion.CUSTOM: "(float[2] x) => (float[2] y) { [n] y = com.microsoft.Gelu(x) }",
    Exclusion.NOT_TENSOR: "(float[2] x) => (seq(float[2]) y) { [n] y = SequenceConstruct(x) }",
    Exclusion.PINNED: "(float[2] x) => (float[2] y) { [n] y = Celu(x) }",
    Exclusion.UNTYPED: "(float[2] x) => (float[2] y)"
    " { a = acme.Frob(x) [n] b = Exp(a) y = Relu(b) }",
}


# What the user asks for no model shows, nor what a ladder has settled.
@pytest.mark.parametrize("reason", [*CASES])
def test_every_reason_has_a_model_that_shows_it(tmp_path: Path, reason: Exclusion) -> None:
    """Node `n` of the model is excluded for just this reason."""
    model = load_text(CASES[reason], tmp_path, domains='"com.microsoft": 1, "acme": 1')
    model = pin_formless(model, Pair(low="fp16", high="fp32"))
    found = {str(layer.name): layer.exclusion for layer in model.table.layers}
    assert found["n"] is reason
    assert {*Exclusion} == {*CASES, Exclusion.ASKED, Exclusion.RUNG}


@pytest.mark.parametrize(
    ("body", "candidate"),
    [
        ("(float[2] x, int64[2] i) => (float[2] y) { [n] y = ScatterElements(x, i, x) }", False),
        ("(float[2] x, int64[2] i) => (float[2] y)"
         ' { [n] y = ScatterElements<reduction = "add">(x, i, x) }', True),
        ("(float[m] x) => (float[m] y) { s = Shape(x) f = Cast<to = 1>(s) [n] y = Mul(x, f) }",
         True),
        ("(float[m] x) => (float[m] y) { s = Shape(x) f = Cast<to = 1>(s) [n] g = Mul(f, f)"
         " y = Mul(x, g) }", False),
        ("(float[4,4,4] x) => (float[4,4,4] y, int64[4,4,4] i)"
         " { [n] y, i = MaxPool<kernel_shape = [1]>(x) }", True),
    ],
    ids=["scatter", "scatter-add", "reads-shape", "is-shape", "first-output-float"],
)  # fmt: skip
def test_border_cases(tmp_path: Path, body: str, candidate: bool) -> None:
    """Operators that compute only in some uses are layers only in those."""
    model = load_text(body, tmp_path)
    assert ("n" in model.table.names) is candidate
