"""Tensors of a session, shown as outputs: only where the session stays the same."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import models
from precision_bisect.backends.cuda.cuda_backend import shown_by_session
from precision_bisect.backends.cuda.opening import Opener
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import CPU
from precision_bisect.graphs.typed.model_files import TypedFolder
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.plan import Plan
from precision_bisect.precisions import Pair

TWO = """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) <float[4, 4, 3, 3] w> {
    [conv] a = Conv <pads = [1, 1, 1, 1]> (x, w)
    [relu] b = Relu (a)
    [tanh] c = Tanh (b)
    [root] y = Sqrt (c)
}"""


def shown(folder: Path, plan: Plan) -> dict[str, NDArray[Any]]:
    """Return what the CPU's session of a plan shows, by name."""
    weights = {"w": models.normal(4, 4, 3, 3)}
    model = load_model(models.save(models.with_weights(models.parse(TWO), weights), folder))
    typed = TypedWriter(model, Pair(low="fp16", high="fp32")).write(plan, guard_islands=False)
    files = TypedFolder(folder / "typed", from_root=True)
    opener = Opener(providers=[CPU], profiles=folder / "profile")
    (tensors,) = shown_by_session(files, typed, opener, [{"x": models.normal(1, 4, 8, 8)}])
    return {tensor.name: tensor.values for tensor in tensors}


def test_what_is_fused_stays_so(tmp_path: Path) -> None:
    """Conv takes the Relu in, so the tensor between them is not shown; all others are."""
    tensors = shown(tmp_path, Plan.all_high(4))
    assert {"b", "c", "y"} == tensors.keys()
    np.testing.assert_allclose(np.tanh(tensors["b"]), tensors["c"], rtol=1e-5)
    assert [] == [*tmp_path.glob("shown.onnx")]
