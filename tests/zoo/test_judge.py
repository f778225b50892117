"""The zoo's evaluator of exported models: against FP16 arithmetic, and its verdicts on copies."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import models
from zoo.judge import Sample, copy_of, error, evaluator, judge
from zoo.rounded import UnknownTypeError, rounded

Array = NDArray[Any]
Binary = Callable[[Array, Array], Array]

SQUARED = """(float[N] x) => (float[N] y) <float k = {300}> {
    h = Cast<to = 10>(x)
    d = Cast<to = 10>(k)
    s = Mul(h, h)
    r = Div(s, d)
    y = Cast<to = 1>(r)
}"""
BINARY: Mapping[str, Binary] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}


def run(body: str, folder: Path, **inputs: Array) -> Array:
    """Return what the evaluator makes of a typed model written as text."""
    return evaluator(models.save(models.parse(body), folder))(inputs)[0]


def single(*values: float) -> NDArray[np.float32]:
    """Return FP32 values."""
    return np.array(values, np.float32)


def test_a_square_beyond_the_range_is_infinite(tmp_path: Path) -> None:
    """300 squared leaves FP16; 200 squared is 40,000, and a 300th of it is 133.375 in FP16."""
    got = run(SQUARED, tmp_path, x=single(300, 200))
    assert [float("inf"), 133.375] == got.tolist()


@pytest.mark.parametrize("name", BINARY)
def test_operators_round_as_numpy_does(name: str, tmp_path: Path) -> None:
    """Each operator of two FP16 tensors gives NumPy's FP16 result, subnormal ones too."""
    body = f"""(float[N] a, float[N] b) => (float[N] y) {{
        p = Cast<to = 10>(a)
        q = Cast<to = 10>(b)
        r = {name}(p, q)
        y = Cast<to = 1>(r)
    }}"""
    rng = np.random.default_rng(0)
    shape = 2, 5000
    drawn = rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 4, shape)
    a, b = drawn.astype(np.float32)
    with np.errstate(all="ignore"):
        expected = BINARY[name](a.astype(np.float16), b.astype(np.float16)).astype(np.float32)
    got = run(body, tmp_path, a=a, b=b)
    np.testing.assert_array_equal(expected, got)


def test_a_chain_is_rounded_at_each_step(tmp_path: Path) -> None:
    """A sum of two FP16 steps is rounded twice, constants as the graph stores them."""
    body = """(float[N] x) => (float[N] y) <float k = {0.1}> {
        h = Cast<to = 10>(x)
        tenth = Cast<to = 10>(k)
        s = Add(h, tenth)
        t = Sqrt(s)
        u = Tanh(t)
        y = Cast<to = 1>(u)
    }"""
    x = np.random.default_rng(0).uniform(0, 4, 1000).astype(np.float32)
    half = np.sqrt(x.astype(np.float16) + np.float16(0.1)).astype(np.float32)
    expected = np.tanh(half).astype(np.float16).astype(np.float32)
    got = run(body, tmp_path, x=x)
    assert np.abs(expected - got).max() <= np.spacing(np.float16(0.5))
    assert set(np.unique(got)) <= set(np.unique(got.astype(np.float16).astype(np.float32)))


def test_what_is_typed_fp32_is_not_rounded(tmp_path: Path) -> None:
    """A kept layer between two casts squares 300 in FP32."""
    body = """(float[N] x) => (float[N] y) <float k = {300}> {
        h = Cast<to = 10>(x)
        w = Cast<to = 1>(h)
        s = Mul(w, w)
        r = Div(s, k)
        l = Cast<to = 10>(r)
        y = Cast<to = 1>(l)
    }"""
    assert [300.0] == run(body, tmp_path, x=single(300)).tolist()


@pytest.mark.parametrize(("choice", "expected"), [(True, float("inf")), (False, 300.0)])
def test_branches_are_rounded(choice: bool, expected: float, tmp_path: Path) -> None:
    """FP16 inside the branches of an If is rounded, and so is what they read from outside."""
    body = """(float[1] x, bool c) => (float[1] y) {
        h = Cast<to = 10>(x)
        r = If (c) <
            then_branch = squared () => (float16[1] s) { s = Mul(h, h) },
            else_branch = same () => (float16[1] t) { t = Identity(h) }
        >
        y = Cast<to = 1>(r)
    }"""
    got = run(body, tmp_path, x=single(300.01), c=np.array(choice))
    assert [expected] == got.tolist()


def test_an_unknown_type_is_no_guess() -> None:
    """An operator that ONNX does not know, fed FP16, is refused and not taken for FP32."""
    body = """(float[1] x) => (float[1] y) {
        h = Cast<to = 10>(x)
        r = other.Thing(h)
        y = Cast<to = 1>(r)
    }"""
    with pytest.raises(UnknownTypeError, match="Thing"):
        rounded(models.parse(body, domains='"other": 1'))


def test_errors_are_elementwise() -> None:
    """An element passes within either limit; infinities and NaN must be the reference's own."""
    nan, inf = float("nan"), float("inf")
    cases: list[tuple[Array, Array, float, float]] = [
        (single(1.5, 100.5), single(1, 100), 0.5, 0.5),
        (single(102), single(100), 0.02, 2),
        (single(0.02), single(0), 0.02, 0.02),
        (single(nan, inf), single(nan, inf), 0, 0),
        (single(nan), single(1), inf, inf),
        (single(1), single(inf), inf, inf),
        (single(1, 2), single(1), inf, inf),
    ]
    for got, want, either, absolute in cases:
        assert pytest.approx(either) == error([got], [want], "tol")
        assert pytest.approx(absolute) == error([got], [want], "atol")


def test_copies_move_floats_alone() -> None:
    """A copy differs by about one part in 100,000; integers are the sample's own."""
    sample: Sample = {"x": np.full(1000, 3, np.float32), "ids": np.arange(4)}
    copy = copy_of(sample, np.random.default_rng(0))
    assert 1e-6 < np.std(copy["x"] / 3) < 2e-5
    assert copy["ids"] is sample["ids"]


def doubtful(folder: Path, kind: str) -> tuple[Path, Path]:
    """Save y = x, or of ids, and an export that rounds it to FP16."""
    names = {"float": "x", "int64": "cast"}
    given = "" if kind == "float" else "cast = Cast<to = 1>(x) "
    text = f"({kind}[1] x) => (float[1] y) {{ {given}%s }}"
    plain, typed = (text % f"y = Mul({names[kind]}, third)", text % "%s")
    weights = {"third": np.array([1 / 3], np.float32)}
    original = models.with_weights(models.parse(plain), weights)
    body = f"m = Mul({names[kind]}, third) h = Cast<to = 10>(m) y = Cast<to = 1>(h)"
    exported = models.with_weights(models.parse(typed % body), weights)
    return models.save(original, folder), models.save(exported, folder, "mixed.onnx")


def test_luck_with_one_rounding_is_seen(tmp_path: Path) -> None:
    """A value beside the middle of two FP16 numbers passes as it is and fails as copies."""
    original, exported = doubtful(tmp_path, "float")
    middle = 3 * (1 + 2**-11)
    sample = {"x": single(middle * (1 - 1e-6))}
    bound = 2**-11 * 0.9995
    found = judge(original, exported, judged=[sample], fresh=[sample], limit="atol", bound=bound)
    assert "inputs" == found.copied
    assert 0 < found.copies_failed < found.copies == 20
    assert found == judge(
        original, exported, judged=[sample], fresh=[sample], limit="atol", bound=bound
    )


def test_without_floats_the_noise_is_inside(tmp_path: Path) -> None:
    """Where the inputs are ids, copies differ by noise before results are rounded."""
    original, exported = doubtful(tmp_path, "int64")
    samples = [{"x": np.array([each])} for each in (3, 5, 7)]
    found = judge(
        original, exported, judged=samples, fresh=samples, limit="atol", bound=1e-2, copies=4
    )
    assert ("inside", 4, 0, 3, 0) == (
        found.copied,
        found.copies,
        found.copies_failed,
        found.fresh,
        found.fresh_failed,
    )
    model = rounded(onnx.load(exported), 1e-6)
    assert 1 == sum(node.op_type == "RandomNormalLike" for node in model.graph.node)


def test_no_fp16_is_left() -> None:
    """Of FP16 only the casts to it and back remain: no weight, constant, result or output."""
    half = helper.make_tensor("half", TensorProto.FLOAT16, [1], [2.0])
    body = """(float16[1] x) => (float16[1] y) {
        k = Constant<value = float16[1] {3}>()
        s = Mul(x, k)
        y = Add(s, half)
    }"""
    model = models.parse(body)
    model.graph.initializer.append(half)
    made = onnx.shape_inference.infer_shapes(rounded(model), strict_mode=True)
    low = {
        value.name
        for value in (*made.graph.value_info, *made.graph.input, *made.graph.output)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16
    }
    assert low == {
        node.output[0]
        for node in made.graph.node
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.FLOAT16
    }
