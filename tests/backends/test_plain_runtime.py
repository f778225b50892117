"""Sessions against plain ONNX Runtime, which reads the file by itself."""

import gc
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from numpy.typing import NDArray

from effort import examples
from layout_graphs import LayoutMaker, layout_models
from models import loaded, normal, save, save_external
from precision_bisect.backends.emulation.emulator import EmulatedBackend
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.ort import CPU, Session
from precision_bisect.plan import Plan

ROUNDING = 1e-5
"""Of the largest value: sums in another order differ by about 1e-6."""


def sample(proto: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """Return an input of a model over pixels."""
    dims = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    return {"x": normal(*dims)}


def plain(path: Path, feed: dict[str, NDArray[np.float32]], *, optimised: bool) -> object:
    """Return what a session over the file gives, which has the options of a `Session`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimised:
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
        options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(path, options, providers=[CPU])
    return session.run(["y"], feed)[0]


def agrees(
    proto: onnx.ModelProto, folder: Path, write: Callable[[onnx.ModelProto, Path], Path] = save
) -> None:
    """Check sessions of both kinds, and the emulator with every layer high."""
    path, feed = write(proto, folder), sample(proto)
    model = load_model(path)
    expected = np.asarray(plain(path, feed, optimised=True))
    for optimised in (True, False):
        session = Session(model.proto, model.weights, 1, optimised=optimised)
        np.testing.assert_array_equal(
            plain(path, feed, optimised=optimised), session.run(feed)["y"]
        )
    every = Plan.all_high(len(model.table.candidates))
    found = EmulatedBackend(model, "fp16", 1).evaluate(every, feed)["y"]
    largest = float(np.abs(expected).max())
    np.testing.assert_allclose(expected, found, rtol=0, atol=ROUNDING * largest)


@examples(15)
@given(proto=layout_models())
def test_sessions_are_plain_onnx_runtimes(proto: onnx.ModelProto) -> None:
    """A session gives what ONNX Runtime gives for the file, whatever layouts it changes."""
    with tempfile.TemporaryDirectory() as folder:
        agrees(proto, Path(folder))


@pytest.mark.parametrize("write", [save, save_external])
@pytest.mark.parametrize("size", [6, 12])
def test_a_rewritten_weight_stays_so(
    tmp_path: Path, size: int, write: Callable[[onnx.ModelProto, Path], Path]
) -> None:
    """The optimizer moves a Transpose past a Mul and turns its weight, of the same name.

    Handing the old value over once more would end the run, or where all sizes are equal change the
    result.
    """
    maker = LayoutMaker(12, size, size, np.random.default_rng(0))
    maker.channels_last(["MatMul"])
    maker.first("Full")
    maker.channels_last(["MatMul"])
    agrees(maker.model(), tmp_path, write)


def test_rotary_embedding_between_transposes(tmp_path: Path) -> None:
    """The tables of cosines and sines are turned with what they multiply."""
    maker = LayoutMaker(12, 6, 6, np.random.default_rng(0))
    maker.attention(heads=2)
    agrees(maker.model(), tmp_path)


def test_a_session_holds_its_own_weights() -> None:
    """Arrays that are handed over may go, or change, once the session is open."""
    maker = LayoutMaker(12, 6, 6, np.random.default_rng(0))
    maker.first("Conv")
    model = loaded(maker.model())
    weights = {name: np.array(array) for name, array in model.weights.items()}
    feed = {"x": normal(1, 12, 6, 6)}
    session = Session(model.proto, weights, 1)
    before = session.run(feed)["y"]
    for array in weights.values():
        array[...] = 0
    np.testing.assert_array_equal(before, session.run(feed)["y"])


def test_a_session_that_copies_no_weights_keeps_them() -> None:
    """ONNX Runtime reads the caller's memory then, which must not go to others meanwhile."""
    maker = LayoutMaker(12, 6, 6, np.random.default_rng(0))
    maker.first("Conv")
    model = loaded(maker.model())
    weights = {name: np.array(array) for name, array in model.weights.items()}
    references = [weakref.ref(array) for array in weights.values()]
    feed = {"x": normal(1, 12, 6, 6)}
    session = Session(model.proto, weights, 1, optimised=False)
    before = session.run(feed)["y"]
    weights.clear()
    gc.collect()
    assert references and all(reference() is not None for reference in references)
    np.testing.assert_array_equal(before, session.run(feed)["y"])
    del session
    gc.collect()
    assert all(reference() is None for reference in references)
