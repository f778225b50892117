"""Arguments that say where trials run and what they may take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_bisect.commandline.arguments.run_flags import run_parser, to_options
from precision_bisect.errors import ExitCode, UsageError
from precision_bisect.options import Options
from precision_bisect.settings.reading import mebibytes, parse_workers


def options(*arguments: str) -> Options:
    """Return the options of a command line."""
    return to_options(run_parser().parse_args(["model.onnx", "--tol", "1e-2", *arguments]))


@given(st.lists(st.integers(0, 99), min_size=1))
def test_each_gpu_has_a_worker(gpus: list[int]) -> None:
    """As many workers as GPUs, in their order."""
    names = tuple(map(str, gpus))
    assert (len(gpus), names) == parse_workers(f"gpu:{','.join(names)}")


def test_gpus_have_longer_names_too() -> None:
    """UUIDs of GPUs and of their slices, with spaces after commas."""
    text = "gpu:GPU-8932f937, MIG-GPU-8932f937/1/0"
    assert (2, ("GPU-8932f937", "MIG-GPU-8932f937/1/0")) == parse_workers(text)


@given(st.integers(-9, 99))
def test_a_number_of_workers_names_no_gpu(count: int) -> None:
    """Whether it can work is for the options to say."""
    assert (count, ()) == parse_workers(str(count))


@pytest.mark.parametrize(
    "text", ["", "gpu:", "gpu:0,,1", "gpu:0 1", "gpu:a", "2.5", "cpu:0", "--"]
)
def test_other_workers_are_refused(text: str) -> None:
    """With both ways to write them."""
    with pytest.raises(UsageError) as error:
        parse_workers(text)
    assert f"--workers {text} is no number of workers" == error.value.message
    assert "--workers gpu:0,1,2,3" in error.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [("512M", 512), ("8G", 8192), ("1.5g", 1536), ("2 GiB", 2048), ("100MB", 100), (" 1m ", 1)],
)
def test_sizes_are_binary(text: str, expected: float) -> None:
    """A GB of memory is a GiB to everybody but disks."""
    assert expected == mebibytes(text)


@pytest.mark.parametrize("text", ["", "512", "-1G", "1T", "G", "1e3M", "8 G B"])
def test_other_sizes_are_refused(text: str) -> None:
    """A bare number might be bytes."""
    with pytest.raises(UsageError, match="is no size"):
        mebibytes(text)


def test_the_limits_of_a_trial_reach_the_options() -> None:
    """In seconds and MiB; without the flags there are none."""
    limited = options("--trial-timeout", "15m", "--trial-memory", "8G", "--isolate", "always")
    assert (900.0, 8192.0, "always") == (
        limited.trial_timeout_s,
        limited.trial_memory_mib,
        limited.isolate,
    )
    assert (None, None, "auto") == (
        options().trial_timeout_s,
        options().trial_memory_mib,
        options().isolate,
    )


def test_forecasts_are_computed_where_it_is_said() -> None:
    """Where nothing is said, the run finds out."""
    asked = [options("--forecast-on", where).forecast_on for where in ("cpu", "cuda")]
    assert ["cpu", "cuda", "auto"] == [*asked, options().forecast_on]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trial-timeout", "60", "--isolate", "never"], "--trial-timeout needs trials in child"),
        (["--trial-memory", "8G", "--isolate", "never"], "--trial-memory needs trials in child"),
        (["--trial-timeout", "0"], "--trial-timeout"),
        (["--trial-memory", "0M"], "'0M' is no size; write it as 8G"),
        (["--trial-timeout", "soon"], "soon"),
    ],
)
def test_limits_that_cannot_hold_are_refused(arguments: list[str], said: str) -> None:
    """In one line, as wrong usage."""
    with pytest.raises(UsageError) as error:
        options(*arguments)
    assert said in error.value.one_line()
    assert ExitCode.USAGE is error.value.exit_code
