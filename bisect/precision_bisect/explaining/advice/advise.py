"""All advice on a diagnosed model."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from precision_bisect.explaining.advice.case import DiagnosedModel
from precision_bisect.explaining.advice.circumstances import (
    builder_warnings,
    chosen_rows,
    never_reached,
    quantized_beside,
)
from precision_bisect.explaining.advice.exact_constants import epsilons, masks
from precision_bisect.explaining.advice.quantizing import (
    bf16_instead,
    calibration,
    fp16_instead,
    smoothing,
)
from precision_bisect.explaining.advice.scaling import in_pieces, scaling
from precision_bisect.explaining.diagnosis.findings import Advice, Findings
from precision_bisect.graphs.lowtypes import QUANTIZED

Adviser: TypeAlias = Callable[[DiagnosedModel], Iterator[Advice]]

CURES: Sequence[Adviser] = (in_pieces, masks, epsilons, scaling, smoothing)
"""Those that change the model. Of two that help, the one that leaves fewer layers comes first."""
ADVISERS: Sequence[Adviser] = (
    in_pieces,
    masks,
    epsilons,
    scaling,
    chosen_rows,
    bf16_instead,
    quantized_beside,
    builder_warnings,
    never_reached,
)
"""Those first whose advice removes the need for good."""
EIGHT_BIT_ADVISERS: Sequence[Adviser] = (
    smoothing,
    calibration,
    fp16_instead,
    chosen_rows,
    quantized_beside,
    builder_warnings,
    never_reached,
)
"""The same for INT8 and FP8."""


def advised(case: DiagnosedModel) -> Findings:
    """Return the findings with advice, and with its ids at the layers that it would help.

    No further advice is tried once the case's allowance is spent. What changes nothing for its
    plan is no advice.
    """
    advisers = EIGHT_BIT_ADVISERS if case.pair.low in QUANTIZED else ADVISERS
    cures, others = list[Advice](), list[Advice]()
    for adviser in advisers:
        if not case.variants.allowance.spent:
            advice = (entry for entry in adviser(case) if not (entry.tried and entry.tried.idle))
            (cures if adviser in CURES else others).extend(advice)
    # The fewer layers stay kept, the better; what does not hold comes last.
    cures.sort(key=lambda entry: entry.tried.kept if entry.tried and entry.holds else math.inf)
    ordered = [*cures, *others]
    layers = [
        replace(
            finding,
            advice=list(dict.fromkeys(one.id for one in ordered if finding.layer in one.layers)),
        )
        for finding in case.findings.layers
    ]
    return replace(case.findings, layers=layers, advice=ordered)
