"""From an answer to the reasons for it, and to what would change it."""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import onnx

from precision_bisect.explaining.advice.advise import advised
from precision_bisect.explaining.advice.case import DiagnosedModel, Variants
from precision_bisect.explaining.diagnosis.diagnose import Question, diagnose
from precision_bisect.explaining.diagnosis.findings import Finding, Findings
from precision_bisect.explaining.diagnosis.near import NearMiss, near_misses
from precision_bisect.explaining.diagnosis.watched_tensors import WatchedTensors
from precision_bisect.graphs.load import Model
from precision_bisect.graphs.node_views import View
from precision_bisect.pipeline.prepare import Prepared
from precision_bisect.runs.results.certificates import Certificate
from precision_bisect.trial import Trial

UNSEEN = 32
"""Samples that chose nothing which advice is judged on, at most. A bound on time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan to explain, by names, with its error; `proof` and `trials` are the search's.

    `culprits` are explained, too, and in place of near misses where nothing was `found` that
    holds. If it is `late`, only values of one FP32 run explain, and
    nothing is tried. Advice may take `advice_s` seconds.
    """

    kept: Sequence[str]
    proof: Certificate
    trials: Sequence[Trial]
    error: float | None
    culprits: Sequence[str] = ()
    found: bool = True
    late: bool = False
    advice_s: float = math.inf


class Explained(NamedTuple):
    """Findings on kept layers and near misses, with advice; and on other culprits."""

    findings: Findings
    culprits: Sequence[Finding] = ()


def explained(prepared: Prepared, answer: Answer) -> Explained:
    """Explain the kept layers, the near misses and the culprits, and advise.

    The answer stands without an explanation: where explaining fails, nothing is found.
    """
    near = (
        near_misses(
            [str(name) for name in prepared.model.table.names],
            answer.kept,
            answer.trials,
            tolerance=prepared.comparator.tolerance,
            error=answer.error,
        )
        if answer.found
        else {}
    )
    wanted = list(dict.fromkeys([*near, *answer.culprits]))
    try:
        findings, watched = diagnose(_question(prepared, answer, wanted))
    except (KeyboardInterrupt, Exception):  # whatever is wrong in here, the search is done
        return Explained(Findings(low=prepared.options.low))
    if not answer.found:
        told, others = list(findings.layers), []
    else:
        own = {*near, *(each.layer for each in findings.layers if each.kept)}
        told = [_with_miss(each, near) for each in findings.layers if each.layer in own]
        others = [each for each in findings.layers if each.layer not in own]
    findings = replace(findings, layers=told, answered=answer.found)
    if answer.late:
        return Explained(findings, others)
    with suppress(KeyboardInterrupt, Exception):
        findings = with_advice(prepared, findings, watched, answer.trials, answer.advice_s)
    return Explained(findings, others)


def explain_layers(prepared: Prepared, layers: Sequence[str], *, late: bool) -> Sequence[Finding]:
    """Return what is found of layers whatever the answer keeps; nothing where that fails.

    If it is `late`, they are judged by their values alone.
    """
    nothing = Certificate(minimal=False, checked=(), unchecked=(), mode="none")
    asked = Answer(kept=(), proof=nothing, trials=(), error=None, late=late)
    try:
        findings, _ = diagnose(_question(prepared, asked, layers))
    except (KeyboardInterrupt, Exception):  # as above
        return ()
    return findings.layers


def with_advice(
    prepared: Prepared,
    findings: Findings,
    watched: WatchedTensors,
    trials: Sequence[Trial] = (),
    most_s: float = math.inf,
) -> Findings:
    """Return the findings with advice. Raises as loading and running models do."""
    builds = [each.outcome.evidence for each in trials]
    with tempfile.TemporaryDirectory(dir=prepared.work) as work:
        return advised(
            DiagnosedModel(
                model=prepared.model,
                pair=prepared.pair,
                findings=findings,
                watched=watched,
                samples=prepared.samples,
                calibrating=prepared.sets.judging,
                reference=prepared.reference,
                comparator=prepared.comparator,
                work=Path(work),
                notes=[*dict.fromkeys(note for each in builds for note in each.notes)],
                listed=[*dict.fromkeys(one for each in builds for one in each.listed)],
                threads=prepared.options.threads,
                at_once=prepared.at_once,
                scales=prepared.scales,
                targets=prepared.options.targets,
                calibration=prepared.options.calibration,
                variants=Variants(
                    unseen=prepared.sets.unseen(UNSEEN),
                    copies=prepared.copies,
                    until=time.monotonic() + most_s,
                ),
            ),
            most_s,
        )


def _with_miss(finding: Finding, near: Mapping[str, NearMiss]) -> Finding:
    """Return the finding with the layer's share of the tolerance, if it is a near miss."""
    miss = near.get(finding.layer)
    if miss is None:
        return finding
    return replace(
        finding,
        evidence=f"{finding.evidence}; {miss.words}",
        figures={**finding.figures, **miss.figures},
    )


def _question(prepared: Prepared, answer: Answer, near: Sequence[str]) -> Question:
    return Question(
        model=prepared.model,
        pair=prepared.pair,
        kept=answer.kept,
        near=near,
        tensors=squares(prepared.model),
        samples=prepared.samples,
        drop_errors=answer.proof.errors,
        threads=prepared.options.threads,
        scales=prepared.scales,
        targets=prepared.options.targets,
        # Where rounding is spread, no layer is the cause: what FP32 values show is enough.
        brief=answer.late or answer.proof.spread,
        choices=not answer.late,
    )


def squares(model: Model) -> list[str]:
    """Return the FP32 tensors that hold squares, which advice on scaling looks at."""
    view = View(model)
    return [
        node.output[0]
        for node in view.nodes
        if (operand := view.squared(node))
        and view.array(operand) is None
        and model.elem_types.get(node.output[0]) == onnx.TensorProto.FLOAT
    ]
