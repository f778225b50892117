"""The final screen of a run, as text."""

import io
import math
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.results.certificates import Certificate, How, Need
from precision_bisect.runs.results.deployment import Deployment, Recheck
from precision_bisect.runs.results.endings import Status
from precision_bisect.runs.results.result import Diagnosis, Result, Rung
from precision_bisect.trial import TrialStatus
from precision_bisect_reports.summary import MOST_LINES, WIDTH, final_screen

KEPT = ("/a/norm/Pow", "/a/norm/Mean", "/b/Sqrt", "Top")
RESULT = Result(
    status=Status.FOUND,
    backend="emulated",
    emulated=True,
    low="fp16",
    high="fp32",
    tolerance=1e-2,
    error=5e-3,
    noise_floor=0.0,
    layers_total=20,
    candidates=10,
    kept=KEPT,
    rungs=(
        Rung(precision="fp32", layers=KEPT, count=4),
        Rung(precision="fp16", layers=None, count=6),
    ),
    layer_precisions="/a/norm/Pow:fp32",
    layer_precisions_reason=None,
    certificate=Certificate(minimal=True, checked=KEPT, unchecked=()),
    trials=9,
    builds=0,
    evaluations=19,
    wall_s=2.5,
    latency_ms=None,
    honoured=None,
    diagnosis=(Diagnosis(layer="/a/norm/Pow", cause=Cause.OVERFLOW, evidence="reaches 1e5"),),
    fingerprint={},
    message="4 of 10 layers",
    out=Path("my run"),
)
ENGINE = replace(RESULT, emulated=False, backend="onnxruntime")
FITS = Recheck(outcome="not_judged", message="4 samples fit; the target has to judge")
DEPLOYMENT = Deployment(
    provider_options={},
    session_config={},
    samples=4,
    samples_total=4,
    polygraphy="polygraphy run model.mixed.onnx --trt --atol 0.01",
    recheck=FITS,
)


def screen(
    result: Result, model: str = "my model.onnx", width: int = WIDTH, most: float = MOST_LINES
) -> str:
    """Return the screen as plain text."""
    stream = io.StringIO()
    console = Console(file=stream, soft_wrap=True, highlight=False)
    for part in final_screen(result, Path(model), width, most=most):
        console.print(part)
    return stream.getvalue()


def words(result: Result) -> str:
    """Return the words of the whole screen, as -v has it, however they are folded."""
    return " ".join(screen(result, most=math.inf).split())


def need(
    layer: str,
    needed: bool | None,
    how: How | None,
    reason: str = "",
    status: TrialStatus | None = None,
) -> Need:
    """Return what is known of a layer."""
    return Need(layer=layer, needed=needed, how=how, reason=reason, status=status)
