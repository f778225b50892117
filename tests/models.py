"""Small ONNX models for the tests, written as text or saved with external data."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from precision_bisect.graphs.load import Model, load_model
from precision_bisect.plan import Plan

Arrays = Mapping[str, NDArray[Any]]

OVERFLOW = (
    "(float[1] x) => (float[1] y) <float k = {0.00333333333}> { s = Mul(x, x) y = Mul(s, k) }"
)
"""For x = 300 the square is beyond FP16's largest value, the result is 300."""

CANCELLATION = "(float[4] x) => (float[4] y) <float k = {400}> { s = Add(x, k) y = Sub(s, k) }"
"""Values near 1 lose most of their digits once 400 is added to them."""

UNDERFLOW = (
    "(float[4] x) => (float[4] y) <float a = {1e-5}, float b = {1e-4}, float c = {1e9}>"
    " { s = Mul(x, a) t = Mul(s, b) y = Mul(t, c) }"
)
"""Values near 1 become 1e-9, less than FP16 can hold, before they are scaled back."""


BROKEN_NORM = """(float[8] x) => (float[8] y) <float two = {2}, float eps = {1e-5}> {
  mean = ReduceMean<axes = [-1]>(x) d = Sub(x, mean) p = Pow(d, two)
  v = ReduceMean<axes = [-1]>(p) e = Add(v, eps) s = Sqrt(e) n = Div(d, s)
  m = Mul(g, n) y = Add(m, b) }"""
"""ONNX Runtime's LayerNorm fusion takes the output of Div, which it removes, for the scale."""


def parse(body: str, *, opset: int = 17, ir: int = 8, domains: str = "") -> onnx.ModelProto:
    """Return the model whose graph has this signature and body in ONNX's text format.

    `domains` are further opset imports, such as `"com.microsoft": 1`; local functions may follow
    the graph.
    """
    imports = f'"": {opset}' + (f", {domains}" if domains else "")
    return parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]> g {body}")


def with_weights(model: onnx.ModelProto, weights: Arrays) -> onnx.ModelProto:
    """Return the model itself with these initializers added."""
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def save(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """Save the model in a folder and return its path."""
    path = folder / name
    onnx.save(model, path)
    return path


def save_external(model: onnx.ModelProto, folder: Path, data: str = "model.data") -> Path:
    """Save the model with every initializer in one external file."""
    path = folder / "model.onnx"
    onnx.save(
        model,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=data,
        size_threshold=0,
    )
    return path


def load_text(body: str, folder: Path, *, opset: int = 17, domains: str = "") -> Model:
    """Parse, save and load a model written as text."""
    return load_model(save(parse(body, opset=opset, domains=domains), folder))


def loaded(proto: onnx.ModelProto) -> Model:
    """Return the model as a file of it loads; the file is gone then."""
    with TemporaryDirectory() as folder:
        return load_model(save(proto, Path(folder)))


def keeping(model: Model, *kept: str) -> Plan:
    """Return the plan that keeps the layers of these names."""
    names = list(model.table.names)
    return Plan.of(names.index(name) for name in kept)  # type: ignore[arg-type]


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Return seeded standard normal values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def broken_norm() -> onnx.ModelProto:
    """Return the norm that a fusion breaks, with weights that leave it as it is."""
    weights = {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    return with_weights(parse(BROKEN_NORM, opset=11, ir=7), weights)
