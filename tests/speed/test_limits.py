"""Speed limits: what they ask for, and which are refused in one line."""

from pathlib import Path

import pytest

import tiny
from precision_bisect.commandline.main import main
from precision_bisect.errors import ExitCode, UsageError
from precision_bisect.plan_costs import Pace, SpeedLimits
from precision_bisect.trial import Latency


def test_milliseconds_are_a_speed_up_over_all_high() -> None:
    """Both limits are one: the stricter of the two."""
    assert 4.0 == SpeedLimits(max_latency_ms=2.0).needed(8.0)
    assert 5.0 == SpeedLimits(max_latency_ms=2.0, min_speedup=5.0).needed(8.0)
    assert 4.0 == SpeedLimits(max_latency_ms=2.0, min_speedup=1.5).needed(8.0)
    assert 0.0 == SpeedLimits().needed(8.0)


def test_a_latency_measured_alone_is_set_against_the_preflight() -> None:
    """Ledgers from before there was a baseline are still of use, with their spread."""
    pace = Pace.of(Latency(median_ms=2.0, spread_ms=0.1, runs=50), 6.0)
    assert pace is not None
    assert 3.0 == pace.speedup
    assert 0.15 == pytest.approx(pace.spread)


def test_faster_means_beyond_both_spreads() -> None:
    """A difference that the spreads explain is none."""
    slow = Pace(speedup=1.0, spread=0.05)
    assert not Pace(speedup=1.09, spread=0.05).beats(slow)
    assert Pace(speedup=1.11, spread=0.05).beats(slow)
    assert Pace(speedup=1.05, spread=0.1).is_close_to(1.1)
    assert not Pace(speedup=1.05, spread=0.04).is_close_to(1.1)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("limit", ["max_latency_ms", "min_speedup"])
def test_limits_are_figures_above_zero(limit: str, value: float) -> None:
    """Anything else is refused by the name of the flag."""
    with pytest.raises(UsageError, match=r"^--m.* is not a figure above zero"):
        SpeedLimits(**{limit: value})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--min-speedup", "1.5"], "the emulator has none"),
        (["--max-latency", "3", "--backend", "emulated"], "onnxruntime (on CUDA), tensorrt or"),
        (["--max-latency", "0"], "--max-latency 0 is not a figure above zero"),
        (["--optuna-storage", "sqlite:///x.db"], "is for --strategy pareto"),
        (["--min-speedup", "1.5", "--ladder", "int8,fp16,fp32"], "not for a --ladder"),
    ],
)
def test_what_cannot_work_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """Exit code 2, nothing written, and a line that says what to do."""
    model = tiny.write_model(tmp_path / "tiny.onnx")
    backend = [] if "--backend" in arguments else ["--backend", "emulated"]
    code = main([str(model), *arguments, *backend, "--out", str(tmp_path / "run")])
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert ExitCode.USAGE == code
    assert error.startswith("precision-bisect: ")
    assert said in error
    assert not (tmp_path / "run").exists()
