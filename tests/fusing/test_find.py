"""Norms and activations in pieces are found in every spelling, and nothing else is."""

from pathlib import Path

import pytest

from models import load_text
from norm_spellings import (
    AXES,
    GELUS,
    SOFTMAXES,
    SPELLINGS,
    activation,
    group_norm,
    layer_norm,
)
from precision_bisect.graphs.fusing.norms import find_decomposed


@pytest.mark.parametrize(("square", "quotient", "axes", "axis"), SPELLINGS)
def test_every_spelling_of_layernorm_is_found(
    tmp_path: Path, square: str, quotient: str, axes: str, axis: int
) -> None:
    """Square, quotient and axes may be written in any way; scale and bias belong to the norm."""
    text = layer_norm(square, quotient, axes, axis)
    (found,) = find_decomposed(load_text(text, tmp_path, opset=AXES[axes]))
    assert ("LayerNormalization", "h", "b") == (found.kind, found.source, found.output)
    assert (6 if axis == -1 else 4,) == found.size
    assert found.scale == found.bias == "scale"
    assert 0.01 == pytest.approx(found.epsilon)


def test_rms_norm_is_told_from_layernorm(tmp_path: Path) -> None:
    """Without a mean that is subtracted it is RMSNorm, scaled and not shifted."""
    (found,) = find_decomposed(load_text(layer_norm(centred=False), tmp_path))
    assert ("RMSNormalization", "d", "s") == (found.kind, found.source, found.output)


def test_group_norm_has_its_groups(tmp_path: Path) -> None:
    """A norm between two Reshapes, scaled by channel, is GroupNorm."""
    (found,) = find_decomposed(load_text(group_norm(), tmp_path))
    assert ("GroupNormalization", "h", "b") == (found.kind, found.source, found.output)
    assert (2, (4,)) == (found.groups, found.size)


@pytest.mark.parametrize("body", SOFTMAXES.values(), ids=SOFTMAXES)
def test_softmax_is_found(tmp_path: Path, body: str) -> None:
    """Exponentials over their sum are a softmax, shifted by the largest value or not."""
    (found,) = find_decomposed(load_text(activation(body), tmp_path))
    assert ("Softmax", "h", "b", (-1,)) == (found.kind, found.source, found.output, found.axes)


@pytest.mark.parametrize(("name", "body"), GELUS.items())
def test_gelu_is_found(tmp_path: Path, name: str, body: str) -> None:
    """Gelu is found by Erf and by Tanh, whatever the order of its factors."""
    (found,) = find_decomposed(load_text(activation(body), tmp_path))
    assert ("Gelu", "h", "b") == (found.kind, found.source, found.output)
    assert ("tanh" if name.startswith("tanh") else "none") == found.approximate


NOT_NORMS = [
    "m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) q = Mul(x, x) "
    "v = ReduceMean <axes = [-1]> (q) r = Sqrt(v) y = Div(d, r)",
    "m = ReduceMean <axes = [-1]> (x) d = Sub(m, x) q = Mul(x, d) "
    "v = ReduceMean <axes = [-1]> (q) r = Sqrt(v) y = Div(d, r)",
    "e = Exp(x) l = Log(e) t = ReduceSum <keepdims = 1> (l, last) y = Div(e, t)",
    "f = Erf(x) g = Add(f, one) k = Mul(x, g) y = Mul(k, half)",
]


@pytest.mark.parametrize("body", NOT_NORMS)
def test_what_only_looks_alike_is_left(tmp_path: Path, body: str) -> None:
    """Another square, another difference, another sum, another factor: none is the operator."""
    text = (
        "(float[2,4,6] x) => (float[2,4,6] y) <int64[1] last = {-1}, float one = {1}, "
        f"float half = {{0.5}}> {{ {body} }}"
    )
    assert [] == find_decomposed(load_text(text, tmp_path))
