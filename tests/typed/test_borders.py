"""Where Casts stand: at borders only, and nowhere that they would lose anything."""

from pathlib import Path

import numpy as np
import pytest

from models import keeping, load_text, normal, parse, save, with_weights
from precision_bisect.graphs.load import load_model
from precision_bisect.plan import Plan
from typed_graphs import casts, checked

LOWEST = Plan.of(())


def test_casts_stand_at_borders_only(tmp_path: Path) -> None:
    """One Cast for all low readers of an input, one for all FP32 readers of a low value."""
    model = load_text(
        """(float[4] x) => (float[4] y, float[4] z) {
            [a] a = Relu(x) [b] b = Neg(x) [c] c = Add(a, b)
            [k1] y = Exp(c) [k2] z = Sigmoid(c) }""",
        tmp_path,
    )
    assert ["x/fp16", "c/fp32"] == casts(checked(model, keeping(model, "k1", "k2")))
    assert ["x/fp16", "y/fp32", "z/fp32"] == casts(checked(model, LOWEST))
    assert ["a/fp16"] == casts(checked(model, keeping(model, "a", "b", "k1", "k2")))[:1]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ((), ["x/fp16", "y/fp32"]),
        (("r",), ["x/fp16", "t/fp32"]),
        (("w",), ["t/fp16", "y/fp32"]),
        (("w", "r"), []),
    ],
)
def test_followers_move_with_what_feeds_them(
    tmp_path: Path, kept: tuple[str, ...], expected: list[str]
) -> None:
    """A Transpose is low behind a low layer and FP32 behind a kept one."""
    model = load_text(
        """(float[2, 3] x) => (float[3, 2] y) {
            [w] a = Exp(x) t = Transpose(a) [r] y = Exp(t) }""",
        tmp_path,
    )
    assert expected == casts(checked(model, keeping(model, *kept)))


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (("h",), ["x/fp16", "b/fp16", "y/fp32"]),
        (("h", "r"), ["x/fp16", "a/fp32"]),
    ],
    ids=["read low", "read in FP32"],
)
def test_a_concat_of_both_goes_as_it_is_read(
    tmp_path: Path, kept: tuple[str, ...], expected: list[str]
) -> None:
    """Low and FP32 together are low if all readers round anyway, else FP32: nothing is lost."""
    model = load_text(
        """(float[4] x) => (float[8] y) {
            [l] a = Exp(x) [h] b = Sigmoid(x) c = Concat<axis = 0>(a, b) [r] y = Tanh(c) }""",
        tmp_path,
    )
    assert expected == casts(checked(model, keeping(model, *kept)))


@pytest.mark.parametrize(
    ("body", "fill", "kept", "expected"),
    [
        ("c = Concat<axis = 0>(a, k)", 0.1, ("r",), ["x/fp16", "a/fp32"]),
        ("c = Concat<axis = 0>(a, k)", 0.1, (), ["x/fp16", "y/fp32"]),
        ("c = Concat<axis = 0>(a, k)", 0.5, ("r",), ["x/fp16", "c/fp32"]),
        ("c = Pad(a, p, k)", 0.1, ("r",), ["x/fp16", "a/fp32"]),
        ("c = Pad(a, p, k)", 0.5, ("r",), ["x/fp16", "c/fp32"]),
        ("c = Pad(a, p)", 0.1, ("r",), ["x/fp16", "c/fp32"]),
    ],
)
def test_a_constant_is_rounded_for_low_readers_only(
    tmp_path: Path, body: str, fill: float, kept: tuple[str, ...], expected: list[str]
) -> None:
    """A follower takes in a constant as low where the readers are, or where it is exact."""
    proto = parse(f"(float[4] x) => (float[n] y) {{ a = Exp(x) {body} [r] y = Tanh(c) }}")
    constant = np.full(() if "Pad" in body else (1,), fill, np.float32)
    with_weights(proto, {"k": constant, "p": np.array([0, 1], np.int64)})
    model = load_model(save(proto, tmp_path))
    assert expected == casts(checked(model, keeping(model, *kept)))


@pytest.mark.parametrize(
    ("kept", "expected", "table"),
    [((), ["y/fp32"], "fp16"), (("r",), [], "fp32")],
    ids=["read low", "read in FP32"],
)
def test_an_embedding_is_low_where_it_is_read_low(
    tmp_path: Path, kept: tuple[str, ...], expected: list[str], table: str
) -> None:
    """A table whose rows go to low layers only is stored low; its shape needs nothing."""
    proto = parse(
        """(int64[3] i) => (float[3, 8] y, int64[2] s) {
            e = Gather(t, i) s = Shape(e) [r] y = Tanh(e) }"""
    )
    model = load_model(save(with_weights(proto, {"t": normal(50, 8)}), tmp_path))
    typed = checked(model, keeping(model, *kept))
    assert expected == casts(typed)
    names = {"fp16": "precision_bisect/weight/t/fp16", "fp32": "t"}
    assert [names[table]] == list(typed.weights)


def test_an_old_pad_keeps_its_fill(tmp_path: Path) -> None:
    """At opset 9 the fill is an attribute; one that FP16 does not hold stays FP32."""
    for fill, expected in ((0.1, "a/fp32"), (0.25, "c/fp32")):
        model = load_text(
            f"""(float[4] x) => (float[5] y) {{
                a = Exp(x) c = Pad<pads = [0, 1], value = {fill}>(a) [r] y = Tanh(c) }}""",
            tmp_path,
            opset=9,
        )
        assert ["x/fp16", expected] == casts(checked(model, keeping(model, "r")))


def test_shapes_are_read_from_any_type(tmp_path: Path) -> None:
    """Nothing is cast for a Shape."""
    model = load_text(
        """(float[2, 3] x) => (float[2, 3] y, int64[2] s) {
            [a] a = Exp(x) s = Shape(a) [b] y = Neg(a) }""",
        tmp_path,
    )
    assert ["x/fp16", "y/fp32"] == casts(checked(model, LOWEST))


def test_subgraphs_see_fp32_under_the_old_name(tmp_path: Path) -> None:
    """What an If captures keeps its name, and low layers read the low value beside it."""
    model = load_text(
        """(float[2] x, bool c) => (float[2] y) {
            [a] a = Exp(x) [b] b = Neg(a)
            i = If(c)<
                then_branch = t () => (float[2] p) { p = Relu(a) },
                else_branch = e () => (float[2] q) { q = Abs(a) }>
            [d] y = Add(i, b) }""",
        tmp_path,
    )
    typed = checked(model, LOWEST)
    assert ["x/fp16", "a/fp32", "i/fp16", "y/fp32"] == casts(typed)
    nodes = {node.name: node for node in typed.proto.graph.node}
    assert ["precision_bisect/low/a"] == list(nodes["b"].input)
    assert ["a"] == list(nodes["precision_bisect/cast/a/fp32"].output)


def test_outputs_read_inside_keep_name_and_type(tmp_path: Path) -> None:
    """A graph output that low layers read is written low, and cast for the output only."""
    model = load_text(
        "(float[2] x) => (float[2] a, float[2] y) { [a] a = Exp(x) [b] y = Neg(a) }", tmp_path
    )
    typed = checked(model, LOWEST)
    assert ["x/fp16", "a/fp32", "y/fp32"] == casts(typed)
    assert typed.proto.graph.output == model.proto.graph.output
