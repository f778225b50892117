"""A reference with NaN or Inf: where they are born, and what an exporter has to do with it."""

from pathlib import Path

import numpy as np
import pytest

from models import parse, save, with_weights
from precision_bisect import find
from precision_bisect.graphs.module_names import SCOPES

DROPS = "export it with optimize=False"
ROWS = "(float[4, 8] x) => (float[4, 8] y)"


@pytest.mark.parametrize(
    ("body", "born", "guarded"),
    [
        ("n = ReduceL2<axes = [1]>(x) d = Div(x, n) y = Mul(d, d)", "Div node_of_d", True),
        ("n = ReduceL2<axes = [1]>(x) r = Reciprocal(n) y = Mul(x, r)", "Reciprocal", True),
        ("a = Abs(x) l = Log(a) y = Mul(l, a)", "Log node_of_l", True),
        ("e = Exp(x) s = Exp(e) y = Sub(s, s)", "Exp node_of_s", False),
    ],
)
@pytest.mark.parametrize("exporter", ["", "torch.export"])
def test_it_is_said_where_and_which_exporter_drops_what_guards(
    body: str, born: str, guarded: bool, exporter: str, tmp_path: Path
) -> None:
    """The layer is the first whose NaN or Inf goes on; only its files are told of the flag."""
    model = parse(f"{ROWS} {{ {body} }}", opset=17, ir=8)
    if exporter:
        for node in model.graph.node:
            node.metadata_props.add(key=SCOPES, value=repr(["", node.name]))
    x = np.full((4, 8), 2, np.float32)
    x[1] = 0 if guarded else 50
    told = find(save(model, tmp_path), inputs={"x": x}, tol=1e-2, threads=1, out=tmp_path / "run")
    assert told.status == "not_precision"
    assert told.message is not None
    assert f"born in {born}" in told.message
    assert (DROPS in told.message) == bool(guarded and exporter)


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize(
    "body",
    [
        "m = Add(x, w) y = Sqrt(m)",
        "v = Identity(w) a = Abs(x) y = Mul(a, v)",
        "k = Constant<value_floats = [1.0]>() u = Mul(x, k) y = MatMul(u, w)",
        "a = Abs(x) c = Constant<value = bool {1}>() y = If(c) "
        "<then_branch = t () => (float[4, 8] s) { s = Add(a, w) }, "
        "else_branch = e () => (float[4, 8] r) { r = Identity(a) }>",
    ],
    ids=["read directly", "by Identity", "of a product", "in a body"],
)
def test_a_weight_that_is_not_finite_is_named(body: str, value: float, tmp_path: Path) -> None:
    """The inputs are no reason then, and the exporter is not either."""
    rows = 8 if "MatMul" in body else 4
    weight = np.ones((rows, 8), np.float32)
    weight[1, 3:5] = value
    model = with_weights(parse(f"{ROWS} {{ {body} }}"), {"w": weight})
    x = {"x": np.full((4, 8), 2, np.float32)}
    told = find(save(model, tmp_path), inputs=x, tol=1e-2, threads=1, out=tmp_path / "run")
    assert told.status == "not_precision"
    said = f"which reads the weight 'w': 2 NaN or Inf of {8 * rows}; mend that first"
    assert said in (told.message or "") and "inputs" not in (told.message or "")


@pytest.mark.parametrize(
    ("body", "born"),
    [
        ("l = Log(x) e = Exp(l) n = Neg(e) s = Sqrt(n) y = Mul(s, s)", "Sqrt node_of_s"),
        (
            "l = Log(x) p = Softmax<axis = 0>(l) r = Sub(p, p) d = Div(r, r) y = Add(d, p)",
            "Div node_of_d",
        ),
    ],
    ids=["a logarithm that Exp takes back", "a mask before Softmax"],
)
def test_inf_that_reaches_no_output_is_not_to_blame(body: str, born: str, tmp_path: Path) -> None:
    """Log of a row of zeros is -Inf, which goes no further; a later layer makes the NaN."""
    x = np.full((4, 8), 2, np.float32)
    x[1] = 0
    path = save(parse(f"{ROWS} {{ {body} }}"), tmp_path)
    told = find(path, inputs={"x": x}, tol=1e-2, threads=1, out=tmp_path / "run")
    assert f"born in {born}" in (told.message or "")
