"""Builds of TensorRT-RTX that fail: called what they are, once, and apart from the search."""

from pathlib import Path

import pytest

import oracles
from models import keeping, normal, parse, save, with_weights
from precision_bisect.backends.tensorrt.flavour import Flavour
from precision_bisect.backends.tensorrt.tensorrt_backend import TensorRTBackend
from precision_bisect.graphs.load import Model, load_model
from precision_bisect.graphs.typed.rewrite import TypedWriter
from precision_bisect.pipeline.course import Course, flow
from precision_bisect.precisions import LowName, Pair
from precision_bisect.protocols import BackendFailure
from precision_bisect.runs.results.endings import Status
from precision_bisect.settings.engine_settings import EngineSettings
from precision_bisect.trial import TrialStatus
from precision_bisect_strategies.guided import Guided
from simulated import driven

MATRIX = "(float[8, 16] x) => (float[8, 16] y) { a = Exp(x) [k] b = MatMul(a, w) y = Tanh(b) }"
IMAGE = (
    "(float[1, 8, 6, 6] x) => (float[1, 8, 7, 7] y)"
    " { a = Exp(x) [k] b = ConvTranspose(a, w) y = Tanh(b) }"
)
UNKNOWN = "(float[3, 3] x) => (float y) { a = Exp(x) [k] b = Mul(a, a) y = Det(b) }"


def backend(
    rtx: Flavour, model: Model, work: Path, *, low: LowName = "fp16", capability: str = "8.6"
) -> TensorRTBackend:
    """Return the backend of a model."""
    settings = EngineSettings(compute_capability=capability)
    work.mkdir()
    writer = TypedWriter(model, Pair(low=low, high="fp32"))
    return TensorRTBackend(writer, settings, rtx, {}, work)


def model_of(body: str, folder: Path, *shape: int) -> Model:
    """Return a model with one weight of this shape, where one is given."""
    weights = {"w": normal(*shape)} if shape else {}
    return load_model(save(with_weights(parse(body), weights), folder))


@pytest.mark.parametrize(
    ("body", "shape", "low", "capability", "kept"),
    [
        (MATRIX, (16, 16), "fp16", "7.5", ["k"]),
        (IMAGE, (8, 8, 2, 2), "bf16", "8.6", []),
    ],
    ids=["no FP32 product for 7.5", "no transposed convolution in BF16"],
)
def test_what_the_compiler_refuses_is_no_failure_of_cuda(
    rtx: Flavour,
    tmp_path: Path,
    body: str,
    shape: tuple[int, ...],
    low: LowName,
    capability: str,
    kept: list[str],
) -> None:
    """Myelin ends these builds, and no other process would build them either."""
    model = model_of(body, tmp_path, *shape)
    engines = backend(rtx, model, tmp_path / "work", low=low, capability=capability)
    with pytest.raises(BackendFailure) as caught:
        engines.build(keeping(model, *kept))
    outcome = caught.value.outcome
    assert TrialStatus.BUILD_FAILED is outcome.status
    assert not outcome.retry


def test_fp32_that_does_not_build_is_an_ending_of_its_own(rtx: Flavour, tmp_path: Path) -> None:
    """After one build the run ends with TensorRT's own words; it is no precision problem."""
    model = model_of(UNKNOWN, tmp_path)
    with driven(tmp_path, backend(rtx, model, tmp_path / "work")) as driver:
        asked = oracles.problem(len(model.table.candidates))
        ending = driver.run(flow(asked, Guided(), Course()))
    assert (Status.NO_BASELINE, 1) == (ending.status, len(driver.trials))
    assert "the model with every layer high does not build: " in ending.message
    assert "checkDet" in ending.message
