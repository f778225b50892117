"""Where forecasts are computed: what is asked for, what is refused, and what a run decides."""

from dataclasses import replace
from pathlib import Path

import pytest

from models import OVERFLOW, load_text
from precision_bisect.backends.cuda.provider import why_no_cuda
from precision_bisect.backends.emulation.emulator_plugin import choose_forecasts, forecaster
from precision_bisect.errors import ExitCode, PrecisionBisectError, UsageError
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.quantization.scales import Scales
from precision_bisect.options import Options

LONG_S = 9.0
no_cuda = pytest.mark.skipif(why_no_cuda() is None, reason="ONNX Runtime computes on CUDA here")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Return a small model."""
    return load_text(OVERFLOW, tmp_path)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"backend": "emulated"}, "the emulator judges on the CPU"),
        ({"backend": "tensorrt", "executor": "dask"}, "not for --executor dask"),
        ({"backend": "tensorrt", "isolate": "never"}, "needs child processes"),
    ],
)
def test_a_gpu_that_would_forecast_nothing_is_refused(
    model: Model, asked: dict[str, str], said: str
) -> None:
    """In one line, as wrong usage."""
    options = replace(Options(model=model.path, forecast_on="cuda"), **asked)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as error:
        choose_forecasts(options, model, LONG_S)
    assert said in error.value.one_line()
    assert ExitCode.USAGE is error.value.exit_code


@no_cuda
def test_a_gpu_that_is_not_there_is_refused_where_it_was_asked_for(model: Model) -> None:
    """With what is missing; where nothing was asked for, the CPU forecasts."""
    asked = Options(model=model.path, backend="tensorrt-rtx", forecast_on="cuda")
    with pytest.raises(PrecisionBisectError) as error:
        choose_forecasts(asked, model, LONG_S)
    assert error.value.hint
    for backend in ("tensorrt", "onnxruntime", "emulated"):
        options = Options(model=model.path, backend=backend)
        assert "cpu" == choose_forecasts(options, model, LONG_S).forecast_on


@no_cuda
def test_no_provider_takes_the_place_of_one_that_is_missing(model: Model) -> None:
    """ONNX Runtime itself would take the CPU instead and say nothing."""
    with pytest.raises(PrecisionBisectError):
        forecaster(model, Options(model=model.path), Scales(), on_gpu=True)
