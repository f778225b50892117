"""What plans cost by estimate: in the samples' batch and a full one, with TF32 and without."""

from pathlib import Path

import numpy as np
import pytest

from models import parse, save, with_weights
from precision_bisect.options import Options
from precision_bisect.pipeline.plan_estimates import FULL, Estimates, estimates_of
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.runs.monitoring.events import ignore
from precision_bisect.search.speed.costs import cost_graph
from precision_bisect.settings.targets import TF32

SIDE = 256
PLANS = ((), (0,), (0, 1))
"""Plans to compare times by: of two layers none, one and both are kept."""


def prepared_for(folder: Path, **shapes: tuple[int, int]) -> Prepared:
    """Return a product and an Exp, fed inputs of these shapes; the second one is added."""
    inputs = ", ".join(f"float[{rows},{SIDE}] {name}" for name, (rows, _) in shapes.items())
    end = "s = ReduceSum(z) y = Add(q, s)" if "z" in shapes else "y = Identity(q)"
    model = parse(f"({inputs}) => (float[n,{SIDE}] y) {{ [a] p = MatMul(x, w) q = Exp(p) {end} }}")
    weights = np.full((SIDE, SIDE), 1e-3, np.float32)
    path = save(with_weights(model, {"w": weights}), folder)
    feed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    (folder / "work").mkdir()
    options = Options(model=path, inputs=[feed], tol=1e-2, threads=1, backend="emulated")
    return prepare(options, ignore, folder / "work")


def times(estimates: Estimates, case: str) -> list[list[float]]:
    """Return the times of some plans in the samples' batch, and in a full one."""
    return [[graph.time(kept) for kept in PLANS] for graph in estimates.of(case)]


def test_a_full_batch_is_so_many_of_the_samples(tmp_path: Path) -> None:
    """Its products are larger, and launches of kernels count for nothing."""
    case = (prepared := prepared_for(tmp_path, x=(2, SIDE))).case
    (own, full), (own_tf32, full_tf32) = (times(estimates_of(prepared), c) for c in ("", TF32))
    (tmp_path / "full").mkdir()
    large = prepared_for(tmp_path / "full", x=(2 * FULL, SIDE)).case
    for tf32, small_times, large_times in ((False, own, full), (True, own_tf32, full_tf32)):
        graph = cost_graph(case.model, case.shapes, tf32=tf32)
        assert [graph.time(kept) for kept in PLANS] == pytest.approx(small_times)
        graph = cost_graph(large.model, large.shapes, 0.0, tf32=tf32)
        assert [graph.time(kept) for kept in PLANS] == pytest.approx(large_times)
    assert own_tf32[-1] < own[-1] and full_tf32[-1] < full[-1]


def test_inputs_without_a_batch_in_common_have_no_full_one(tmp_path: Path) -> None:
    """There launches alone do not count; a batch of one input would be none of the other."""
    prepared = prepared_for(tmp_path, x=(2, SIDE), z=(3, SIDE))
    case = prepared.case
    graph = cost_graph(case.model, case.shapes, 0.0)
    _, full = times(estimates_of(prepared), "")
    assert [graph.time(kept) for kept in PLANS] == pytest.approx(full)
