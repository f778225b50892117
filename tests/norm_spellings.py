"""Norms and activations in pieces, in the spellings of several exporters, as ONNX text."""

from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models import parse, save

SQUARES = {"pow": "q = Pow(d, two)", "mul": "q = Mul(d, d)"}
QUOTIENTS = {
    "div-sqrt": "r = Sqrt(w) n = Div(d, r)",
    "mul-reciprocal": "r = Sqrt(w) i = Reciprocal(r) n = Mul(d, i)",
    "reciprocal-mul": "r = Sqrt(w) i = Reciprocal(r) n = Mul(i, d)",
    "one-over": "r = Sqrt(w) i = Div(one, r) n = Mul(d, i)",
    "root-of-reciprocal": "r = Reciprocal(w) i = Sqrt(r) n = Mul(d, i)",
    "pow-minus": "i = Pow(w, minus) n = Mul(d, i)",
    "pow-half": "r = Pow(w, half) n = Div(d, r)",
}
AXES = {"attribute": 17, "input": 18}
SPELLINGS = list(product(SQUARES, QUOTIENTS, AXES, (-1, 1)))
SHAPE = (2, 4, 6)
SCALAR = (
    "float two = {2}, float one = {1}, float half = {0.5}, float minus = {-0.5}, "
    "float eps = {0.01}"
)


def layer_norm(
    square: str = "pow",
    quotient: str = "div-sqrt",
    axes: str = "attribute",
    axis: int = -1,
    *,
    centred: bool = True,
) -> str:
    """Return the text of a graph with one norm, scaled and shifted, between two products."""
    along = f"<axes = [{axis}], keepdims = 1>" if axes == "attribute" else "<keepdims = 1>"
    more = "" if axes == "attribute" else ", axes"
    mean = f"m = ReduceMean {along} (h{more}) d = Sub(h, m)" if centred else "d = Identity(h)"
    size = "6" if axis == -1 else "4,1"
    scale = ", ".join(str(1 + 0.1 * i) for i in range(6 if axis == -1 else 4))
    given = "" if axes == "attribute" else f", int64[1] axes = {{{axis}}}"
    body = (
        f"h = Mul(x, one) {mean} {SQUARES[square]} v = ReduceMean {along} (q{more}) "
        f"w = Add(v, eps) {QUOTIENTS[quotient]} s = Mul(n, scale) "
        f"b = {'Add(s, scale)' if centred else 'Identity(s)'} y = Mul(b, half)"
    )
    return (
        f"(float[2,4,6] x) => (float[2,4,6] y) <{SCALAR}{given}, "
        f"float[{size}] scale = {{{scale}}}> {{ {body} }}"
    )


SOFTMAXES = {
    "plain": "e = Exp(h) t = ReduceSum <keepdims = 1> (e, last) b = Div(e, t)",
    "shifted": "p = ReduceMax <axes = [-1], keepdims = 1> (h) z = Sub(h, p) e = Exp(z) "
    "t = ReduceSum <keepdims = 1> (e, last) b = Div(e, t)",
    "reciprocal": "e = Exp(h) t = ReduceSum <keepdims = 1> (e, last) i = Reciprocal(t) "
    "b = Mul(e, i)",
}
GELUS = {
    "div": "a = Div(h, root) f = Erf(a) g = Add(f, one) k = Mul(h, g) b = Mul(k, half)",
    "mul": "a = Mul(h, inverse) f = Erf(a) g = Add(one, f) k = Mul(h, half) b = Mul(k, g)",
    "half-last": "a = Mul(h, inverse) f = Erf(a) g = Add(f, one) k = Mul(g, half) b = Mul(h, k)",
    "tanh-pow": "c = Pow(h, three) l = Mul(c, cubic) o = Add(h, l) a = Mul(o, outer) f = Tanh(a) "
    "g = Add(f, one) k = Mul(h, half) b = Mul(k, g)",
    "tanh-mul": "u = Mul(h, h) c = Mul(u, h) l = Mul(cubic, c) o = Add(h, l) a = Mul(outer, o) "
    "f = Tanh(a) g = Add(one, f) k = Mul(g, half) b = Mul(h, k)",
}


def activation(body: str) -> str:
    """Return the text of a graph with one activation between two products."""
    return (
        f"(float[2,4,6] x) => (float[2,4,6] y) <{SCALAR}, int64[1] last = {{-1}}, "
        "float root = {1.4142135}, float inverse = {0.70710678}, float three = {3}, "
        f"float cubic = {{0.044715}}, float outer = {{0.7978846}}> "
        f"{{ h = Mul(x, one) {body} y = Mul(b, half) }}"
    )


def group_norm() -> str:
    """Return the text of a graph with a GroupNorm of two groups between two Reshapes."""
    return (
        f"(float[2,4,6] x) => (float[2,4,6] y) <{SCALAR}, int64[3] into = {{0, 2, -1}}, "
        "int64[3] back = {2, 4, 6}, float[4,1] scale = {1, 1.1, 1.2, 1.3}> "
        "{ h = Mul(x, one) f = Reshape(h, into) m = ReduceMean <axes = [2], keepdims = 1> (f) "
        "d = Sub(f, m) q = Mul(d, d) v = ReduceMean <axes = [2], keepdims = 1> (q) "
        "w = Add(v, eps) r = Sqrt(w) n = Div(d, r) o = Reshape(n, back) s = Mul(o, scale) "
        "b = Add(s, scale) y = Mul(b, half) }"
    )


def saved(text: str, folder: Path, opset: int = 17) -> Path:
    """Save the graph as a model and return its path."""
    return save(parse(text, opset=opset), folder)


def large(scale: float = 1000.0, seed: int = 0) -> list[dict[str, NDArray[np.float32]]]:
    """Return one sample whose squares leave FP16's range for the default scale."""
    values = np.random.default_rng(seed).standard_normal(SHAPE) * scale
    return [{"x": values.astype(np.float32)}]
