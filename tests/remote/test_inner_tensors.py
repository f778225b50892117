"""What hosts show from inside a plan, tried over a real sshd."""

from pathlib import Path

import numpy as np
import pytest

import tiny
from loopback import Boards, lacks
from precision_bisect.backends.emulation.engine_errors import look_into
from precision_bisect.backends.inspection.shown_tensors import ShowsTensors
from precision_bisect.commandline.main import main
from precision_bisect.graphs.load import load_model
from precision_bisect.graphs.lowtypes import LOW_TYPES
from precision_bisect.runs.results.tensor_errors import read_tensor_errors
from remote.hosts import backend, command, kept, tiny_model

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())


def test_tensors_from_inside_come_back(board: Boards, tmp_path: Path) -> None:
    """trtexec's files are those of the model's tensors; Inf is born where the model squares."""
    model, work = load_model(tiny_model(tmp_path)), tmp_path / "work"
    work.mkdir()
    remote = backend(board, model, work)
    assert isinstance(remote, ShowsTensors)
    feed = {"x": np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32)}
    errors = look_into(model, LOW_TYPES["fp16"], [feed], remote.show).tensors
    assert ["n4_Mul", "n13_Mul"] == errors.born
    tensors = [error.tensor for error in errors.tensors]
    # What is finite and far off, as behind Inf, could as well be another tensor.
    assert [f"v{number}" for number in range(7)] == tensors[:7]
    shown = {error.layer: error for error in errors.tensors}
    assert not shown["n4_Mul"].finite
    assert 0 < shown["n1_Tanh"].rms < 1e-3
    del remote


@pytest.mark.nightly
def test_a_ranking_by_what_the_board_shows(board: Boards, tmp_path: Path) -> None:
    """The answer is that of the emulator's ranking; the run says where NaN and Inf are born."""
    model = tiny_model(tmp_path)
    assert 0 == main(command(model, board, "--rank-by", "engine"))
    assert sorted(tiny.KEPT) == kept(model)
    errors = read_tensor_errors(model.parent / "run")
    assert errors is not None
    assert ["n4_Mul", "n13_Mul"] == errors.born
