"""What is said where ONNX Runtime's own options fail with every layer in FP32."""

from dataclasses import replace
from pathlib import Path

import pytest

from precision_bisect.backends.cuda.defaults import warning_of
from precision_bisect.options import Options
from precision_bisect.pipeline.deploying import high_by_defaults, session_options, warned
from precision_bisect.pipeline.prepare import Prepared, prepare
from precision_bisect.results.deployment import ByDefaults, Recheck
from precision_bisect.search.events import Event, ignore
from precision_bisect.settings.engine_settings import EngineSettings
from tiny import samples, write_model

FAILS = ByDefaults(outcome="fail", error=0.0186, options=("use_tf32=0",))
HIGH = Recheck(outcome="pass", message="", error=3e-5, library_defaults=FAILS)


def test_tf32_is_said_with_what_to_set() -> None:
    """The error of FP32 itself, the limit, the option, and that kept layers do not help."""
    expected = (
        "with TF32, which ONNX Runtime, trtexec and TensorRT allow by default, the FP32 model "
        "itself is off by 0.0186, tolerance 0.01, whatever is kept: set use_tf32=0 where it is "
        "deployed (trtexec --noTF32); layers kept for their rounding gain nothing under TF32"
    )
    assert expected == warning_of(HIGH, 1e-2)


def test_another_option_is_named_alike() -> None:
    """Where it is not TF32, nothing is said of it."""
    defaults = replace(FAILS, options=("cudnn_conv_algo_search=HEURISTIC",))
    said = warning_of(replace(HIGH, library_defaults=defaults), 1e-2)
    assert "set cudnn_conv_algo_search=HEURISTIC where it is deployed" in said
    assert "TF32" not in said
    broken = replace(FAILS, error=None, options=("disabled_optimizers as in x.py",))
    assert "the FP32 model itself does not open, whatever" in warning_of(
        replace(HIGH, library_defaults=broken), 1e-2
    )


@pytest.mark.parametrize(
    "high",
    [
        replace(HIGH, library_defaults=replace(FAILS, outcome="pass", options=())),
        replace(HIGH, outcome="fail"),
        Recheck(outcome="not_judged", message="no CUDA"),
    ],
)
def test_nothing_is_said_where_nothing_is_known(high: Recheck) -> None:
    """Defaults that pass, a model that fails anyway, and no judge are no warning."""
    assert "" == warning_of(high, 1e-2)


def prepared(folder: Path) -> Prepared:
    """Return a run of the small model, on the emulator."""
    options = Options(
        model=write_model(folder / "tiny.onnx"),
        inputs=samples(2),
        backend="emulated",
        out=folder / "run",
    )
    (folder / "work").mkdir()
    return prepare(options, ignore, folder / "work")


def test_predictions_are_not_asked(tmp_path: Path) -> None:
    """Where the emulator judges, no process is started and nothing is said."""
    run = prepared(tmp_path)

    def refuse(event: Event) -> None:
        raise AssertionError(event)

    assert warned(run, refuse) is run


def test_every_layer_high_is_written_and_judged(tmp_path: Path) -> None:
    """The model goes into the run's own work folder and leaves nothing there.

    Without CUDA the script is written and runs, and says that it cannot judge.
    """
    import onnxruntime

    run = prepared(tmp_path)
    found = high_by_defaults(run)
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        assert "pass" == found.outcome
    else:
        assert "has no CUDAExecutionProvider" in found.message
    assert [] == list((tmp_path / "work").iterdir())


def test_options_are_the_judges() -> None:
    """What is written for the target is what a build on CUDA is opened with."""
    options = session_options(EngineSettings())
    assert "0" == options.provider_options["use_tf32"]
    assert {"NchwcTransformer", "NhwcTransformer"} == set(options.disabled_optimizers)
    assert "1" == session_options(EngineSettings(tf32=True)).provider_options["use_tf32"]
