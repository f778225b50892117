"""A run folder whose report is opened by several tests."""

from math import inf
from pathlib import Path

import run_folders
from precision_bisect.explaining.diagnosis.findings import (
    Advice,
    Birth,
    Findings,
    Histogram,
    Hurt,
)
from precision_bisect.runs.results.causes import Cause
from precision_bisect.runs.runfolder import DIAGNOSIS
from precision_bisect_reports.html.page import write_report

NAMES = run_folders.names(80)
KEPT = (3, 12, 47)
LONG = "/module" * 40


def write_report_of_80(folder: Path) -> Path:
    """Write the report of a timed run of 80 layers with a diagnosis."""
    folder = run_folders.write_run(folder, NAMES, KEPT, timed=True)
    counts = {"inputs": [0, 5, 90, 5], "outputs": [0, 0, 40, 60], "weights": []}
    entries = [
        run_folders.finding(
            NAMES[layer],
            f"evidence of {cause}",
            cause=cause,
            figures={"largest": 141000.0},
            histogram=Histogram(lowest_exponent=14, counts=counts),
            hurts=Hurt(
                output="y",
                error=inf,
                path=[NAMES[layer], NAMES[layer + 1]],
                errors=[inf, 0.125],
            ),
        )
        for layer, cause in zip(
            KEPT, (Cause.OVERFLOW, Cause.OVERFLOW, Cause.UNDERFLOW), strict=True
        )
    ]
    advice = [Advice(id="a", title="Do it", text=LONG, layers=[NAMES[3]], evidence="e")]
    spread = [Birth(layer=NAMES[3], born="inf", path=[NAMES[3], NAMES[4]], output=None)]
    told = Findings(low="fp16", layers=entries, spread=spread, advice=advice)
    (folder / DIAGNOSIS).write_text(told.to_text())
    return write_report(folder)
