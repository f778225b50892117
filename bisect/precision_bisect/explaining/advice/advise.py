"""All advice on a diagnosed model."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from precision_bisect.explaining.advice.case import DiagnosedModel
from precision_bisect.explaining.advice.circumstances import (
    already_rounded,
    builder_warnings,
    never_reached,
)
from precision_bisect.explaining.advice.exact_constants import epsilons, masks
from precision_bisect.explaining.advice.pieces import in_pieces
from precision_bisect.explaining.advice.quantizing import calibration, fp16_instead, smoothing
from precision_bisect.explaining.advice.ranges import bf16_instead
from precision_bisect.explaining.advice.scaling import scaling
from precision_bisect.explaining.diagnosis.findings import Advice, Findings
from precision_bisect.graphs.lowtypes import QUANTIZED

ADVISERS: Sequence[Callable[[DiagnosedModel], Iterator[Advice]]] = (
    in_pieces,
    masks,
    epsilons,
    scaling,
    bf16_instead,
    already_rounded,
    builder_warnings,
    never_reached,
)
"""Those first whose advice removes the need for good."""
EIGHT_BIT_ADVISERS: Sequence[Callable[[DiagnosedModel], Iterator[Advice]]] = (
    smoothing,
    calibration,
    fp16_instead,
    already_rounded,
    builder_warnings,
    never_reached,
)
"""The same for INT8 and FP8."""


def advised(case: DiagnosedModel, most_s: float = math.inf) -> Findings:
    """Return the findings with advice, and with its ids at the layers that it would help.

    No further advice is tried once that has taken `most_s` seconds.
    """
    advisers = EIGHT_BIT_ADVISERS if case.pair.low in QUANTIZED else ADVISERS
    begun, advice = time.monotonic(), list[Advice]()
    for adviser in advisers:
        if time.monotonic() - begun < most_s:
            advice.extend(adviser(case))
    layers = [
        replace(
            finding,
            advice=list(dict.fromkeys(one.id for one in advice if finding.layer in one.layers)),
        )
        for finding in case.findings.layers
    ]
    return replace(case.findings, layers=layers, advice=advice)
