"""What every backend promises, as a test that anybody can run on theirs.

`check_backend(make)` in a test of yours, where `make(model)` is what your plugin's `make` returns
for a task with FP16 as the low type. It needs nothing but this package. The model has a layer
that leaves FP16's range and one that cannot be seen to, so a backend that quietly computes in
another type than it was asked for is found out.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from precision_bisect.graphs.load import Model, load_model
from precision_bisect.plan import Plan
from precision_bisect.protocols import Backend, Sample
from precision_bisect.testing.driving import require

SQUARE_OVERFLOWS = 1000.0
"""Squared it is beyond FP16's largest value, 65504."""
FINE = 2.0**-12
"""Added to 1 it is lost in FP16, which has 11 significant bits."""
CLOSE = 1e-5
"""How far outputs in FP32 may be from numpy's, relative to them."""


def check_backend(make: Callable[[Model], Backend]) -> None:
    """Check every promise on one small model.

    Raises ContractError, an AssertionError, for the first promise that is broken.
    """
    with TemporaryDirectory() as folder:
        model = load_model(_written(Path(folder)))
        backend = make(model)
        _describes_itself(backend, model)
        _computes_what_it_is_asked(backend, model)


def _describes_itself(backend: Backend, model: Model) -> None:
    require(bool(backend.name), "it has no name")
    versions = backend.versions()
    require(
        all(isinstance(text, str) for pair in versions.items() for text in pair),
        f"versions are no texts: {versions}",
    )
    strange = backend.unbuildable().keys() - set(model.table.names)
    require(not strange, f"it calls unbuildable what is no candidate: {sorted(strange)}")


def _computes_what_it_is_asked(backend: Backend, model: Model) -> None:
    names = model.table.names
    exact = _expected()
    plans = {
        "all high": (Plan.of(range(len(names))), exact),
        "the overflow kept": (
            Plan.of(names.index(name) for name in ("square", "root")),
            {"y": exact["y"], "z": np.ones_like(exact["z"])},
        ),
    }
    for title, (plan, expected) in plans.items():
        # Twice, as a backend that keeps engines may give the first plan's to the second.
        for _ in range(2):
            got = _outputs(backend, plan)
            for name, array in expected.items():
                limit = CLOSE if title == "all high" else 2.0**-9
                require(
                    np.allclose(got[name], array, rtol=limit, atol=0),
                    f"with {title}, {name} is {got[name]}, not {array}",
                )
    low = _outputs(backend, Plan.of(()))
    require(
        not np.isfinite(low["y"]).any(),
        f"with every layer in FP16 the square of {SQUARE_OVERFLOWS} does not overflow: {low['y']}",
    )


def _outputs(backend: Backend, plan: Plan) -> Sample:
    with backend.build(plan) as engine:
        first, again = engine.run(_feed()), engine.run(_feed())
        evidence = engine.evidence()
    require({"y", "z"} == set(first), f"outputs are {sorted(first)}, not y and z")
    for name, array in first.items():
        require(array.shape == (4,), f"{name} has the shape {array.shape}, not (4,)")
        require(array.dtype == np.float32, f"{name} is {array.dtype}, not float32")
        same = np.array_equal(array, again[name], equal_nan=True)
        require(same, f"{name} differs from one run of an engine to the next")
    honoured = {honour.layer for honour in evidence.honours}
    require(len(honoured) == len(evidence.honours), "a layer is judged twice in the evidence")
    return first


def _feed() -> Sample:
    return {"x": np.array([1.0, 2.0, 4.0, 8.0], np.float32)}


def _expected() -> Sample:
    x = _feed()["x"]
    return {"y": x * np.float32(SQUARE_OVERFLOWS), "z": np.full(4, 1 + FINE, np.float32)}


def _written(folder: Path) -> Path:
    """Write y = sqrt((1000 x)^2), and z = x / x + 2^-12, for x of the shape (4,)."""
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
        contract (float[4] x) => (float[4] y, float[4] z)
        <float wide = {{{SQUARE_OVERFLOWS}}}, float fine = {{{FINE}}}> {{
            [scale] scaled = Mul(x, wide)
            [square] squared = Mul(scaled, scaled)
            [root] y = Sqrt(squared)
            [divide] one = Div(x, x)
            [add] z = Add(one, fine)
        }}"""
    path = folder / "contract.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path
