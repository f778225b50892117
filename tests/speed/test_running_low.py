"""What share of a model runs low, and what no plan changes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import precision_bisect
from models import parse, save
from precision_bisect.graphs.load import load_model
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair
from precision_bisect.runs.results.low_share import LowShare
from precision_bisect.search.speed.running_low import running_low
from precision_bisect_reports.summary import final_screen

PAIR = Pair(low="fp16", high="fp32")
PRODUCTS = (
    "(float[8,4] x) => (float[8,2] y) <float[4,6] a, float[6,2] b> "
    "{ p = MatMul(x, a) r = Relu(p) y = MatMul(r, b) }"
)
FIXED = {
    "a custom operator": (
        "(float[2,4] x) => (float[2,4] y) { s = com.microsoft.Gelu(x) y = Exp(s) }",
        {"Gelu": 1},
    ),
    "a body": (
        "(float[4] x, bool c) => (float[4] y) { e = Exp(x) y = If (c) <"
        "then_branch = t () => (float[4] z) { w = Exp(e) z = Neg(w) }, "
        "else_branch = f () => (float[4] v) { v = Sqrt(e) }> }",
        {"If": 3},
    ),
}


def share_of(folder: Path, text: str, kept: Plan) -> LowShare:
    """Return what runs low of a model, by the shapes in its text."""
    model = load_model(save(parse(text), folder))
    return running_low(model, PAIR, kept, {})


@given(kept=st.sets(st.integers(0, 2)))
def test_the_share_is_that_of_the_products_that_run_low(
    tmp_path_factory: pytest.TempPathFactory, kept: set[int]
) -> None:
    """8 x 4 x 6 multiplications in the first, 8 x 6 x 2 in the second, none in between."""
    products = PRODUCTS.replace("float[4,6] a", f"float[4,6] a = {numbers(24)}")
    products = products.replace("float[6,2] b", f"float[6,2] b = {numbers(12)}")
    found = share_of(tmp_path_factory.mktemp("products"), products, Plan.of(kept))
    low = 192 * (0 not in kept) + 96 * (2 not in kept)
    assert pytest.approx(low / 288) == found.multiplications
    assert 3 - len(kept) == found.layers
    moved = {0: 32 + 24 + 48, 1: 48 + 48, 2: 48 + 12 + 16}
    part = sum(count for place, count in moved.items() if place not in kept)
    assert pytest.approx(part / sum(moved.values())) == found.bytes
    assert not found.fixed


@pytest.mark.parametrize(
    "body",
    [
        "If (c) < then_branch = t () => (float[4,4] z) "
        "{ z = MatMul(p, p) }, else_branch = f () => (float[4,4] v) { v = Abs(p) } >",
        "Loop (n, c, p) < body = b (int64 i, bool g, float[4,4] s) => (bool k, float[4,4] z) "
        "{ k = Identity(g) z = MatMul(s, s) } >",
    ],
    ids=["If", "Loop"],
)
def test_a_product_in_a_body_does_not_run_low(tmp_path: Path, body: str) -> None:
    """Of two equal products, one inside, half runs low, with no layer kept."""
    text = f"(float[4,4] x, bool c, int64 n) => (float[4,4] y) {{ p = MatMul(x, x) y = {body} }}"
    assert 0.5 == share_of(tmp_path, text, Plan.of(())).multiplications


def numbers(count: int) -> str:
    """Return so many ones, as the text of a model has them."""
    return f"{{{', '.join(['1'] * count)}}}"


@pytest.mark.parametrize("case", FIXED)
def test_what_no_plan_changes_is_counted_apart(tmp_path: Path, case: str) -> None:
    """It is no part of the rest that runs low, with every layer low either."""
    text, fixed = FIXED[case]
    found = share_of(tmp_path, text, Plan.of(()))
    assert fixed == found.fixed
    assert 1 == found.layers
    assert found.bytes is not None and found.bytes < 1


def test_the_headline_says_what_changes(tmp_path: Path) -> None:
    """A custom operator keeps its type, and the target is one that has it."""
    text = (
        "(float[2,4] x) => (float[2,4] y) <float k = {0.003}> "
        "{ g = com.microsoft.QuickGelu(x) q = Mul(g, g) s = Mul(q, k) y = Neg(s) }"
    )
    path = save(parse(text), tmp_path)
    feeds = [{"x": np.full((2, 4), 300, np.float32)}]
    result = precision_bisect.find(path, inputs=feeds, tol=1e-2, threads=1, out=tmp_path / "run")
    lines = [line.plain for line in final_screen(result, path, 200)]
    assert "2 of 3 layers stay FP32, 1 runs in FP16" in lines[1]
    assert "1 other (QuickGelu) cannot change" in lines[1]
    assert "onnxruntime" == result.target
    assert not [each for each in result.other_targets if "tensorrt" in each.targets]
    asked = precision_bisect.find(
        path, inputs=feeds, tol=1e-2, threads=1, out=tmp_path / "asked", target="tensorrt"
    )
    facts = [line.plain for line in final_screen(asked, path, 200)]
    warned = [n for n, line in enumerate(facts) if "TensorRT cannot run operators" in line]
    assert warned and warned[0] < next(n for n, line in enumerate(facts) if "  error " in line)
