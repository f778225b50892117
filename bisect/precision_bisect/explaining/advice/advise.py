"""All advice on a diagnosed model."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, NamedTuple

from precision_bisect.explaining.advice.circumstances import (
    builder_warnings,
    chosen_rows,
    never_reached,
    quantized_beside,
)
from precision_bisect.explaining.advice.diagnosed_model import Advising, DiagnosedModel
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
from precision_bisect.machine.stopping import Stopped
from precision_bisect.protocols import Search


class Adviser(NamedTuple):
    """What yields advice on a model, for low types of so many `bits`, 0 for all.

    A `cure` changes the model: of two that help, the one that leaves fewer layers comes first.
    """

    advise: Callable[[DiagnosedModel], Advising]
    bits: Literal[8, 16, 0] = 0
    cure: bool = False


ADVISERS: Sequence[Adviser] = (
    Adviser(in_pieces, 16, cure=True),
    Adviser(masks, 16, cure=True),
    Adviser(epsilons, 16, cure=True),
    Adviser(scaling, 16, cure=True),
    Adviser(smoothing, 8, cure=True),
    Adviser(calibration, 8),
    Adviser(fp16_instead, 8),
    Adviser(chosen_rows),
    Adviser(bf16_instead, 16),
    Adviser(quantized_beside),
    Adviser(builder_warnings),
    Adviser(never_reached),
)
"""Those first whose advice removes the need for good."""


def advised(net: DiagnosedModel) -> Search[Findings]:
    """Return the findings with advice, and with its ids at the layers that it would help.

    No further advice is tried once the case's allowance is spent. What changes nothing for its
    plan is no advice.
    """
    cures, others = list[Advice](), list[Advice]()
    bits = 8 if net.case.pair.low in QUANTIZED else 16
    for advise, for_bits, cure in ADVISERS:
        if for_bits in (0, bits) and not net.variants.allowance.spent:
            with suppress(Stopped):  # what was tried before stays
                yield from _collected(advise(net), cures if cure else others)
    # The fewer layers stay kept, the better; what does not hold comes last.
    cures.sort(key=lambda entry: entry.tried.kept if entry.tried and entry.holds else math.inf)
    ordered = [*cures, *others]
    layers = [
        replace(
            finding,
            advice=list(dict.fromkeys(one.id for one in ordered if finding.layer in one.layers)),
        )
        for finding in net.findings.layers
    ]
    return replace(net.findings, layers=layers, advice=ordered)


def _collected(advising: Advising, advice: list[Advice]) -> Search[None]:
    """Return the search without its advice, which is added to the list where it changes a plan."""
    with suppress(StopIteration):
        step = next(advising)
        while True:
            if isinstance(step, Advice):
                if not (step.tried and step.tried.idle):
                    advice.append(step)
                step = advising.send(())
                continue
            try:
                outcomes = yield step
            except BaseException as error:  # as in `feed`
                step = advising.throw(error)
            else:
                step = advising.send(outcomes)
